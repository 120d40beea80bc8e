"""What a training window is to be transcribed as: token layouts, the ids to predict, and the characters for CTC.

Timestamps follow the Whisper paper, section 2.3, and openai-whisper's decoding rules:

- `<|t0|> text<|t1|>` for every sentence that lies wholly in the window, on the grid of 0.02 s;
- a sentence cut by the window's end gives its start alone, `... text<|t1|><|t2|>` and the end, so that the next window
  begins there;
- a first sentence that starts after one second is sometimes taught with a start of 1.00 given (not predicted), because
  openai-whisper forbids a later first timestamp;
- a window without speech predicts <|nospeech|> after <|startoftranscript|>. With timestamps its text is `<|0.00|>` and
  the end. Without, it is the end at once or a line break and the end, each half of the time: openai-whisper suppresses
  the end as the first token, and the line break then is the most likely one, which leaves an empty text too.

While training, the output has one row for each token that the texts can need, and one row, `other`, that stands for all
the rest. `other` enters the softmax with the logarithm of the number of tokens it stands for, so the loss is that of
the full vocabulary. The linear CTC head over characters that an encoder was trained with is kept in
`spelling.safetensors` beside its checkpoint, for CTC heads over bytes to begin as a copy of it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.torch import save_file
from torch import nn

from specedge.errors import UsageError
from specedge.export.training.labels import IGNORE, SPELLING_NAME
from specedge.export.vocabulary import published_tokenizer, standard_layout, suppressed_tokens
from specedge.runtime.text.special import SpecialTokens
from specedge.runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One of Whisper's vocabularies: its special ids and the mels of its models; and the language that is spoken."""

    name: str
    n_mels: int
    special: SpecialTokens
    language: str = "en"

    @property
    def spoken(self) -> int | None:
        """Id of the language's token, None in the English-only vocabulary."""
        return self.special.languages.get(self.language)

    def prompt(self, *, timestamps: bool) -> list[int]:
        """Ids from <|startoftranscript|> to the last one before the text, for transcription."""
        return self.special.prompt(self.language, timestamps=timestamps)

    def suppress(self) -> list[int]:
        """`suppress_tokens` of the generation config: non-speech symbols and the specials that are never predicted."""
        return suppressed_tokens(self.special.n_vocab)


LAYOUTS = {
    "v3": Layout(name="v3", n_mels=128, special=standard_layout(51866)),
    "v2": Layout(name="v2", n_mels=80, special=standard_layout(51865)),
    "en": Layout(name="en", n_mels=80, special=standard_layout(51864)),
}


def layout_of(n_vocab: int, where: object) -> Layout:
    """The layout with so many ids. Raises UsageError that names `where` for any other number."""
    for layout in LAYOUTS.values():
        if layout.special.n_vocab == n_vocab:
            return layout
    known = ", ".join(str(layout.special.n_vocab) for layout in LAYOUTS.values())
    raise UsageError(f"{where}: a vocabulary of {n_vocab} ids, expected one of Whisper's: {known}")


def tokenizer_of(layout_name: str) -> Tokenizer:
    """The tokenizer of a layout."""
    return published_tokenizer(LAYOUTS[layout_name].special.n_vocab)


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


ALPHABET = "_ abcdefghijklmnopqrstuvwxyz'.,?-ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # index 0 is CTC's blank
_PLAIN = str.maketrans("äöüÄÖÜß", "aouAOUs")
_MAX_FIRST_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A sentence in a window: its text, and when it is audible, in seconds from the window's start.

    `cut` says that the window ends before the sentence does.
    """

    text: str
    start_s: float
    end_s: float
    cut: bool = False


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Full-vocabulary ids of one sample: `tokens[i]` is given, `targets[i]` is to be predicted after it, or IGNORE.

    `spans[i]` are the first and the last of `characters` that the target stands for; (-1, -1) where there are none.
    """

    tokens: tuple[int, ...]
    targets: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]


def characters(text: str) -> list[int]:
    """Indices into ALPHABET, umlauts by their vowels; other characters outside it are left out."""
    return [ALPHABET.index(c) for c in text.translate(_PLAIN) if c in ALPHABET[1:]]


