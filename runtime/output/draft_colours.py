"""Which part of a text was drafted, by whom: runs of text for the report, colours for the terminal.

A character whose bytes come from several tokens belongs to the last of them, which completes it. Tokens that are no
text, such as timestamps, are left out.
Does not know: how a drafter works, which terminal it is.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from specedge.runtime.drafters import Drafter, EmptyDrafter
from specedge.runtime.longform.segments import DraftedSegment, Segment
from specedge.runtime.output.formats import SubtitleOptions
from specedge.runtime.text.tokenizer import Tokenizer

__all__ = ["coloured_text", "legend", "segment_runs", "source_names", "text_runs"]

# Of the eight that every terminal has, without black and white.
_COLOURS = {"green": 32, "yellow": 33, "cyan": 36, "magenta": 35, "blue": 34, "red": 31}
_PLAIN = "\x1b[0m"


def source_names(drafter: Drafter | None) -> tuple[str, ...]:
    """Who can be named in `DraftedSegment.sources` when `drafter` drafts; () where nobody does."""
    if drafter is None or isinstance(drafter, EmptyDrafter):
        return ()
    return tuple(getattr(drafter, "sources", None) or (drafter.name,))


def segment_runs(segment: Segment, tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """The text of a segment as `text_runs` gives it."""
    sources = segment.sources if isinstance(segment, DraftedSegment) else ()
    return text_runs(segment.tokens, sources, tokenizer)


def text_runs(tokens: Sequence[int], sources: Sequence[str], tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """The text of `tokens` in runs of one source each, as (text, source); "" is the model itself.

    sources: of each token, or () for none. Together the runs are `tokenizer.decode(tokens)`.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    runs: list[tuple[str, str]] = []

    def add(text: str, source: str) -> None:
        if runs and runs[-1][1] == source:
            runs[-1] = (runs[-1][0] + text, source)
        elif text:
            runs.append((text, source))

    source = ""
    for token, source in zip(tokens, sources or ("",) * len(tokens), strict=True):
        add(decoder.decode(tokenizer.decode_bytes([token])), source)
    add(decoder.decode(b"", final=True), source)
    return runs


def coloured_text(
    tokenizer: Tokenizer, names: Sequence[str], *, has_colours: bool
) -> Callable[[Iterable[Segment], SubtitleOptions], Iterator[str]]:
    """The format txt with the text of each of `names` in its colour, if at all: a writer like those of `formats`."""
    codes = {name: f"\x1b[{_COLOURS[colour]}m" for name, colour in _colours(names).items()} if has_colours else {}

    def write(segments: Iterable[Segment], _: SubtitleOptions) -> Iterator[str]:
        for segment in segments:
            runs = _stripped(segment_runs(segment, tokenizer))
            parts = [f"{codes[name]}{text}{_PLAIN}" if name in codes else text for text, name in runs]
            yield "".join(parts) + "\n"

    return write


def legend(names: Sequence[str]) -> str:
    """Which colour is whose, in a line."""
    if not names:
        return "nothing is drafted with --drafter none"
    drafted = ", ".join(f"{name} {colour}" for name, colour in _colours(names).items())
    return f"drafted by {drafted}; without colour: the model's own tokens"


def _colours(names: Sequence[str]) -> Mapping[str, str]:
    colours = list(_COLOURS)
    return {name: colours[i % len(colours)] for i, name in enumerate(names)}


def _stripped(runs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without the blanks at both ends of the text."""
    while runs and not runs[0][0].strip():
        runs = runs[1:]
    while runs and not runs[-1][0].strip():
        runs = runs[:-1]
    if runs:
        runs = [(runs[0][0].lstrip(), runs[0][1]), *runs[1:]]
        runs[-1] = (runs[-1][0].rstrip(), runs[-1][1])
    return runs
