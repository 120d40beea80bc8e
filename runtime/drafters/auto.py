"""Which drafters `auto` is made of.

A verdict of `specedge bench` for this model, device and number of threads is followed. Without one `auto` takes every
drafter that the model can have, as a cascade, which keeps account of the time while it runs and silences what does not
pay. There are two exceptions: no drafter where rows cost so much that hardly any draft could pay, and no draft model,
since an encoder of its own takes longer than a short window's passes: for that a verdict is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..device import CostTable, Profile
from ..verdict import PLAIN, BenchVerdict

__all__ = ["CASCADE", "Choice", "choose", "quickest_threads"]

CASCADE = "cascade"
_N_TOKENS = 20  # of a usual window, a short sentence or two
_USUAL_RATE = 0.6  # of accepted drafts
_LEAST_SPEED = 1.1  # that drafts accepted so often must promise by T(k), drafting aside
_NEEDS_VERDICT = "draft"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Names of drafters, the cheapest first, () for none; reason: why, in a line."""

    sources: tuple[str, ...]
    reason: str


def choose(
    able: Sequence[str],
    costs: CostTable,
    *,
    threads: int,
    profiles: Mapping[int, Profile],
    verdict: BenchVerdict | None = None,
    token_maps: Sequence[str] = (),
) -> Choice:
    """Return the choice among `able`, the cheapest first; costs: T(k) of the target.

    profiles: what `specedge calibrate` measured here, by number of threads; verdict: for this number of threads;
    token_maps: absolute paths of the maps that are given, () for the model's own.
    """
    with_threads = _threads_said(threads, profiles)
    if verdict is not None and _is_about(verdict, able, token_maps):
        return Choice(sources=_of_verdict(verdict, able), reason=f"{_verdict_said(verdict)}; {with_threads}")
    speed = costs.speed(costs.best_length(_USUAL_RATE), _USUAL_RATE)
    if speed < _LEAST_SPEED:
        said = f"no drafter, since rows cost so much here that drafts promise {speed:.2f} times plain decoding"
        return Choice(sources=(), reason=f"{said}; {with_threads}")
    chosen = tuple(name for name in able if name != _NEEDS_VERDICT)
    said = f"{', '.join(chosen) or 'no drafter'}: all that this model has"
    if _NEEDS_VERDICT in able:
        said += " but draft, which takes an encoder of its own"
    if threads not in profiles:
        said += " (not calibrated; run `specedge calibrate`)"
    return Choice(sources=chosen, reason=f"{said}; {with_threads}")


def quickest_threads(profiles: Mapping[int, Profile]) -> int | None:
    """Return the number of threads with which a usual window took least; None where fewer than two were measured."""
    if len(profiles) < 2:
        return None
    return min(profiles, key=lambda threads: profiles[threads].encode_s + _N_TOKENS * profiles[threads].pass_s[1])


def _is_about(verdict: BenchVerdict, able: Sequence[str], token_maps: Sequence[str]) -> bool:
    """Whether a verdict is about what could be chosen now."""
    if verdict.drafter in (PLAIN, CASCADE):
        return verdict.drafter == PLAIN or verdict.token_maps == tuple(token_maps)
    return verdict.drafter in able and (not token_maps or verdict.token_maps == tuple(token_maps))


def _of_verdict(verdict: BenchVerdict, able: Sequence[str]) -> tuple[str, ...]:
    if verdict.drafter == PLAIN:
        return ()
    return tuple(able) if verdict.drafter == CASCADE else (verdict.drafter,)


def _verdict_said(verdict: BenchVerdict) -> str:
    rounds = f"{verdict.rounds} rounds of {verdict.audio_s:.0f} s"
    if verdict.drafter == PLAIN:
        return f"no drafter, since `specedge bench` found none quicker than plain decoding here ({rounds})"
    speed = f"{verdict.decoder_speed_up:.2f} times plain decoding"
    return f"{verdict.drafter}, which `specedge bench` found {speed} here ({rounds})"


def _threads_said(threads: int, profiles: Mapping[int, Profile]) -> str:
    said = f"{threads} thread{'s' if threads != 1 else ''}"
    if quickest_threads(profiles) == threads:
        return f"{said}, the quickest of {', '.join(str(n) for n in sorted(profiles))}"
    return said