def spelled(sentences: Sequence[Sentence]) -> str:
    """The text of a window as CTC spells it: its whole sentences."""
    return " ".join(item.text for item in sentences if not item.cut)


def _spans(pieces: Sequence[str], first: int) -> list[tuple[int, int]]:
    """Of tokens that spell " sentence" from character `first` - 1 on: each one's first and last character."""
    spans, at = [], first - 1
    for piece in pieces:
        n = len(characters(piece))
        begin = at + 1 if piece.startswith(" ") else at
        spans.append((begin, at + n - 1) if at + n - 1 >= begin else (-1, -1))
        at += n
    return spans


def previous_text(
    layout: Layout, texts: Sequence[str], rng: random.Random, *, timestamps: bool, limit: int
) -> list[int]:
    """Ids of earlier sentences as a long-form run gives them to the next window, the last `limit` of them."""
    begin, encode = layout.special.timestamp_begin, tokenizer_of(layout.name).encode
    ids: list[int] = []
    at_s = 0.0
    for text in texts:
        words = encode(" " + text)
        if timestamps:
            end_s = min(at_s + rng.uniform(1.5, 4.0), 9.9)
            ids += [begin + round(at_s / 0.02), *words, begin + round(end_s / 0.02)]
            at_s = end_s + rng.uniform(0.0, 1.0) if end_s < 7 else 0.0
        else:
            ids += words
    return ids[-limit:]


def build(
    layout: Layout,
    sentences: Sequence[Sentence],
    rng: random.Random,
    *,
    timestamps: bool,
    previous: Sequence[int] = (),
    line_break: int = 198,
) -> Labels:
    """Labels of one window. A cut sentence is used only with timestamps and only after a whole one.

    `previous` are ids put behind <|startofprev|>. `line_break` is the id of a newline (198 in both byte-pair tables).
    """
    special, tokenizer = layout.special, tokenizer_of(layout.name)
    speech = any(not item.cut for item in sentences)
    prompt = layout.prompt(timestamps=timestamps)
    given = [special.sot_prev, *previous, *prompt] if previous else prompt
    text: list[int] = []
    places: dict[int, tuple[int, int]] = {}
    n_spelled = 0
    hidden: set[int] = set()
    if timestamps and not speech:
        text.append(special.timestamp_begin)
    elif not speech:
        text += [line_break] if rng.random() < 0.5 else []
    for item in sentences:
        start = special.timestamp_begin + round(item.start_s / 0.02)
        if timestamps and not text and item.start_s > _MAX_FIRST_S and rng.random() < 0.3:
            start = special.timestamp_begin + round(_MAX_FIRST_S / 0.02)
            hidden.add(0)
        if item.cut:
            if timestamps and text:
                text.append(start)
            continue
        words = tokenizer.encode(" " + item.text)
        end = special.timestamp_begin + round(item.end_s / 0.02)
        spans = _spans([tokenizer.decode([word]) for word in words], n_spelled)
        n_spelled += len(characters(item.text)) + 1
        places |= dict(enumerate(spans, start=len(text) + timestamps))
        text += [start, *words, end] if timestamps else words
    text.append(special.eot)
    tokens = [*given, *text[:-1]]
    targets = [IGNORE] * len(tokens)
    sot_at = len(given) - len(prompt)
    if not speech:
        targets[sot_at] = special.no_speech
    elif layout.spoken is not None:
        targets[sot_at] = layout.spoken
    for at, wanted in enumerate(text):
        position = len(given) - 1 + at
        if at not in hidden and not (position == sot_at and not speech and rng.random() < 0.5):
            targets[position] = wanted
    spans = [(-1, -1)] * (len(given) - 1) + [places.get(at, (-1, -1)) for at in range(len(text))]
    return Labels(tokens=tuple(tokens), targets=tuple(targets), spans=tuple(spans))


def write_spelling(layer: nn.Linear, folder: Path) -> None:
    """Write the head beside a checkpoint. Raises OSError."""
    tensors = {name: value.detach().float().contiguous() for name, value in layer.named_parameters()}
    save_file(tensors, folder / SPELLING_NAME, metadata={"alphabet": ALPHABET})
