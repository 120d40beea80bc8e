"""The report of `specedge bench --html`: one page with a headline and a picture, details folded, nothing to load."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from datetime import datetime
from html import escape

from specedge.files import Kind
from specedge.version import __version__

from ..device import device_fields
from .measure import Findings, Row
from .plots import COLOURS, Panel, svg
from .report import COLUMNS, cells, conditions, remarks, takes_part, verdict_words
from .verdict import PLAIN

_TITLE = "<title>specedge bench"
REPORT = Kind("report of specedge bench", lambda head: _TITLE.encode() in head[:1024])

_STYLE = """
:root { --ink: #1f2933; --soft: #61707f; --paper: #fff; --line: #dde3e9; --bar: #0072b2;
  --range: #7fb8d9 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6ebf0; --soft: #9aa8b6; --paper: #14191f; --line: #2b343d; --bar: #4aa8e0; --range: #2c5f80 }
}
* { box-sizing: border-box }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 860px; margin: 0 auto; padding: 1.5em 1em 4em;
  color: var(--ink); background: var(--paper); overflow-wrap: anywhere }
h1 { font-size: clamp(1.7em, 7vw, 2.6em); line-height: 1.15; margin: .2em 0 .1em } h2 { font-size: 1.1em }
.soft, footer { color: var(--soft); font-size: .9em } .note { border-left: 3px solid #e69f00; padding-left: .7em }
.race { display: grid; grid-template-columns: max-content 1fr max-content; gap: .45em .8em; align-items: center;
  margin: 1.5em 0 }
.bar { position: relative; height: 1.2em; overflow: hidden; white-space: nowrap } .bar i { display: inline-block;
  height: 100%; background: var(--bar); vertical-align: top } .bar .range { background: var(--range) }
.idle { color: var(--soft) } .num { font-variant-numeric: tabular-nums; text-align: right } .best { font-weight: 700 }
details { border-top: 1px solid var(--line); padding: .6em 0 } summary { cursor: pointer; font-weight: 600 }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: .85em } td, th { padding: .2em .6em;
  text-align: right; white-space: nowrap } td:first-child, th:first-child { text-align: left }
tr + tr { border-top: 1px solid var(--line) } figure { margin: 1em 0; overflow-x: auto } svg { border-radius: 6px }
.key { padding: 0 .5em; border-radius: 3px; color: #fff } mark { color: inherit; background: none;
  border-bottom: 3px solid } code { font-size: .9em }
