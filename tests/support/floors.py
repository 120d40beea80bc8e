"""The picture of rooms and floors, docs/floors.svg, drawn from `layers.FLOORS`.

    python tests/support/floors.py        # writes docs/floors.svg

tests/test_docs.py fails while the picture differs from what this would draw.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

# Run as a program, Python puts this file's folder, not tests/, in front of its path.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.layers import FLOORS  # noqa: E402
from support.tree import ROOT  # noqa: E402

PICTURE = ROOT / "docs" / "floors.svg"
# What each room does, in three or four words.
_DOES = {
    "runtime/_specedge/__main__.py": "the process",
    "runtime/cli": "the command",
    "runtime/_specedge/__init__.py": "import specedge",
    "export/training": "specedge train",
    "compat": "import faster_whisper",
    "serve": "specedge serve",
    "fleet": "specedge fleet",
    "runtime/batched.py": "BatchedInferencePipeline",
    "export": "checkpoint to bundle",
    "runtime/model.py": "WhisperModel",
    "runtime/bench": "specedge bench",
    "runtime/papers": "what reproduces a paper",
    "runtime/drafters": "who guesses the next tokens",
    "runtime/registered.py": "found by name",
    "runtime/output": "txt, srt, vtt, tsv, json",
    "runtime/drafters/ctc": "drafts from the encoder",
    "runtime/drafters/draft": "drafts from a smaller model",
    "runtime/longform": "windows, segments, words",
    "runtime/audio": "file to samples to log-mel",
    "runtime/decoding": "the loop: draft, verify, accept",
    "runtime/engine": "ONNX passes, KV cache",
    "maps": "token maps, n-gram cache",
    "runtime/bundle": "a model on disk",
    "runtime/device.py": "CPU, T(k)",
    "models": "store and catalogue",
    "runtime/interrupt.py": "Ctrl-C",
    "runtime/options.py": "TranscribeOptions",
    "runtime/text": "tokenizer, languages",
    "runtime/_specedge/files.py": "files written whole",
    "runtime/console.py": "progress, messages",
    "runtime/_specedge/leftovers.py": "temporary files",
    "runtime/_specedge/errors.py": "every error",
    "runtime/_specedge/version.py": "the version",
    "runtime/__init__.py": "names the package",
}
_COLOURS = {
    "runtime": "#dbeafe",
    "maps": "#dcfce7",
    "export": "#fef3c7",
    "models": "#fce7f3",
    "compat": "#e9d7ee",
    "serve": "#fee2e2",
    "fleet": "#cffafe",
}
_WIDTH, _LEFT, _FLOOR, _ROOM, _GAP = 1088, 8, 62, 46, 8


def picture() -> str:
    """The SVG text: one row a floor, the top floor first, one box a room, coloured by top-level folder."""
    height = _FLOOR * len(FLOORS) + 2 * _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" role="img">',
        "<title>Rooms and floors of specedge: a room imports only rooms below it</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for row, rooms in enumerate(FLOORS):
        y = _GAP + row * _FLOOR
        parts.append(f'<path d="M{_LEFT} {y + _FLOOR - 6}H{_WIDTH - _GAP}" stroke="#e2e8f0"/>')
        width = min((_WIDTH - _LEFT - _GAP) / len(rooms) - _GAP, 330)
        for column, room in enumerate(rooms):
            parts += _box(room, _LEFT + column * (width + _GAP), y + 4, width)
    return "\n".join([*parts, "</svg>", ""])


def _box(room: str, x: float, y: float, width: float) -> list[str]:
    colour = _COLOURS[room.split("/")[0]]
    name = room.removeprefix("runtime/") if room.startswith("runtime/_specedge") else room
    middle = x + width / 2
    return [
        f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{_ROOM}" rx="5" fill="{colour}" stroke="#94a3b8"/>',
        f'<text x="{middle:.0f}" y="{y + 19}" font-size="13" font-weight="bold" text-anchor="middle" fill="#0f172a">'
        f"{escape(name)}</text>",
        f'<text x="{middle:.0f}" y="{y + 36}" font-size="12" text-anchor="middle" fill="#334155">'
        f"{escape(_DOES.get(room, ''))}</text>",
    ]


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
