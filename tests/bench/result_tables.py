"""The tables of docs/results.md: rows of cells out of the figures that benchmarks end with, the head first.

A figure that a run did not take is an empty cell. Two figures in a cell are maintenance and notes. It knows neither
files nor pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.targets import MIX, OTHERS_MAP

__all__ = ["batched", "beside", "callers", "floor", "lossless", "memory", "speed_ups"]

Figures = Mapping[str, Any]
Rows = list[list[str]]
LISTS = ("maintenance-dev", "notes-dev")
_SAID = {"ctc alone": "ctc, no map"}
_FLOOR_DRAFTERS = ("tokenmap", "ctc", "cascade", "auto")
_FLOOR = {
    OTHERS_MAP: "maintenance with the map of notes",
    "silence": "silence of 2 to 8 s",
    "noise": "noise of 2 to 8 s",
    MIX: "both domains in turn, the map of maintenance",
}


def _ranged(row: Figures | None) -> str:
    """A median with the least and the greatest."""
    return "" if row is None else f"{row['decoder_speed_up']:.2f} ({row['least']:.2f}-{row['greatest']:.2f})"


def _pair(rows: Sequence[Figures | None], key: str, digits: int) -> str:
    return ", ".join(f"{row[key]:.{digits}f}" for row in rows if row is not None)


def speed_ups(found: Figures, shapes: Sequence[str]) -> Rows:
    """Of `true_shapes.py`: each drafter over plain decoding."""
    head = ["grown"]
    for shape in shapes:
        head += [f"{shape}, maintenance", f"{shape}, notes", "tokens a pass", "end to end"]
    domains = {shape: found["shapes"][shape]["domains"] for shape in shapes}
    names = dict.fromkeys(name for shape in shapes for name in domains[shape][LISTS[0]])
    table = [head]
    for name in names:
        cells = [_SAID.get(name, name)]
        for shape in shapes:
            rows = [domains[shape][one].get(name) for one in LISTS]
            cells += [*map(_ranged, rows), _pair(rows, "tokens_per_pass", 1), _pair(rows, "end_to_end", 2)]
        table.append(cells)
    return table


def floor(found: Figures, shape: str) -> Rows:
    """Of `true_shapes.py`: where nothing, or little, can be gained."""
    domains = found["shapes"][shape]["domains"]
    table = [["", *_FLOOR_DRAFTERS]]
    for domain, said in _FLOOR.items():
        if domain in domains:
            table.append([said, *(_ranged(domains[domain].get(name)) for name in _FLOOR_DRAFTERS)])
    return table


def beside(found: Figures) -> Rows:
    """Of `true_shapes.py`: whole transcriptions beside faster-whisper's."""
    table = [["", "faster-whisper, ms a file", "no drafter", "ctc", "auto", "peak MB: theirs, ours"]]
    for shape, figures in found["shapes"].items():
        if "beside" not in figures:
            continue
        rows = [figures["beside"]["domains"][one] for one in LISTS]
        for context, said in (("full", "whole windows"), ("auto", "over the audio that is there")):
            ours = [[row[f"specedge {name}, {context}"] for row in rows] for name in ("none", "ctc", "auto")]
            theirs = [row["faster-whisper"] for row in rows]
            peaks = f"{theirs[0]['peak_mb']:.0f}, {max(row[0]['peak_mb'] for row in ours):.0f}"
            cells = [", ".join(f"{one['times_base']:.2f}" for one in row) for row in ours]
            cells[1] = ", ".join(
                f"{one['times_base']:.2f} ({one['least']:.2f}-{one['greatest']:.2f})" for one in ours[1]
            )
            is_first = context == "full"  # theirs has one context
            table.append(
                [
                    f"{shape}, {said}",
                    _pair(theirs, "ms_a_file", 0) if is_first else "",
                    *cells,
                    peaks if is_first else "",
                ]
            )
    return table


def batched(found: Figures) -> Rows:
    """Of `peers_batched.py`."""
    table = [["grown " + found["shape"], "end to end, s", "times faster-whisper's best", "our words"]]
    for name, seconds in found["s"].items():
        times, alike = found["over_their_best"][name], found["same_words_as_ours"][name]
        table.append([name, f"{seconds:.2f}", f"{times:.2f}", "yes" if alike else "no"])
    return table


def callers(found: Figures) -> Rows:
    """Of `callers.py`: all at once over one after another; waits in recordings done alone."""
    head = [f"{found['model']}, drafter {found['drafter']}", "at once over one by one", "texts a pass"]
    table = [[*head, "longest wait for a pass", "for the encoder", "texts that differ"]]
    for kind, said in (("decoder", "decoder"), ("whole", "from samples to text")):
        if kind in found:
            row = found[kind]
            least, greatest = row["speedup_range"]
            waits = [f"{row[key]:.2f}" for key in ("longest_wait_windows", "longest_encoder_wait_windows")]
            gain = f"{row['speedup']:.2f} ({least:.2f}-{greatest:.2f})"
            table.append([said, gain, f"{row['texts_per_pass']:.1f}", *waits, str(row["differing"])])
    return table


def lossless(found: Figures) -> Rows:
    """Of `lossless.py`."""
    table = [["tokens compared with ==", "number"]]
    table += [[part, f"{n:,}"] for part, n in found["tokens_by_part"].items()]
    return [*table, ["different", str(found["different"])], ["drafters dropped", str(found["dropped"])]]


def memory(export: Figures, soak: Figures, load: Figures, lookup: Figures) -> Rows:
    """Of `export_memory.py`, `soak.py`, `load.py` and `map_lookup.py`."""
    steps, hours, minute = export["steps"], soak["steps"]["hours"], soak["steps"]["minute"]
    first, later = (steps[step]["peak_mb"] / 1000 for step in ("transcribe, first start", "transcribe"))
    return [
        ["memory and start", "figure"],
        ["export of large-v2's shape to int8", f"peak {steps['export']['peak_mb'] / 1000:.2f} GB"],
        ["transcription with it", f"peak {first:.2f} GB at the first start, {later:.2f} GB later"],
        ["growth over a file of 2 hours, demo", f"{hours['growth_mb']:.1f} MB over {hours['points']} windows"],
        ["peak of that file", f"{hours['peak_mb']:.0f} MB, beside {minute['peak_mb']:.0f} MB for a minute"],
        ["loading a small int8 bundle, packed weights present", f"{load['median']['load s']:.2f} s"],
        [
            f"token map, one look-up in {lookup['keys']:,} keys",
            f"{lookup['find_hit_us']:.1f} us if found, {lookup['find_miss_us']:.1f} us if not",
        ],
    ]
