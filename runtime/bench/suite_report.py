"""What `specedge bench suite` found: as a table, as one JSON object, and as a picture of speed against word errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import numpy as np

from ..device import device_fields
from ..output.report import aligned
from .errors import word_errors
from .suite import Row, Suite

_WIDTH, _HEIGHT, _EDGE = 640, 400, 56


def lines(suite: Suite) -> Iterator[str]:
    """The conditions and a row for each drafter and peer; "-" for what is not known."""
    manifest = suite.bundle.manifest
    yield (
        f"{manifest.name}, {manifest.precision}, {suite.threads} thread{'s' if suite.threads > 1 else ''}: "
        f"{len(suite.recordings)} recordings, {suite.audio_s:.1f} s of audio, rounds: {suite.rounds}"
    )
    yield ""
    head = "|words wrong|real-time factor|encoder|decoder|draft|tok/pass|accepted|short: median|95th|J"
    yield from aligned([head.split("|"), *(_cells(name, row, suite.audio_s) for name, row in _rows(suite).items())])
    yield ""
    live, peak = _latency(suite.live_s), suite.peak_mb
    if live is not None:
        n = len(suite.live_s)
        yield f"live, from the end of an utterance to its text: {live[0]:.3f} s, 95th {live[1]:.3f} s ({n} utterances)"
    if peak is not None:
        yield f"peak memory {peak:.0f} MB"
    n_different = sum(row.different for row in suite.drafters.values())
    yield f"{n_different} texts differ from plain decoding"


def _rows(suite: Suite) -> Mapping[str, Row]:
    return {**suite.drafters, **suite.peers}


def _cells(name: str, row: Row, audio_s: float) -> list[str]:
    counted, stages, latency = row.counted, row.stages_s, _latency(row.latencies_s)
    factors = [f"{stages[stage] / audio_s:.4f}" for stage in ("encoder", "verify", "draft")] if stages else ["-"] * 3
    rates = [None, None] if counted is None else [counted.tokens_per_pass, counted.acceptance_rate]
    return [
        name,
        "-" if row.wer is None else f"{row.wer:.2%}",
        f"{row.total_s / audio_s:.4f}",
        *factors,
        *("-" if rate is None else f"{rate:.2f}" for rate in rates),
        *(["-"] * 2 if latency is None else (f"{seconds:.3f} s" for seconds in latency)),
        "-" if row.joules is None else f"{row.joules:.1f}",
    ]


def _latency(seconds: Any) -> tuple[float, float] | None:
    """The median and the 95th percentile."""
    return (float(np.median(seconds)), float(np.percentile(seconds, 95))) if len(seconds) else None


def to_json(suite: Suite) -> dict[str, Any]:
    """docs/bench.md says what the keys mean."""
    manifest = suite.bundle.manifest
    drafters = {name: _fields(row, suite.audio_s) for name, row in suite.drafters.items()}
    return {
        "benchmark": "specedge bench suite",
        "model": manifest.name,
        "precision": manifest.precision,
        **device_fields(suite.threads),
        "rounds": suite.rounds,
        "audio_s": round(suite.audio_s, 3),
        "drafter": suite.main,
        **drafters[suite.main],
        "live_latency_s": _named(suite.live_s),
        "peak_mb": suite.peak_mb,
        "drafters": drafters,
        "peers": {name: _fields(row, suite.audio_s) for name, row in suite.peers.items()},
        "recordings": [
            {
                "audio": one.file,
                "language": one.language,
                "reference": one.text,
                "text": heard.text.strip(),
                "wer": word_errors([(one.text, heard.text)], str(one.language)).rate if one.text else None,
                "tokens": heard.counted.tokens,
                "audio_s": round(heard.duration_s, 3),
            }
            for one, heard in zip(suite.recordings, suite.heard, strict=True)
        ],
    }


def _fields(row: Row, audio_s: float) -> dict[str, Any]:
    found: dict[str, Any] = {
        "wer": None if row.wer is None else round(row.wer, 5),
        "errors": sum(each.n_errors for each in row.errors.values()),
        "words": sum(each.n_words for each in row.errors.values()),
        "languages": {code: round(each.rate, 5) for code, each in row.errors.items()},
        "real_time_factor": round(row.total_s / audio_s, 5),
        "latency_s": _named(row.latencies_s),
    }
    if row.counted is not None:
        names = ("tokens", "passes", "tokens_per_pass", "acceptance_rate")
        found |= {name: getattr(row.counted, name) for name in names}
        found["stages"] = {stage: round(seconds / audio_s, 5) for stage, seconds in row.stages_s.items()}
        found |= {"different": row.different, "joules": row.joules}
    return found


def _named(seconds: Any) -> dict[str, float] | None:
    found = _latency(seconds)
    return None if found is None else {"median": round(found[0], 4), "p95": round(found[1], 4), "n": len(seconds)}


def picture(suite: Suite) -> str:
    """An SVG: to the right how many times as fast as real time, upwards the words wrong, a point for each row."""
    points = {name: (suite.audio_s / row.total_s, 100 * (row.wer or 0.0)) for name, row in _rows(suite).items()}
    ends = [1.15 * max(point[axis] for point in points.values()) or 1.0 for axis in (0, 1)]
    right, bottom = _WIDTH - _EDGE, _HEIGHT - _EDGE
    manifest = suite.bundle.manifest
    title = escape(f"{manifest.name}, {manifest.precision}, threads: {suite.threads}")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12" role="img">',
        f'<title>{title}</title><rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<path d="M{_EDGE} {_EDGE}V{bottom}H{right}" stroke="#94a3b8" fill="none"/>',
        f'<text x="{_EDGE}" y="{_EDGE - 24}" font-weight="bold">{title}</text>',
        f'<text x="{_EDGE}" y="{_EDGE - 6}">words wrong, % (0 to {ends[1]:.3g})</text>',
        f'<text x="{right}" y="{bottom + 20}" text-anchor="end">times real time (0 to {ends[0]:.3g})</text>',
    ]
    for number, (name, (speed, wrong)) in enumerate(sorted(points.items(), key=lambda item: item[1])):
        x = _EDGE + speed / ends[0] * (right - _EDGE)
        y = bottom - wrong / ends[1] * (bottom - _EDGE)
        colour = "#2563eb" if name in suite.drafters else "#ea580c"
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{y + 18 + 14 * (number % 4):.1f}" text-anchor="middle">'
            f"{escape(name)} {speed:.1f}, {wrong:.1f} %</text>"
        )
    return "\n".join([*parts, "</svg>", ""])
