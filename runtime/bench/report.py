"""What `specedge bench` found, as a table in plain text and as one JSON object. Does not know: how it was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from specedge.runtime.bench.measure import Findings, Row
from specedge.runtime.bench.rounds import PLAIN, Spread
from specedge.runtime.decoding.device_file import device_fields
from specedge.runtime.output.text_table import aligned

__all__ = ["COLUMNS", "cells", "conditions", "remarks", "table", "to_json"]

BUSY = 1.15  # plain decoding's slowest round over its quickest, above which figures are not to be relied on
COLUMNS = (
    "drafter", "decoder", "(spread)", "end to end", "tokens/pass", "accepted", "decoder s", "total s", "real time",
    "encoder", "peak MB", "WER", "same text",
)  # fmt: skip


def conditions(findings: Findings) -> str:
    """What was measured, in a line."""
    manifest, row = findings.bundle.manifest, findings.rows[PLAIN]
    n_files, n_rounds = len(findings.files), findings.n_rounds
    return (
        f"{manifest.name}, {manifest.precision}, {findings.threads} thread{'s' if findings.threads > 1 else ''}: "
        f"{n_files} file{'s' if n_files > 1 else ''}, {row.audio_s:.1f} s of audio, {row.tokens} tokens, "
        f"{n_rounds} round{'s' if n_rounds > 1 else ''} after a warm-up"
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
        "-" if row.acceptance is None else f"{row.acceptance:.0%}",
        f"{row.decoder_s.median:.3f}",
        f"{row.total_s.median:.3f}",
        f"{row.real_time_factor:.3f}",
        f"{row.encoder_share:.0%}",
        "-" if row.peak is None else f"{row.peak.mb:.0f}{'' if row.peak.is_whole else '+'}",
        "-" if row.word_error_rate is None else f"{row.word_error_rate:.1%}",
        "dropped" if row.dropped is not None else "yes" if row.different == 0 else "NO",
    ]


def table(findings: Findings) -> list[str]:
    """The lines of the table."""
    return aligned([COLUMNS, *(cells(row) for row in findings.rows.values())])


def remarks(findings: Findings) -> Sequence[str]:
    """What a reader of the table should know besides."""
    found = []
    less = _less(findings)
    if less:
        found.append(f"to keep within {findings.budget_s:g} s (--budget), less was measured: {'; '.join(less)}")
    for name, row in findings.rows.items():
        if row.dropped is not None:
            found.append(f"the drafter {name} failed and was dropped: {row.dropped}")
        if row.different:
            found.append(f"the text of {name} differs from plain decoding: run `specedge doctor`, and please report it")
    least_s, greatest_s = findings.rows[PLAIN].decoder_s.usual
    if greatest_s > BUSY * least_s:
        found.append(
            f"this machine was busy: plain decoding took {least_s:.3f} to {greatest_s:.3f} s in a round; close other "
            "programs and measure again"
        )
    if findings.profile is None:
        found.append(
            "drafters went by the built-in table of costs: `specedge calibrate` measures this device's, which may "
            "change the figures"
        )
    return found


def _less(findings: Findings) -> list[str]:
    """What was measured less often than was asked for, or not at all."""
    plan, n_files, n_windows = findings.plan, len(findings.files), findings.n_windows
    parts = []
    if n_windows is not None:
        last = f"{n_windows} window{'s' if n_windows > 1 else ''} of {findings.files[-1]}"
        parts.append(f"the first {findings.rows[PLAIN].audio_s:.1f} s of the audio, up to {last}")
    elif n_files < len(plan.files):
        parts.append(f"{n_files} of {len(plan.files)} files")
    if findings.temperature is not None:
        parts.append(f"only temperature {findings.temperature:g}, since all of them take too long in one window")
    if findings.n_rounds < plan.n_rounds:
        parts.append(f"{findings.n_rounds} of {plan.n_rounds} rounds")
    for name, why in findings.fewer.items():
        rounds = findings.rows[name].rounds if name in findings.rows else 0
        parts.append(f"{name} in {_rounds(rounds)} ({why})")
    stopped = [name for name, row in findings.rows.items() if row.peak is not None and not row.peak.is_whole]
    if stopped:
        parts.append(f"the peak memory of {', '.join(stopped)} until they were stopped (+)")
    return parts


def _rounds(n: int) -> str:
    return f"{n or 'no'} round{'' if n == 1 else 's'}"


def to_json(findings: Findings) -> dict[str, Any]:
    """The JSON object: conditions, a value for each drafter, and the verdict. Spreads are median, least, greatest."""
    manifest, profile = findings.bundle.manifest, findings.profile
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
        "only_temperature": findings.temperature,
        "measured_less": dict(findings.fewer),
        "pass_s": None if profile is None else {str(k): seconds for k, seconds in profile.pass_s.items()},
        "drafters": {name: _row(row) for name, row in findings.rows.items()},
        "lossless": findings.lossless,
        "verdict": findings.verdict.to_json() | {"words": findings.verdict.words()},
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
