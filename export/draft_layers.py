"""A smaller decoder that drafts for one checkpoint over its own encoder, as a file of a few megabytes.

`specedge train draft --from` makes it of another Whisper's decoder, whose cross-attention learns to read the target's
encoder. Its vocabulary is compact: tokens of text that the target has too, and the special tokens of the Whisper that
it was made of. The file holds its weights, matrices in blocks of 4 bits, and for each token of its text the target's
id. `fingerprint` says whose draft it is, by weights that training changes, at half precision, in which most checkpoints
are stored.

The distribution `specedge-drafts` brings such files for published models (`shipped`); its README names what they were
trained on.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import CheckpointError, ModelError, UsageError
from specedge.files import Kind, write_atomic
from specedge.runtime.text.special import SpecialTokens

from .checkpoint import Checkpoint
from .decoder_graph import VOCABULARY
from .layers import BLOCK_SIZES, quantize_blocks
from .qwen3_asr import SpeechSpec
from .spec import F32, Stored

SUFFIX = ".safetensors"
_SHIPPED = "specedge_drafts"  # the module of the distribution
_FORMAT = "specedge-draft-2"
_STEPS = ".steps"  # behind the name of a matrix in blocks
_TOKENS = "tokens"
LAYERS = Kind("file of a draft", lambda head: _FORMAT.encode() in head)
_TELLING = (
    "model.encoder.conv1.weight",
    "model.encoder.layer_norm.weight",
    "model.decoder.layer_norm.weight",
    "model.decoder.layer_norm.bias",
)


def fingerprint(checkpoint: Checkpoint) -> str:
    """SHA-256, in hex, that tells a checkpoint from others of its shape. Raises CheckpointError."""
    hasher = hashlib.sha256()
    for name in _TELLING:
        hasher.update(checkpoint.tensor(name).astype("<f2").tobytes())
    return hasher.hexdigest()


def compact_layout(special: SpecialTokens, n_text: int) -> SpecialTokens:
    """The layout of a vocabulary of `n_text` tokens of text with the special tokens of `special` behind them."""
    by = n_text - special.eot
    said = special.to_json()
    for name, id_ in said.items():
        if name == "languages":
            said[name] = {code: token + by for code, token in id_.items()}
        elif name not in ("n_timestamps", "time_precision_s") and id_ is not None:
            said[name] = id_ + by
    return SpecialTokens(n_vocab=special.n_vocab + by, **said)


def write_layers(
    path: Path,
    target: Checkpoint,
    weights: Mapping[str, F32],
    *,
    n_text_head: int,
    tokens: Sequence[int],
    special: SpecialTokens,
) -> None:
    """Write a draft's `weights` by their canonical names.

    tokens: the target's ids of its text, int [n_text]; special: its layout. Raises CheckpointError for weights of
    `target`, ResourceError, UsageError for a file at `path` of another kind.
    """
    from safetensors.numpy import save

    tensors: dict[str, NDArray[Any]] = {_TOKENS: np.array(tokens, np.int32)}
    for name, value in weights.items():
        size = next((size for size in BLOCK_SIZES if value.shape[-1] % size == 0), 0)
        if value.ndim == 2 and size and "positions" not in name:
            tensors[name], steps = quantize_blocks(value, block_size=size)
            tensors[name + _STEPS] = steps.astype(np.float16)
        else:
            tensors[name] = value.astype(np.float16)
    about = {
        "format": _FORMAT,
        "target": fingerprint(target),
        "n_text_head": str(n_text_head),
        "special": json.dumps(special.to_json()),
    }
    write_atomic(path, save({name: np.ascontiguousarray(value) for name, value in tensors.items()}, about), LAYERS)


def open_layers(path: Path, target: Checkpoint) -> Checkpoint:
    """The draft in the file `path` as a checkpoint with the encoder of `target`.

    Raises CheckpointError for a file that is none, UsageError for a draft of another model.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            said = file.metadata() or {}
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
        if said.get("format") != _FORMAT:
            raise ValueError("expected one of `specedge train draft --from`")
        if isinstance(target.spec, SpeechSpec) or said["target"] != fingerprint(target):
            raise UsageError(f"{path}: was trained for another model than {target.spec.source.id}")
        tokens, ranks = stored.pop(_TOKENS).tolist(), target.vocabulary()[0]
        weights = {name: _floats(stored, name) for name in stored if not name.endswith(_STEPS)}
        n_vocab, n_text_state = weights[VOCABULARY].shape
        special = SpecialTokens.from_json(json.loads(said["special"]), n_vocab)
        vocabulary = [ranks[token] for token in tokens], special
        first = "model.decoder.layers.{}.fc1.weight"
        dims = replace(
            target.spec.dims,
            n_vocab=n_vocab,
            n_text_state=n_text_state,
            n_text_head=int(said["n_text_head"]),
            n_text_ctx=len(weights["model.decoder.embed_positions.weight"]),
            n_text_layer=sum(first.format(i) in weights for i in range(len(weights))),
        )
        n_ffn = len(weights[first.format(0)])
    except UsageError:
        raise
    except (OSError, SafetensorError, ModelError, KeyError, IndexError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: no file of a draft: {error}") from error
    begin_limit = "max_initial_timestamp_index"
    generation = {begin_limit: target.spec.generation.get(begin_limit)}
    spec = replace(target.spec, dims=dims, n_text_ffn=n_ffn, tied=True, heads=None, generation=generation)
    entries = {name: entry for name, entry in target.entries.items() if name.startswith("model.encoder.")}
    entries |= {name: Stored(value.shape, "F32", path, read=value.copy) for name, value in weights.items()}
    return Checkpoint(spec, entries, where=str(path), vocabulary=vocabulary)


def _floats(stored: Mapping[str, NDArray[Any]], name: str) -> F32:
    """The weight `name`, of blocks of 4 bits where it has steps."""
    value, steps = stored[name], stored.get(name + _STEPS)
    if steps is None:
        return value.astype(np.float32)
    nibbles = np.stack([value & 15, value >> 4], axis=-1).reshape(*value.shape[:2], -1)
    found: F32 = ((nibbles.astype(np.float32) - 8) * steps.astype(np.float32)[..., None]).reshape(len(value), -1)
    return found


def shipped(target: Checkpoint) -> Path | None:
    """The file of the draft that comes with a published model; None for other models, or without the distribution."""
    found = importlib.util.find_spec(_SHIPPED)
    places = [] if found is None else list(found.submodule_search_locations or [])
    if not places or isinstance(target.spec, SpeechSpec) or target.spec.heads is not None:
        return None
    path = Path(places[0]) / f"{fingerprint(target)[:16]}{SUFFIX}"
    return path if path.is_file() else None
