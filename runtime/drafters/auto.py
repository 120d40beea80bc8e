"""Which drafters `auto` is made of: what was measured on this device says, and where nothing was, what rows cost.

A verdict of `specedge bench` for this model, device and number of threads is followed. Without one every drafter that
the model can have is priced by T(k), as `specedge calibrate` measured it, under assumptions of how often its drafts
come true and what drafting takes; what promises less than 15 % is left out. The assumptions are rough: they only decide
who may try. What is chosen drafts as a cascade, which keeps account of the time while it runs and silences what does
not pay. Where passes are quick, that alone takes more than several drafters bring beside each other, and the most
promising one drafts by itself. It is not tried against others: text and clock scatter so much from window to window
that telling drafters apart by a twentieth takes most of the windows that it could save in. `specedge bench` has both
decode the same windows.

Source: algorithms 2.4, 2.5, 3.2. Does not know: how drafters are made, how anything is measured.

One drafter under another name, with why it was chosen: `auto` where a cascade would take more than it brings.

Does not know: who chose, what it drafts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..device import CostTable, Profile
from ..verdict import BenchVerdict

__all__ = ["CASCADE", "Choice", "Promise", "choose", "promise", "quickest_threads"]

CASCADE, _PLAIN = "cascade", "none"
_N_TOKENS = 20  # of a window: a short sentence or two, so that what hears windows has to be quick
_LEAST_PROMISE = 1.15  # for the assumptions are rough, and trying takes time too
_QUICK_S = 3e-3  # a pass of one row; a cascade takes up to 50 us for each
_USUAL_ENCODE = 25.0  # passes of one row that the encoder takes for a window, where nobody measured it


@dataclass(frozen=True)
class _Assumed:
    """How often a draft's token comes true; the share of passes that have a draft; seconds and passes of one row that
    a draft takes; of a window seconds, and the share of its encoder's time."""

    rate: float
    share: float = 1.0
    draft_s: float = 0.0
    draft_passes: float = 0.0
    window_s: float = 0.0
    window_share: float = 0.0


