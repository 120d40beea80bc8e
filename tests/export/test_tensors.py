"""Files of weights: pickles run no code, hostile headers are one line, and a read costs one tensor of memory."""

from __future__ import annotations

import json
import pickle
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specedge.errors import CheckpointError
from specedge.export.checkpoint import open_checkpoint
from support.checkpoints import make_checkpoint
from support.edits import read_tensors

FC1 = "model.encoder.layers.0.fc1.weight"


@pytest.fixture(scope="module")
def micro(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("micro"), tokenizer=False)


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.mark.parametrize("layout", ["one", "legacy", "sharded"])
def test_pickled_weights_are_read_through_torch(layout: str, micro: Path, tmp_path: Path, torch: Any) -> None:
    folder = make_checkpoint(tmp_path, tokenizer=False)
    state = {name: torch.from_numpy(value) for name, value in read_tensors(folder / "model.safetensors").items()}
    state["model.encoder.conv1.bias"] = state["model.encoder.conv1.bias"].to(torch.bfloat16)
    (folder / "model.safetensors").unlink()
    if layout == "sharded":
        halves = [dict(list(state.items())[:40]), dict(list(state.items())[40:])]
        places = {}
        for i, half in enumerate(halves):
            torch.save(half, folder / f"pytorch_model-{i}.bin")
            places |= dict.fromkeys(half, f"pytorch_model-{i}.bin")
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    else:
        torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=layout == "one")
    with open_checkpoint(folder) as checkpoint, open_checkpoint(micro) as plain:
        for name, _ in plain.spec.shapes():
            if name != "model.encoder.conv1.bias":
                np.testing.assert_array_equal(checkpoint.tensor(name), plain.tensor(name))
        assert np.abs(checkpoint.tensor("model.encoder.conv1.bias")).max() > 0


def test_a_pickle_that_runs_code_is_refused_unexecuted(micro: Path, tmp_path: Path, torch: Any) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "executed",))

    folder = make_checkpoint(tmp_path, tokenizer=False)
    (folder / "model.safetensors").unlink()
    for payload in (pickle.dumps({"x": Evil()}), b"", b"PK\x03\x04 no zip", pickle.dumps({"a": 1})):
        (folder / "pytorch_model.bin").write_bytes(payload)
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
            open_checkpoint(folder)
    assert not (tmp_path / "executed").exists()


def test_a_pickle_without_torch_says_what_to_install(micro: Path, tmp_path: Path, monkeypatch: Any) -> None:
    folder = make_checkpoint(tmp_path, tokenizer=False)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(CheckpointError, match="needs torch: give a checkpoint .*or pip install torch --index-url"):
        open_checkpoint(folder)


def header(entries: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


F32_AT = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 3) + b"\xff{}",
        header({"a": F32_AT, "b": F32_AT}, b"\0" * 4),
        header({"a": F32_AT}, b"\0" * 3),
        header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"\0" * 4),
        header({"a": {"dtype": "F32", "shape": [1 << 62, 1 << 62], "data_offsets": [0, 4]}}, b"\0" * 4),
        header({"a": {"dtype": "X9", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4),
    ],
)
def test_hostile_safetensors_are_one_line(content: bytes, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, tokenizer=False)
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: is not a valid safetensors file") as caught:
        open_checkpoint(folder)
    assert len(str(caught.value)) < 500 and "\n" not in str(caught.value)


def test_a_file_that_shrinks_after_it_was_opened_is_named(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, tokenizer=False) / "model.safetensors"
    with open_checkpoint(tmp_path) as checkpoint:
        path.write_bytes(path.read_bytes()[:20_000])
        with pytest.raises(CheckpointError, match="ends in the middle of a tensor"):
            checkpoint.tensor("model.decoder.layer_norm.bias")
        path.unlink()
        with pytest.raises(CheckpointError, match="cannot be read"):
            checkpoint.tensor(FC1)


def test_reading_holds_one_tensor_and_one_block(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, n_vocab=51865, dtype="float16", tokenizer=False)
    with open_checkpoint(folder) as checkpoint:
        checkpoint.tensor(FC1)
        tracemalloc.start()
        size = checkpoint.tensor("model.decoder.embed_tokens.weight").nbytes
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert size == 51865 * 64 * 4 and peak < size + (14 << 20)


@pytest.mark.slow
def test_a_large_sharded_checkpoint_is_read_in_little_memory(tmp_path: Path) -> None:
    """Over a gigabyte of fp32 shards; resident memory stays near the largest tensor."""
    folder = make_checkpoint(tmp_path, size="small", dtype="float32", shards=3, tokenizer=False)
    if not sys.platform.startswith("linux"):
        pytest.skip("reads the peak from /proc/self/status")
    code = (
        "import re, sys\n"
        "from specedge.export.checkpoint import open_checkpoint\n"
        "with open_checkpoint(sys.argv[1]) as c:\n"
        "    for name, _ in c.spec.shapes(): c.tensor(name)\n"
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
    )
    out = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert int(out.stdout) << 10 < 400 << 20
