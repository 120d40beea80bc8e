"""llama.cpp at work: python peer_llama.py FILE.gguf THREADS (worker.py has the talk); this Python has xllamacpp.

Its server runs in this process and says itself what prompt and tokens took. Wheels of xllamacpp are built for AVX2
alone; one built on this machine uses what it has. `start` tells which it is.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

import xllamacpp
from worker import memory_mb, serve

CONTEXT = 1024


class Llama:
    """The model, loaded once."""

    def __init__(self, file: str, threads: int) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = file
        params.n_ctx, params.n_parallel, params.n_predict = CONTEXT, 1, -1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.endpoint_slots, params.warmup = False, True
        self._server = xllamacpp.Server(params)

    def start(self) -> dict[str, Any]:
        """What it is."""
        return {"version": f"xllamacpp {version('xllamacpp')}", "system": xllamacpp.get_system_info(), **memory_mb()}

    def decode(self, n_prompt: int, n_tokens: int) -> dict[str, float]:
        """Milliseconds of a prompt of so many made-up tokens, and of each of `n_tokens` greedy tokens behind it."""
        asked = {
            "prompt": [1 + i * 7919 % 50_000 for i in range(n_prompt)],
            "n_predict": n_tokens,
            "temperature": 0.0,
            "samplers": ["top_k"],
            "top_k": 1,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        timings = self._server.handle_completions(asked)["timings"]
        if timings["prompt_n"] != n_prompt or timings["predicted_n"] != n_tokens:
            raise ValueError(f"llama.cpp ran something else: {timings}")
        return {"prefill": timings["prompt_ms"], "plain": timings["predicted_per_token_ms"]}


def main() -> None:
    """Load and serve."""
    peer = Llama(sys.argv[1], int(sys.argv[2]))
    serve({"start": peer.start, "decode": peer.decode})


if __name__ == "__main__":
    main()
