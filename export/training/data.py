"""Training windows: which utterances go into one, where, and what batch a step gets.

A batch depends on the seed and the step alone, so a run that is taken up again sees the batches it would have seen.
Four kinds:

- short: one utterance each, all of about the same length, in a window a little longer than they are (cheap);
- packed: sentences with pauses up to the window's end, the last one often cut there (full window, nothing wasted);
- padded: one or two sentences and then digital silence up to the full window, as the runtime pads a file's end;
- prompted: like short, behind a previous text of up to half the decoder's positions.

In packed and padded batches a part of the windows has no speech. This module knows utterances, samples and labels. It
knows nothing of mels or models.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from specedge.export.training import augment, labels
from specedge.export.training.corpus import RATE_HZ, Utterance
from specedge.export.training.layout import Vocabulary

__all__ = ["Batch", "Mix", "Pool", "collate", "compose"]

Float = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Mix:
    """What a step draws from: chances of the kinds, samples in each kind's batch, and how hard the acoustics are."""

    short: float = 1.0
    packed: float = 0.0
    padded: float = 0.0
    prompted: float = 0.0
    timestamps: float = 0.5
    strength: float = 1.0
    silent: float = 0.08
    n_short: int = 16
    n_full: int = 6
    n_prompted: int = 6


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One step's data: samples float32 [B, n_samples]; tokens and targets int64 [B, L] of restricted rows.

    `characters` are CTC's targets (None where a window holds part of a sentence); `position` int64 [B] is the first
    decoder position of each sample.
    """

    samples: Float
    tokens: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    characters: list[list[int] | None]
    position: npt.NDArray[np.int64]
    kind: str


@dataclass
class Pool:
    """All utterances in order of length; shards may be added while training goes on."""

    items: list[Utterance] = field(default_factory=list)

    def add(self, items: Sequence[Utterance]) -> None:
        """Take in more utterances."""
        self.items = sorted([*self.items, *items], key=lambda item: (item.samples.size, item.text, item.voice))

    def similar(self, rng: random.Random, n: int) -> list[Utterance]:
        """`n` utterances of about the same length."""
        first = rng.randrange(max(1, len(self.items) - n + 1))
        return self.items[first : first + n]

    def any(self, rng: random.Random) -> Utterance:
        """One utterance at random."""
        return rng.choice(self.items)


@dataclass(frozen=True, kw_only=True)
class Window:
    """A composed window before the acoustics: samples float32 [n], of which the first `n_content` may get noise."""

    samples: Float
    sentences: tuple[labels.Sentence, ...]
    n_content: int


def _place(out: Float, item: Utterance, at: int, gain: float) -> labels.Sentence:
    n = min(item.samples.size, out.size - at)
    out[at : at + n] += item.samples[:n].astype(np.float32) * (gain / 32768)
    cut = at + item.end > out.size + RATE_HZ // 16  # a missing sixteenth of a second changes no word
    end = min(at + item.end, out.size)
    return labels.Sentence(text=item.text, start_s=(at + item.start) / RATE_HZ, end_s=end / RATE_HZ, cut=cut)


def compose(rng: random.Random, pool: Pool, n_samples: int, kind: str, *, silent: float, cut: bool) -> Window:
    """A packed or padded window of `n_samples`. Without `cut`, no sentence reaches past its end."""
    out = np.zeros(n_samples, np.float32)
    if rng.random() < silent:
        n_content = n_samples if kind == "packed" else rng.randrange(n_samples)
        return Window(samples=out, sentences=(), n_content=n_content)
    placed: list[labels.Sentence] = []
    lead_s = rng.choice((rng.uniform(0, 0.3), rng.uniform(0, 1.0), rng.uniform(0, 3.0)))
    at = int(RATE_HZ * lead_s)
    wanted = 99 if kind == "packed" else rng.choice((1, 1, 1, 2))
    while len(placed) < wanted and at < n_samples - RATE_HZ // 5:
        item = pool.any(rng)
        fits = at + item.end <= n_samples
        if not fits and (not cut or not placed):
            break
        sentence = _place(out, item, at, rng.uniform(0.5, 1.0))
        placed.append(sentence)
        if sentence.cut:
            break
        pause_s = rng.choice((rng.uniform(0.05, 0.4), rng.uniform(0.2, 1.2), rng.uniform(0.5, 3.0)))
        at += item.samples.size + int(RATE_HZ * pause_s)
    if not placed:
        shortest = pool.items[rng.randrange(max(1, len(pool.items) // 4))]
        placed.append(_place(out, shortest, rng.randrange(1 + max(0, n_samples - shortest.samples.size)), 1.0))
    if kind == "packed" or placed[-1].cut:
        n_content = n_samples
    else:
        n_content = min(n_samples, int(placed[-1].end_s * RATE_HZ) + rng.randrange(RATE_HZ // 4, 2 * RATE_HZ))
    return Window(samples=out, sentences=tuple(placed), n_content=n_content)


def _short(rng: random.Random, items: Sequence[Utterance], limit: int) -> list[Window]:
    longest = max(item.samples.size for item in items)
    step = RATE_HZ // 2
    n_samples = min(limit, -(-(longest + rng.randrange(step // 8, step)) // step) * step)
    windows = []
    for item in items:
        out = np.zeros(n_samples, np.float32)
        sentence = _place(out, item, rng.randrange(max(1, n_samples - item.samples.size)), 1.0)
        windows.append(Window(samples=out, sentences=(sentence,), n_content=n_samples))
    return windows


def draw(
    rng: random.Random, pool: Pool, mix: Mix, window_samples: int, timestamps: list[bool]
) -> tuple[str, list[Window]]:
    """Draw a step's kind and its windows; fills `timestamps` with one choice per window."""
    kinds = ("short", "packed", "padded", "prompted")
    kind = rng.choices(kinds, (mix.short, mix.packed, mix.padded, mix.prompted))[0]
    n = {"short": mix.n_short, "prompted": mix.n_prompted}.get(kind, mix.n_full)
    timestamps += [rng.random() < mix.timestamps for _ in range(n)]
    if kind in ("short", "prompted"):
        return kind, _short(rng, pool.similar(rng, n), window_samples)
    return kind, [compose(rng, pool, window_samples, kind, silent=mix.silent, cut=timestamps[i]) for i in range(n)]


