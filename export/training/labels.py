"""The linear CTC head over characters that an encoder of the recipe was trained with, kept beside its checkpoint.

It knows where on the encoder each letter is heard, so a head over bytes that begins as a copy of it needs no alignment
of its own. `spelling.safetensors` holds `weight` float32 [n_characters, n_state] and `bias` float32 [n_characters],
blank first, then the characters of the metadata's `alphabet`. Checkpoints from elsewhere have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specedge.errors import CheckpointError

IGNORE = -100  # the label of what is not to be learned, as torch's losses have it
SPELLING_NAME = "spelling.safetensors"


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """weight float32 [n_characters, n_state], bias float32 [n_characters], blank first; `bytes` int64
    [n_characters - 1]: the byte of each other character."""

    weight: Tensor
    bias: Tensor
    bytes: Tensor


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
