"""Put what was measured between two marks of a page, and leave the rest as it was written."""

from __future__ import annotations

__all__ = ["put"]


def put(page: str, marks: tuple[str, str], text: str) -> str:
    """The page with `text` between its marks. Raises ValueError where it has not both, in order."""
    before, begin, rest = page.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not (begin and end):
        raise ValueError(f"the page has no lines {marks[0]} and {marks[1]} to put the tables between")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"
