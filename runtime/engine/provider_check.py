"""The child process in which a provider compiles an encoder and is tried: python -m ... BUNDLE NAME N_FRAMES THREADS
FOLDER.

The encoder must give the same bits for the same window twice, and features as near to those of float32 as the bundle's
own must be. What was compiled is in FOLDER then. A failure is a line on standard output and ProviderError's exit code.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specedge.errors import ProviderError, SpecedgeError

from ..bundle.bundle import Bundle
from ..bundle.manifest import PLAIN_ENCODER_GRAPH
from .engine import encoder_output
from .made_up import probe_mel
from .provider_task import EncoderRun
from .providers import VERDICT, backend, encoder_task, most_error
from .session import Canceller, load_graph


def check(bundle: Bundle, name: str, n_frames: int, threads: int, folder: Path) -> float:
    """Compile into `folder` and compare; returns how far the features are off. Raises SpecedgeError."""
    made, task = backend(name), encoder_task(bundle, n_frames, threads)
    made.compile(task, folder)
    mel = probe_mel(bundle.manifest.dims, n_frames)[None]
    hidden = _twice(made.load(task, folder, Canceller()), mel, name)
    reference = load_graph(bundle, PLAIN_ENCODER_GRAPH, Canceller(), folder=bundle.path, threads=threads)
    expected = encoder_output(reference, mel, bundle.manifest.dims.n_audio_state)
    error = float(np.linalg.norm(hidden - expected) / max(float(np.linalg.norm(expected)), 1e-20))
    bound = most_error(bundle.manifest)
    if not error <= bound:  # NaN fails too
        raise ProviderError(
            f"encoder_provider {name} does not compute this encoder: features are off by {error:.3g} of their size, "
            f"expected at most {bound:g}"
        )
    return error


def _twice(run: EncoderRun, mel: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    hidden = run(mel)
    if hidden.tobytes() != run(mel).tobytes():
        raise ProviderError(f"encoder_provider {name} gives other bits each time, so texts could not be repeated")
    return hidden


def main(arguments: list[str]) -> int:
    """The exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a compiler does not look at Python's flag
    path, name, n_frames, threads, folder = arguments
    try:
        error = check(Bundle.open(path, verify=False), name, int(n_frames), int(threads), Path(folder))
    except SpecedgeError as failure:
        print(failure)
        return ProviderError.exit_code
    (Path(folder) / VERDICT).write_text(json.dumps({"features_relative_error": error}), encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