def collate(
    seed: int, step: int, pool: Pool, mix: Mix, vocabulary: Vocabulary, *, window_samples: int, n_ctx: int
) -> Batch:
    """The batch of one step."""
    layout = vocabulary.layout
    rng = random.Random(f"{seed} {step}")
    wave_rng = np.random.default_rng((seed, step))
    timestamps: list[bool] = []
    kind, windows = draw(rng, pool, mix, window_samples, timestamps)
    made, chars, sounds = [], [], []
    for window, stamped in zip(windows, timestamps, strict=True):
        previous: list[int] = []
        if kind == "prompted":
            texts = [pool.any(rng).text for _ in range(rng.randint(1, 20))]
            limit = rng.randint(1, n_ctx // 2 - 1)
            previous = labels.previous_text(layout, texts, rng, timestamps=rng.random() < 0.6, limit=limit)
        made.append(labels.build(layout, window.sentences, rng, timestamps=stamped, previous=previous))
        whole = all(not sentence.cut for sentence in window.sentences)
        chars.append(labels.characters(" ".join(s.text for s in window.sentences)) if whole else None)
        sounds.append(_sound(wave_rng, rng, pool, window, mix.strength))
    length = max(len(item.tokens) for item in made)
    tokens = np.full((len(made), length), vocabulary.row_of[layout.special.eot], np.int64)
    targets = np.full((len(made), length), labels.IGNORE, np.int64)
    for i, item in enumerate(made):
        rows = vocabulary.restrict(item.tokens)
        if kind == "prompted":
            n_prompt = item.tokens.index(layout.special.sot)
            rows[1:n_prompt] = [vocabulary.other if rng.random() < 0.1 else row for row in rows[1:n_prompt]]
        tokens[i, : len(rows)] = rows
        targets[i, : len(rows)] = [t if t < 0 else vocabulary.row_of[t] for t in item.targets]
    # positions beyond the usual lengths are visited by whole shifts, which cost nothing
    shifted = rng.random() < 0.15 and kind != "prompted"
    position = [rng.randrange(n_ctx - length) if shifted else 0 for _ in made]
    return Batch(
        samples=np.stack(sounds),
        tokens=tokens,
        targets=targets,
        characters=chars,
        position=np.array(position, np.int64),
        kind=kind,
    )


def _sound(wave_rng: np.random.Generator, rng: random.Random, pool: Pool, window: Window, strength: float) -> Float:
    out = window.samples.copy()
    n = window.n_content
    if not window.sentences:
        if n and rng.random() < 0.75:
            out[:n] = augment.noise(wave_rng, n) * 10 ** wave_rng.uniform(-4.5, -1.2)
        return np.clip(out, -1, 1)
    babble = None
    if strength > 0.5 and rng.random() < 0.25:
        babble = [pool.any(rng).sound() for _ in range(4)]
    if n:
        out[:n] = augment.acoustics(wave_rng, out[:n], strength, babble)
    return out
