"""A Whisper with trained weights as a checkpoint in Hugging Face layout, for `specedge export` and for transformers.

All that was not trained is the old checkpoint's, bit for bit: configs, tokenizer files, encoder, token table. A folder
that holds anything else is not replaced: config.json says under a key of its own what was trained here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import CheckpointError, UsageError
from specedge.files import check_folder, publish_folder, scratch_folder, sweep

from ..checkpoint import HEADS_FILE, Checkpoint
from ..spec import read_json

DRAFT = "specedge_draft_of"
UNFROZEN = "specedge_last_layer_of"
_WHAT = {DRAFT: "trained draft", UNFROZEN: "checkpoint trained with its last layer"}
_OF_HEADS = "medusa_"

_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "added_tokens.json",
    "special_tokens_map.json", "normalizer.json",
)  # fmt: skip

_CONFIGS = ("config", "generation_config", "preprocessor_config")
_WEIGHTS = "model.safetensors"
_PARTS = {*_TOKENIZER_FILES, *(f"{name}.json" for name in _CONFIGS), _WEIGHTS, HEADS_FILE}


def check_out(out: Path, mark: str) -> None:
    """Raises UsageError where `out` is anything but an empty folder or what was trained here under the key `mark`, and
    where other files are in it. What a killed writer was about to replace comes back first."""
    sweep(out)
    if not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir())):
        return
    try:
        is_ours = mark in read_json(out / "config.json")
    except (CheckpointError, OSError):
        is_ours = False
    if not is_ours:
        raise UsageError(f"-o {out}: exists and is no {_WHAT[mark]}, so it is not replaced; give another -o")
    check_folder(out, _PARTS.__contains__, _WHAT[mark])


def write_checkpoint(
    out: Path,
    checkpoint: Checkpoint,
    trained: Mapping[str, NDArray[np.float32]],
    *,
    n_layers: int,
    mark: str,
    target: str,
    beside: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Write the folder `out`: `checkpoint` with `trained` weights by name, in a decoder of `n_layers` layers.

    `mark` is DRAFT or UNFROZEN, `target` the name of what was learned from; `beside` writes what else
    belongs into the folder. Raises UsageError as `check_out` does, CheckpointError for weights of `checkpoint` that
    cannot be read, ResourceError when the folder cannot be written.
    """
    from safetensors.numpy import save_file

    check_out(out, mark)
    spec = checkpoint.spec
    kept = [name for name, _ in spec.shapes() if name not in trained and _is_part(name, n_layers)]
    tensors = {name: _smallest(checkpoint.tensor(name)) for name in kept}
    tensors |= {name: np.ascontiguousarray(value) for name, value in trained.items()}
    config = {name: value for name, value in spec.config.items() if not name.startswith(_OF_HEADS)}
    config |= {"architectures": ["WhisperForConditionalGeneration"], "decoder_layers": n_layers, mark: target}
    generation = dict(spec.generation)
    if n_layers != spec.dims.n_text_layer:  # those of the deeper decoder
        generation.pop("alignment_heads", None)
    with scratch_folder(out) as folder:
        folder.chmod(0o755)
        for name, value in zip(_CONFIGS, (config, generation, spec.preprocessor), strict=True):
            if value:
                (folder / f"{name}.json").write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", "utf-8")
        for name in _TOKENIZER_FILES:
            if checkpoint.folder is not None and (checkpoint.folder / name).is_file():
                shutil.copyfile(checkpoint.folder / name, folder / name)
        save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
        beside(folder)
        publish_folder(folder, out)


def _is_part(name: str, n_layers: int) -> bool:
    """Whether a weight belongs to a plain Whisper whose decoder has `n_layers` layers."""
    layer = re.match(r"model\.decoder\.layers\.(\d+)\.", name)
    return name.startswith(("model.", "proj_out.")) and (layer is None or int(layer[1]) < n_layers)


def _smallest(value: NDArray[np.float32]) -> NDArray[Any]:
    """The same values in float16 where it holds them all exactly, so that the encoder stays the same to the bit."""
    half = value.astype(np.float16)
    return half if np.array_equal(half.astype(np.float32), value) else value
