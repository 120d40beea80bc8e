"""What `specedge bench` found: as a table of a terminal, and as one JSON object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from ..device import device_fields
from ..output.report import aligned
from .measure import Findings, Row
from .recommendation import PLAIN, Spread

_FEWEST_CELLS, _MOST_CELLS = 8, 28


def conditions(findings: Findings) -> str:
    manifest, row = findings.bundle.manifest, findings.rows[PLAIN]
    n_files, n_rounds = len(findings.files), findings.n_rounds
    return (
        f"{manifest.name}, {manifest.precision}, {findings.threads} thread{'s' if findings.threads > 1 else ''}: "
        f"{n_files} file{'s' if n_files > 1 else ''}, {row.audio_s:.1f} s of audio, {row.tokens} tokens, "
        f"{n_rounds} round{'s' if n_rounds > 1 else ''} after a warm-up"
    )


def table(findings: Findings, columns: int, *, blocks: bool = True) -> list[str]:
    """Lines of at most `columns` characters, the quickest drafter first and those that drafted nothing last.

    A bar is full up to the slowest of the usual rounds and light up to the quickest. blocks: False draws it in ASCII.
    """
    rows = sorted(findings.rows.values(), key=lambda row: (not takes_part(row), -row.decoder_speed_up.median))
    longest = max(row.decoder_speed_up.usual[1] for row in rows if takes_part(row))
    narrow = [["drafter", "decoder", "", "end to end", "tok/pass", "accepted", "text"], *map(_cells, rows)]
    room = columns - max(map(len, aligned(narrow)))
    n_cells = max(min(room, _MOST_CELLS), _FEWEST_CELLS)
    for line, row in zip(narrow[1:], rows, strict=True):
        if takes_part(row):
            line[2] = f"{_bar(row.decoder_speed_up, longest, n_cells, blocks):<{n_cells}}"
    return aligned(narrow)


def takes_part(row: Row) -> bool:
    """Whether its time says anything about drafting: a drafter that drafted nothing is plain decoding with scatter."""
    return row.has_drafted or row.drafter == PLAIN


def _cells(row: Row) -> list[str]:
    tokens = "-" if row.tokens_per_pass is None else f"{row.tokens_per_pass:.2f}"
    text = "dropped" if row.dropped is not None else "same" if row.different == 0 else "DIFFERS"
    if not takes_part(row):
        return [row.drafter, "-", "", "-", tokens, "nothing", text]
    accepted = "-" if row.acceptance is None else f"{row.acceptance:.0%}"
    decoder, end_to_end = f"{row.decoder_speed_up.median:.2f}x", f"{row.end_to_end.median:.2f}x"
    return [row.drafter, decoder, "", end_to_end, tokens, accepted, text]


def _bar(speed: Spread, longest: float, n_cells: int, blocks: bool) -> str:
    full, light = ("█", "░") if blocks else ("#", "-")
    least, greatest = (round(n_cells * value / longest) for value in speed.usual)
    return full * least + light * (greatest - least)


def remarks(findings: Findings) -> Sequence[str]:
    """Sentences that belong to the table: what was left out, what failed, a busy machine."""
    found = []
    less = _less(findings)
    if less:
        found.append(f"to stay within {findings.budget_s:g} s (--budget), less was measured: {'; '.join(less)}")
    for name, row in findings.rows.items():
        if row.dropped is not None:
            found.append(f"the drafter {name} failed and was dropped: {row.dropped}")
        if row.different:
            found.append(f"the text of {name} differs from plain decoding: run `specedge doctor`, and please report it")
    if findings.was_busy:
        least_s, greatest_s = findings.rows[PLAIN].decoder_s.usual
        found.append(
            f"this machine was busy: plain decoding took {least_s:.3f} to {greatest_s:.3f} s in a round; close other "
            "programs and measure again"
        )
    idle = [name for name, row in findings.rows.items() if not takes_part(row)]
    if idle:
        found.append(f"these drafters proposed nothing: {', '.join(idle)}")
    if findings.profile is None:
        found.append(
            "drafters used the built-in table of costs; `doctor --calibrate` measures this device, which may change "
            "the figures"
        )
    return found


def _less(findings: Findings) -> list[str]:
    """What was measured less often than asked for, or not at all."""
    plan, n_files, n_windows = findings.plan, len(findings.files), findings.n_windows
    parts = []
    if n_windows is not None:
        last = f"{n_windows} window{'s' if n_windows > 1 else ''} of {findings.files[-1]}"
        parts.append(f"the first {findings.rows[PLAIN].audio_s:.1f} s of the audio, up to {last}")
    elif n_files < len(plan.files):
        parts.append(f"{n_files} of {len(plan.files)} files")
    if findings.n_rounds < plan.n_rounds:
        parts.append(f"{findings.n_rounds} of {plan.n_rounds} rounds")
    for name, why in findings.fewer.items():
        rounds = findings.rows[name].rounds if name in findings.rows else 0
        parts.append(f"{name} in {rounds or 'no'} round{'' if rounds == 1 else 's'} ({why})")
    return parts


def to_json(findings: Findings) -> dict[str, Any]:
    """Conditions, figures of each drafter, and the recommendation. Spreads are [median, least, greatest]."""
    manifest, profile, chosen = findings.bundle.manifest, findings.profile, findings.recommendation
    return {
        "benchmark": "specedge bench",
        "model": manifest.name,
        "precision": manifest.precision,
        **device_fields(findings.threads),
        "files": list(findings.files),
        "audio_s": round(findings.rows[PLAIN].audio_s, 3),
        "rounds": findings.n_rounds,
        "budget_s": findings.budget_s,
        "windows_of_last_file": findings.n_windows,
        "measured_less": dict(findings.fewer),
        "pass_s": None if profile is None else {str(k): seconds for k, seconds in profile.pass_s.items()},
        "drafters": {name: _row(row) for name, row in findings.rows.items()},
        "lossless": findings.lossless,
        "busy": findings.was_busy,
        "recommendation": asdict(chosen) | {"words": chosen.words()},
    }


def _row(row: Row) -> dict[str, Any]:
    found = {field.name: getattr(row, field.name) for field in fields(row) if field.name != "drafter"}
    found |= {"real_time_factor": row.real_time_factor, "encoder_share": row.encoder_share}
    return {name: _rounded(value) for name, value in found.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, Spread):
        return [_rounded(number) for number in (value.median, value.least, value.greatest)]
    if isinstance(value, Mapping):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, tuple) else value
