"""Encoders on other kernels and chips than ONNX Runtime's CPU's, behind one name: `encoder_provider`.

Only the encoder runs there; keys and values, the decoder and all drafters stay where they are, so drafts change nothing
behind any provider. Its features are others than the CPU's by a rounding error, and so may a word be: a provider is
part of a result, as the precision is.

`openvino` is OpenVINO itself, on the CPU, AMD's too. What it compiled is kept in the cache folder and takes windows
of all lengths: one for each length would hold the weights again, and padding up to a few lengths costs more
than what a fixed length saves (docs/experiments). All other names are execution providers of the installed ONNX
Runtime. They must take the whole graph and get windows of one length, padded with silence.

At the first use on a machine the features are compared with those of the same graph on the CPU in float32; they must be
as near as the bundle's own must be. The time of a window is compared, too: `auto` is OpenVINO where it is installed,
the bundle brings the graph, and the window is encoded sooner than by the bundle's own encoder.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import BundleError, ProviderError, ResourceError, UsageError
from specedge.models.store import cache_home

from ..bundle.bundle import Bundle
from ..bundle.manifest import GRAPH_NAMES, PLAIN_ENCODER_GRAPH, Manifest
from ..device import device_path, read_device_file, write_device_file
from ..options import AUTO_PROVIDER, CPU, ENCODER_PROVIDERS
from .made_up import probe_mel
from .session import RUNTIME_VERSION, Canceller, Session, available_providers, encoder_output, load_graph

_log = logging.getLogger(__name__)
EncoderRun = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""From a log-mel float32 `[1, n_mels, n_frames]` to features float32 `[1, n_ctx, n_audio_state]`."""

OPENVINO = "openvino"
_DEVICE = "CPU"
_ROUNDED_TOGETHER = 128  # activations that share a scale
_MOST_ERROR = 0.25  # of bundles that do not say
_SPEEDUP = "speedup"
_LEAST_SPEEDUP = 1.05  # for which `auto` takes another encoder
_TIMED_WINDOWS = 2
_SETTINGS = {"CoreMLExecutionProvider": {"ModelFormat": "MLProgram", "RequireStaticInputShapes": "1"}}


def require_provider(name: str, bundle: Bundle) -> str:
    """The provider's version, and its device; "" for the CPU and `auto`, of which see `quicker_encoder`.

    Raises UsageError for one that is not there, BundleError for a bundle without an encoder in plain operators.
    """
    if name not in ENCODER_PROVIDERS:
        raise UsageError(f"encoder_provider: got {name!r}, expected one of {', '.join(ENCODER_PROVIDERS)}")
    if name in (CPU, AUTO_PROVIDER):
        return ""
    if PLAIN_ENCODER_GRAPH not in bundle.manifest.graphs:
        raise BundleError(
            f"{bundle.path}: this bundle has no encoder that other providers than {CPU} can run; export the checkpoint "
            "again with --encoder-plain"
        )
    return openvino_place() if name == OPENVINO else f"{RUNTIME_VERSION} ({_provider(name)})"


def has_choice(bundle: Bundle) -> bool:
    """Whether `auto` can be anything but the CPU."""
    return PLAIN_ENCODER_GRAPH in bundle.manifest.graphs and has_openvino()


def quicker_encoder(bundle: Bundle, *, threads: int, canceller: Canceller) -> ProviderEncoder | None:
    """OpenVINO's encoder, where there is a choice; None where it does not work or is not quicker than the CPU's.

    None, too, where what was measured cannot be kept: the next process would measure again, and the text might change.
    """
    try:
        encoder = ProviderEncoder(OPENVINO, openvino_place(), bundle, threads=threads, canceller=canceller)
    except (ProviderError, UsageError) as error:
        _log.warning("the encoder runs without OpenVINO: %s", error)
        return None
    return encoder if encoder.is_kept and encoder.speedup >= _LEAST_SPEEDUP else None


