"""Graphs whose weights lie outside the bundle: refused, though every hash is right and the weights are good ones."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import onnxruntime
import pytest

from specedge.errors import BundleError
from specedge.runtime.bundle.bundle import MANIFEST_NAME, Bundle, read_manifest
from specedge.runtime.bundle.manifest import FileEntry
from specedge.runtime.engine.engine import Engine
from specedge.runtime.model import WhisperModel
from support.exported import bundle

posix = pytest.mark.skipif(os.name == "nt", reason="links need rights there")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle with the encoder's weights a second time beside it: whoever follows a path finds good ones."""
    folder = Path(shutil.copytree(bundle("int8").path, tmp_path / "bundle"))
    shutil.copyfile(folder / "encoder.data", tmp_path / "secret")
    return folder


def point_elsewhere(folder: Path, location: str) -> None:
    """Have the encoder take its weights from `location`, and the manifest agree with the changed graph."""
    graph = onnx.load(folder / "encoder.onnx", load_external_data=False)
    n_changed = 0
    for tensor in graph.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
                n_changed += 1
    assert n_changed
    data = graph.SerializeToString()
    (folder / "encoder.onnx").write_bytes(data)
    relist(folder, "encoder.onnx", data)


def relist(folder: Path, name: str, data: bytes) -> None:
    manifest, _ = read_manifest(folder)
    entry = FileEntry(size=len(data), sha256=hashlib.sha256(data).hexdigest())
    changed = replace(manifest, files={**manifest.files, name: entry})
    (folder / MANIFEST_NAME).write_bytes(changed.to_bytes())


@pytest.mark.parametrize(
    "location",
    [
        lambda secret: "../secret",
        lambda secret: "maps/../../secret",
        lambda secret: str(secret),
        lambda secret: f"file://{secret}",
        lambda secret: "*/_ORT_MEM_ADDR_/*",
        lambda secret: "",
    ],
    ids=["parent", "through a folder", "absolute", "url", "memory", "none"],
)
def test_weights_outside_are_refused_though_every_hash_is_right(folder: Path, location: Callable[[Path], str]) -> None:
    point_elsewhere(folder, location(folder.parent / "secret"))
    opened = Bundle.open(folder)
    with pytest.raises(BundleError, match=r"encoder\.onnx") as raised:
        Engine(opened, threads=1, loads=opened.manifest.graph_names)
    assert "\n" not in str(raised.value)


@posix
def test_a_link_to_weights_outside_is_refused_by_the_bundle_and_behind_it(folder: Path) -> None:
    """By the runtime too, if the link came after the bundle was opened."""
    opened = Bundle.open(folder)
    (folder / "encoder.data").unlink()
    (folder / "encoder.data").symlink_to(folder.parent / "secret")
    with pytest.raises(BundleError, match="leads outside the bundle"):
        Bundle.open(folder)
    with pytest.raises(BundleError, match=r"encoder\.onnx"):
        Engine(opened, threads=1, loads=opened.manifest.graph_names)


@pytest.mark.parametrize("name", ["encoder.onnx", "encoder.data", "tokenizer.bin"])
def test_any_changed_byte_is_found_before_a_graph_is_loaded(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_, **__: pytest.fail("loaded"))
    data = (folder / name).read_bytes()
    for at in range(0, len(data), max(len(data) // 34, 1)):
        (folder / name).write_bytes(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
        with pytest.raises(BundleError, match=f"{name}: sha256"):
            WhisperModel(str(folder))
