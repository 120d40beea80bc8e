"""The encoder by OpenVINO itself, on the CPU; other than its plug-in for ONNX Runtime it runs on AMD, too.

Weights of int8 meet activations that OpenVINO rounds a row and a group at a time; attention is in bfloat16 where the
CPU computes in it. The compiled model holds its weights, and takes windows of all lengths: one for each length would
hold them again, and padding up to a few lengths costs more than what a fixed length saves (docs/experiments).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import ProviderError, UsageError

from .provider_task import EncoderRun, EncoderTask, Place
from .session import Canceller

__all__ = ["OpenVino"]

_DEVICE = "CPU"
_BLOB = "encoder.blob"
_ROUNDED_TOGETHER = 128  # activations that share a scale
_LEAST_FRAMES = 2


class OpenVino:
    """See `provider_task.Backend`."""

    takes_all_lengths = True

    def place(self) -> Place:
        try:
            import openvino
        except ImportError:
            raise UsageError(
                "encoder_provider openvino: the package openvino is not installed; pip install openvino"
            ) from None
        name = openvino.Core().get_property(_DEVICE, "FULL_DEVICE_NAME")
        return Place(version=str(openvino.__version__).partition("-")[0], device=str(name).strip())

    def compile(self, task: EncoderTask, folder: Path) -> None:
        import openvino

        core = openvino.Core()
        try:
            model = core.read_model(str(task.graph))
            n_frames = openvino.Dimension(_LEAST_FRAMES, task.n_frames)
            model.reshape(openvino.PartialShape([1, task.n_mels, n_frames]))
            blob = core.compile_model(model, _DEVICE, self._settings(core, task)).export_model()
        except RuntimeError as error:
            raise _failure("cannot compile the encoder", error) from error
        (folder / _BLOB).write_bytes(blob.getvalue() if hasattr(blob, "getvalue") else blob)

    def load(self, task: EncoderTask, folder: Path, canceller: Canceller) -> EncoderRun:
        import openvino

        core = openvino.Core()
        try:
            blob = (folder / _BLOB).read_bytes()
            request = core.import_model(blob, _DEVICE, self._settings(core, task)).create_infer_request()
        except (OSError, RuntimeError) as error:
            raise _failure("cannot load the compiled encoder", error) from error

        def run(mel: NDArray[np.float32]) -> NDArray[np.float32]:
            try:
                with canceller.stoppable(request.cancel):
                    request.start_async({0: mel})
                    request.wait()
            except RuntimeError as error:
                raise _failure("failed", error) from error
            return np.array(request.get_output_tensor(0).data, np.float32)

        return run

    @staticmethod
    def _settings(core: Any, task: EncoderTask) -> dict[str, str]:
        settings = {"INFERENCE_NUM_THREADS": str(task.threads), "NUM_STREAMS": "1"}
        if task.is_float32:
            return settings | {"INFERENCE_PRECISION_HINT": "f32"}
        has_bf16 = "BF16" in core.get_property(_DEVICE, "OPTIMIZATION_CAPABILITIES")
        return settings | {
            "INFERENCE_PRECISION_HINT": "bf16" if has_bf16 else "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(_ROUNDED_TOGETHER),
        }


def _failure(what: str, error: Exception) -> ProviderError:
    # OpenVINO's messages begin with the place in its source.
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("Exception from")]
    return ProviderError(f"encoder_provider openvino {what}: {(lines or [type(error).__name__])[0][:200]}")