class ProviderEncoder:
    """An encoder on a provider. label: its name, version and device; run: encodes windows of a length that it takes;
    speedup: over the bundle's own encoder, for a whole window at its first use here; is_kept: whether the next process
    will know that, too.

    Raises ProviderError when the provider fails, Interrupted.
    """

    def __init__(self, name: str, place: str, bundle: Bundle, *, threads: int, canceller: Canceller) -> None:
        manifest = bundle.manifest
        self.label = f"{name} {place}"
        self._n_least = 0 if name == OPENVINO else manifest.n_frames
        if name == OPENVINO:
            self.run = openvino_encoder(bundle, threads, canceller)
        else:
            self.run = _onnxruntime(bundle, name, threads, canceller)
        path = device_path(bundle.behind(self.label).digest, threads, "-provider")
        known = read_device_file(path)
        if not isinstance(known.get(_SPEEDUP), float):
            _log.info("the encoder on %s is compared with the model's own, once on this machine", self.label)
            error = _features_error(self.run, bundle, threads, canceller)
            bound = manifest.quantisation.get("max_features_error")  # of the bundle's own encoder
            most = float(bound) if isinstance(bound, float) else _MOST_ERROR
            if not error <= most:  # NaN fails too
                raise ProviderError(
                    f"encoder_provider {name} does not compute this encoder: features are off by {error:.3g} of their "
                    f"size, expected at most {most:g}; use --encoder-provider cpu"
                )
            known = {_SPEEDUP: _speedup(self.run, bundle, threads, canceller)}
            with contextlib.suppress(ResourceError):  # then the next process compares again
                write_device_file(path, known)
        self.speedup, self.is_kept = known[_SPEEDUP], path.is_file()

    def padded(self, mel: NDArray[np.float32]) -> NDArray[np.float32]:
        """A log-mel float32 `[n_mels, n_frames]`, with silence behind it up to a length that the provider takes."""
        return np.pad(mel, ((0, 0), (0, max(0, self._n_least - mel.shape[1]))))


def _plain_graph(bundle: Bundle) -> Path:
    """The encoder in plain operators (`export/plain_encoder.py`)."""
    return bundle.file(bundle.manifest.graphs[PLAIN_ENCODER_GRAPH].file)


def _features_error(run: EncoderRun, bundle: Bundle, threads: int, canceller: Canceller) -> float:
    """How far features of a made-up window are off those of the CPU, relative to their size."""
    dims = bundle.manifest.dims
    mel = probe_mel(dims, dims.n_frames)[None]
    session = load_graph(bundle, PLAIN_ENCODER_GRAPH, canceller, threads=threads)
    expected = encoder_output(session, mel, dims.n_audio_state)
    return float(np.linalg.norm(run(mel) - expected) / max(float(np.linalg.norm(expected)), 1e-20))


def _speedup(run: EncoderRun, bundle: Bundle, threads: int, canceller: Canceller) -> float:
    """The time of the bundle's own encoder for a window over that of `run`: the least of a few, in turn."""
    dims = bundle.manifest.dims
    mel = probe_mel(dims, dims.n_frames)[None]
    session = load_graph(bundle, GRAPH_NAMES[0], canceller, threads=threads)
    times_s: dict[bool, list[float]] = {False: [], True: []}
    for is_own in (False, True) * _TIMED_WINDOWS:
        started_s = time.perf_counter()
        encoder_output(session, mel, dims.n_audio_state) if is_own else run(mel)
        times_s[is_own].append(time.perf_counter() - started_s)
    return min(times_s[True]) / max(min(times_s[False]), 1e-9)


# ---------------------------------------------------------------------------------------- providers of ONNX Runtime
def _provider(name: str) -> str:
    """ONNX Runtime's name of a provider. Raises UsageError where the installed package does not have it."""
    wanted = f"{name}ExecutionProvider"
    for provider in available_providers():
        if provider.lower() == wanted.lower():
            return provider
    raise UsageError(
        f"encoder_provider {name}: the installed package onnxruntime {RUNTIME_VERSION} has no {wanted} on this system"
    )


