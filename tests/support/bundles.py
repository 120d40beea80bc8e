"""A small bundle for tests of everything that reads bundles but runs no graph: the .onnx files are noise.

Its vocabulary is the 256 bytes and two languages; its window is one second.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from specedge.runtime.bundle.bundle import hash_file
from specedge.runtime.bundle.dims import Dims
from specedge.runtime.bundle.manifest import MANIFEST_NAME, FileEntry, GraphSpec, Manifest, Source, TensorSpec
from specedge.runtime.text.tokenizer import SpecialTokens, Tokenizer, write_table

DIMS = Dims(
    n_mels=80,
    n_audio_ctx=50,
    n_audio_state=8,
    n_audio_head=2,
    n_audio_layer=1,
    n_text_ctx=16,
    n_text_state=8,
    n_text_head=2,
    n_text_layer=2,
    n_vocab=317,
)
TOKENS = SpecialTokens(
    n_vocab=DIMS.n_vocab,
    eot=256,
    sot=257,
    languages={"en": 258, "de": 259},
    translate=260,
    transcribe=261,
    sot_lm=262,
    sot_prev=263,
    no_speech=264,
    no_timestamps=265,
    timestamp_begin=266,
)
RANKS = tuple(bytes([byte]) for byte in range(256))
DATA = {
    "encoder.onnx": b"encoder graph",
    "cross_kv.onnx": b"cross graph",
    "decoder.onnx": b"decoder graph",
    "decoder.data": bytes(range(64)),
    "maps/words.tmap": b"map",
}


def _graph(file: str) -> GraphSpec:
    ids = TensorSpec(name="ids", dtype="int64", shape=("n_batch", "n_rows"))
    past = tuple(TensorSpec(name=f"past_{i}", dtype="float32", shape=("n_batch", 2, 16, 4)) for i in range(2))
    logits = TensorSpec(name="logits", dtype="float32", shape=("n_batch", "n_rows", DIMS.n_vocab))
    return GraphSpec(file=file, inputs=(ids, *past), outputs=(logits,))


def manifest(files: dict[str, FileEntry], **changes: Any) -> Manifest:
    """A manifest over `files` with some fields changed."""
    made = Manifest(
        name="small",
        specedge_version="0.1.0",
        source=Source(kind="folder", id="checkpoint", revision=None),
        precision="int8",
        dims=DIMS,
        window_s=1.0,
        tokens=TOKENS,
        suppress_tokens=(1, 2),
        suppress_begin=(32, 256),
        max_initial_timestamp_index=50,
        alignment_heads=((1, 0), (1, 1)),
        graphs={name: _graph(f"{name}.onnx") for name in ("encoder", "cross_kv", "decoder")},
        quantisation={"decoder": {"block": 128, "kernel": "MatMulNBits"}},
        selfcheck={"max_difference": 1e-05, "rows": [1, 2, 8]},
        vocabulary_sha256=Tokenizer(RANKS, TOKENS).fingerprint,
        files=files,
    )
    return replace(made, **changes)


def write_bundle(folder: Path, **changes: Any) -> Path:
    """Write the small bundle into the new folder `folder` and return it."""
    for name, data in DATA.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    write_table(folder / "tokenizer.bin", RANKS)
    files = {name: hash_file(folder / name) for name in (*DATA, "tokenizer.bin")}
    (folder / MANIFEST_NAME).write_bytes(manifest(files, **changes).to_bytes())
    return folder


def manifest_json(folder: Path) -> Any:
    """The manifest of a bundle folder as JSON values, to be changed by a test."""
    return json.loads((folder / MANIFEST_NAME).read_bytes())


def put_manifest(folder: Path, value: Any) -> None:
    """Write `value` as the manifest of a bundle folder, unchecked."""
    (folder / MANIFEST_NAME).write_text(json.dumps(value), encoding="utf-8")


def relist(folder: Path, name: str, data: bytes) -> None:
    """Write `data` into the bundle as the file `name` and list it with its right size and hash."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    value = manifest_json(folder)
    value["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    value.pop("manifest_sha256", None)
    put_manifest(folder, value)
