"""The linear CTC head over characters that an encoder of the recipe was trained with, kept beside its checkpoint.

Training throws it away (no graph has it), but it knows where on the encoder each letter is heard: a head over bytes
that begins as a copy of it needs no alignment of its own. The file is `spelling.safetensors`: `weight` float32
[n_characters, n_state], `bias` float32 [n_characters], blank first, then the characters of the metadata's `alphabet`.
Checkpoints from elsewhere have none. Does not know: heads over bytes, training.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from specedge.export.training.labels import ALPHABET
from specedge.runtime.errors import CheckpointError

__all__ = ["SPELLING_NAME", "Spelling", "read_spelling", "write_spelling"]

SPELLING_NAME = "spelling.safetensors"


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """weight float32 [n_characters, n_state], bias float32 [n_characters], blank first; `bytes` int64
    [n_characters - 1]: the byte of each other character."""

    weight: Tensor
    bias: Tensor
    bytes: Tensor


def write_spelling(layer: nn.Linear, folder: Path) -> None:
    """Write the head beside a checkpoint. Raises OSError."""
    tensors = {name: value.detach().float().contiguous() for name, value in layer.named_parameters()}
    save_file(tensors, folder / SPELLING_NAME, metadata={"alphabet": ALPHABET})


def read_spelling(folder: Path) -> Spelling | None:
    """The head beside the checkpoint in `folder`; None where there is none. Raises CheckpointError for a broken one."""
    path = folder / SPELLING_NAME
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            weight, bias = file.get_tensor("weight"), file.get_tensor("bias")
            alphabet = (file.metadata() or {})["alphabet"]
    except (SafetensorError, KeyError, OSError) as error:
        raise CheckpointError(f"{path}: no head of the recipe ({error}); remove it, or train the model again") from None
    if weight.ndim != 2 or bias.shape != weight.shape[:1] or len(alphabet) != len(bias) or not alphabet.isascii():
        raise CheckpointError(f"{path}: {list(weight.shape)} for {len(alphabet)} characters; train the model again")
    return Spelling(weight=weight, bias=bias, bytes=torch.tensor([ord(character) for character in alphabet[1:]]))
