"""What `specedge bench` found: as tables, as one JSON object, and as a picture of speed against word errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from html import escape
from typing import Any

import numpy as np

from ..console import aligned
from ..device import device_fields, load_profile
from .errors import word_errors
from .measure import Figures, Findings, Row
from .recommendation import PLAIN, Spread

_FEWEST_CELLS, _MOST_CELLS = 8, 28
_WIDTH, _HEIGHT, _EDGE = 640, 400, 56


def conditions(findings: Findings) -> str:
    manifest, n, n_rounds = findings.bundle.manifest, len(findings.recordings), findings.rounds
    return (
        f"{manifest.name}, {manifest.precision}, {findings.threads} thread{'s' if findings.threads > 1 else ''}: "
        f"{n} recording{'s' if n > 1 else ''}, {findings.audio_s:.1f} s of audio, "
        f"{n_rounds} round{'s' if n_rounds > 1 else ''} after a warm-up"
    )


def speed_ups(findings: Findings, columns: int) -> list[str]:
    """Lines of at most `columns` characters, the quickest way first and those that drafted nothing last.

    A bar is full up to the slowest of the usual rounds and light up to the quickest.
    """
    ranked = sorted(findings.rows.items(), key=lambda each: (not takes_part(*each), -each[1].decoder_speed_up.median))
    longest = max(row.decoder_speed_up.greatest for name, row in ranked if takes_part(name, row))
    narrow = [["drafter", "decoder", "", "end to end", "tok/pass", "accepted", "text"]]
    narrow += [_speeds(name, row) for name, row in ranked]
    n_cells = max(min(columns - max(map(len, aligned(narrow))), _MOST_CELLS), _FEWEST_CELLS)
    for line, (name, row) in zip(narrow[1:], ranked, strict=True):
        if takes_part(name, row):
            speed = row.decoder_speed_up
            least, greatest = (round(n_cells * value / longest) for value in (speed.least, speed.greatest))
            line[2] = f"{'█' * least + '░' * (greatest - least):<{n_cells}}"
    return aligned(narrow)


def takes_part(name: str, row: Row) -> bool:
    """Whether its time says anything: a drafter that drafted nothing is plain decoding with scatter."""
    return name.split(",")[0] == PLAIN or row.counted.acceptance_rate is not None


def _speeds(name: str, row: Row) -> list[str]:
    per_pass, rate = row.counted.tokens_per_pass, row.counted.acceptance_rate
    tokens = "-" if per_pass is None else f"{per_pass:.2f}"
    text = "dropped" if row.dropped is not None else "same" if row.different == 0 else "DIFFERS"
    if not takes_part(name, row):
        return [name, "-", "", "-", tokens, "nothing", text]
    accepted, whole = "-" if rate is None else f"{rate:.0%}", row.end_to_end
    return [name, f"{row.decoder_speed_up.median:.2f}x", "", f"{whole.median:.2f}x", tokens, accepted, text]


def costs(findings: Findings) -> Iterator[str]:
    """Errors, seconds a second of audio by stage, and latencies, a line for each way and peer; "-" for what is not
    known. Where short audio was encoded alone also texts that are the first way's, and windows encoded again."""
    has_contexts = any("," in name for name in findings.rows)
    head = ["", "wrong", "real time", "encoder", "decoder", "short", "95th", *(["same", "again"] * has_contexts), "J"]
    lines = [head]
    for name, row in _all(findings).items():
        latency, factors, context, joules = _latency(row.latencies_s), None, ["-"] * 2, None
        if isinstance(row, Row):
            stages, context, joules = row.stages_s, [str(row.same), str(row.again)], row.joules
            factors = [stages["encoder"], stages["verify"] + stages["rules"] + stages["draft"]]
        lines.append(
            [
                name,
                "-" if row.wer is None else f"{row.wer:.2%}",
                f"{row.total_s / findings.audio_s:.4f}",
                *(["-"] * 2 if factors is None else (f"{seconds / findings.audio_s:.4f}" for seconds in factors)),
                *(["-"] * 2 if latency is None else (f"{seconds:.3f} s" for seconds in latency)),
                *(context if has_contexts else ()),
                "-" if joules is None else f"{joules:.1f}",
            ]
        )
    yield from aligned(lines)
    if (live := _latency(findings.live_s)) is not None:
        yield f"live, from an utterance's end to its text: {live[0]:.3f} s, 95th {live[1]:.3f} s"
    if findings.peak_mb is not None:
        yield f"peak memory {findings.peak_mb:.0f} MB"