"""


def to_html(findings: Findings, when: datetime | None = None) -> str:
    """The page. when: None for now."""
    name = escape(findings.bundle.manifest.name)
    parts = [
        f'<p class="soft">specedge bench: {name}</p>',
        f"<h1>{escape(_headline(findings))}</h1>",
        f"<p>{escape(_compared(findings))}</p>",
        *([] if findings.verdict is None else [f"<p>{_sentence(verdict_words(findings))}</p>"]),
        _race(findings),
        '<p class="soft">How many times as fast as plain decoding the decoder is, drafting included: strong up to '
        "the slowest of the usual rounds, pale up to the fastest. Right: tokens in a pass.</p>",
        *(f'<p class="note">{_sentence(remark)}</p>' for remark in remarks(findings)),
        _details("All figures", _table([list(COLUMNS), *(cells(row) for row in findings.rows.values())]) + _LEGEND),
        _details("Where the time goes", _times(findings)),
        _details("How far drafts hold, and what passes cost", f"<figure>{svg(_panels(findings))}</figure>"),
        _details("Who drafted the text", "".join(_texts(findings))),
        _footer(findings, datetime.now().astimezone() if when is None else when),
    ]
    head = '<meta charset="utf-8">' + f"{_TITLE}: {name}</title>"
    head += f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(parts) + "\n</body></html>\n"


_LEGEND = (
    '<p class="soft">Speed-ups are times plain decoding, in the same round: the median, and what all rounds lie '
    "between, of ten or more all but the fifth at either end. Seconds are medians of a round over all files; real time "
    "is total seconds by seconds of audio. Peak memory is that of a fresh process with the first file; 46+ is of one "
    "that was stopped.</p>"
)


def _headline(findings: Findings) -> str:
    verdict = findings.verdict
    if not findings.lossless:
        return "A text differs from plain decoding"
    if verdict is None:
        return f"Pieces one by one, and {findings.plan.batch} together"
    if verdict.drafter == PLAIN:
        return "Plain decoding is best here"
    return f"The decoder is {verdict.decoder_speed_up:.2f} times as fast, with the same text"


def _compared(findings: Findings) -> str:
    rows = findings.rows
    n_different = sum(row.different > 0 for row in rows.values())
    said = "no text, time or log-probability differs" if not n_different else f"{n_different} drafters differ"
    return f"{conditions(findings)}. Of {len(rows) - 1} compared with plain decoding {said}."


def _sentence(text: str) -> str:
    """As HTML; what stands in backticks is code."""
    whole = text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(whole))


def _race(findings: Findings) -> str:
    """A bar for each row, the quickest first."""
    rows = sorted(findings.rows.values(), key=lambda row: (not takes_part(row), -row.decoder_speed_up.median))
    longest = max(row.decoder_speed_up.usual[1] for row in rows if takes_part(row))
    chosen = PLAIN if findings.verdict is None else findings.verdict.drafter
    return f'<div class="race">{"".join(_lane(row, longest, row.drafter == chosen) for row in rows)}</div>'


def _lane(row: Row, longest: float, is_best: bool) -> str:
    name = escape(row.drafter)
    if not takes_part(row):
        return f'<span class="idle">{name}</span><span class="idle">did not draft</span><span></span>'
    least, greatest = (100 * value / longest for value in row.decoder_speed_up.usual)
    bar = f'<i style="width:{least:.1f}%"></i><i class="range" style="width:{max(greatest - least, 0):.1f}%"></i>'
    per_pass = "" if row.tokens_per_pass is None else f" <small>{row.tokens_per_pass:.2f}</small>"
    best = " best" if is_best else ""
    number = f'<span class="num{best}">{row.decoder_speed_up.median:.2f}x{per_pass}</span>'
    return f'<span class="{best.strip()}">{name}</span><span class="bar">{bar}</span>{number}'


def _details(title: str, inside: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{inside}</details>"


def _times(findings: Findings) -> str:
    """Seconds of a round, part by part."""
    parts = list(next(iter(findings.rows.values())).split_s)
    colours = dict(zip(parts, COLOURS, strict=False))
    longest = max(sum(row.split_s.values()) for row in findings.rows.values()) or 1.0
    lanes = []
    for row in findings.rows.values():
        pieces = "".join(
            f'<i style="width:{100 * seconds / longest:.2f}%;background:{colours[part]}"></i>'
            for part, seconds in row.split_s.items()
        )
        total = f'<span class="num">{sum(row.split_s.values()):.3g} s</span>'
        lanes.append(f'<span>{escape(row.drafter)}</span><span class="bar">{pieces}</span>{total}')
    keys = " ".join(_span(part, colour) for part, colour in colours.items())
    other = "other: reading the audio, log-mel, and Python between the passes"
    return f'<p>{keys}</p><div class="race">{"".join(lanes)}</div><p class="soft">Seconds of a round; {other}.</p>'


def _footer(findings: Findings, when: datetime) -> str:
    device, plan = device_fields(findings.threads), findings.plan
    words = ["specedge", "bench", *findings.files, "-m", str(findings.bundle.path), "-t", str(findings.threads)]
    words += ["--drafters", ",".join(plan.drafters), *(["--batch", str(plan.batch)] if plan.batch else [])]
    words += [word for path in plan.token_maps for word in ("--token-map", str(path))]
    words += ["--draft-model", str(plan.draft_model)] if plan.draft_model else []
    lines = (
        f"{when:%Y-%m-%d %H:%M %Z}, {device['cpu']}, ONNX Runtime {device['onnxruntime']}, specedge {__version__}",
        f"model {findings.bundle.digest}",
    )
    said = "<br>".join(map(escape, lines))
    return f"<footer><p>{said}<br><code>{escape(shlex.join(words))}</code></p></footer>"


def _panels(findings: Findings) -> list[Panel]:
    by_position = {
        name: [(i, rate) for i, rate in enumerate(row.acceptance_by_position, 1) if rate is not None]
        for name, row in findings.rows.items()
    }
    panels = [
        Panel(
            title="Accepted by position in the draft",
            x="position, the first guess is 1",
            y="share",
            series={name: points for name, points in by_position.items() if points},
        )
    ]
    if findings.profile is not None:
        pass_s = findings.profile.pass_s
        curve = [(float(k), seconds / pass_s[1]) for k, seconds in pass_s.items()]
        panels.append(
            Panel(title="What a pass of k rows costs", x="rows k", y="T(k) / T(1)", series={"this device": curve})
        )
    return panels


def _texts(findings: Findings) -> list[str]:
    parts = []
    for name, files in findings.texts.items():
        if name == PLAIN:
            continue
        sources = list(dict.fromkeys(source for runs in files for _, source in runs if source))
        colours = {source: COLOURS[i % len(COLOURS)] for i, source in enumerate(sources)}
        keys = "".join(f" {_span(source, colour)}" for source, colour in colours.items())
        said = f"<p>Drafted by:{keys or ' nobody'}; the rest the model said itself.</p>"
        for file, runs in zip(findings.files, files, strict=True):
            text = "".join(_run(text, colours.get(source)) for text, source in runs)
            said += f'<p><small class="soft">{escape(file)}</small><br>{text.strip()}</p>'
        parts.append(_details(name, said))
    return parts


def _run(text: str, colour: str | None) -> str:
    # A line below it: colour alone does not show a blank, and not everybody sees it.
    return escape(text) if colour is None else f'<mark style="border-color:{colour}">{escape(text)}</mark>'


def _span(text: str, colour: str) -> str:
    return f'<span class="key" style="background:{colour}">{escape(text)}</span>'


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body]
    return '<div class="scroll"><table>' + "\n".join(lines) + "</table></div>"
