"""Merge an adapter of peft's (LoRA) into the weights of its base model: W + s B A (Hu et al. 2021, section 4.1).

A folder has adapter_config.json and adapter_model.safetensors or .bin. The scale s is alpha / r, with `use_rslora`
alpha / sqrt(r); alpha may differ by module (`alpha_pattern`), r is read off A. Modules that were trained whole
(`modules_to_save`, biases) take the place of the base's. Other kinds of adapters are refused by name, and those whose
making changed the base's weights (`init_lora_weights`: pissa, olora, corda, loftq): peft works the change out again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from specedge.errors import CheckpointError
from specedge.models import catalogue

from .spec import F32, Source, Stored, check_tensor, read_json, read_weights

CONFIG = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_PREFIX = "base_model.model."
_KEEPS_BASE = (None, True, False, "gaussian", "eva", "orthogonal")  # of init_lora_weights
_REFUSED = ("use_dora", "fan_in_fan_out", "use_qalora", "megatron_config", "layer_replication")


@dataclass(frozen=True)
class Adapter:
    """An opened adapter: its config, and its tensors by stored name."""

    name: str
    config: Mapping[str, Any]
    entries: Mapping[str, Stored]
    where: str

    def merged(self, source: Source, entries: Mapping[str, Stored], config: Mapping[str, Any]) -> dict[str, Stored]:
        """The weights that it changes, of a checkpoint with these tensors by canonical name.

        Raises CheckpointError unless it fits.
        """
        made_for = self.config.get("base_model_name_or_path")
        given = source.id if source.kind == "hub" else config.get("_name_or_path")
        ours, theirs = (catalogue.find(name) if isinstance(name, str) else None for name in (given, made_for))
        if ours is not None and theirs is not None and ours != theirs:
            raise CheckpointError(
                f"{self.where}: was trained for {made_for}, not for {given}; {how_to_merge(made_for)}"
            )
        changed = dict[str, Stored]()
        for stored, tensor in self.entries.items():
            factor = re.fullmatch(r"(.+)\.lora_([AB])\.weight", stored.removeprefix(_PREFIX))
            if factor is not None and factor[2] == "B":
                continue
            if factor is not None:
                name = f"{factor[1]}.weight"
            elif "lora_" in stored:
                raise CheckpointError(f"{self.where}: holds {stored}, and only linear maps are merged; {_BY_HAND}")
            else:
                name = stored.removeprefix(_PREFIX).replace(".base_layer.", ".").replace(".modules_to_save.", ".")
            base = entries.get(name)
            if base is None:
                raise CheckpointError(
                    f"{self.where}: changes {name}, which the base model {source.id} does not have; {_BY_HAND}"
                )
            if factor is None:
                check_tensor(tensor, name, base.shape, self.where)
                changed[name] = tensor
            else:
                changed[name] = self._added(base, name, factor[1], tensor)
        if not changed:
            raise CheckpointError(
                f"{self.where}: changes nothing; expected tensors like {_PREFIX}...q_proj.lora_A.weight"
            )
        return changed

    def _added(self, base: Stored, name: str, module: str, a: Stored) -> Stored:
        """The weight `name` of a module with the product of its factors added, of which `a` is the second."""
        if len(base.shape) != 2:
            raise CheckpointError(f"{self.where}: changes {name}, and only linear maps are merged; {_BY_HAND}")
        n_out, n_in = base.shape
        rank, names = a.shape[0] if a.shape else 0, [f"{_PREFIX}{module}.lora_{side}.weight" for side in "AB"]
        for factor, shape in zip(names, ((rank, n_in), (n_out, rank)), strict=True):
            check_tensor(self.entries.get(factor), factor, shape, self.where)
        return replace(base, read=partial(_sum, base, a, self.entries[names[1]], self._scale(module, rank)))

    def _scale(self, module: str, rank: int) -> float:
        alpha: Any = self.config.get("lora_alpha")
        for key, value in (self.config.get("alpha_pattern") or {}).items():
            if not re.fullmatch(r"[\w.]+", key):  # peft takes regular expressions
                raise CheckpointError(
                    f"{self.where}: alpha_pattern has {key!r}; expected the name of a module; {_BY_HAND}"
                )
            if f".{module}".endswith(f".{key}"):
                alpha = value
                break
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or rank < 1:
            raise CheckpointError(f"{self.where}: lora_alpha is {alpha!r} for {module}; expected a number")
        return alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank)


def _sum(base: Stored, a: Stored, b: Stored, scale: float) -> F32:
    weight = base.tensor()
    weight += np.float32(scale) * (b.tensor() @ a.tensor())
    return weight


def open_adapter(folder: Path) -> Adapter:
    """The adapter in a folder. Raises CheckpointError, which says what it is where it cannot be merged."""
    if not (folder / CONFIG).is_file():
        raise CheckpointError(f"{folder}: is no adapter; expected a folder with {CONFIG} and {_WEIGHTS[0]}")
    config = read_json(folder / CONFIG)
    refused = {key: bool(config.get(key)) for key in _REFUSED}
    refused["peft_type"] = config.get("peft_type") != "LORA"
    refused["init_lora_weights"] = config.get("init_lora_weights") not in _KEEPS_BASE  # the others change the base
    for key in (key for key, is_refused in refused.items() if is_refused):
        raise CheckpointError(f"{folder}: has {key} {config.get(key)!r}, with which it cannot be merged; {_BY_HAND}")
    path = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise CheckpointError(f"{folder}: holds no weights; looked for {', '.join(_WEIGHTS)}")
    entries = read_weights([path], is_pickle=path.suffix == ".bin")
    return Adapter(name=folder.resolve().name, config=config, entries=entries, where=str(folder))


_BY_HAND = (
    "merge it into its base model first, peft's merge_and_unload() then save_pretrained(), and export that folder"
)


def how_to_merge(base: object) -> str:
    """The command that exports a base model with an adapter."""
    return f"`specedge export {base if isinstance(base, str) and base else 'BASE'} --adapter DIR`"