def _onnxruntime(bundle: Bundle, name: str, threads: int, canceller: Canceller) -> EncoderRun:
    provider = _provider(name)
    try:
        session = Session(
            _plain_graph(bundle),
            canceller,
            threads=threads,
            provider=(provider, _SETTINGS.get(provider, {})),
            free_axes={"batch": 1, "n_frames": bundle.manifest.n_frames},
        )
    except BundleError as error:
        raise ProviderError(
            f"encoder_provider {name} does not take the whole encoder ({error.__cause__}); use "
            "--encoder-provider cpu, or install another version of the package"
        ) from error
    return lambda mel: encoder_output(session, mel, bundle.manifest.dims.n_audio_state)


# ---------------------------------------------------------------------------------------------------------- OpenVINO
def has_openvino() -> bool:
    """Whether OpenVINO is installed."""
    return importlib.util.find_spec(OPENVINO) is not None


def openvino_place() -> str:
    """OpenVINO's version and the CPU. Raises UsageError where it is not installed, ProviderError where it fails."""
    try:
        import openvino
    except ImportError:
        raise UsageError(
            "encoder_provider openvino: the package openvino is not installed; pip install openvino"
        ) from None
    try:
        name = openvino.Core().get_property(_DEVICE, "FULL_DEVICE_NAME")
    except RuntimeError as error:
        raise _openvino_failure("finds no CPU", error) from error
    return f"{str(openvino.__version__).partition('-')[0]} ({str(name).strip()})"


def openvino_encoder(bundle: Bundle, threads: int, canceller: Canceller) -> EncoderRun:
    """The encoder, compiled at its first use on this machine; OpenVINO keeps it for later ones. Raises ProviderError;
    its runs Interrupted."""
    import openvino

    core, dims = openvino.Core(), bundle.manifest.dims
    settings = _openvino_settings(core, bundle.manifest, threads)
    compiled = cache_home() / "compiled"
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time alone
        compiled.mkdir(parents=True, exist_ok=True, mode=0o700)
        settings["CACHE_DIR"] = str(compiled) if os.access(compiled, os.W_OK) else ""
    try:
        model = core.read_model(str(_plain_graph(bundle)))
        model.reshape(openvino.PartialShape([1, dims.n_mels, openvino.Dimension(2, dims.n_frames)]))
        request = core.compile_model(model, _DEVICE, settings).create_infer_request()
    except RuntimeError as error:
        raise _openvino_failure("cannot compile the encoder", error) from error

    def run(mel: NDArray[np.float32]) -> NDArray[np.float32]:
        try:
            with canceller.stoppable(request.cancel):
                request.start_async({0: mel})
                request.wait()
        except RuntimeError as error:
            raise _openvino_failure("failed", error) from error
        return np.array(request.get_output_tensor(0).data, np.float32)

    return run


def _openvino_settings(core: Any, manifest: Manifest, threads: int) -> dict[str, str]:
    """int8 weights meet activations that OpenVINO rounds a row and a group at a time; attention is in bfloat16 where
    the CPU computes in it."""
    settings = {"INFERENCE_NUM_THREADS": str(threads), "NUM_STREAMS": "1"}
    if manifest.precision == "fp32":
        return settings | {"INFERENCE_PRECISION_HINT": "f32"}
    has_bf16 = "BF16" in core.get_property(_DEVICE, "OPTIMIZATION_CAPABILITIES")
    return settings | {
        "INFERENCE_PRECISION_HINT": "bf16" if has_bf16 else "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(_ROUNDED_TOGETHER),
    }


def _openvino_failure(what: str, error: Exception) -> ProviderError:
    # OpenVINO's messages begin with the place in its source.
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("Exception from")]
    return ProviderError(f"encoder_provider openvino {what}: {(lines or [type(error).__name__])[0][:200]}")
