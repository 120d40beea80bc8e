"""What a window should be transcribed as: ids, the ids to predict, and the characters for CTC.

Timestamps follow the Whisper paper, section 2.3, and openai-whisper's decoding rules:

- `<|t0|> text<|t1|>` for every sentence that lies wholly in the window, on the grid of 0.02 s;
- a sentence cut by the window's end gives its start alone, `... text<|t1|><|t2|>` and the end, so that the next window
  begins there;
- a first sentence that starts after one second is sometimes taught with a start of 1.00 given (not predicted), because
  openai-whisper forbids a later first timestamp;
- a window without speech predicts <|nospeech|> after <|startoftranscript|>. With timestamps its text is `<|0.00|>` and
  the end. Without, it is the end at once or a line break and the end, each half of the time: openai-whisper suppresses
  the end as the first token, and the line break then is the most likely one, which leaves an empty text too.

The position after <|startoftranscript|> learns <|en|> (or <|nospeech|>); the rest of the prompt is given, not learned.
This module knows ids and seconds. It knows nothing of samples, mels or torch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from specedge.export.training.layout import Layout, tokenizer_of

__all__ = ["ALPHABET", "IGNORE", "Labels", "Sentence", "build", "characters", "previous_text", "spelled"]

IGNORE = -100
ALPHABET = "_ abcdefghijklmnopqrstuvwxyz'.,?-ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # index 0 is CTC's blank
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
    """Indices into ALPHABET; characters outside it are left out."""
    return [ALPHABET.index(c) for c in text if c in ALPHABET[1:]]


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
    elif layout.english is not None:
        targets[sot_at] = layout.english
    for at, wanted in enumerate(text):
        position = len(given) - 1 + at
        if at not in hidden and not (position == sot_at and not speech and rng.random() < 0.5):
            targets[position] = wanted
    spans = [(-1, -1)] * (len(given) - 1) + [places.get(at, (-1, -1)) for at in range(len(text))]
    return Labels(tokens=tuple(tokens), targets=tuple(targets), spans=tuple(spans))
