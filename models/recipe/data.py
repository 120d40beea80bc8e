"""Training windows: which utterances go into one, where, and what batch a step gets.

A batch depends on the seed, the step and the worker alone, so a resumed run sees the same batches. Four kinds, the same
for all workers of a step:

- short: one utterance each, all of about the same length, in a window a little longer than they are (cheap);
- packed: sentences with pauses up to the window's end, the last one often cut there (full window, nothing wasted);
- padded: one or two sentences, and nothing after them;
- prompted: packed or padded, behind a previous text of up to half the decoder's positions.

A full window may begin as in a long recording: in a pause, or in the last sounds of a sentence that the window before
has written already. After the content comes digital silence (the floor of the log-mel, as transformers and
faster-whisper pad) or 0.0 in the log-mel itself (as openai-whisper does). Some full windows have no speech. Utterances
are resampled from one use to the next, which varies pitch, formants and tempo together.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from specedge.export.training import corpus
from specedge.export.training.corpus import RATE_HZ, Utterance
from specedge.export.training.labels import IGNORE

from . import labels
from .labels import Vocabulary

__all__ = ["Batch", "Mix", "Pool", "Window", "collate", "compose", "sound", "vary"]

Float = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
HOP = 160
_LONGEST = int(9.5 * RATE_HZ)


@dataclass(frozen=True, kw_only=True)
class Mix:
    """What a step draws from: chances of the kinds, samples in each kind's batch, and how hard the acoustics are.

    `blank` is the share of full windows whose log-mel is 0.0 behind the content.
    """

    short: float = 1.0
    packed: float = 0.0
    padded: float = 0.0
    prompted: float = 0.0
    timestamps: float = 0.5
    strength: float = 1.0
    silent: float = 0.08
    blank: float = 0.6
    n_short: int = 16
    n_full: int = 6
    n_prompted: int = 6


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One step's data: samples float32 [B, n_samples]; tokens and targets int64 [B, L] of restricted rows.

    `characters` are CTC's targets, those of the whole sentences, in the first `n_spelled` int64 [B] frames; `spans`
    int64 [B, L, 2] are each target's first and last character, -1 for none. `position` int64 [B] is the first decoder
    position of each sample; from frame `n_frames` int64 [B] on the log-mel is 0.0; `louder` float32 [B] says by
    how much (log10 of power) the file's maximum lies above the window's; `n_content` int64 [B] are the frames with
    content.
    """

    samples: Float
    tokens: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    characters: list[list[int]]
    n_spelled: npt.NDArray[np.int64]
    spans: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]
    n_frames: npt.NDArray[np.int64]
    n_content: npt.NDArray[np.int64]
    louder: Float
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


def vary(rng: random.Random, item: Utterance, reach: float = 0.15) -> Utterance:
    """Every other time the utterance resampled by up to `reach`: a little higher and faster, or lower and slower."""
    factor = rng.uniform(1 - reach, 1 + reach)
    n = round(item.samples.size / factor)
    if rng.random() < 0.5 or n > _LONGEST:
        return item
    at = np.arange(n, dtype=np.float32) * np.float32(factor)
    samples = np.interp(at, np.arange(item.samples.size, dtype=np.float32), item.samples).astype(np.int16)
    return replace(item, samples=samples, start=round(item.start / factor), end=min(n, round(item.end / factor)))


def _place(out: Float, item: Utterance, at: int, gain: float) -> labels.Sentence:
    n = min(item.samples.size, out.size - at)
    out[at : at + n] += item.samples[:n].astype(np.float32) * (gain / 32768)
    cut = at + item.end > out.size + RATE_HZ // 16  # a missing sixteenth of a second changes no word
    end = min(at + item.end, out.size)
    return labels.Sentence(text=item.text, start_s=(at + item.start) / RATE_HZ, end_s=end / RATE_HZ, cut=cut)