# Set so that promises come out as decoders were measured (docs/experiments, 2026-11-23) on the demo, base, small and
# large-v2; heads also make the pass behind them dearer. Seconds are of a device that reads 10 GB of weights in one.
_ASSUMED = {
    "ngram": _Assumed(rate=0.5, share=0.35, draft_s=2e-5),
    "tokenmap": _Assumed(rate=0.45, share=0.8, draft_s=1e-4),
    "ctc": _Assumed(rate=0.8, draft_s=2e-4, window_s=4.5e-3, window_share=0.03),
    "mtp-latent": _Assumed(rate=0.5, draft_s=8e-5, draft_passes=0.15),
    "mtp-projection": _Assumed(rate=0.45, draft_s=8e-5, draft_passes=0.2),
    "medusa-linear": _Assumed(rate=0.5, draft_s=8e-5, draft_passes=0.2),
    "medusa-block": _Assumed(rate=0.6, draft_s=1.8e-4, draft_passes=0.25, window_s=4e-4),
    "draft": _Assumed(rate=0.75, draft_passes=0.25, window_share=0.3),
}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Names of drafters, the cheapest first, () for none; reason: why, in a line; is_cascade: whether they go as one
    cascade, also where there is but one or none: that has drafts of its own."""

    sources: tuple[str, ...]
    reason: str
    is_cascade: bool = True


@dataclass(frozen=True)
class Promise:
    """How many times as fast as plain decoding a drafter may be, and with how many tokens a draft."""

    speed: float
    n_draft: int


def choose(
    able: Sequence[str],
    costs: CostTable,
    *,
    threads: int,
    profiles: Mapping[int, Profile],
    verdict: BenchVerdict | None = None,
    token_maps: Sequence[str] = (),
    usual_pass_s: float = 0.0,
) -> Choice:
    """The choice among `able`, the cheapest first; costs: T(k) of the target.

    profiles: what was measured here, by number of threads; verdict: for this number of threads; token_maps: absolute
    paths of the maps that are given, () for the model's own; usual_pass_s: what a pass of one row of such a model takes
    on a usual device, 0 where nobody knows.
    """
    with_threads = _threads_said(threads, profiles)
    profile = profiles.get(threads)
    pass_s = usual_pass_s if profile is None else profile.pass_s[1]
    is_quick = 0 < pass_s < _QUICK_S
    if verdict is not None and _is_about(verdict, able, token_maps):
        return Choice(
            sources=_of_verdict(verdict, able),
            reason=f"{_verdict_said(verdict)}; {with_threads}",
            is_cascade=verdict.drafter == CASCADE or not is_quick,
        )
    # What takes seconds takes more of them on a slow device, as passes do, and a calibration may have been held up.
    encode = 0.0 if profile is None else profile.encode_s / pass_s
    promises = {name: promise(name, costs, usual_pass_s or pass_s, encode) for name in able}
    chosen = tuple(name for name in able if promises[name].speed >= _LEAST_PROMISE)
    if is_quick and chosen:
        chosen = (max(chosen, key=lambda name: promises[name].speed),)
    said = [f"{name} {promises[name].speed:.2f}x with {promises[name].n_draft} tokens" for name in chosen]
    said += [f"not {name} {promises[name].speed:.2f}x" for name in able if name not in chosen]
    by = "what rows cost here" if profile is not None else "a usual device's costs, for want of `specedge calibrate`"
    reason = f"{', '.join(chosen) or 'no drafter'} by {by} ({', '.join(said) or 'there is none'}); {with_threads}"
    return Choice(sources=chosen, reason=reason, is_cascade=not is_quick)


def promise(name: str, costs: CostTable, pass_s: float, encode: float) -> Promise:
    """What a drafter may bring under the assumptions.

    pass_s: seconds of a pass of one row where these were seen, 0 to count passes alone; encode: passes of one row that
    the encoder takes for a window; both are 0 where nobody knows.
    """
    assumed = _ASSUMED[name]
    draft, window = assumed.draft_passes, assumed.window_share * (encode or _USUAL_ENCODE)
    if pass_s:
        draft += assumed.draft_s / pass_s
        window += assumed.window_s / pass_s
    # Time that does not grow with the draft is paid once a pass, for a draft model once a token.
    each = draft if name == "draft" else 0.0
    n_draft = costs.best_length(assumed.rate, each)
    if not n_draft:
        return Promise(1.0, 0)
    a_pass = 1 + assumed.share * (costs.cost(n_draft + 1) - 1) + (n_draft * each or draft)
    tokens = 1 + assumed.share * (costs.speed(n_draft, assumed.rate) * costs.cost(n_draft + 1) - 1)
    return Promise(_N_TOKENS / (_N_TOKENS / tokens * a_pass + window), n_draft)


def quickest_threads(profiles: Mapping[int, Profile]) -> int | None:
    """The number of threads with which a usual window took least; None where fewer than two were measured."""
    if len(profiles) < 2:
        return None
    return min(profiles, key=lambda threads: profiles[threads].encode_s + _N_TOKENS * profiles[threads].pass_s[1])


def _is_about(verdict: BenchVerdict, able: Sequence[str], token_maps: Sequence[str]) -> bool:
    """Whether a verdict is about what could be chosen now."""
    if verdict.drafter in (_PLAIN, CASCADE):
        return verdict.drafter == _PLAIN or verdict.token_maps == tuple(token_maps)
    return verdict.drafter in able and (not token_maps or verdict.token_maps == tuple(token_maps))


def _of_verdict(verdict: BenchVerdict, able: Sequence[str]) -> tuple[str, ...]:
    if verdict.drafter == _PLAIN:
        return ()
    return tuple(able) if verdict.drafter == CASCADE else (verdict.drafter,)


def _verdict_said(verdict: BenchVerdict) -> str:
    rounds = f"{verdict.rounds} rounds of {verdict.audio_s:.0f} s"
    if verdict.drafter == _PLAIN:
        return f"no drafter, since `specedge bench` found none quicker than plain decoding here ({rounds})"
    speed = f"{verdict.decoder_speed_up:.2f} times plain decoding"
    return f"{verdict.drafter}, which `specedge bench` found {speed} here ({rounds})"


def _threads_said(threads: int, profiles: Mapping[int, Profile]) -> str:
    said = f"{threads} thread{'s' if threads != 1 else ''}"
    if quickest_threads(profiles) == threads:
        return f"{said}, the quickest of {', '.join(str(n) for n in sorted(profiles))}"
    return said
