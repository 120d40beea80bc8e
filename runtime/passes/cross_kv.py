"""The pass that turns a window's encoder output into cross-attention keys and values, of all decoder layers or of one.

The graph is `export.encoder_graph.build_cross_kv`'s. Does not know: whose layers they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.passes.session import Session, bind_array_input, bind_array_output

__all__ = ["cross_keys_values"]


def cross_keys_values(session: Session, hidden: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """The graph's outputs by name for windows of encoder output, float32 `[n_windows, n_ctx, n_audio_state]`.

    Raises Interrupted, ResourceError.
    """
    n_windows, n_ctx, _ = hidden.shape
    binding = session.binding()
    bind_array_input(binding, "features", hidden)
    cross = {
        name: np.empty(
            [axis if isinstance(axis, int) else n_windows if axis == "batch" else n_ctx for axis in tensor.shape],
            tensor.dtype,
        )
        for name, tensor in session.outputs.items()
    }
    for name, array in cross.items():
        bind_array_output(binding, name, array)
    session.run(binding)
    return cross
