"""The encoder by an execution provider of ONNX Runtime: a plug-in from a package of its own, or one inside the wheel.

A plug-in registers its library, says which devices it finds, and is added to a session by them. Each session refuses to
run a node on the CPU. Nothing compiled is kept: a provider that compiles does so at each start.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from specedge.errors import ProviderError, UsageError

from .provider_task import EncoderRun, EncoderTask, Place
from .session import RUNTIME_VERSION, SEVERITY_FATAL, Canceller

__all__ = ["InWheel", "PlugIn"]

_NO_CPU = "session.disable_cpu_ep_fallback"
_registered: set[str] = set()


@dataclass(frozen=True, kw_only=True)
class PlugIn:
    """A plug-in, see `provider_task.Backend`. module: of the `package`, which says where its library is."""

    name: str
    package: str
    module: str
    takes_all_lengths: bool = False

    def place(self) -> Place:
        devices = self._devices()
        try:
            from importlib.metadata import version

            release = version(self.package)
        except ImportError:
            release = ""
        vendor = str(getattr(devices[0], "ep_vendor", "")) or str(devices[0].ep_name)
        return Place(version=f"{release} of {RUNTIME_VERSION}", device=f"{vendor} {devices[0].device.type}")

    def compile(self, task: EncoderTask, folder: Path) -> None:
        self._session(task)

    def load(self, task: EncoderTask, folder: Path, canceller: Canceller) -> EncoderRun:
        return _runner(self._session(task), canceller)

    def _devices(self) -> list[Any]:
        """The provider's devices. Raises UsageError where there is none."""
        try:
            plug_in = importlib.import_module(self.module)
        except ImportError:
            raise UsageError(
                f"encoder_provider {self.name}: the package {self.package} is not installed; pip install {self.package}"
            ) from None
        ep_name = plug_in.get_ep_name()
        if self.module not in _registered:
            try:
                ort.register_execution_provider_library(ep_name, plug_in.get_library_path())
            except Exception as error:  # ONNX Runtime has no common base class for its errors
                raise UsageError(
                    f"encoder_provider {self.name}: ONNX Runtime {RUNTIME_VERSION} cannot load {self.package}: "
                    f"{_first_line(error)}"
                ) from error
            _registered.add(self.module)
        devices = [device for device in ort.get_ep_devices() if device.ep_name == ep_name]
        if not devices:
            raise UsageError(
                f"encoder_provider {self.name}: {self.package} finds no device of its kind on this machine"
            )
        return devices

    def _session(self, task: EncoderTask) -> ort.InferenceSession:
        options = _options(task)
        options.add_provider_for_devices(self._devices()[:1], {})
        return _loaded(self.name, self.package, task, options, None)


@dataclass(frozen=True, kw_only=True)
class InWheel:
    """A provider inside the installed onnxruntime, see `provider_task.Backend`. settings: its own options."""

    name: str
    provider: str
    settings: tuple[tuple[str, str], ...] = ()
    takes_all_lengths: bool = False

    def place(self) -> Place:
        if self.provider not in ort.get_available_providers():
            raise UsageError(
                f"encoder_provider {self.name}: the installed package onnxruntime {RUNTIME_VERSION} has no "
                f"{self.provider} on this system"
            )
        return Place(version=RUNTIME_VERSION, device=self.provider)

    def compile(self, task: EncoderTask, folder: Path) -> None:
        self._session(task)

    def load(self, task: EncoderTask, folder: Path, canceller: Canceller) -> EncoderRun:
        return _runner(self._session(task), canceller)

    def _session(self, task: EncoderTask) -> ort.InferenceSession:
        package = f"onnxruntime {RUNTIME_VERSION}"
        return _loaded(self.name, package, task, _options(task), [(self.provider, dict(self.settings))])


def _options(task: EncoderTask) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = task.threads
    options.log_severity_level = SEVERITY_FATAL
    options.add_session_config_entry(_NO_CPU, "1")
    options.add_free_dimension_override_by_name("batch", 1)
    options.add_free_dimension_override_by_name("n_frames", task.n_frames)
    return options


def _loaded(
    name: str, package: str, task: EncoderTask, options: ort.SessionOptions, providers: list[Any] | None
) -> ort.InferenceSession:
    try:
        return ort.InferenceSession(str(task.graph), options, providers=providers)
    except Exception as error:  # ONNX Runtime has no common base class for its errors
        raise ProviderError(
            f"encoder_provider {name} does not take the whole encoder ({package}): {_first_line(error)}; leave out "
            "--encoder-provider, or install another version of the package"
        ) from error


def _runner(session: ort.InferenceSession, canceller: Canceller) -> EncoderRun:
    def run(mel: NDArray[np.float32]) -> NDArray[np.float32]:
        options = ort.RunOptions()

        def stop() -> None:
            options.terminate = True

        with canceller.stoppable(stop):
            (hidden,) = session.run(None, {"mel": mel}, options)
        return np.asarray(hidden, np.float32)

    return run


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
