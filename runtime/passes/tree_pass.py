"""One pass over several continuations of a text: batch rows that share its past and one reading of the weights.

The graph is `export.tree_graph`'s. It leaves the text's buffers as they are and gives back the keys and values of the
new rows, of which the path that wins is copied over; the others are dropped. All paths are padded to the same even
number of rows, so that a row's bits are those of a pass of its own. Does not know: which path wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.bundles.manifest import Dims
from specedge.runtime.bundles.token_rows import TokenRows
from specedge.runtime.passes.session import Session, bind_array_input, bind_array_output

__all__ = ["MAX_PATHS", "TreePass", "TreeRows"]

MAX_PATHS = 4  # beyond a few dozen rows a pass costs as much as two

_N_PROBE_SLOTS = 32


@dataclass(frozen=True, kw_only=True)
class TreeRows:
    """New keys and values by the names of a text's buffers, float32 [n_paths, 1, n_head, n_rows, head_dim].

    n_open: rows of each path that may be kept; hidden: the last hidden rows, float32 [n_paths, n_rows, n_text_state],
    where they were asked for.
    """

    rows: Mapping[str, NDArray[np.float32]]
    n_open: tuple[int, ...]
    hidden: NDArray[np.float32] | None = None

    def copy(self, path: int, n_rows: int, caches: Mapping[str, NDArray[np.float32]], start: int) -> None:
        """Write the first `n_rows` rows of a path into a text's buffers, from slot `start` on."""
        for name, array in self.rows.items():
            caches[name][:, :, start : start + n_rows] = array[path, :, :, :n_rows]


class TreePass:
    """The loaded graph; `n_columns` is the width of its logits, of which the first `token_rows.n_rows` count."""

    def __init__(self, session: Session, dims: Dims, token_rows: TokenRows, n_columns: int) -> None:
        self._session, self._dims, self._token_rows, self._n_columns = session, dims, token_rows, n_columns

    def run(
        self,
        length: int,
        caches: Mapping[str, NDArray[np.float32]],
        cross: Mapping[str, NDArray[np.generic]],
        pending: int,
        paths: Sequence[Sequence[int]],
        *,
        keep_hidden: bool = False,
    ) -> tuple[list[list[NDArray[np.float32]]], TreeRows]:
        """The logits after `pending` and each id of each path, and the rows; `length` rows of `caches` are the past.

        Raises Interrupted, ResourceError.
        """
        dims = self._dims
        n_path_rows = 1 + max(map(len, paths))
        n_path_rows += n_path_rows % 2
        ids = np.array([[pending, *path, *[path[-1]] * (n_path_rows - 1 - len(path))] for path in paths], np.int64)
        positions = np.minimum(np.arange(length, length + n_path_rows, dtype=np.int64), dims.n_text_ctx - 1)
        places = _places(paths, n_path_rows)
        wanted = sorted({place for row in places for place in row})
        wanted += wanted[-1:] * (len(wanted) % 2)
        inputs = {
            "ids": np.array(self._token_rows.of(ids.reshape(1, -1))),
            "positions": np.tile(positions, len(paths))[None],
            "logit_rows": np.array(wanted, np.int64),
            "past_len": np.array([length + n_path_rows - 1], np.int32),
            "total_len": np.array(length + n_path_rows, np.int32),
            "n_paths": np.array([len(paths)], np.int64),
            **caches,
            **cross,
        }
        logits = np.empty((1, len(wanted), self._n_columns), np.float32)
        head_dim = dims.n_text_state // dims.n_text_head
        rows = {name: np.empty((len(paths), 1, dims.n_text_head, n_path_rows, head_dim), np.float32) for name in caches}
        binding = self._session.binding()
        for name, array in inputs.items():
            bind_array_input(binding, name, array)
        bind_array_output(binding, "logits", logits)
        for name, output in rows.items():
            bind_array_output(binding, name.replace("self_", "path_"), output)
        hidden = np.empty((1, len(paths) * n_path_rows, dims.n_text_state), np.float32) if keep_hidden else None
        if hidden is not None:
            bind_array_output(binding, "hidden", hidden)
        self._session.run(binding)
        of_rows = logits[0, :, : self._token_rows.n_rows]
        found = {place: of_rows[i] for i, place in reversed(list(enumerate(wanted)))}
        return (
            [[found[place] for place in row] for row in places],
            TreeRows(
                rows=rows,
                n_open=tuple(1 + len(path) for path in paths),
                hidden=None if hidden is None else hidden.reshape(len(paths), n_path_rows, -1),
            ),
        )

    def probe_bits(self) -> bytes:
        """Logits and rows of made-up input, to compare one way of loading the graph with another."""
        rng = np.random.default_rng(0)
        made: dict[str, NDArray[np.generic]] = {}
        for name, tensor in self._session.inputs.items():
            if name.startswith(("self_", "cross_")):
                shape = [axis if isinstance(axis, int) else _N_PROBE_SLOTS for axis in tensor.shape]
                values = rng.standard_normal(shape)
                made[name] = (values * 40 if tensor.dtype == "int8" else values).astype(tensor.dtype)
        caches = {name: array.astype(np.float32) for name, array in made.items() if name.startswith("self_")}
        cross = {name: array for name, array in made.items() if name.startswith("cross_")}
        ids = np.arange(6) % self._dims.n_vocab
        logits, rows = self.run(3, caches, cross, 0, [ids[1:4].tolist(), ids[2:].tolist()])
        found = [row.tobytes() for path in logits for row in path]
        return b"".join([*found, *(rows.rows[name].tobytes() for name in sorted(rows.rows))])

    def release_weights(self) -> None:
        """Give back the resident pages of mapped weights until the next pass."""
        self._session.release_weights()


def _places(paths: Sequence[Sequence[int]], n_path_rows: int) -> list[list[int]]:
    """For each path, which rows of the pass hold its logits: what paths begin with alike is read off once."""
    first: dict[tuple[int, ...], int] = {}
    return [
        [first.setdefault(tuple(path[:n]), i * n_path_rows + n) for n in range(len(path) + 1)]
        for i, path in enumerate(paths)
    ]
