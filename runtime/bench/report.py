"""What `specedge bench` found: as a table of a terminal, and as one JSON object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from ..device import device_fields
from ..output.report import aligned
from .measure import Findings, Row
from .verdict import PLAIN, Spread

_FEWEST_CELLS, _MOST_CELLS = 8, 28
COLUMNS = (
    "drafter", "decoder", "(spread)", "end to end", "tokens/pass", "rows/pass", "texts/pass", "accepted", "decoder s",
    "total s", "real time", "encoder", "peak MB", "WER", "CER", "same text",
)  # fmt: skip


def conditions(findings: Findings) -> str:
    manifest, row = findings.bundle.manifest, findings.rows[PLAIN]
    n_files, n_rounds = len(findings.files), findings.n_rounds
    return (
        f"{manifest.name}, {manifest.precision}, {findings.threads} thread{'s' if findings.threads > 1 else ''}: "
        f"{n_files} file{'s' if n_files > 1 else ''}, {row.audio_s:.1f} s of audio, {row.tokens} tokens, "
        f"{n_rounds} round{'s' if n_rounds > 1 else ''} after a warm-up"
        + ("" if findings.plan.batch is None else f"; pieces one by one, and up to {findings.plan.batch} together (x)")
    )


def cells(row: Row) -> list[str]:
    """A row of the table, as `COLUMNS`; speed-ups are times plain decoding, seconds medians of a round."""
    speed = row.decoder_speed_up
    least, greatest = speed.usual
    return [
        row.drafter,
        f"{speed.median:.2f}x",
        f"{least:.2f}-{greatest:.2f}",
        f"{row.end_to_end.median:.2f}x",
        "-" if row.tokens_per_pass is None else f"{row.tokens_per_pass:.2f}",
        "-" if row.rows_per_pass is None else f"{row.rows_per_pass:.1f}",
        "-" if row.texts_per_pass is None else f"{row.texts_per_pass:.1f}",
        "-" if row.acceptance is None else f"{row.acceptance:.0%}",
        f"{row.decoder_s.median:.3f}",
        f"{row.total_s.median:.3f}",
        f"{row.real_time_factor:.3f}",
        f"{row.encoder_share:.0%}",
        "-" if row.peak is None else f"{row.peak.mb:.0f}{'' if row.peak.is_whole else '+'}",
        "-" if row.word_error_rate is None else f"{row.word_error_rate:.1%}",
        "-" if row.character_error_rate is None else f"{row.character_error_rate:.1%}",
        "dropped" if row.dropped is not None else "yes" if row.different == 0 else "NO",
    ]


def table(findings: Findings, columns: int, *, blocks: bool = True) -> list[str]:
    """Lines of at most `columns` characters, the quickest drafter first and those that drafted nothing last.

    A bar is full up to the slowest of the usual rounds and light up to the quickest. blocks: False draws it in ASCII.
    """
    rows = sorted(findings.rows.values(), key=lambda row: (not takes_part(row), -row.decoder_speed_up.median))
    longest = max(row.decoder_speed_up.usual[1] for row in rows if takes_part(row))
    full = "accepted" if findings.plan.batch is None else "texts/pass"
    narrow = [["drafter", "decoder", "", "end to end", "tok/pass", full, "text"], *(_narrow(row, full) for row in rows)]
    room = columns - max(map(len, aligned(narrow)))
    n_cells = max(min(room, _MOST_CELLS), _FEWEST_CELLS)
    for line, row in zip(narrow[1:], rows, strict=True):
        if takes_part(row):
            line[2] = f"{_bar(row.decoder_speed_up, longest, n_cells, blocks):<{n_cells}}"
    return aligned(narrow)


def takes_part(row: Row) -> bool:
    """Whether its time says anything about drafting: a drafter that drafted nothing is plain decoding with scatter."""
    return row.has_drafted or row.drafter.split()[0] == PLAIN  # also "none x8"


def _narrow(row: Row, full: str) -> list[str]:
    wide = dict(zip(COLUMNS, cells(row), strict=True))
    text = {"yes": "same", "NO": "DIFFERS"}.get(wide["same text"], wide["same text"])
    if not takes_part(row):
        return [row.drafter, "-", "", "-", wide["tokens/pass"], "nothing", text]
    return [row.drafter, wide["decoder"], "", wide["end to end"], wide["tokens/pass"], wide[full], text]


def _bar(speed: Spread, longest: float, n_cells: int, blocks: bool) -> str:
    full, light = ("█", "░") if blocks else ("#", "-")
    least, greatest = (round(n_cells * value / longest) for value in speed.usual)
    return full * least + light * (greatest - least)


def verdict_words(findings: Findings) -> str:
    """The verdict, and whether it is not kept; empty where there is none."""
    if findings.verdict is None:
        return ""
    said = findings.verdict.words()
    return f"not kept, since the machine was busy: {said}" if findings.was_busy else said


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
    if findings.provider is not None:
        found.append(findings.provider.words())
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
    stopped = [name for name, row in findings.rows.items() if row.peak is not None and not row.peak.is_whole]
    if stopped:
        whose = "all" if len(stopped) == len(findings.rows) else ", ".join(stopped)
        parts.append(f"the peak memory of {whose} until they were stopped (+)")
    return parts


def to_json(findings: Findings) -> dict[str, Any]:
    """Conditions, figures of each drafter, and the verdict. Spreads are [median, least, greatest]."""
    manifest, profile, verdict = findings.bundle.manifest, findings.profile, findings.verdict
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
        "batch": findings.plan.batch,
        "busy": findings.was_busy,
        "encoder_provider": None if findings.provider is None else asdict(findings.provider),
        "verdict": None if verdict is None else verdict.to_json() | {"words": verdict.words()},
    }


def _row(row: Row) -> dict[str, Any]:
    found = {field.name: getattr(row, field.name) for field in fields(row) if field.name not in ("drafter", "peak")}
    found["peak_mb"] = None if row.peak is None else row.peak.mb
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
