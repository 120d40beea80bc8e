"""What the experiments with heads share: utterances decoded once with their hidden rows, runs, replays, prices.

The guesses of all heads at every row are computed once, so that any number of heads, choices and paths can be replayed.
Where a rule that is not exact changes the text, it is run.

In the bench's language, without timestamps, at temperature 0. A pass is priced by its rows, asking the heads by its own
time over that of a pass of one row, both measured here in turns, unless it is given; in a replay no clock decides. The
price of the first of several heads is a share of that, by the bytes that they read. It does not know what is compared.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from bench.map_texts import Bench
from bench.noise_sweep import spoken
from bench.replay import Counts, path_rows, replay
from bench.rounds import BenchError
from numpy.typing import NDArray

from specedge.export.training.features import RowRecorder
from specedge.runtime.audio.mel import log_mel
from specedge.runtime.bundle.manifest import Dims
from specedge.runtime.decoding.accept import AcceptanceRule
from specedge.runtime.decoding.beam import BeamOptions, best_of
from specedge.runtime.decoding.decode import DecodeOptions, Speculation, WindowResult, decode_window
from specedge.runtime.decoding.drafter import Drafter, Guard
from specedge.runtime.decoding.rules import build_rules
from specedge.runtime.decoding.statistics import calls_per_word
from specedge.runtime.engine.heads import HeadsPass
from specedge.runtime.engine.session import Canceller
from specedge.runtime.engine.speech import open_engine
from specedge.runtime.options import BLOCK_KIND, HEAD_KINDS
from specedge.runtime.papers.grouped_beam import Emitted, grouped_search
from specedge.runtime.papers.heads import HeadsDrafter
from specedge.runtime.text.words import character_error_rate, normalise, word_errors

__all__ = ["N_CHOICES", "HeadRuns", "Said", "TabledHeads", "head_bytes"]

N_CHOICES = 5
_N_TIMED = 40

F32 = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Said:
    """An utterance: its reference, features, and what plain decoding says: ids, the end too; hidden rows f32 [n, d].

    encoder_s: what its features took.
    """

    reference: str
    duration_s: float
    encoder_s: float
    features: Any
    ids: tuple[int, ...]
    hidden: F32


class TabledHeads:
    """Heads whose guesses at every row of some texts are known; `n_calls` counts how often they were asked."""

    def __init__(self, n_heads: int, tables: Sequence[tuple[F32, NDArray[np.int64], F32]]) -> None:
        self.n_heads, self._tables, self.n_calls = n_heads, tables, 0
        self._ids, self._probs = np.empty((0, 0, 0), np.int64), np.empty((0, 0, 0), np.float32)

    def begin(self, features: F32, n_heard: int | None = None) -> None:
        """A text, by the encoder output of its window; how much of that is heard is known of the tables."""
        self._ids, self._probs = next((ids, probs) for own, ids, probs in self._tables if own is features)

    def another(self) -> TabledHeads:
        """As `HeadsPass.another`."""
        return copy.copy(self)

    def guess(self, hidden: F32, n_choices: int) -> tuple[NDArray[np.int64], F32]:
        """As `HeadsPass.guess`."""
        self.n_calls += 1
        at = len(hidden) - 1
        return self._ids[at, : self.n_heads, :n_choices], self._probs[at, : self.n_heads, :n_choices]


class HeadRuns:
    """The heads of a bundle on its own model. Raises BenchError for a bundle without any.

    guess_price: of asking all heads of a kind, in passes of one row; None to measure it.
    """

    def __init__(self, bench: Bench, threads: int, guess_price: float | None = None) -> None:
        bundle = bench.bundle
        self.bench, self.threads = bench, threads
        self.kinds = [kind for kind in HEAD_KINDS if kind in bundle.manifest.graphs]
        if not self.kinds:
            raise BenchError(f"{bundle.manifest.name} has no heads: `specedge train heads`, `specedge export --heads`")
        self._engine = open_engine(bundle, threads=threads)
        self._heads = {kind: HeadsPass(bundle, kind, Canceller()) for kind in self.kinds}
        manifest, tokenizer = bundle.manifest, bundle.tokenizer
        self._frames = (manifest.dims.n_mels, manifest.n_frames)
        self._rules = build_rules(
            tokenizer.special,
            space_ids=tokenizer.encode(" "),
            suppressed=manifest.suppress_tokens,
            timestamps=False,
            max_initial_timestamp_index=None,
        )
        self._prices = {} if guess_price is None else dict.fromkeys(self.kinds, guess_price)

    def n_heads(self, kind: str) -> int:
        """How many heads of a kind there are."""
        return self._heads[kind].n_heads

    def hear(self, folder: Path | None, domain: str, n: int) -> tuple[list[Said], str]:
        """Utterances of a domain, and where they are from."""
        sounds, source = spoken(folder, domain, n)
        found = []
        for sound, reference in sounds:
            started = time.perf_counter()
            features = self._engine.encode(log_mel(sound, *self._frames))
            encoder_s = time.perf_counter() - started
            recorder = RowRecorder()
            result = self.decode(features, recorder)
            ids = (*result.tokens, *[self.bench.eot] * result.finished)
            if recorder.rows is not None:
                found.append(
                    Said(
                        reference=reference,
                        duration_s=len(sound) / 16000,
                        encoder_s=encoder_s,
                        features=features,
                        ids=ids,
                        hidden=recorder.rows.copy(),
                    )
                )
        return found, source

    def tables(self, kind: str, said: Sequence[Said]) -> list[tuple[F32, NDArray[np.int64], F32]]:
        """The guesses of a kind at all rows of the texts from the prompt's last on, for `TabledHeads`."""
        heads, n_prompt = self._heads[kind], len(self.bench.setting().prompt)
        made = []
        for one in said:
            heads.begin(one.features.hidden)
            ids = np.zeros((len(one.hidden), heads.n_heads, N_CHOICES), np.int64)
            probs = np.zeros(ids.shape, np.float32)
            for at in range(n_prompt - 1, len(one.hidden)):
                ids[at], probs[at] = heads.guess(one.hidden[: at + 1], N_CHOICES)
            made.append((one.features.hidden, ids, probs))
        return made

    def replayed(
        self, kind: str, said: Sequence[Said], tables: Sequence[tuple[F32, NDArray[np.int64], F32]], **options: Any
    ) -> dict[str, float]:
        """The counts of a run with the first `n_heads` heads and other options of the drafter, and its price."""
        n_heads = options.get("n_heads", self.n_heads(kind))
        n_paths = options.pop("n_paths", self._engine.n_paths)
        heads = TabledHeads(min(n_heads, self.n_heads(kind)), tables)
        drafter = HeadsDrafter(kind, heads, self.bench.costs, **options)  # no clock decides
        price = self.price(kind, heads.n_heads)
        counts = replay(
            drafter,
            [one.ids for one in said],
            path_rows(self.bench.costs),
            self.bench.setting(n_paths),
            [one.features for one in said],
            [one.hidden for one in said],
        )
        return self.figures(counts, said, price * heads.n_calls)

    def figures(self, counts: Counts, said: Sequence[Said], own_cost: float) -> dict[str, float]:
        """For the JSON, rounded; `own_cost` of the heads themselves, in passes of one row."""
        n_words = sum(len(normalise(self.text(one.ids))) for one in said)
        found = counts.figures()
        eta, plain = (calls_per_word(n, n_words) or 0.0 for n in (counts.passes, counts.tokens))
        cost = counts.cost + own_cost
        return found | {
            "speed_up": round(counts.plain_cost / cost if cost else 1.0, 4),
            "calls_per_word": round(eta, 4),
            "calls_cut": round(1 - eta / plain if plain else 0.0, 4),
        }

    def run(self, kind: str | None, said: Sequence[Said], rule: AcceptanceRule, **options: Any) -> dict[str, float]:
        """Decode in earnest, by a rule that may change the text: errors, calls, times. Without a kind: plainly."""
        total, texts = Speculation(), []
        drafter: Drafter | None = None
        if kind is not None:
            drafter = HeadsDrafter(kind, self._heads[kind], self.bench.costs, **options)
        guard = Guard(drafter)
        for one in said:
            result = self.decode(one.features, guard, acceptance=rule)
            guard.end(result.tokens)
            total = total.plus(result.speculation)
            texts.append(self.text(result.tokens))
        if guard.error is not None:
            raise BenchError(f"{kind}: the drafter failed: {guard.error}")
        return {
            **self._errors(said, texts, total.passes),
            "tokens_per_pass": round(total.tokens_per_pass or 1.0, 4),
            "decoder_rtf": round((total.decoder_s + total.draft_s) / sum(one.duration_s for one in said), 5),
            "passes": total.passes,
            "tokens": total.tokens,
            "different": sum(self.text(one.ids) != text for one, text in zip(said, texts, strict=True)),
        }

    def beams(self, kind: str | None, said: Sequence[Said], *, beam_size: int) -> list[WindowResult]:
        """Every utterance by a beam search, with drafts of a kind of heads or without."""
        guard = Guard(None if kind is None else HeadsDrafter(kind, self._heads[kind], self.bench.costs))
        found = []
        for one in said:
            found.append(self.decode(one.features, guard, beam_size=beam_size))
            guard.end(found[-1].tokens)
        if guard.error is not None:
            raise BenchError(f"{kind}: the drafter failed: {guard.error}")
        return found

    def beam_figures(
        self, found: Sequence[WindowResult], said: Sequence[Said], plain: Sequence[WindowResult]
    ) -> dict[str, float]:
        """Errors and passes of a beam search, and how many of its results are not those of `plain`."""
        texts = [self.text(one.tokens) for one in found]
        passes = sum(one.speculation.passes for one in found)
        differ = sum(
            (a.tokens, a.token_logprobs, a.sum_logprob) != (b.tokens, b.token_logprobs, b.sum_logprob)
            for a, b in zip(found, plain, strict=True)
        )
        return {**self._errors(said, texts, passes), "passes": passes, "different": differ}

    def believed(self, kind: str, said: Sequence[Said], *, beam_size: int, tau: float) -> dict[str, float]:
        """The grouped beam in which heads are believed from `tau` on (`decoding.grouped_beam`)."""
        prompt, n_text_ctx = list(self.bench.setting().prompt), self.bench.bundle.manifest.dims.n_text_ctx
        options = BeamOptions(
            beam_size=beam_size,
            tau=tau,
            limit=n_text_ctx // 2,
            useless=self._rules.forbidden | {self.bench.eot},
        )
        engine, heads, calls, lists = self._engine, self._heads[kind], list[int](), list[list[Emitted]]()
        for one in said:
            state = engine.start(one.features)
            try:
                engine.keep_hidden(state)
                row = engine.forward(state, prompt, [len(prompt) - 1])[0]
                engine.commit(state, len(prompt))
                heads.begin(one.features.hidden)
                rules = self._rules
                lists.append(grouped_search(engine, state, row, rules, heads, options, calls.append))
            finally:
                engine.release(state)
        best = [found[best_of(found, None)] for found in lists]
        texts = [self.text(one.tokens) for one in best]
        oracle = [
            min(
                (self.text(text.tokens) for text in found),
                key=lambda text: word_errors([(one.reference, text)]).n_errors,
            )
            for one, found in zip(said, lists, strict=True)
        ]
        return {
            **self._errors(said, texts, len(said) + len(calls)),
            "passes": len(said) + sum(calls),
            "oracle_wer": self._errors(said, oracle, 0)["wer"],
            "believed": round(float(np.mean([emitter > 0 for one in best for emitter in one.emitters])), 4),
        }

    def _errors(self, said: Sequence[Said], texts: Sequence[str], calls: int) -> dict[str, float]:
        references = [one.reference for one in said]
        pairs = list(zip(references, texts, strict=True))
        n_said, n_meant = (sum(len(normalise(text)) for text in part) for part in (texts, references))
        return {
            "wer": round(100 * word_errors(pairs).rate, 3),
            "cer": round(100 * character_error_rate(pairs), 3),
            "calls_per_word": round(calls_per_word(calls, n_said, n_meant) or 0.0, 4),
        }

    def price(self, kind: str, n_heads: int) -> float:
        """Of asking the first heads of a kind, in passes of one row."""
        if kind not in self._prices:
            self._prices[kind] = self._measured(kind)
        dims, n_tokens = self.bench.bundle.manifest.dims, self._n_tokens(kind)
        share = head_bytes(kind, n_heads, dims, n_tokens) / head_bytes(kind, self.n_heads(kind), dims, n_tokens)
        return self._prices[kind] * share

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return self.bench.bundle.tokenizer.decode([token for token in ids if token < self.bench.eot])

    def decode(self, features: Any, drafter: Drafter | Guard, **more: Any) -> WindowResult:
        """One window; `more` of the options."""
        options = DecodeOptions(rules=self._rules, n_text_ctx=self.bench.bundle.manifest.dims.n_text_ctx, **more)
        return decode_window(self._engine, features, self.bench.setting().prompt, options, drafter)

    def _measured(self, kind: str) -> float:
        """The heads' time over that of a pass of one row, each a median of turns."""
        dims, engine, heads = self.bench.bundle.manifest.dims, self._engine, self._heads[kind]
        features = engine.encode(np.zeros((dims.n_mels, self._frames[1]), np.float32))
        prompt = list(self.bench.setting().prompt)
        state = engine.start(features)
        times: tuple[list[float], list[float]] = ([], [])
        try:
            engine.keep_hidden(state)
            engine.forward(state, prompt)
            engine.commit(state, len(prompt))
            heads.begin(features.hidden)
            for _ in range(min(_N_TIMED, dims.n_text_ctx - len(prompt))):
                started = time.perf_counter()
                heads.guess(state.hidden[: state.length], N_CHOICES)
                asked = time.perf_counter()
                engine.forward(state, prompt[-1:])
                engine.commit(state, 1)
                times[0].append(asked - started)
                times[1].append(time.perf_counter() - asked)
        finally:
            engine.release(state)
        return statistics.median(times[0][5:]) / statistics.median(times[1][5:])

    def _n_tokens(self, kind: str) -> int:
        """How many tokens the heads of a kind can guess."""
        bundle = self.bench.bundle
        graph = onnx.load(str(bundle.path / bundle.manifest.graphs[kind].file), load_external_data=False).graph
        return next(int(tensor.dims[0]) for tensor in graph.initializer if tensor.name == "tokens")


def head_bytes(kind: str, n_heads: int, dims: Dims, n_tokens: int) -> int:
    """Weights that the heads read for a guess: their maps, the block, the vocabulary."""
    d = dims.n_text_state
    vocabulary = n_tokens * d * (n_heads if kind == "mtp-projection" else 1)
    maps = 0 if kind == "mtp-projection" else n_heads * d * d
    return vocabulary + maps + (14 * d * d if kind == BLOCK_KIND else 0)
