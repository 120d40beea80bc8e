"""Engines without a model: logits from a hash of the prefix, or from a script of token sequences.

Both keep the contract of `specedge.runtime.engine.engine.Engine` strictly: a pass sees the committed prefix and its own
rows, `commit` keeps rows of the last pass only, and what is out of range fails the test.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.decoding.drafter import Drafter, EmptyDrafter
from specedge.runtime.drafters.registry import make_drafter
from specedge.runtime.options import DrafterOptions
from specedge.runtime.text.special import SpecialTokens
from specedge.runtime.text.tokenizer import Tokenizer

WORDS = (" the", " pump", " is", " on", " zero", " one", " two", " now", " leak", "ing")
FIRST_WORD = 256


def special_tokens(*, multilingual: bool = True, n_timestamps: int = 1501, n_extra: int = 0) -> SpecialTokens:
    """A small vocabulary in Whisper's order: 256 bytes, `WORDS`, control tokens, timestamps, a fine-tune's extras."""
    eot = FIRST_WORD + len(WORDS)
    languages = {"en": eot + 2, "de": eot + 3, "fr": eot + 4} if multilingual else {}
    after = eot + 2 + len(languages)
    return SpecialTokens(
        n_vocab=after + 6 + n_timestamps + n_extra,
        eot=eot,
        sot=eot + 1,
        languages=languages,
        translate=after,
        transcribe=after + 1,
        sot_lm=after + 2,
        sot_prev=after + 3,
        no_speech=after + 4,
        no_timestamps=after + 5,
        timestamp_begin=after + 6,
        n_timestamps=n_timestamps,
    )


def tokenizer(special: SpecialTokens) -> Tokenizer:
    return Tokenizer([bytes([i]) for i in range(256)] + [word.encode() for word in WORDS], special)


def words(*texts: str) -> list[int]:
    """Ids of entries of `WORDS`."""
    return [FIRST_WORD + WORDS.index(text) for text in texts]


def bundle(
    special: SpecialTokens,
    *,
    n_text_ctx: int = 448,
    n_mels: int = 80,
    n_frames: int = 3000,
    suppress_tokens: Sequence[int] = (),
    max_initial_timestamp_index: int | None = 50,
) -> Any:
    """As much of a Bundle as transcription looks at."""
    manifest = SimpleNamespace(
        kind="whisper",
        whisper_tokens=special,
        tokens=special,
        suppress_tokens=tuple(suppress_tokens),
        suppress_begin=(32, special.eot),
        max_initial_timestamp_index=max_initial_timestamp_index,
        n_frames=n_frames,
        n_samples=160 * n_frames,
        window_s=n_frames / 100,
        dims=SimpleNamespace(n_text_ctx=n_text_ctx, n_mels=n_mels),
    )
    digests = {"digest": "5a" * 32, "timed_digest": "5a" * 32}
    return SimpleNamespace(path="fake", manifest=manifest, tokenizer=tokenizer(special), **digests)


def scripted_drafter(asked: Any, target: Any, **waivers: bool) -> Drafter:
    """As `make_drafter`, for a scripted model, which has nothing that `auto` could choose from."""
    is_auto = isinstance(asked, DrafterOptions) and asked.name == "auto"
    return EmptyDrafter() if is_auto else make_drafter(asked, target, **waivers)


def hidden_row(prefix: Sequence[int]) -> list[float]:
    """What `FakeState.hidden` has for the last token of `prefix`."""
    return [float(byte) for byte in hashlib.sha256(repr(tuple(prefix)).encode()).digest()[:4]]


@dataclass
class FakeState:
    features: Any
    ids: list[int] = field(default_factory=list)
    last_rows: list[list[int]] = field(default_factory=list)
    released: bool = False
    keeps_hidden: bool = False

    @property
    def hidden(self) -> NDArray[np.float32]:
        """A made-up row of 4 numbers for each committed row; they tell its prefix from others."""
        assert self.keeps_hidden, "nobody asked for hidden rows"
        return np.array([hidden_row(self.ids[: n + 1]) for n in range(self.length)], np.float32).reshape(-1, 4)

    @property
    def length(self) -> int:
        return len(self.ids)


class FakeEngine(ABC):
    """The bookkeeping of both engines; `logits(features, prefix)` is the model."""

    is_exact = True
    shares_passes = False
    encoder_provider = "cpu"
    knows_silence = False

    def __init__(self, n_vocab: int, n_text_ctx: int, n_paths: int = 4) -> None:
        self.n_vocab, self.n_text_ctx, self.n_paths = n_vocab, n_text_ctx, n_paths
        self.threads = 1
        self.n_passes = 0
        self.widths: list[int] = []
        self.n_open = 0

    n_at_once, n_texts = 3, 16

    @abstractmethod
    def encode(self, mel: NDArray[np.float32]) -> Any: ...

    def encode_all(self, mels: Sequence[NDArray[np.float32]], *, ends_in_silence: bool = False) -> list[Any]:
        assert not ends_in_silence, "it does not know silence"
        return [self.encode(mel) for mel in mels]

    @abstractmethod
    def logits(self, features: Any, prefix: tuple[int, ...]) -> NDArray[np.float32]:
        """The row f32[n_vocab] that follows `prefix`."""

    def start(self, features: Any, *, keeps_hidden: bool = False) -> FakeState:
        self.n_open += 1
        return FakeState(features, keeps_hidden=keeps_hidden)

    def forward(
        self, state: FakeState, ids: Sequence[int], logit_rows: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        assert not state.released
        assert len(ids) >= 1 and state.length + len(ids) <= self.n_text_ctx, "more rows than positions"
        assert all(type(i) is int and 0 <= i < self.n_vocab for i in ids), "ids outside the vocabulary"
        self.n_passes += 1
        self.widths.append(len(ids))
        state.last_rows = [list(ids)]
        wanted = range(len(ids)) if logit_rows is None else logit_rows
        assert all(0 <= row < len(ids) for row in wanted), "rows that are not run"
        prefixes = [(*state.ids, *ids[: row + 1]) for row in wanted]
        return np.stack([self.logits(state.features, prefix) for prefix in prefixes])

    def forward_many(
        self, texts: Sequence[tuple[FakeState, Sequence[int], Sequence[int] | None]]
    ) -> list[NDArray[np.float32]]:
        assert len({id(state) for state, _, _ in texts}) == len(texts), "a text twice in a pass"
        found = [self.forward(*text) for text in texts]
        self.n_passes -= len(texts) - 1
        return found

    def fork(self, state: FakeState) -> FakeState:
        assert not state.released
        self.n_open += 1
        return FakeState(state.features, list(state.ids), keeps_hidden=state.keeps_hidden)

    def forward_paths(
        self, state: FakeState, pending: int, paths: Sequence[Sequence[int]]
    ) -> list[list[NDArray[np.float32]]]:
        assert not state.released
        assert 2 <= len(paths) <= self.n_paths and all(paths), "paths that no engine takes"
        assert state.length + 1 + max(map(len, paths)) <= self.n_text_ctx, "more rows than positions"
        assert all(type(i) is int and 0 <= i < self.n_vocab for path in paths for i in path)
        self.n_passes += 1
        self.widths.append(1 + max(map(len, paths)))
        state.last_rows = [[pending, *path] for path in paths]
        prefixes = [[(*state.ids, *ids[: row + 1]) for row in range(len(ids))] for ids in state.last_rows]
        # What paths share is the same array, the caller's to change.
        rows = {prefix: self.logits(state.features, prefix).copy() for path in prefixes for prefix in path}
        return [[rows[prefix] for prefix in path] for path in prefixes]

    def commit(self, state: FakeState, n_rows: int, path: int = 0) -> None:
        assert 1 <= n_rows <= len(state.last_rows[path]), "commits rows that were never run"
        state.ids += state.last_rows[path][:n_rows]
        state.last_rows = []

    def rewind(self, state: FakeState, n_rows: int) -> None:
        assert not state.released and 0 <= n_rows <= state.length, "rewinds to rows that are not there"
        del state.ids[n_rows:]
        state.last_rows = []

    def release(self, state: FakeState) -> None:
        state.released = True
        self.n_open -= 1

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        yield


class HashEngine(FakeEngine):
    """A model of noise: the logits of a prefix are drawn from a generator seeded by it.

    Values are rounded, so that ties happen. `eot_bias` and `timestamp_bias` make ends and timestamps likelier.
    """

    def __init__(
        self,
        special: SpecialTokens,
        *,
        seed: int = 0,
        n_text_ctx: int = 48,
        eot_bias: float = 2.0,
        timestamp_bias: float = 0.0,
    ) -> None:
        super().__init__(special.n_vocab, n_text_ctx)
        self.special, self.seed = special, seed
        self.eot_bias, self.timestamp_bias = eot_bias, timestamp_bias

    def encode(self, mel: NDArray[np.float32]) -> bytes:
        return hashlib.sha256(np.ascontiguousarray(mel).tobytes()).digest()

    def logits(self, features: Any, prefix: tuple[int, ...]) -> NDArray[np.float32]:
        digest = hashlib.sha256(repr((self.seed, features, prefix)).encode()).digest()
        row = np.random.default_rng(int.from_bytes(digest[:8], "little")).standard_normal(self.n_vocab) * 2
        row[self.special.eot] += self.eot_bias
        row[self.special.timestamp_begin :] += self.timestamp_bias
        return np.round(row, 1).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Script:
    """What the model says in one window: sampled tokens (the end is added), and how sure it is of itself.

    `again` is what it says instead when the window is decoded once more; None repeats the same.
    """

    tokens: Sequence[int]
    no_speech_prob: float = 0.01
    logprob: float = -0.1
    ends: bool = True
    language: str | None = None
    again: Script | None = None


class ScriptedEngine(FakeEngine):
    """Says the scripts one after another, one for each call of `encode`; the last is repeated.

    `prompts` are the ids of the first pass of each decoding; `n_prompt` ids of it are SOT and what follows it.
    """

    def __init__(
        self,
        special: SpecialTokens,
        scripts: Sequence[Script],
        *,
        n_prompt: int = 3,
        language: str = "en",
        n_text_ctx: int = 448,
    ) -> None:
        super().__init__(special.n_vocab, n_text_ctx)
        self.special, self.scripts, self.n_prompt, self.language = special, list(scripts), n_prompt, language
        self.mels: list[NDArray[np.float32]] = []
        self.prompts: list[tuple[int, ...]] = []
        self._heard: Script | None = None

    def encode(self, mel: NDArray[np.float32]) -> Script:
        self.mels.append(mel)
        return self.scripts[min(len(self.mels), len(self.scripts)) - 1]

    def forward(
        self, state: FakeState, ids: Sequence[int], logit_rows: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        if not state.ids and (len(ids) > 1 or self.n_prompt == 1):
            if state.features is self._heard and state.features.again is not None:
                state.features = state.features.again
            self._heard = state.features
            self.prompts.append(tuple(ids))
        return super().forward(state, ids, logit_rows)

    def logits(self, features: Script, prefix: tuple[int, ...]) -> NDArray[np.float32]:
        position = len(prefix) - prefix.index(self.special.sot) - self.n_prompt if self.special.sot in prefix else -1
        if prefix[-1] == self.special.sot and self.n_prompt > 1:
            return self._sot_row(features)
        if position < 0:
            return np.zeros(self.n_vocab, np.float32)
        tokens = [*features.tokens, self.special.eot] if features.ends else list(features.tokens)
        says = tokens[position % len(tokens) if not features.ends else min(position, len(tokens) - 1)]
        row = self._row({says: features.logprob})
        if prefix[-1] == self.special.sot:  # the prompt ends with SOT: this row is read for silence too
            row[self.special.no_speech] = row[says] + math.log(features.no_speech_prob)
        return row

    def _sot_row(self, script: Script) -> NDArray[np.float32]:
        rest = math.log((1 - script.no_speech_prob) or 1e-9)
        likely = {self.special.no_speech: math.log(script.no_speech_prob)}
        if self.special.languages:
            likely[self.special.languages[script.language or self.language]] = rest
        return self._row(likely)

    def _row(self, log_probs: dict[int, float]) -> NDArray[np.float32]:
        row = np.full(self.n_vocab, -1000.0, np.float32)
        left = max(1 - sum(math.exp(value) for value in log_probs.values()), 1e-9)
        row[:100] = math.log(left / 100)
        for token, value in log_probs.items():
            row[token] = value
        return row


class SilentEngine(ScriptedEngine):
    """As a `ScriptedEngine` that knows silence, which is noted of each window in `silent`."""

    knows_silence = True

    def __init__(self, special: SpecialTokens, *scripts: Script) -> None:
        super().__init__(special, scripts)
        self.silent: list[bool] = []

    def encode(self, mel: NDArray[np.float32], *, ends_in_silence: bool = False) -> Any:
        self.silent.append(ends_in_silence)
        return _Window(super().encode(mel), mel.shape[1] // 2, ends_in_silence)


class _Window:
    """A script with what of `Features` a transcription looks at."""

    def __init__(self, script: Script, n_ctx: int, ends_in_silence: bool) -> None:
        self._script, self.hidden, self.ends_in_silence = script, np.zeros((n_ctx, 1)), ends_in_silence

    def __getattr__(self, name: str) -> Any:
        return getattr(self._script, name)
