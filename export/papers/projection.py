"""The logits of heads with a vocabulary matrix each (Raj et al., Faster Speech-LLaMA, section III, fig. 2a)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.bundle.manifest import Dims

from ..heads import Heads
from ..layers import LinearKind, linear
from ..onnx_builder import GraphBuilder


def own_logits(g: GraphBuilder, last: str, heads: Heads, dims: Dims, kind: LinearKind) -> tuple[str, NDArray[np.int64]]:
    """Logits `[n_heads, n]` of the row `last` `[1, 1, n_text_state]`, a matrix at a time; each column's token."""
    tokens = np.arange(dims.n_vocab) if heads.tokens is None else heads.tokens
    parts = []
    for i in range(heads.spec.n_heads):
        matrix = heads.weights.tensor(f"projection_heads.{i}.weight")
        parts.append(linear(g, last, f"projection_heads.{i}", matrix, None, kind))
    logits = g.node("Concat", parts, axis=1) if len(parts) > 1 else parts[0]
    return g.node("Reshape", [logits, g.ints(heads.spec.n_heads, len(tokens))]), tokens.astype(np.int64)