def remarks(findings: Findings) -> Iterator[str]:
    """Sentences that belong to the tables: what failed, what idled, a busy machine."""
    for name, row in findings.rows.items():
        if row.dropped is not None:
            yield f"the drafter {name} failed and was dropped: {row.dropped}"
        if row.different:
            yield f"the text of {name} differs from plain decoding: run `specedge doctor`, and please report it"
    if findings.was_busy:
        took = f"{findings.plain_s.least:.3f} to {findings.plain_s.greatest:.3f} s in a round"
        yield f"this machine was busy: plain decoding took {took}; close other programs and measure again"
    idle = [name for name, row in findings.rows.items() if not takes_part(name, row)]
    if idle:
        yield f"these drafters proposed nothing: {', '.join(idle)}"
    if load_profile(findings.bundle.timed_digest, findings.threads) is None:
        yield "drafters used a built-in table of costs; `doctor --calibrate` measures this device"


def _all(findings: Findings) -> Mapping[str, Figures]:
    return {**findings.rows, **findings.peers}


def _latency(seconds: Any) -> tuple[float, float] | None:
    """The median and the 95th percentile."""
    return (float(np.median(seconds)), float(np.percentile(seconds, 95))) if len(seconds) else None


def to_json(findings: Findings) -> dict[str, Any]:
    """docs/bench.md says what the keys mean."""
    manifest, chosen = findings.bundle.manifest, findings.recommendation
    drafters = {name: _fields(row, findings.audio_s) for name, row in findings.rows.items()}
    return {
        "benchmark": "specedge bench",
        "model": manifest.name,
        "precision": manifest.precision,
        **device_fields(findings.threads),
        "rounds": findings.rounds,
        "audio_s": round(findings.audio_s, 3),
        "lossless": findings.lossless,
        "busy": findings.was_busy,
        "recommendation": asdict(chosen) | {"words": chosen.words()},
        "drafter": findings.main,
        **drafters[findings.main],
        "live_latency_s": _named(findings.live_s),
        "peak_mb": findings.peak_mb,
        "drafters": drafters,
        "peers": {name: _fields(row, findings.audio_s) for name, row in findings.peers.items()},
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
            for one, heard in zip(findings.recordings, findings.heard, strict=True)
        ],
    }


def _fields(row: Figures, audio_s: float) -> dict[str, Any]:
    found: dict[str, Any] = {
        "wer": None if row.wer is None else round(row.wer, 5),
        "errors": sum(each.n_errors for each in row.errors.values()),
        "words": sum(each.n_words for each in row.errors.values()),
        "languages": {code: round(each.rate, 5) for code, each in row.errors.items()},
        "real_time_factor": round(row.total_s / audio_s, 5),
        "latency_s": _named(row.latencies_s),
    }
    if not isinstance(row, Row):
        return found
    names = ("tokens", "passes", "tokens_per_pass", "acceptance_rate")
    found |= {name: getattr(row.counted, name) for name in names}
    found["stages"] = {stage: round(seconds / audio_s, 5) for stage, seconds in row.stages_s.items()}
    found |= {"decoder_speed_up": _spread(row.decoder_speed_up), "end_to_end": _spread(row.end_to_end)}
    return found | {name: getattr(row, name) for name in ("different", "same", "again", "dropped", "joules")}


def _spread(speed: Spread) -> list[float]:
    return [round(value, 5) for value in (speed.median, speed.least, speed.greatest)]


def _named(seconds: Any) -> dict[str, float] | None:
    found = _latency(seconds)
    return None if found is None else {"median": round(found[0], 4), "p95": round(found[1], 4), "n": len(seconds)}


def picture(findings: Findings) -> str:
    """An SVG: to the right how many times as fast as real time, upwards the words wrong, a point for each row."""
    points = {name: (findings.audio_s / row.total_s, 100 * (row.wer or 0.0)) for name, row in _all(findings).items()}
    ends = [1.15 * max(point[axis] for point in points.values()) or 1.0 for axis in (0, 1)]
    right, bottom = _WIDTH - _EDGE, _HEIGHT - _EDGE
    manifest = findings.bundle.manifest
    title = escape(f"{manifest.name}, {manifest.precision}, threads: {findings.threads}")
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
        colour = "#2563eb" if name in findings.rows else "#ea580c"
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{y + 18 + 14 * (number % 4):.1f}" text-anchor="middle">'
            f"{escape(name)} {speed:.1f}, {wrong:.1f} %</text>"
        )
    return "\n".join([*parts, "</svg>", ""])
