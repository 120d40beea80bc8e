"""The child process in which a provider compiles an encoder and is tried: python -m ... BUNDLE NAME N_FRAMES THREADS
FOLDER.

The encoder must give the same bits for the same window twice, and features as near to those of float32 as the bundle's
own must be. What was compiled is in FOLDER then. A failure is a line on standard output and ProviderError's exit code.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
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

_SHORT_FRAMES = 192


def check(bundle: Bundle, name: str, n_frames: int, threads: int, folder: Path) -> float:
    """Compile into `folder` and compare, with a short window too where it takes all lengths; returns how far the
    features are off at most. Raises SpecedgeError."""
    made, task = backend(name), encoder_task(bundle, n_frames, threads)
    made.compile(task, folder)
    lengths = {n_frames, min(n_frames, _SHORT_FRAMES)} if made.takes_all_lengths else {n_frames}
    mels = [probe_mel(bundle.manifest.dims, length)[None] for length in sorted(lengths)]
    found = _twice(made.load(task, folder, Canceller()), mels, name)
    reference = load_graph(bundle, PLAIN_ENCODER_GRAPH, Canceller(), folder=bundle.path, threads=threads)
    errors = []
    for mel, hidden in zip(mels, found, strict=True):
        expected = encoder_output(reference, mel, bundle.manifest.dims.n_audio_state)
        errors.append(float(np.linalg.norm(hidden - expected) / max(float(np.linalg.norm(expected)), 1e-20)))
    bound = most_error(bundle.manifest)
    for error in errors:
        if not error <= bound:  # NaN fails too
            raise ProviderError(
                f"encoder_provider {name} does not compute this encoder: features are off by {error:.3g} of their "
                f"size, expected at most {bound:g}"
            )
    return max(errors)


def _twice(run: EncoderRun, mels: Sequence[NDArray[np.float32]], name: str) -> list[NDArray[np.float32]]:
    """The features of windows, each also behind all others. Raises ProviderError where its bits are others then."""
    found = [run(mel) for mel in mels]
    if any(hidden.tobytes() != run(mel).tobytes() for hidden, mel in zip(found, mels, strict=True)):
        raise ProviderError(f"encoder_provider {name} gives other bits each time, so texts could not be repeated")
    return found


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
