"""Encoders on other kernels and chips than ONNX Runtime's CPU's, behind one name: `encoder_provider`.

Only the encoder runs there; keys and values, the decoder and all drafters stay where they are, so drafts change nothing
behind any provider. Its features are others than the CPU's by a rounding error, and so may a word be: a provider is
part of a result, as the precision is.

Where a provider wants fixed shapes, windows are padded with silence to one of a few lengths, for each of which the
encoder is compiled once; else it is compiled once for all. The first time happens in a child process
(`provider_check`), for compilers of others crash: there the encoder must give the same bits twice, and features as near
to float32 as the bundle's own must be. What was compiled is kept beside the packed weights, by bundle, provider,
version, device, threads and length.
"""

from __future__ import annotations

import contextlib
import hashlib
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specedge.errors import BundleError, ProviderError, UsageError

from ..bundle.bundle import Bundle
from ..bundle.manifest import HOP_SAMPLES, PLAIN_ENCODER_GRAPH, SAMPLE_RATE_HZ, Manifest
from ..device import packed_folder
from ..options import CPU, ENCODER_PROVIDERS
from . import packed
from .execution_providers import InWheel, PlugIn
from .openvino_encoder import OpenVino
from .provider_task import Backend, EncoderRun, EncoderTask
from .session import Canceller

__all__ = [
    "ProviderEncoder",
    "VERDICT",
    "backend",
    "encoder_task",
    "frame_lengths",
    "most_error",
    "open_provider",
    "require_provider",
]

VERDICT = "verdict.json"  # in an entry: how far the features were off
_LAYOUT = 2  # changes with how encoders are compiled or checked
_LENGTHS_S = (5, 10, 15, 20)  # besides the whole window
_GROWTH = 6  # a compiled encoder is up to so many times as large as the graph's files: float32 weights
_MOST_ERROR = 0.25  # of bundles that do not say
_BACKENDS: dict[str, Backend] = {
    "openvino": OpenVino(),
    "openvino-ep": PlugIn(name="openvino-ep", package="onnxruntime-ep-openvino", module="onnxruntime_ep_openvino"),
    "webgpu": PlugIn(name="webgpu", package="onnxruntime-ep-webgpu", module="onnxruntime_ep_webgpu"),
    "qnn": PlugIn(name="qnn", package="onnxruntime-qnn", module="onnxruntime_qnn"),
    "coreml": InWheel(
        name="coreml",
        provider="CoreMLExecutionProvider",
        settings=(("ModelFormat", "MLProgram"), ("RequireStaticInputShapes", "1")),
    ),
}


def backend(name: str) -> Backend:
    """The provider called `name`. Raises UsageError for another name."""
    if name not in _BACKENDS:
        raise UsageError(f"encoder_provider: got {name!r}, expected one of {', '.join(ENCODER_PROVIDERS)}")
    return _BACKENDS[name]


