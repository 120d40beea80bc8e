"""Phrases that may change the text (`--bias`, `--only`): read from a file, and as a tree of token ids.

A line is a phrase or a sentence. In the sentences of `--only` (a|b) is one of several, [a] may be left out, and <name>
stands for what an earlier line `name = a|b` gave:

    size = small|large|twelve ounce
    (get me|I want) a [<size>] latte
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from specedge.errors import UsageError

from .tokenizer import Tokenizer
from .transcripts import is_unspaced, read_sentences

WEIGHT = 4.0  # natural logarithm
_MAX_WEIGHT = 100.0
_MAX_PHRASES = 100_000
_ENDS = (".", "?", "!")
_SIGNS = re.compile(r"[()\[\]|]|<[^<>]*>|[^\s()\[\]|<>]+|[<>]")
_NAMED = re.compile(r"\s*([\w-]+)\s*=(.*)", re.DOTALL)

Way = tuple["int | str | tuple[Way, ...]", ...]
"""Token ids, words and choices between ways, one behind the other."""


@dataclass(frozen=True)
class Phrases:
    """Phrases or sentences, and what `bias` adds to the log-probability of a token that goes on with one.

    Raises UsageError.
    """

    texts: tuple[str, ...]
    weight: float = WEIGHT

    def __post_init__(self) -> None:
        if not any(map(str.strip, self.texts)):
            raise UsageError("no phrases in it, expected one a line")
        if len(self.texts) > _MAX_PHRASES:
            raise UsageError(f"more than {_MAX_PHRASES:,} phrases; a token map (--token-map) takes that many")
        if not 0 < self.weight <= _MAX_WEIGHT:
            raise UsageError(f"got the weight {self.weight:g}, expected a number above 0, at most {_MAX_WEIGHT:g}")


def phrases(given: Phrases | str | os.PathLike[str] | Iterable[str]) -> Phrases:
    """Phrases from a file, a line each, "FILE" or "FILE:WEIGHT"; or from a list of them. Raises UsageError."""
    if isinstance(given, Phrases):
        return given
    if not isinstance(given, (str, os.PathLike)):
        return Phrases(tuple(given))
    path, weight = os.fspath(given), WEIGHT
    head, colon, tail = path.rpartition(":")
    if colon and not os.path.exists(path):
        try:
            path, weight = head, float(tail)
        except ValueError:
            raise UsageError(f"got the weight {tail!r}, expected a number, as in words.txt:{WEIGHT:g}") from None
    try:
        return Phrases(tuple(read_sentences([path])), weight)
    except UsageError as error:
        raise error if path in str(error) else UsageError(f"{path}: {error}") from None


def sentences(given: Phrases | str | os.PathLike[str] | Iterable[str]) -> Phrases:
    """`phrases`, whose choices are in order. Raises UsageError."""
    found = phrases(given)
    _ways(found.texts)
    return found


class Tree:
    """What may follow: token ids, and what may follow each. It grows where the text goes."""

    def __init__(self, ways: Iterable[Way], spell: Callable[[str], tuple[Way, ...]]) -> None:
        self._ways, self._spell = ways, spell

    @cached_property
    def branches(self) -> Mapping[int, Tree]:
        """The tree behind each token that may come next."""
        found: dict[int, dict[Way, None]] = {}
        left = list(self._ways)
        while left:
            way = left.pop()
            if not way:
                continue
            first, rest = way[0], way[1:]
            if isinstance(first, int):
                found.setdefault(first, {})[rest] = None
            else:
                choices = self._spell(first) if isinstance(first, str) else first
                left += [(*choice, *rest) for choice in choices]
        return {token: Tree(ways, self._spell) for token, ways in found.items()}

    def behind(self, tokens: Sequence[int]) -> Tree | None:
        """What may follow `tokens`; None where they lead out of the tree."""
        node: Tree | None = self
        for token in tokens:
            if node is None:
                return None
            node = node.branches.get(token)
        return node


@lru_cache(maxsize=8)
def tree_of_pairs(given: Phrases, tokenizer: Tokenizer) -> Tree:
    """The words of the phrases, each with the one behind it: so parts of sentences are known in any order."""
    pairs: dict[Way, None] = {}
    for text in given.texts:
        words = text.strip().rstrip("".join(_ENDS)).split()
        pairs.update(dict.fromkeys(zip(words, words[1:], strict=False)) if words[1:] else {tuple(words): None})
    return Tree(pairs, lambda word: _spellings(word, tokenizer))


def tree_of_sentences(given: Phrases, tokenizer: Tokenizer, eot: int) -> Tree:
    """The sentences from their first token to the end of text, with a mark before it or none.

    A new tree each time: a grammar has more sentences than memory, and a server that kept what was said would grow.
    """
    ends: tuple[Way, ...] = ((eot,), *((*tokenizer.encode(mark), eot) for mark in _ENDS))
    return Tree([(*way, ends) for way in _ways(given.texts)], lambda word: _spellings(word, tokenizer))


def _spellings(word: str, tokenizer: Tokenizer) -> tuple[Way, ...]:
    """A word as Whisper writes it, behind a space, with a capital or a small letter first."""
    gap = "" if is_unspaced(word[:1]) else " "
    return tuple(
        tuple(tokenizer.encode(f"{gap}{first}{word[1:]}"))
        for first in dict.fromkeys((word[:1].lower(), word[:1].upper()))
    )


@lru_cache(maxsize=8)
def _ways(texts: tuple[str, ...]) -> tuple[Way, ...]:
    """What the sentences allow. Raises UsageError for brackets that do not close and names that are not known."""
    known: dict[str, tuple[int, tuple[Way, ...]]] = {}
    found: list[Way] = []
    for text in map(str.strip, texts):
        named = _NAMED.fullmatch(text)
        reader = _Reader(named[2] if named else text.rstrip("".join(_ENDS)), known)
        try:
            choices = reader.choices()
        except (UsageError, RecursionError) as error:
            raise UsageError(
                f"{text!r:.80}: {error if isinstance(error, UsageError) else 'too many brackets'}"
            ) from None
        if named:
            known[named[1]] = (reader.n_items, choices)
        else:
            found += filter(None, choices)
    if not found:
        raise UsageError("no sentence in it, expected one a line")
    return tuple(found)


class _Reader:
    """Reads one line of sentences; `known` are the names of lines before it, with how many items each has."""

    def __init__(self, text: str, known: Mapping[str, tuple[int, tuple[Way, ...]]]) -> None:
        self._signs, self._known = _SIGNS.findall(text)[::-1], known
        self.n_items = 0

    def choices(self, close: str = "") -> tuple[Way, ...]:
        """The ways up to the sign `close`, or to the end. Raises UsageError."""
        choices: list[Way] = [()]
        while self._signs and self._signs[-1] not in ")]":
            sign = self._signs.pop()
            if sign == "|":
                choices.append(())
                continue
            choices[-1] = (*choices[-1], self._item(sign))
            self.n_items += 1
            if self.n_items > _MAX_PHRASES:
                raise UsageError(f"stands for more than {_MAX_PHRASES:,} words")
        ended = self._signs.pop() if self._signs else ""
        if ended != close:
            raise UsageError(f"expected {close!r}, got {ended!r}" if close else f"nothing opens the {ended!r} in it")
        return tuple(choices)

    def _item(self, sign: str) -> str | tuple[Way, ...]:
        if sign == "(":
            return self.choices(")")
        if sign == "[":
            return (*self.choices("]"), ())
        if sign[0] != "<":
            return sign
        name = sign[1:-1].strip()
        if name not in self._known:
            raise UsageError(f'{sign} is not known, expected a line "{name} = ..." before it')
        n_items, choices = self._known[name]
        self.n_items += n_items
        return choices
