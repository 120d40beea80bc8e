"""Words: token ids cut into words with their punctuation, and the distance of two texts.

Words are openai-whisper's (tokenizer.py, split_to_word_tokens; timing.py, merge_punctuations). Languages written
without spaces are cut at every whole character. Bytes of a broken character wait for the next token, as in
faster-whisper; openai-whisper runs past the end of the text there.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from .tokenizer import Tokenizer

UNSPACED_LANGUAGES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
REPLACEMENT = "\ufffd"
END_OF_TEXT = "<|endoftext|>"
_SENTENCE_ENDS = tuple(mark.encode() for mark in ".?!。？！…")


@dataclass(kw_only=True)
class WordTokens:
    """A word in the making: text and ids, which `merge_punctuations` moves, and times in seconds of the window."""

    text: str
    ids: list[int]
    start_s: float = 0.0
    end_s: float = 0.0
    probability: float = 0.0


def split_words(ids: Sequence[int], tokenizer: Tokenizer, language: str | None) -> list[WordTokens]:
    """The words of `ids`, text tokens and the end of text, which is a word of its own.

    `language` is a code; None, or an unknown one, is written with spaces. Bytes at the end that complete no character
    are left out. Raises UsageError for an id outside the vocabulary.
    """
    parts = _split_at_characters(ids, tokenizer)
    if language in UNSPACED_LANGUAGES:
        return parts
    words: list[WordTokens] = []
    for part in parts:
        is_special = part.ids[0] >= tokenizer.special.eot
        is_punctuation = part.text.strip() in string.punctuation  # nothing but spaces counts too
        if is_special or part.text.startswith(" ") or is_punctuation or not words:
            words.append(part)
        else:
            words[-1].text += part.text
            words[-1].ids += part.ids
    return words


def _split_at_characters(ids: Sequence[int], tokenizer: Tokenizer) -> list[WordTokens]:
    """The shortest runs of tokens that are whole characters, or broken in the whole text too."""
    full = _text(ids, tokenizer)
    parts = []
    pending: list[int] = []
    n_done = 0
    for id_ in ids:
        pending.append(id_)
        text = _text(pending, tokenizer)
        broken_at = text.find(REPLACEMENT)
        if broken_at < 0 or full[n_done + broken_at : n_done + broken_at + 1] == REPLACEMENT:
            parts.append(WordTokens(text=text, ids=pending))
            pending = []
            n_done += len(text)
    return parts


def _text(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    eot = tokenizer.special.eot
    data = b"".join(END_OF_TEXT.encode() if id_ == eot else tokenizer.decode_bytes([id_]) for id_ in ids)
    return data.decode("utf-8", errors="replace")


def merge_punctuations(words: Sequence[WordTokens], prepended: str, appended: str) -> None:
    """Move marks of `prepended` into the word after them and marks of `appended` into the word before.

    Their own places stay, empty. Both are tested as parts of the text, so "" and runs of marks belong to it too.
    """
    following = len(words) - 1
    for i in range(len(words) - 2, -1, -1):
        mark, word = words[i], words[following]
        if mark.text.startswith(" ") and mark.text.strip() in prepended:
            word.text, word.ids = mark.text + word.text, mark.ids + word.ids
            mark.text, mark.ids = "", []
        else:
            following = i
    previous = 0
    for i in range(1, len(words)):
        word, mark = words[previous], words[i]
        if not word.text.endswith(" ") and mark.text in appended:
            word.text, word.ids = word.text + mark.text, word.ids + mark.ids
            mark.text, mark.ids = "", []
        else:
            previous = i


def bare(text: str) -> str:
    """`text` to compare by: in lower case, without punctuation."""
    return re.sub(r"\W", "", text.casefold())


def ends_sentence(tokenizer: Tokenizer) -> Callable[[int], bool]:
    """Says of a text id whether a sentence ends with it."""
    return lambda token: tokenizer.ranks[token].endswith(_SENTENCE_ENDS)


def sentence_so_far(tokens: Sequence[int], eot: int, ends: Callable[[int], bool], longest: int = 8) -> tuple[int, ...]:
    """Return the text ids since the last sentence ended or the last timestamp, at most the `longest` last of them.

    eot: the id that text ids are below; ends: whether a sentence ends with an id (`ends_sentence`).
    """
    first = max(0, len(tokens) - longest)
    at = len(tokens)
    while at > first and tokens[at - 1] < eot and not ends(tokens[at - 1]):
        at -= 1
    return tuple(tokens[at:])


def opens_word(spelling: bytes) -> bool:
    """Whether words may begin with a token so spelt: anything but a letter or digit of Latin script inside a word."""
    first = spelling[:1]
    return not (first.isalnum() or first == b"'" or b"\x80" <= first < b"\xc0")


def edit_distance(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """Levenshtein distance, in time of both lengths' product and memory of their sum."""
    numbers: dict[Hashable, int] = {}
    a, b = (np.array([numbers.setdefault(one, len(numbers)) for one in part], np.int64) for part in (left, right))
    steps = np.arange(len(b) + 1)
    row = steps.copy()  # from nothing of `left` to the first 0, 1, ... of `right`
    for one in a:
        reached = np.minimum(row + 1, np.concatenate(([row[0] + 1], row[:-1] + (b != one))))
        row = np.minimum.accumulate(reached - steps) + steps  # and then what `right` has more
    return int(row[-1])
