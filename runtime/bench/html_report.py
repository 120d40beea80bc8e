"""What `specedge bench` found, as one HTML file that needs nothing else: a table, plots in SVG, drafts in colours.

Does not know: how anything was measured, where the file goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from specedge.maps.outputs import Kind
from specedge.runtime.bench.bar_plot import Bars, bar_svg
from specedge.runtime.bench.line_plot import COLOURS, Panel, svg
from specedge.runtime.bench.measure import Findings
from specedge.runtime.bench.report import COLUMNS, cells, conditions, remarks
from specedge.runtime.bench.rounds import PLAIN
from specedge.runtime.decoding.device_file import device_fields

__all__ = ["REPORT", "to_html"]

_TITLE = "<title>specedge bench"
REPORT = Kind("report of specedge bench", lambda head: _TITLE.encode() in head[:1024])

_STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 1080px; margin: 2em auto; padding: 0 1em; color: #222; background: #fff }
table { border-collapse: collapse; font-size: 13px } td, th { padding: 3px 9px; text-align: right }
td:first-child, th:first-child { text-align: left } tr + tr { border-top: 1px solid #ddd }
.verdict { font-size: 18px; border-left: 4px solid #0072b2; padding-left: .8em }
.text { max-width: 60em } .key { padding: 0 .5em; border-radius: 3px } figure { margin: 1.5em 0; overflow-x: auto }
h3 { margin-bottom: 0 } p { margin: .3em 0 .8em }
"""


def to_html(findings: Findings) -> str:
    """The whole file."""
    name = escape(findings.bundle.manifest.name)
    device = device_fields(findings.threads)
    where = f"{device['cpu']}, ONNX Runtime {device['onnxruntime']}"
    drafted = {name: row for name, row in findings.rows.items() if name != PLAIN}
    parts = [
        f"<h1>specedge bench: {name}</h1>",
        f"<p>{escape(conditions(findings))}.<br>{escape(where)}.</p>",
        f'<p class="verdict">{escape(findings.verdict.words())}.</p>',
        *(f"<p>{escape(remark)}</p>" for remark in remarks(findings)),
        _table([list(COLUMNS), *(cells(row) for row in findings.rows.values())]),
        "<p>Speed-ups are times plain decoding, in the same round: the median, and what all rounds lie between, "
        "of ten or more all but the fifth at either end. Seconds are medians of a round over all files. Peak memory is "
        "that of a fresh process with the first file.</p>",
        _figure(
            bar_svg(
                Bars(
                    title="Decoder speed-up",
                    x="times plain decoding, decoder and drafting; the line is the spread of the rounds",
                    bars={name: {"speed-up": row.decoder_speed_up.median} for name, row in findings.rows.items()},
                    spreads={name: row.decoder_speed_up.usual for name, row in drafted.items()},
                    level=1.0,
                )
            )
        ),
        _figure(
            bar_svg(
                Bars(
                    title="Where the time goes",
                    x="seconds of a round",
                    bars={name: dict(row.split_s) for name, row in findings.rows.items()},
                )
            )
        ),
        _figure(svg(_panels(findings))),
        *_no_profile(findings),
        "<h2>Who drafted the text</h2>",
        *_texts(findings),
    ]
    head = f'<meta charset="utf-8">{_TITLE}: {name}</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(parts) + "\n</body></html>\n"


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


def _no_profile(findings: Findings) -> list[str]:
    if findings.profile is not None:
        return []
    return ["<p>The curve of T(k) is missing: <code>specedge calibrate</code> measures it.</p>"]


def _texts(findings: Findings) -> list[str]:
    parts = []
    for name, files in findings.texts.items():
        if name == PLAIN:
            continue
        sources = list(dict.fromkeys(source for runs in files for _, source in runs if source))
        colours = {source: COLOURS[i % len(COLOURS)] for i, source in enumerate(sources)}
        keys = "".join(f" {_span(source, colour)}" for source, colour in colours.items())
        parts.append(f"<h3>{escape(name)}</h3><p>drafted by:{keys or ' nobody'}; the rest the model said itself</p>")
        for file, runs in zip(findings.files, files, strict=True):
            text = "".join(_run(text, colours.get(source)) for text, source in runs)
            parts.append(f'<p class="text"><small>{escape(file)}</small><br>{text.strip()}</p>')
    return parts


def _run(text: str, colour: str | None) -> str:
    # Colour alone would not tell a blank, nor anything to who cannot see it.
    return escape(text) if colour is None else f'<u style="color:{colour}">{escape(text)}</u>'


def _span(text: str, colour: str) -> str:
    return f'<span class="key" style="color:#fff;background:{colour}">{escape(text)}</span>'


def _figure(drawing: str) -> str:
    return f"<figure>{drawing}</figure>"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body]
    return "<table>" + "\n".join(lines) + "</table>"
