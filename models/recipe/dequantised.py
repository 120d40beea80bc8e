"""The weights of an int8 bundle as float32 under a checkpoint's names, for models of which there is no other copy.

An integer times its column's scale is what the product computes with, so the result exported in int8 again has the same
integers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import external_data_helper, numpy_helper

from specedge.errors import BundleError, UsageError
from specedge.export.encoder_graph import convolution_weight
from specedge.export.heads import BLOCK, Heads, HeadsSpec, head_shapes
from specedge.export.layers import ColumnQuantized, dequantize_columns
from specedge.export.openai_pt import derive_configs
from specedge.export.spec import Source, Spec
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.options import BLOCK_KIND, BLOCK_KV_GRAPH

__all__ = ["BundleWeights", "InMemory", "bundle_spec", "bundled_heads"]

Float = NDArray[np.float32]
MODEL_GRAPHS = ("encoder", "cross_kv", "decoder")
_FUSED = {"qkv": ("q_proj", "k_proj", "v_proj"), "kv": ("k_proj", "v_proj")}
_LAYER_0 = "model.decoder.layers.0"  # what the graph medusa-block-kv calls its block


class BundleWeights:
    """What the graphs of an int8 bundle hold, one float32 array at a time, by a checkpoint's name."""

    def __init__(self, bundle: Bundle, graphs: Sequence[str] = MODEL_GRAPHS) -> None:
        """Raises UsageError for a bundle of another precision."""
        if bundle.manifest.precision != "int8":
            raise UsageError(f"{bundle.path}: the weights are {bundle.manifest.precision}; expected an int8 bundle")
        self._bundle = bundle
        self._tensors: dict[str, onnx.TensorProto] = {}
        for graph in graphs:
            model = onnx.load(str(bundle.path / bundle.manifest.graphs[graph].file), load_external_data=False)
            for tensor in model.graph.initializer:
                name = tensor.name.replace(_LAYER_0, BLOCK) if graph == BLOCK_KV_GRAPH else tensor.name
                self._tensors[name] = tensor

    def has(self, name: str) -> bool:
        """Whether there is a weight of this name. Keys have no bias, and an untied projection is not read."""
        return not name.startswith("proj_out.") and not name.endswith("k_proj.bias")

    def tensor(self, name: str) -> Float:
        """One weight. Raises BundleError for a name that the graphs have nothing for."""
        layer, _, what = name.rpartition(".")
        if name.endswith("embed_tokens.weight"):
            n_vocab = self._bundle.manifest.dims.n_vocab  # the graph's rows are padded
            rows = self.stored("vocabulary")[:n_vocab] * self.stored("vocabulary.scales")[:n_vocab]
            return rows * self.stored("vocabulary.columns") if "vocabulary.columns" in self._tensors else rows
        if name.endswith("embed_positions.weight"):
            return self.stored(name.replace("embed_positions.weight", "positions"))
        if re.search(r"conv\d\.weight", name):
            return np.ascontiguousarray(convolution_weight(self.stored(name)))
        attention, _, part = layer.rpartition(".")
        for fused, parts in _FUSED.items():
            whole = f"{attention}.{fused}"
            if part in parts and f"{whole}.bias" in self._tensors:
                both = self.matrix(whole) if what == "weight" else self.stored(f"{whole}.bias")
                return np.ascontiguousarray(np.split(both, len(parts))[parts.index(part)])
        return self.matrix(layer) if f"{layer}.scales" in self._tensors and what == "weight" else self.stored(name)

    def matrix(self, layer: str) -> Float:
        """The weight of a product, float32 [n_out, n_in]."""
        integers = self.stored(f"{layer}.weight").astype(np.int8)
        return dequantize_columns(ColumnQuantized(weight=integers, scales=self.stored(f"{layer}.scales")))

    def stored(self, name: str) -> Float:
        """An initializer as the graph has it, as float32."""
        if name not in self._tensors:
            raise BundleError(f"{self._bundle.path}: no graph has the weight {name}; export the model again")
        tensor = onnx.TensorProto()
        tensor.CopyFrom(self._tensors[name])
        if external_data_helper.uses_external_data(tensor):
            external_data_helper.load_external_data_for_tensor(tensor, str(self._bundle.path))
        return np.asarray(numpy_helper.to_array(tensor)).astype(np.float32)

    def count(self, pattern: str) -> int:
        """How many initializers are called so."""
        return sum(re.fullmatch(pattern, name) is not None for name in self._tensors)


class InMemory:
    """Weights in memory by name."""

    def __init__(self, arrays: dict[str, Float]) -> None:
        self.arrays = arrays

    def tensor(self, name: str) -> Float:
        """One weight. Raises KeyError for a name that is not there."""
        return self.arrays[name]

    def has(self, name: str) -> bool:
        """Whether there is a weight of this name."""
        return name in self.arrays


def bundle_spec(bundle: Bundle) -> Spec:
    """The configs of the model in a bundle, as its manifest tells them. Raises CheckpointError for other vocabularies
    than Whisper's."""
    manifest, where = bundle.manifest, str(bundle.path)
    width = 4 * manifest.dims.n_text_state
    config, generation = derive_configs(asdict(manifest.dims), n_audio_ffn=width, n_text_ffn=width, where=where)
    generation |= {
        "suppress_tokens": list(manifest.suppress_tokens),
        "begin_suppress_tokens": list(manifest.suppress_begin),
        "max_initial_timestamp_index": manifest.max_initial_timestamp_index,
        "alignment_heads": [list(pair) for pair in manifest.alignment_heads],
    }
    return Spec.from_config(config, generation=generation, source=Source(kind="folder", id=manifest.name), where=where)


def bundled_heads(bundle: Bundle, kind: str) -> Heads:
    """The heads of `kind` in an int8 bundle, one map a head, with their weights in memory."""
    weights = BundleWeights(bundle, [kind, BLOCK_KV_GRAPH] if kind == BLOCK_KIND else [kind])
    own = kind == "mtp-projection"
    arrays: dict[str, Float] = {}
    if own:
        n_heads = weights.count(r"projection_heads\.\d+\.weight")
        arrays |= {f"projection_heads.{i}.weight": weights.matrix(f"projection_heads.{i}") for i in range(n_heads)}
    else:
        maps = weights.matrix("first_maps")
        n_heads = maps.shape[0] // maps.shape[1]
        for i in range(n_heads):
            name = f"latent_heads.{i}" if kind == "mtp-latent" else f"medusa_heads.{i}.0.linear"
            arrays[f"{name}.weight"] = np.split(maps, n_heads)[i]
            arrays[f"{name}.bias"] = np.split(weights.stored("first_maps.bias"), n_heads)[i]
    spec = HeadsSpec(kind=kind, n_heads=n_heads, own_vocabulary=own)
    dims = bundle.manifest.dims
    for name, _ in head_shapes(spec, dims.n_text_state, 4 * dims.n_text_state, 0):
        if name.startswith(f"{BLOCK}."):
            arrays[name] = weights.tensor(name)
    return Heads(spec=spec, weights=InMemory(arrays), tokens=weights.stored("tokens").astype(np.int64))
