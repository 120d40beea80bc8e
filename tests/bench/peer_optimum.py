"""Optimum's ONNX files at work in ONNX Runtime: python peer_optimum.py JOB.json FOLDER; runs under its own Python.

FOLDER holds encoder_model.onnx, decoder_model.onnx and decoder_with_past_model.onnx. The sessions are driven by hand
with I/O binding, which is faster than Optimum's own classes: what is compared is the graphs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from jobs import Job
from worker import memory_mb, sampled, serve

started = time.perf_counter()
import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402

import_ms = (time.perf_counter() - started) * 1e3


class Optimum:
    """Three sessions and one window of log-mel, which specedge computed."""

    def __init__(self, job: Job, folder: str) -> None:
        self._job = job
        self._after_imports = memory_mb()
        options = ort.SessionOptions()
        options.intra_op_num_threads = job.threads
        options.inter_op_num_threads = 1
        started = time.perf_counter()
        self._encoder, self._first, self._next = (
            ort.InferenceSession(str(Path(folder) / name), options, providers=["CPUExecutionProvider"])
            for name in ("encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx")
        )
        self._load_ms = (time.perf_counter() - started) * 1e3
        self._mel = np.load(job.mel_file)[None]
        self._hidden: Any = None
        self._past: dict[str, Any] = {}
        self._logits: dict[int, Any] = {}

    def start(self) -> dict[str, Any]:
        """What starting cost."""
        start = {"import_ms": import_ms, "load_ms": self._load_ms, "after_imports": self._after_imports}
        return {**start, "version": ort.__version__}

    def encode(self) -> None:
        """Log-mel to the features."""
        self._hidden = self._encoder.run(None, {"input_features": self._mel})[0]

    def rows(self, n_rows: int, n_past: int) -> int:
        """One pass of the decoder with past over `n_rows` token rows after `n_past`, all logits; the past stays."""
        if not self._past:
            self._fill_past(n_past)
        names = {item.name for item in self._next.get_inputs()}
        binding = self._next.io_binding()
        binding.bind_cpu_input("input_ids", np.array([self._job.past(n_rows)], np.int64))
        if "cache_position" in names:
            binding.bind_cpu_input("cache_position", np.arange(n_past, n_past + n_rows, dtype=np.int64))
        for name, value in self._past.items():
            if name in names:
                binding.bind_ortvalue_input(name, value)
        for item in self._next.get_outputs():
            if item.name != "logits":
                binding.bind_output(item.name)
        logits = self._logits.get(n_rows)
        if logits is None:
            logits = np.empty((1, n_rows, self._next_n_vocab()), np.float32)
            self._logits[n_rows] = logits
        binding.bind_output("logits", "cpu", 0, np.float32, logits.shape, logits.ctypes.data)
        self._next.run_with_iobinding(binding)
        return int(logits.shape[1])

    def sample(self, kind: str) -> list[float]:
        """A few values of the features."""
        self.encode()
        return sampled(self._hidden[0])

    def _fill_past(self, n_past: int) -> None:
        assert self._hidden is not None, "encode first"
        binding = self._first.io_binding()
        binding.bind_cpu_input("input_ids", np.array([self._job.past(n_past)], np.int64))
        binding.bind_cpu_input("encoder_hidden_states", self._hidden)
        names = [item.name for item in self._first.get_outputs()]
        for name in names:
            binding.bind_output(name)
        self._first.run_with_iobinding(binding)
        values = dict(zip(names, binding.get_outputs(), strict=True))
        self._past = {name.replace("present", "past_key_values"): value for name, value in values.items()}

    def _next_n_vocab(self) -> int:
        shape = next(item.shape for item in self._next.get_outputs() if item.name == "logits")
        if isinstance(shape[-1], int):
            return shape[-1]
        return int(self._past["logits"].shape()[-1])


def main() -> None:
    """Load and serve."""
    peer = Optimum(Job.load(sys.argv[1]), sys.argv[2])
    serve({name: getattr(peer, name) for name in ("start", "encode", "rows", "sample")})


if __name__ == "__main__":
    main()
