"""The picture of speculative decoding in README.md, docs/draft.svg: draft, verify in one pass, accept.

    python tests/support/draft_picture.py        # writes docs/draft.svg

The picture has a background of its own, so it reads the same on a light page and on a dark one. tests/test_docs.py
fails while the file differs from what this would draw.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

# Run as a program, Python puts this file's folder, not tests/, in front of its path.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.tree import ROOT  # noqa: E402

PICTURE = ROOT / "docs" / "draft.svg"
_TEXT = ("check", "pump")
_DRAFT = ("seven", "and", "record", "it")
_MODEL = ("seven", "and", "report")
_LEFT, _STEP, _BOX_WIDTH, _BOX_HEIGHT = 236, 112, 98, 38
_WIDTH, _HEIGHT = 920, 322
# fill, outline, letters
_GREY = ("#f1f5f9", "#94a3b8", "#334155")
_YELLOW = ("#fef9c3", "#ca8a04", "#713f12")
_GREEN = ("#dcfce7", "#16a34a", "#14532d")
_RED = ("#fee2e2", "#dc2626", "#7f1d1d")
_BLUE = ("#dbeafe", "#2563eb", "#1e3a8a")


def picture() -> str:
    """The SVG text: a column for each token; the draft above the decoder, what the model says below it."""
    first = len(_TEXT)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" role="img">',
        "<title>Speculative decoding: a draft of four tokens is verified in one pass; two are accepted</title>",
        f'<rect x="1" y="1" width="{_WIDTH - 2}" height="{_HEIGHT - 2}" rx="12" fill="#ffffff" stroke="#cbd5e1"/>',
        *_step(1, "Draft", "a cheap guess", 44),
        *_step(2, "Verify", "all tokens in one pass", 118),
        *_step(3, "Accept", "while the model agrees", 192),
        *_step(4, "Text", "3 tokens from 1 pass", 274),
    ]
    for column, token in enumerate(_TEXT):
        parts += _box(token, column, 25, _GREY)
    for column, token in enumerate(_DRAFT, first):
        parts += _box(token, column, 25, _YELLOW, dashed=True)
        parts.append(_arrow(column, 65, 94))
    width = _STEP * (first + len(_DRAFT)) - (_STEP - _BOX_WIDTH)
    parts.append(f'<rect x="{_LEFT}" y="97" width="{width}" height="42" rx="8" fill="#334155"/>')
    parts.append(_words("Whisper decoder: one pass over the weights", _LEFT + width / 2, 123, "#ffffff", 15))
    for column, token in enumerate(_MODEL, first):
        right = token == _DRAFT[column - first]
        parts.append(_arrow(column, 141, 168))
        drafted = _DRAFT[column - first]
        parts += _box(f"{drafted} {'✓' if right else '✗'}", column, 171, _GREEN if right else _RED)
    for column, token in enumerate((*_TEXT, *_MODEL)):
        right = column < first or token == _DRAFT[column - first]
        parts += _box(token, column, 253, _GREY if column < first else _GREEN if right else _BLUE)
    column = first + len(_MODEL)
    middle = _LEFT + column * _STEP + _BOX_WIDTH / 2 + 2
    parts.append(_words("the model", middle, 186, "#7f1d1d", 12.5))
    parts.append(_words("says “report”", middle, 203, "#7f1d1d", 12.5))
    parts.append(_words("same text as", middle, 268, "#1e3a8a", 12.5))
    parts.append(_words("without drafts", middle, 285, "#1e3a8a", 12.5))
    return "\n".join([*parts, "</svg>", ""])


def _step(number: int, name: str, words: str, y: int) -> list[str]:
    return [
        f'<circle cx="30" cy="{y}" r="13" fill="#334155"/>',
        _words(str(number), 30, y + 5, "#ffffff", 14),
        f'<text x="52" y="{y - 2}" font-size="16" font-weight="bold" fill="#0f172a">{escape(name)}</text>',
        f'<text x="52" y="{y + 16}" font-size="12.5" fill="#475569">{escape(words)}</text>',
    ]


def _box(token: str, column: int, y: int, colours: tuple[str, str, str], *, dashed: bool = False) -> list[str]:
    x = _LEFT + column * _STEP
    dashes = ' stroke-dasharray="5 3"' if dashed else ""
    return [
        f'<rect x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6" fill="{colours[0]}" '
        f'stroke="{colours[1]}" stroke-width="1.5"{dashes}/>',
        _words(token, x + _BOX_WIDTH / 2, y + 25, colours[2], 16),
    ]


def _arrow(column: int, top: int, bottom: int) -> str:
    x = _LEFT + column * _STEP + _BOX_WIDTH // 2
    point = f"M{x - 4} {bottom - 6}L{x} {bottom}L{x + 4} {bottom - 6}"
    return f'<path d="M{x} {top}V{bottom}{point}" fill="none" stroke="#64748b"/>'


def _words(text: str, x: float, y: float, colour: str, size: float) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="middle" fill="{colour}">{escape(text)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
