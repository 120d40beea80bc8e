"""What the lattice's likeliest spelling is in the target's tokens, and where in the window each of them lies.

The text begins with one space, as Whisper's does, and has no space twice; bytes that are no UTF-8 are left out. Tokens
come from the target's own byte-pair encoding, so the units of the head need not know the vocabulary.
Does not know: n-grams, drafts, timestamps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp
from typing import NamedTuple

from specedge.runtime.ctc.lattice import Lattice, Unit
from specedge.runtime.text.tokenizer import Tokenizer

__all__ = ["HeardToken", "heard_tokens", "others_in_place", "sentence_behind", "spelled", "with_other"]

_SPACE = 0x20


class HeardToken(NamedTuple):
    """A token of a hypothesis.

    start, stop: rows of the lattice, from its first byte's to behind its last's; sure: the probability of what was
    heard from there to the next token, 0 to 1; order: ids of the longest n-gram known to end with it, 0 for none, -1
    where nothing is known of n-grams; opens: whether a word begins with it; guided: whether n-grams chose it.
    other: what may have been said instead of this token and those behind it, `n_instead` in all; () where nothing comes
    near.
    """

    token: int
    start: int
    stop: int
    sure: float
    order: int = -1
    opens: bool = False
    guided: bool = False
    other: tuple[int, ...] = ()
    n_instead: int = 0


def with_other(tokens: Sequence[HeardToken], other: Sequence[int]) -> list[HeardToken]:
    """Some tokens of a hypothesis, and at the first that differs what else they may have been."""
    found = list(tokens)
    ids = [heard.token for heard in tokens]
    shared = range(min(len(ids), len(other)))
    first = next((i for i in shared if ids[i] != other[i]), len(shared))
    last = next((i for i in shared if ids[-1 - i] != other[-1 - i]), len(shared))
    last = min(last, min(len(ids), len(other)) - first)
    if first < len(ids) - last and first < len(other) - last:
        place = found[first]
        found[first] = place._replace(other=tuple(other[first : len(other) - last]), n_instead=len(ids) - last - first)
    return found


def others_in_place(tokens: Sequence[HeardToken], at: int) -> list[HeardToken]:
    """The hypothesis with the other spelling at the index `at`, which has one."""
    first = tokens[at]
    instead = tokens[at : at + first.n_instead]
    stop = instead[-1].stop
    other = [
        HeardToken(token, stop if i else first.start, stop, 1 - first.sure, first.order, first.opens and not i, True)
        for i, token in enumerate(first.other)
    ]
    return [*tokens[:at], *other, *tokens[at + first.n_instead :]]


def spelled(lattice: Lattice, tokenizer: Tokenizer) -> list[HeardToken]:
    """The likeliest spelling of a window in tokens; [] where nothing was said."""
    return heard_tokens(lattice.spelling(), lattice, len(lattice), tokenizer, opens=True)


def heard_tokens(
    units: Sequence[Unit], lattice: Lattice, stop: int, tokenizer: Tokenizer, *, opens: bool
) -> list[HeardToken]:
    """Some units in tokens; `stop` is the row behind what they were heard in, `opens` puts a space before the first."""
    kept: list[Unit] = []
    last = -1
    for unit in _readable(units):
        if unit.byte != _SPACE or last != _SPACE:
            kept.append(unit)
        last = unit.byte
    while kept and kept[-1].byte == _SPACE:
        kept.pop()
    if not kept:
        return []
    if opens and kept[0].byte != _SPACE:
        kept.insert(0, Unit(_SPACE, kept[0].start, kept[0].start))
    text = bytes([unit.byte for unit in kept]).decode()
    found: list[HeardToken] = []
    at = 0
    ranks = tokenizer.ranks
    best: list[float] = lattice.best.tolist()
    for token in tokenizer.encode(text):
        n_bytes = len(ranks[token])
        if at >= len(kept):
            break
        first = kept[at]
        at += n_bytes
        next_row = kept[at].start if at < len(kept) else stop
        found.append(
            HeardToken(
                token,
                first.start,
                kept[min(at, len(kept)) - 1].stop,
                sure=min(1.0, exp(best[next_row] - best[first.start])),
                opens=first.byte == _SPACE or not found,
            )
        )
    return found


def sentence_behind(tokens: Sequence[int], eot: int, ends: Callable[[int], bool], longest: int = 8) -> tuple[int, ...]:
    """The text ids since the last sentence ended or the last timestamp, at most `longest` and some of them."""
    first = max(0, len(tokens) - longest)
    at = len(tokens)
    while at > first and tokens[at - 1] < eot and not ends(tokens[at - 1]):
        at -= 1
    return tuple(tokens[at:])


def _readable(units: Sequence[Unit]) -> Sequence[Unit]:
    """The units without those that are no part of a character."""
    text = bytes([unit.byte for unit in units]).decode("utf-8", "surrogateescape")
    if text.isascii() or not any("\udc80" <= character <= "\udcff" for character in text):
        return units
    kept: list[Unit] = []
    at = 0
    for character in text:
        n_bytes = len(character.encode("utf-8", "surrogateescape"))
        if not "\udc80" <= character <= "\udcff":
            kept += units[at : at + n_bytes]
        at += n_bytes
    return kept
