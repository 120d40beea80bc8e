"""Rows of cells as lines of a table in plain text. Knows no terminal, and not what the cells mean."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["aligned"]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width, the first to the left, the others to the right, the last as it is. Rows are as long."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for first, *middle, last in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(middle, widths[1:-1], strict=True)]
        lines.append("  ".join([f"{first:<{widths[0]}}", *cells, last]).rstrip())
    return lines
