"""Errors of words and characters between a reference and what a model heard, normalised as openai-whisper does it.

Case, punctuation and what is in brackets do not count. In English contractions are spelt out, numbers are digits, there
are no fillers, and British endings are American ones; openai-whisper lists 1,741 words for them, here are rules,
which may also change other words, in both texts alike. Languages written without spaces count in characters.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..text.words import edit_distance


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Word errors of a list: `n_errors` of `n_words`."""

    n_errors: int
    n_words: int

    @property
    def rate(self) -> float:
        """Word error rate, 0 when there is nothing to get wrong."""
        return self.n_errors / self.n_words if self.n_words else 0.0


_BRACKETED = re.compile(r"[<\[][^>\]]*[>\]]|\([^)]+\)")
_UNSPACED = frozenset({"zh", "yue", "ja", "th", "lo", "my", "km"})
_AMERICAN = (
    (re.compile(r"(?<=[a-z]{2})our(?=(?:s|ed|ing|able|ably|al|ful|hood|hoods|ite|ites|less|ly|er|ers)?$)"), "or"),
    (re.compile(r"(?<=[a-z]{2})([iy])s(?=(?:e|ed|es|er|ers|ing|ation|ations)$)"), r"\1z"),
    (re.compile(r"(?<=[a-z][bt])re(?=s?$)"), "er"),
    (re.compile(r"(?<=[a-z][a-z][aeiou]l)l(?=(?:ed|er|ers|ing)$)"), ""),
    (re.compile(r"(?<=[a-z]og)ue(?=s?$)"), ""),
    (re.compile(r"(?<=[a-z]{2}en)c(?=es?$)"), "s"),
    (re.compile(r"^grey"), "gray"),
)
_FILLERS = frozenset({"hmm", "mm", "mhm", "mmm", "uh", "um"})
_SPELT_OUT = dict(
    pair.split("=")
    for pair in (
        "won't=will not,can't=can not,let's=let us,ain't=aint,wanna=want to,gotta=got to,gonna=going to,mr=mister,"
        "mrs=missus,st=saint,dr=doctor,prof=professor,capt=captain,gen=general,rev=reverend,lt=lieutenant,col=colonel,"
        "jr=junior,sr=senior,ma'am=madam"
    ).split(",")
)
_ENDINGS = {"n't": "not", "'re": "are", "'s": "is", "'d": "would", "'ll": "will", "'ve": "have", "'m": "am"}
_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_NUMBERS = {name: value for value, name in enumerate(_SMALL)} | {
    name: 10 * tens for tens, name in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)
}
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}


def units(text: str, language: str) -> Sequence[str]:
    """What errors are counted in: words, or characters of a language that is written without spaces."""
    text = _BRACKETED.sub("", unicodedata.normalize("NFKC", text.replace("’", "'")).lower())
    if language != "en":
        words = "".join(" " if unicodedata.category(each)[0] in "MSP" else each for each in text).split()
        return list("".join(words)) if language in _UNSPACED else words
    text = re.sub(r"[$£€](\d[\d,.]*\d|\d)", r"\1 dollars", re.sub(r"(?<=\d),(?=\d)", "", text)).replace("%", " percent")
    words = re.findall(r"\d+\.\d+|[^\W_]+(?:'[^\W\d_]+)?", text)
    return list(_in_digits(list(itertools.chain.from_iterable(map(_spelt_out, words)))))


def _spelt_out(word: str) -> Sequence[str]:
    if word in _FILLERS:
        return ()
    if word in _SPELT_OUT:
        return _SPELT_OUT[word].split()
    for british, american in _AMERICAN:
        word = british.sub(american, word)
    ending = next((ending for ending in _ENDINGS if word.endswith(ending) and word != ending), None)
    return (word,) if ending is None else (word.removesuffix(ending), _ENDINGS[ending])


def _in_digits(words: Sequence[str]) -> Iterator[str]:
    """`words` with each run of number words as digits: "two hundred and five" is 205, "nineteen eighty four" 1984."""
    done, total, part, is_tens = "", 0, -1, False  # digits so far, thousands before, the number below, twenty or more

    def end() -> str:
        return f"{done}{total + max(part, 0)}" if part >= 0 or total else done

    for i, word in enumerate(words):
        value, scale = _NUMBERS.get(word), _SCALES.get(word)
        if scale is not None and (part > 0):
            part *= scale
            if scale > 100:
                total, part = total + part, -1
        elif value is not None:
            if part < 0:
                part = value
            elif (is_tens and 0 < value < 10) or (part % 100 == 0 and part):
                part += value
            else:
                done, total, part = end(), 0, value
        elif word == "and" and part > 0 and part % 100 == 0 and words[i + 1 : i + 2] and words[i + 1] in _NUMBERS:
            continue
        else:
            if found := end():
                yield found
            done, total, part = "", 0, -1
            yield word
        is_tens = value is not None and value >= 20
    if found := end():
        yield found


def word_errors(pairs: Iterable[tuple[str, str]], language: str = "en") -> Errors:
    """Errors of (reference, hypothesis) pairs."""
    n_errors = n_words = 0
    for wanted, got in ((units(text, language) for text in pair) for pair in pairs):
        n_errors, n_words = n_errors + edit_distance(wanted, got), n_words + len(wanted)
    return Errors(n_errors=n_errors, n_words=n_words)
