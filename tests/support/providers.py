"""Providers of encoders for tests: bundles that bring an encoder in plain operators, and a provider that is the CPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.export.bundling import listed
from specedge.export.checkpoint import open_checkpoint
from specedge.export.plain_encoder import write_plain_encoder
from specedge.models import store
from specedge.runtime.bundle.bundle import MANIFEST_NAME, Bundle
from specedge.runtime.engine import providers
from specedge.runtime.engine.providers import EncoderRun
from specedge.runtime.engine.session import Canceller, Session, encoder_output
from support import demo
from support.exported import bundle, checkpoint


def with_plain(source: Bundle, weights: Path, folder: Path) -> Bundle:
    """A copy of `source` in `folder` that brings the encoder of the checkpoint `weights` in plain operators too."""
    shutil.copytree(source.path, folder)
    with open_checkpoint(weights) as opened:
        graph = write_plain_encoder(source.manifest, opened, folder)
        manifest = listed(source.manifest, folder, [graph])
    (folder / MANIFEST_NAME).write_bytes(manifest.to_bytes())
    return Bundle.open(folder)


def micro_with_plain(folder: Path) -> Bundle:
    return with_plain(bundle("int8"), checkpoint(), folder)


def demo_with_plain(folder: Path) -> Bundle:
    """The bundled demo with its maps, heads and CTC head."""
    return with_plain(Bundle.open(store.find("demo")), demo.checkpoint(), folder)


def take_for_openvino(backend: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider "openvino" is `backend` from now on."""
    monkeypatch.setattr(providers, "has_openvino", lambda: True)
    monkeypatch.setattr(providers, "openvino_place", backend.place)
    monkeypatch.setattr(providers, "openvino_encoder", backend.open)


class CpuBackend:
    """ONNX Runtime's CPU as if it were another provider. off: what is added to its features."""

    def __init__(self, off: float = 0.0) -> None:
        self.off = off

    def place(self) -> str:
        return "1 (a CPU)"

    def open(self, opened: Bundle, threads: int, canceller: Canceller) -> EncoderRun:
        session, dims = Session(opened.path / "encoder_plain.onnx", canceller, threads=threads), opened.manifest.dims

        def run(mel: NDArray[np.float32]) -> NDArray[np.float32]:
            assert mel.shape[:2] == (1, dims.n_mels) and mel.shape[2] <= dims.n_frames
            return encoder_output(session, mel, dims.n_audio_state) + np.float32(self.off)

        return run
