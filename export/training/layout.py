"""Whisper's three token layouts as the recipe uses them, and the restricted vocabulary of training.

While training, the output has one row for each token that the demo texts can need, and one row, `other`, that stands
for all the rest. `other` enters the softmax with the logarithm of the number of tokens it stands for, so the loss is
that of the full vocabulary; at expansion (see network.expand_rows) every unused row is a copy of it.

Ids and byte tables are the exporter's (export/layout.py, export/vocabulary.py). Text is encoded with a leading space
("` Check the filter.`"), as Whisper's transcripts are. This module knows ids. It knows nothing of audio or of torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from specedge.export.layout import standard_layout
from specedge.export.vocabulary import built_in_table
from specedge.runtime.errors import UsageError
from specedge.runtime.text.special import SpecialTokens
from specedge.runtime.text.tokenizer import Tokenizer

__all__ = ["LAYOUTS", "Layout", "Vocabulary", "layout_of", "same_tokens", "tokenizer_of"]

# openai-whisper, tokenizer.py, non_speech_tokens: symbols of which a transcript of speech has no need
_SYMBOLS = [
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *"<< >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪".split(),
]
_NOTES = "♩♪♫♬♭♮♯"  # several tokens each, of which the first is suppressed


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One of Whisper's vocabularies: its special ids, the byte-pair table it uses, and the mels of its models."""

    name: str
    n_mels: int
    table: str
    special: SpecialTokens

    @property
    def english(self) -> int | None:
        """Id of <|en|>, None in the English-only vocabulary."""
        return self.special.languages.get("en")

    def prompt(self, *, timestamps: bool) -> list[int]:
        """Ids from <|startoftranscript|> to the last one before the text, for English transcription."""
        return self.special.prompt("en", timestamps=timestamps)

    def suppress(self) -> list[int]:
        """`suppress_tokens` of the generation config: non-speech symbols and the specials that are never predicted."""
        special = self.special
        encode = tokenizer_of(self.name).encode
        text = {encode(" -")[0], encode(" '")[0]}
        for symbol in [*_SYMBOLS, *_NOTES]:
            for ids in (encode(symbol), encode(" " + symbol)):
                if len(ids) == 1 or symbol in _NOTES:
                    text.add(ids[0])
        never = {special.sot, special.sot_lm, special.sot_prev, special.no_speech}
        never |= {special.sot_lm - 1, special.sot_lm - 2}  # the tasks, which English-only vocabularies keep ids for
        return sorted(never | text)


LAYOUTS = {
    "v3": Layout(name="v3", n_mels=128, table="multilingual", special=standard_layout(51866)),
    "v2": Layout(name="v2", n_mels=80, table="multilingual", special=standard_layout(51865)),
    "en": Layout(name="en", n_mels=80, table="gpt2", special=standard_layout(51864)),
}


def layout_of(n_vocab: int, where: object) -> Layout:
    """The layout with so many ids. Raises UsageError that names `where` for any other number."""
    for layout in LAYOUTS.values():
        if layout.special.n_vocab == n_vocab:
            return layout
    known = ", ".join(str(layout.special.n_vocab) for layout in LAYOUTS.values())
    raise UsageError(f"{where}: a vocabulary of {n_vocab} ids, expected one of Whisper's: {known}")


@cache
def tokenizer_of(layout_name: str) -> Tokenizer:
    """The tokenizer of a layout, from the byte tables that the exporter carries."""
    layout = LAYOUTS[layout_name]
    return Tokenizer(built_in_table(layout.table), layout.special)


def same_tokens(layout: Layout, other: Layout) -> npt.NDArray[np.int64]:
    """For each id of `layout` the id in `other` of the token that means the same, -1 where it has none.

    Text by its bytes, timestamps by their time, the others by their names: int64 [n_vocab].
    """
    found = np.full(layout.special.n_vocab, -1, np.int64)
    theirs = {tokenizer_of(other.name).decode_bytes([id_]): id_ for id_ in range(other.special.eot)}
    for id_ in range(layout.special.eot):
        found[id_] = theirs.get(tokenizer_of(layout.name).decode_bytes([id_]), -1)
    for name in ("eot", "sot", "sot_prev", "sot_lm", "no_speech", "no_timestamps", "translate", "transcribe"):
        mine, there = getattr(layout.special, name), getattr(other.special, name)
        if mine is not None and there is not None:
            found[mine] = there
    for code in set(layout.special.languages) & set(other.special.languages):
        found[layout.special.languages[code]] = other.special.languages[code]
    n = min(layout.special.n_timestamps, other.special.n_timestamps)
    found[layout.special.timestamp_begin :][:n] = np.arange(n) + other.special.timestamp_begin
    return found


class Vocabulary:
    """The rows a model has while it is trained: the used ids in rising order, then `other`.

    `rows` int64 [n_used]: full id of each row; `row_of` int64 [n_vocab]: row of each full id (unused ids: `other`).
    The timestamps of the window are the `n_stamps` rows from `first_stamp` on.
    """

    def __init__(self, layout: Layout, text_ids: Iterable[int], window_s: float) -> None:
        special = layout.special
        last = special.timestamp_begin + round(window_s / special.time_precision_s)
        used = {i for i in text_ids if i < special.eot} | set(range(special.timestamp_begin, last + 1))
        used |= set(layout.prompt(timestamps=False)) | {special.eot, special.sot_prev, special.no_speech}
        self.layout = layout
        self.rows: npt.NDArray[np.int64] = np.array(sorted(used), np.int64)
        self.other = len(self.rows)
        self.n_rows = len(self.rows) + 1
        self.n_unused = special.n_vocab - len(self.rows)
        self.first_stamp = int(np.searchsorted(self.rows, special.timestamp_begin))
        self.n_stamps = last - special.timestamp_begin + 1
        self.row_of: npt.NDArray[np.int64] = np.full(special.n_vocab, self.other, np.int64)
        self.row_of[self.rows] = np.arange(len(self.rows))

    def restrict(self, ids: Sequence[int]) -> list[int]:
        """Full ids -> rows."""
        return [int(self.row_of[i]) for i in ids]