def frame_lengths(manifest: Manifest) -> tuple[int, ...]:
    """The lengths in mel frames for which encoders are compiled, rising; the last is the window."""
    shorter = [seconds * SAMPLE_RATE_HZ // HOP_SAMPLES for seconds in _LENGTHS_S]
    return (*(n for n in shorter if n < manifest.n_frames), manifest.n_frames)


def encoder_task(bundle: Bundle, n_frames: int, threads: int) -> EncoderTask:
    """The encoder of `bundle` for windows of `n_frames`. Raises BundleError where it has none in plain operators."""
    spec = bundle.manifest.graphs.get(PLAIN_ENCODER_GRAPH)
    if spec is None:
        raise BundleError(
            f"{bundle.path}: this bundle has no encoder that other providers than {CPU} can run; export the checkpoint "
            "again with --encoder-plain"
        )
    return EncoderTask(
        graph=bundle.file(spec.file),
        n_mels=bundle.manifest.dims.n_mels,
        n_frames=n_frames,
        threads=threads,
        is_float32=bundle.manifest.precision == "fp32",
    )


def most_error(manifest: Manifest) -> float:
    """How far features may be off float32's, relative to their size: as far as the bundle's own may be."""
    bound = manifest.quantisation.get("max_features_error")
    return float(bound) if isinstance(bound, float) else _MOST_ERROR


def require_provider(name: str, bundle: Bundle) -> None:
    """Raise what `open_provider` would, as far as it can be known without compiling: UsageError, BundleError."""
    if name != CPU:
        place = backend(name).place
        encoder_task(bundle, bundle.manifest.n_frames, 1)
        place()


def open_provider(name: str, bundle: Bundle, *, threads: int, canceller: Canceller) -> ProviderEncoder | None:
    """The encoder of `bundle` on the provider `name`, None for the CPU.

    Raises UsageError for a provider that is not there, BundleError for a bundle without an encoder in plain operators,
    ProviderError when the provider fails, Interrupted.
    """
    return None if name == CPU else ProviderEncoder(name, bundle, threads=threads, canceller=canceller)


class ProviderEncoder:
    """An encoder on a provider; the one for whole windows is loaded at once. name, label: for machines and people;
    lengths: the only ones in mel frames that it takes, rising, empty where it takes all."""

    def __init__(self, name: str, bundle: Bundle, *, threads: int, canceller: Canceller) -> None:
        self._backend = backend(name)
        self._bundle, self._threads, self._canceller = bundle, threads, canceller
        encoder_task(bundle, bundle.manifest.n_frames, threads)
        place = self._backend.place()
        self.name = name
        self.label = f"{name} {place.version} ({place.device})"
        self.lengths = () if self._backend.takes_all_lengths else frame_lengths(bundle.manifest)
        self._runs: dict[int, EncoderRun] = {}
        self._run_for(bundle.manifest.n_frames)

    def padded(self, mel: NDArray[np.float32]) -> NDArray[np.float32]:
        """A log-mel float32 `[n_mels, n_frames]`, with silence behind it up to the next of the lengths."""
        n_frames = next((n for n in self.lengths if n >= mel.shape[1]), mel.shape[1])
        return np.pad(mel, ((0, 0), (0, n_frames - mel.shape[1])))

    def encode(self, windows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Features float32 `[n_windows, n_ctx, n_state]` of log-mels `[n_windows, n_mels, n_frames]` of such a length.

        Raises ProviderError, Interrupted.
        """
        run = self._run_for(windows.shape[2] if self.lengths else self._bundle.manifest.n_frames)
        return np.concatenate([run(np.ascontiguousarray(window[None])) for window in windows])

    def _run_for(self, n_frames: int) -> EncoderRun:
        found = self._runs.get(n_frames)
        if found is None:
            task = encoder_task(self._bundle, n_frames, self._threads)
            folder = self._compiled(task)
            if folder is not None:
                found = self._backend.load(task, folder, self._canceller)
            else:  # the user's cache cannot be written
                with tempfile.TemporaryDirectory(prefix="specedge-encoder-") as own:
                    self._check(task, Path(own))
                    found = self._backend.load(task, Path(own), self._canceller)
            self._runs[n_frames] = found
        return found

    def _compiled(self, task: EncoderTask) -> Path | None:
        """The folder of the encoder that was compiled and checked once on this machine; None if it cannot be kept."""
        key = hashlib.sha256(f"{self.label} {task.threads} {_LAYOUT}".encode()).hexdigest()[:16]
        entry = packed_folder() / f"{self._bundle.digest[:24]}-{self.name}-{task.n_frames}-{key}"
        found = packed.lookup(entry)
        if found is None:
            n_bytes = sum(path.stat().st_size for path in (task.graph, task.graph.with_suffix(".data")))
            packed.store(entry, partial(self._check, task), needed_bytes=_GROWTH * n_bytes)
            found = packed.lookup(entry)
        return found

    def _check(self, task: EncoderTask, folder: Path) -> None:
        """Compile into `folder` and try it, in a child process. Raises ProviderError, Interrupted."""
        asked = [str(self._bundle.path), self.name, str(task.n_frames), str(task.threads), str(folder)]
        command = [sys.executable, "-m", "specedge.runtime.engine.provider_check", *asked]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
            try:
                with self._canceller.stoppable(child.kill):
                    said, _ = child.communicate()
            except BaseException:
                child.kill()
                raise
        if child.returncode == 0:
            return
        lines = said.strip().splitlines()
        if child.returncode == ProviderError.exit_code and lines:
            raise ProviderError(lines[-1])
        end = f"with code {child.returncode}"
        with contextlib.suppress(ValueError):
            end = f"by {signal.Signals(-child.returncode).name}"
        raise ProviderError(
            f"encoder_provider {self.label}: ended {end} while it compiled or tried the encoder; leave out "
            "--encoder-provider, or install another version"
        )
