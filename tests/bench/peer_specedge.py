"""specedge at work: python peer_specedge.py JOB.json BUNDLE (see jobs.py for the job, worker.py for the talk)."""

from __future__ import annotations

import sys
import time
from typing import Any

from jobs import Job
from worker import memory_mb, sampled, serve

started = time.perf_counter()
import numpy as np  # noqa: E402

from specedge.runtime.audio.mel import log_mel  # noqa: E402
from specedge.runtime.bundle.bundle import Bundle  # noqa: E402
from specedge.runtime.decoding.decode import DecodeOptions, decode_window  # noqa: E402
from specedge.runtime.decoding.rules import build_rules  # noqa: E402
from specedge.runtime.engine.engine import Engine, Features, State, load_graph  # noqa: E402
from specedge.runtime.engine.session import Canceller, bind_array_input  # noqa: E402

import_ms = (time.perf_counter() - started) * 1e3


class Specedge:
    """The bundle's engine and one window of audio."""

    def __init__(self, job: Job, bundle_path: str) -> None:
        self._job = job
        self._after_imports = memory_mb()
        started = time.perf_counter()
        self._bundle = Bundle.open(bundle_path)
        self._engine = Engine(self._bundle, threads=job.threads)
        self._load_ms = (time.perf_counter() - started) * 1e3
        self._samples = np.fromfile(job.samples, np.float32)
        manifest = self._bundle.manifest
        self._rules = build_rules(
            manifest.tokens, space_ids=[], suppressed=[job.eot], timestamps=False, max_initial_timestamp_index=None
        )
        self._mel = self._log_mel()
        self._features: Features | None = None
        self._state: State | None = None
        self._alone: Any = None

    def start(self) -> dict[str, Any]:
        """What starting cost."""
        return {"import_ms": import_ms, "load_ms": self._load_ms, "after_imports": self._after_imports}

    def mel(self) -> None:
        """Samples to log-mel of one window."""
        self._log_mel()

    def save_mel(self) -> None:
        """Leave the log-mel for peers that have no code for it."""
        np.save(self._job.mel_file, self._mel)

    def encode(self) -> None:
        """Log-mel to the features and the cross-attention keys and values: two graphs."""
        self._features = self._engine.encode(self._mel)

    def encode_alone(self) -> None:
        """The encoder graph alone, loaded a second time; without the cross-attention keys and values."""
        if self._alone is None:
            folder = self._bundle.path
            self._alone = load_graph(self._bundle, "encoder", Canceller(), folder=folder, threads=self._job.threads)
        binding = self._alone.binding()
        bind_array_input(binding, "mel", self._mel[None])
        binding.bind_output("features", "cpu")
        self._alone.run(binding)

    def decode(self, n_tokens: int) -> int:
        """Greedy decoding of exactly `n_tokens` from the features, log-probabilities included."""
        return len(self._decode(n_tokens))

    def end_to_end(self, n_tokens: int) -> int:
        """Samples to mel to features to tokens to text."""
        self._mel = self._log_mel()
        self.encode()
        tokens = self._decode(n_tokens)
        self._bundle.tokenizer.decode(tokens)
        return len(tokens)

    def rows(self, n_rows: int, n_past: int) -> int:
        """One decoder pass of `n_rows` token rows after `n_past`, all logits; nothing is committed."""
        if self._state is None:
            assert self._features is not None, "encode first"
            self._state = self._engine.start(self._features)
            self._engine.forward(self._state, self._job.past(n_past))
            self._engine.commit(self._state, n_past)
        return len(self._engine.forward(self._state, self._job.past(n_rows)))

    def sample(self, kind: str) -> list[float]:
        """A few values of the mel, of the features, or of the logits after the prompt."""
        if kind == "mel":
            return sampled(self._log_mel())
        if kind == "features":
            return sampled(self._engine.encode(self._mel).hidden)
        return sampled(self._prompt_logits(self._engine)[-1, : self._job.eot])

    def cache_agrees(self) -> bool:
        """Whether the weights packed for this CPU, as loaded from the cache, give the bits of those in the bundle."""
        plain = Engine(self._bundle, threads=self._job.threads, cache=False)
        return bool(np.array_equal(self._prompt_logits(self._engine), self._prompt_logits(plain)))

    def _prompt_logits(self, engine: Engine) -> Any:
        state = engine.start(engine.encode(self._mel))
        return engine.forward(state, self._job.prompt).copy()

    def _decode(self, n_tokens: int) -> tuple[int, ...]:
        options = DecodeOptions(rules=self._rules, n_text_ctx=self._engine.dims.n_text_ctx, n_sample=n_tokens)
        tokens: tuple[int, ...] = decode_window(self._engine, self._features, self._job.prompt, options).tokens
        return tokens

    def _log_mel(self) -> Any:
        return log_mel(self._samples, self._job.n_mels, self._bundle.manifest.n_frames)


def main() -> None:
    """Load and serve."""
    peer = Specedge(Job.load(sys.argv[1]), sys.argv[2])
    timed = ("mel", "encode", "encode_alone", "decode", "end_to_end", "rows")
    serve({name: getattr(peer, name) for name in (*timed, "start", "save_mel", "sample", "cache_agrees")})


if __name__ == "__main__":
    main()
