"""whisper.cpp at work: python peer_whispercpp.py JOB.json MODEL.bin LIBWHISPER; its C interface through ctypes.

LIBWHISPER is the shared library, from a build of whisper.cpp or from a package that carries one. `whisper_encode`
computes the cross-attention keys and values too. Its own sampling is not used: `decode` is a loop that takes the
likeliest token, for a fixed count. Which instructions the library was built for is in `start`: read it before quoting.
"""

from __future__ import annotations

import ctypes
import sys
import time
from typing import Any

import numpy as np
from jobs import Job
from worker import memory_mb, sampled, serve

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "whisper_init_from_file": (_POINTER, [ctypes.c_char_p]),
    "whisper_pcm_to_mel": (_INT, [_POINTER, _POINTER, _INT, _INT]),
    "whisper_encode": (_INT, [_POINTER, _INT, _INT]),
    "whisper_decode": (_INT, [_POINTER, _POINTER, _INT, _INT, _INT]),
    "whisper_get_logits": (ctypes.POINTER(ctypes.c_float), [_POINTER]),
    "whisper_n_vocab": (_INT, [_POINTER]),
    "whisper_print_system_info": (ctypes.c_char_p, []),
}


class WhisperCpp:
    """The model and one window of audio."""

    def __init__(self, job: Job, model: str, library: str) -> None:
        self._job = job
        started = time.perf_counter()
        self._library = ctypes.CDLL(library)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        self._import_ms = (time.perf_counter() - started) * 1e3
        self._after_imports = memory_mb()
        started = time.perf_counter()
        self._context = self._library.whisper_init_from_file(model.encode())
        if not self._context:
            raise SystemExit(f"{model}: whisper.cpp cannot load it")
        self._load_ms = (time.perf_counter() - started) * 1e3
        self._n_vocab = self._library.whisper_n_vocab(self._context)
        self._samples = np.fromfile(job.samples, np.float32)
        self.mel()

    def start(self) -> dict[str, Any]:
        """What starting cost, and what the library was built for."""
        start = {"import_ms": self._import_ms, "load_ms": self._load_ms, "after_imports": self._after_imports}
        return {**start, "system": self._library.whisper_print_system_info().decode()}

    def mel(self) -> None:
        """Samples to log-mel of one window."""
        data = self._samples.ctypes.data
        self._check(self._library.whisper_pcm_to_mel(self._context, data, self._samples.size, self._job.threads))

    def encode(self) -> None:
        """Log-mel to the features and the cross-attention keys and values."""
        self._check(self._library.whisper_encode(self._context, 0, self._job.threads))

    def decode(self, n_tokens: int) -> int:
        """Greedy decoding of exactly `n_tokens` from the features."""
        pending, n_past = list(self._job.prompt), 0
        for _ in range(n_tokens):
            logits = self._pass(pending, n_past)
            logits[self._job.eot] = -np.inf
            n_past += len(pending)
            pending = [int(logits.argmax())]
        return n_past - len(self._job.prompt) + len(pending)

    def end_to_end(self, n_tokens: int) -> int:
        """Samples to mel to features to tokens; not to text."""
        self.mel()
        self.encode()
        return self.decode(n_tokens)

    def sample(self, kind: str) -> list[float]:
        """A few values of the logits after the prompt."""
        self.encode()
        return sampled(self._pass(list(self._job.prompt), 0)[: self._job.eot])

    def _pass(self, ids: list[int], n_past: int) -> Any:
        """Logits of the last row, whisper.cpp's own memory."""
        rows = np.array(ids, np.int32)
        threads = self._job.threads
        self._check(self._library.whisper_decode(self._context, rows.ctypes.data, rows.size, n_past, threads))
        pointer = self._library.whisper_get_logits(self._context)
        # Its buffer holds a row for every token of the pass or, in newer versions, the last one in the last place.
        return np.ctypeslib.as_array(pointer, (rows.size * self._n_vocab,))[-self._n_vocab :]

    def _check(self, code: int) -> None:
        if code != 0:
            raise SystemExit(f"whisper.cpp failed with {code}")


def main() -> None:
    """Load and serve."""
    peer = WhisperCpp(Job.load(sys.argv[1]), sys.argv[2], sys.argv[3])
    serve({name: getattr(peer, name) for name in ("start", "mel", "encode", "decode", "end_to_end", "sample")})


if __name__ == "__main__":
    main()