def _begin(rng: random.Random, pool: Pool, out: Float) -> int:
    """Where the first sentence may start; before it there may be the end of one that is not this window's."""
    lead_s = rng.choice((rng.uniform(0, 0.3), rng.uniform(0, 1.0), rng.uniform(0, 3.0)))
    if rng.random() < 0.3:
        before = pool.any(rng)
        n = min(int(RATE_HZ * rng.uniform(0.02, 0.3)), before.end)
        out[:n] += before.samples[before.end - n : before.end].astype(np.float32) * (rng.uniform(0.5, 1.0) / 32768)
        lead_s += n / RATE_HZ + 0.1
    return int(RATE_HZ * lead_s)


def compose(rng: random.Random, pool: Pool, n_samples: int, kind: str, *, silent: float, cut: bool) -> Window:
    """A packed or padded window of `n_samples`. Without `cut`, no sentence reaches past its end."""
    out = np.zeros(n_samples, np.float32)
    if rng.random() < silent:
        n_content = n_samples if kind == "packed" else rng.randrange(RATE_HZ // 100, n_samples)
        return Window(samples=out, sentences=(), n_content=n_content)
    placed: list[labels.Sentence] = []
    at = _begin(rng, pool, out)
    wanted = 99 if kind == "packed" else rng.choice((1, 1, 1, 2))
    while len(placed) < wanted and at < n_samples - RATE_HZ // 5:
        item = vary(rng, pool.any(rng))
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
        out[:] = 0
        shortest = pool.items[rng.randrange(max(1, len(pool.items) // 4))]
        placed.append(_place(out, shortest, rng.randrange(1 + max(0, n_samples - shortest.samples.size)), 1.0))
    if kind == "packed" or placed[-1].cut:
        n_content = n_samples
    else:
        after_s = rng.choice((rng.uniform(0, 0.05), rng.uniform(0, 0.4), rng.uniform(0.2, 2.5)))
        n_content = min(n_samples, int((placed[-1].end_s + after_s) * RATE_HZ))
        out[n_content:] = 0
    return Window(samples=out, sentences=tuple(placed), n_content=n_content)


def _short(rng: random.Random, items: Sequence[Utterance], limit: int) -> list[Window]:
    items = [vary(rng, item) for item in items]
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
    rng: random.Random, pool: Pool, mix: Mix, window_samples: int, timestamps: list[bool], kind: str
) -> list[Window]:
    """Draw the windows of a step of this kind; fills `timestamps` with one choice per window."""
    n = {"short": mix.n_short, "prompted": mix.n_prompted}.get(kind, mix.n_full)
    timestamps += [rng.random() < mix.timestamps for _ in range(n)]
    if kind == "short":
        items = pool.similar(rng, n)
        del timestamps[len(items) :]  # a small pool has fewer
        return _short(rng, items, window_samples)
    kinds = [kind if kind != "prompted" else rng.choice(("packed", "padded")) for _ in range(n)]
    return [compose(rng, pool, window_samples, kinds[i], silent=mix.silent, cut=timestamps[i]) for i in range(n)]


def _previous(rng: random.Random, pool: Pool, vocabulary: Vocabulary, n_ctx: int) -> list[int]:
    texts = [pool.any(rng).text for _ in range(rng.choice((rng.randint(1, 5), rng.randint(1, 20))))]
    limit = rng.randint(1, n_ctx // 2 - 1)
    return labels.previous_text(vocabulary.layout, texts, rng, timestamps=rng.random() < 0.8, limit=limit)


def _rows(rng: random.Random, made: Sequence[labels.Labels], vocabulary: Vocabulary) -> tuple[Rows, Rows, Rows]:
    """Tokens and targets of a batch as restricted rows [B, L], and the targets' spans [B, L, 2].

    A tenth of a previous text becomes other words.
    """
    special = vocabulary.layout.special
    length = max(len(item.tokens) for item in made)
    tokens = np.full((len(made), length), vocabulary.row_of[special.eot], np.int64)
    targets = np.full((len(made), length), IGNORE, np.int64)
    spans = np.full((len(made), length, 2), -1, np.int64)
    for i, item in enumerate(made):
        rows = vocabulary.restrict(item.tokens)
        n_prompt = item.tokens.index(special.sot)
        rows[1:n_prompt] = [vocabulary.other if rng.random() < 0.1 else row for row in rows[1:n_prompt]]
        tokens[i, : len(rows)] = rows
        targets[i, : len(rows)] = [t if t < 0 else vocabulary.row_of[t] for t in item.targets]
        spans[i, : len(rows)] = item.spans
    return tokens, targets, spans


def collate(
    seed: int,
    step: int,
    pool: Pool,
    mix: Mix,
    vocabulary: Vocabulary,
    *,
    window_samples: int,
    n_ctx: int,
    worker: int = 0,
) -> Batch:
    """The batch of one step for one of the processes that share it."""
    kinds = ("short", "packed", "padded", "prompted")
    kind = random.Random(f"kind {seed} {step}").choices(kinds, (mix.short, mix.packed, mix.padded, mix.prompted))[0]
    rng = random.Random(f"{seed} {step} {worker}")
    wave_rng = np.random.default_rng((seed, step, worker))
    timestamps: list[bool] = []
    windows = draw(rng, pool, mix, window_samples, timestamps, kind)
    made, sounds, ends = [], [], []
    n_window_frames = windows[0].samples.size // HOP
    for window, stamped in zip(windows, timestamps, strict=True):
        previous = _previous(rng, pool, vocabulary, n_ctx) if kind == "prompted" and rng.random() < 0.8 else []
        made.append(labels.build(vocabulary.layout, window.sentences, rng, timestamps=stamped, previous=previous))
        sounds.append(sound(wave_rng, rng, pool, window, mix.strength))
        blank = kind != "short" and rng.random() < mix.blank
        ends.append(max(1, window.n_content // HOP) if blank else n_window_frames)
    tokens, targets, spans = _rows(rng, made, vocabulary)
    # positions beyond the usual lengths are visited by whole shifts, which cost nothing
    shifted = rng.random() < 0.15 and kind != "prompted"
    position = [rng.randrange(n_ctx - tokens.shape[1]) if shifted else 0 for _ in made]
    louder = [rng.choice((0.0, 0.0, rng.uniform(0, 1.2))) if kind != "short" else 0.0 for _ in made]
    return Batch(
        samples=np.stack(sounds),
        tokens=tokens,
        targets=targets,
        characters=[labels.characters(labels.spelled(window.sentences)) for window in windows],
        n_spelled=np.array([_n_spelled(window) for window in windows], np.int64),
        spans=spans,
        position=np.array(position, np.int64),
        n_frames=np.array(ends, np.int64),
        n_content=np.array([max(1, window.n_content // HOP) for window in windows], np.int64),
        louder=np.array(louder, np.float32),
        kind=kind,
    )


def _n_spelled(window: Window) -> int:
    """Encoder frames of 20 ms before a sentence that the window's end cuts, all of them where there is none."""
    cut = [sentence.start_s for sentence in window.sentences if sentence.cut]
    return max(1, min(window.samples.size // HOP // 2, *(int(start_s / 0.02) for start_s in cut), 1 << 30))


def sound(wave_rng: np.random.Generator, rng: random.Random, pool: Pool, window: Window, strength: float) -> Float:
    out = window.samples.copy()
    n = window.n_content
    if not window.sentences:
        if n and rng.random() < 0.75:
            out[:n] = corpus.noise(wave_rng, n) * 10 ** wave_rng.uniform(-4.5, -1.2)
        return np.clip(out, -1, 1)
    babble = None
    if strength > 0.5 and rng.random() < 0.25:
        babble = [pool.any(rng).sound() for _ in range(4)]
    if n:
        out[:n] = corpus.acoustics(wave_rng, out[:n], strength, babble)
    return out
