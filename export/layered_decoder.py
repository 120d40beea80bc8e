"""The decoder of a speech LLM, run a layer at a time: a check of its rows that never holds the whole of it.

Passes are asked for twice. The first time they are noted and their logits are zeros, for what a probe asks does not
depend on what it finds. Then each layer is loaded in turn and runs all passes, with keys and values of its own. The
second time the same passes get their logits, from the layers' last rows and the vocabulary.

A layer has the nodes and weights of the finished graph, cut where `llama_graph` names the residual rows, and the rows
between two layers are kept as they are, so the bits are those of the whole graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.bundle.dims import SpeechDims
from specedge.runtime.engine.many import Features
from specedge.runtime.engine.session import (
    Canceller,
    Session,
    bind_array_input,
    bind_array_output,
    logit_columns,
)
from specedge.runtime.engine.speech import GraphRun, graph_runs

from .llama_graph import RESIDUAL

Array = NDArray[np.float32]
_FILE = "layer.onnx"  # beside the decoder's weights, which it borrows


@dataclass(eq=False)
class _Text:
    """A text: `length` rows are committed."""

    features: Features
    length: int = 0


@dataclass(eq=False, kw_only=True)
class _Pass:
    """A pass of the graph behind `n_before` rows. rows: what goes into the next layer, float32 [1, n_rows, n_state]."""

    text: _Text
    n_before: int
    audio: Array
    ids: NDArray[np.int64]
    logit_rows: NDArray[np.int64]
    rows: Array = field(default_factory=lambda: np.empty((1, 0, 0), np.float32))

    @property
    def n_rows(self) -> int:
        return int(self.audio.shape[1] + self.ids.shape[1])


class LayeredDecoder:
    """As `SpeechEngine`, for the passes of `exactness.probe_rows` and the like: nothing but a decoder of one bundle.

    Ask for all passes, call `run`, ask for the same again in the same order.
    """

    def __init__(self, bundle: Bundle, dims: SpeechDims, canceller: Canceller, *, threads: int) -> None:
        self.dims, self.threads = dims, threads
        self._bundle, self._canceller = bundle, canceller
        self._passes: list[_Pass] = []
        self._asked: Iterator[_Pass] | None = None  # the second time
        self._vocabulary: Session | None = None

    def start(self, features: Features) -> _Text:
        """An empty text over one window."""
        return _Text(features)

    def release(self, state: _Text) -> None:
        """Nothing: keys and values are a layer's."""

    def commit(self, state: _Text, n_rows: int) -> None:
        """Keep the first rows of the last pass."""
        state.length += n_rows

    def forward(self, state: _Text, ids: Sequence[int], logit_rows: Sequence[int] | None = None) -> Array:
        """As `SpeechEngine.forward`, for rising `logit_rows`."""
        wanted = range(len(ids)) if logit_rows is None else logit_rows
        return np.concatenate([self._ask(state, run, wanted) for run in graph_runs(ids, self.dims.n_vocab)])

    def _ask(self, text: _Text, run: GraphRun, wanted: Sequence[int]) -> Array:
        n_rows = len(run.audio) + len(run.ids)
        rows = [row - run.start for row in wanted if run.start <= row < run.start + n_rows]
        if self._asked is not None:
            return self._logits(next(self._asked), len(rows))
        asked = _Pass(
            text=text,
            n_before=text.length + run.start,
            audio=text.features.cross["audio"][:, list(run.audio)],
            ids=np.array([[*run.ids, *[0] * (n_rows % 2)]], np.int64),
            logit_rows=np.array([*rows, *[rows[-1] if rows else 0] * (len(rows) % 2)], np.int64),
        )
        self._passes.append(asked)
        return np.zeros((len(rows), self.dims.n_vocab), np.float32)

    def run(self) -> None:
        """Run all passes that were asked for, through one layer after another. Raises as `Session`."""
        *layers, vocabulary = cut(self._bundle.path / self._bundle.manifest.graphs["decoder"].file)
        for layer, model in enumerate(layers):
            self._run_layer(model, layer)
        self._vocabulary = self._load(vocabulary)
        self._asked = iter(self._passes)

    def _load(self, model: onnx.ModelProto) -> Session:
        decoder = self._bundle.path / self._bundle.manifest.graphs["decoder"].file
        path = decoder.with_name(_FILE)
        path.write_bytes(model.SerializeToString())
        try:
            return Session(
                path,
                self._canceller,
                threads=self.threads,
                spin=False,
                data=decoder.with_suffix(".data"),
                kleidiai=self._bundle.manifest.precision == "int4",
            )
        finally:
            path.unlink()

    def _run_layer(self, model: onnx.ModelProto, layer: int) -> None:
        """Layer 0 makes rows of ids and audio, the others take rows and give rows."""
        session = self._load(model)
        dims, texts = self.dims, {asked.text for asked in self._passes}
        n_slots = dims.n_text_ctx + 2 - dims.n_text_ctx % 2
        names = [name for name in session.inputs if name.startswith("self_")]
        caches = {
            text: {name: np.zeros((1, dims.n_kv_head, n_slots, dims.head_dim), np.float32) for name in names}
            for text in texts
        }
        for asked in self._passes:
            made = np.empty((1, asked.n_rows, dims.n_text_state), np.float32)
            inputs: dict[str, NDArray[Any]] = {"ids": asked.ids, "audio": np.ascontiguousarray(asked.audio)}
            inputs |= {
                f"{RESIDUAL}{layer - 1}": asked.rows,
                "past_len": np.array([asked.n_before + asked.n_rows - 1], np.int32),
                "total_len": np.array(asked.n_before + asked.n_rows, np.int32),
            }
            outputs: dict[str, NDArray[Any]] = {f"{RESIDUAL}{layer}": made}
            for name, cache in caches[asked.text].items():
                inputs[name] = outputs[f"new_{name}"] = cache
            _run(session, {name: inputs[name] for name in session.inputs}, outputs)
            asked.rows = made

    def _logits(self, asked: _Pass, n_wanted: int) -> Array:
        session, dims = self._vocabulary, self.dims
        if session is None or not n_wanted:
            return np.zeros((0, dims.n_vocab), np.float32)
        n_columns = logit_columns(session, "decoder", dims.n_vocab, self._bundle.path)
        logits = np.empty((1, len(asked.logit_rows), n_columns), np.float32)
        rows: dict[str, NDArray[Any]] = {f"{RESIDUAL}{dims.n_text_layer}": asked.rows}
        _run(session, rows | {"logit_rows": asked.logit_rows}, {"logits": logits})
        return logits[0, :n_wanted, : dims.n_vocab]


def _run(session: Session, inputs: dict[str, NDArray[Any]], outputs: dict[str, NDArray[Any]]) -> None:
    binding = session.binding()
    for name, array in inputs.items():
        bind_array_input(binding, name, array)
    for name, array in outputs.items():
        bind_array_output(binding, name, array)
    session.run(binding)


def cut(decoder: Path) -> Iterator[onnx.ModelProto]:
    """The graph `decoder` in order: what makes rows of ids and audio, each layer, what makes logits of rows.

    Their weights are where the graph has them. Each takes those of its inputs that it needs and the rows of the one
    before, and gives the rows of its own.
    """
    whole = onnx.load(str(decoder), load_external_data=False)
    constants = {tensor.name: tensor for tensor in whole.graph.initializer}
    inputs = {value.name: value for value in whole.graph.input}
    outputs = {value.name: value for value in whole.graph.output}
    width = next(value for value in whole.graph.input if value.name == "audio").type.tensor_type.shape.dim[2].dim_value
    nodes: list[onnx.NodeProto] = []
    for at, node in enumerate(whole.graph.node):
        nodes.append(node)
        ends = next((name for name in node.output if name.startswith(RESIDUAL)), None)
        if ends is None and at + 1 < len(whole.graph.node):
            continue
        made = {name for each in nodes for name in each.output}
        taken = dict.fromkeys(name for each in nodes for name in each.input if name and name not in made)
        rows = [name for name in (*taken, ends) if name is not None and name.startswith(RESIDUAL)]
        shape = [1, "n_rows", width]
        values = {name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in rows}
        piece = onnx.ModelProto()
        piece.CopyFrom(whole)
        piece.graph.Clear()
        piece.graph.name = whole.graph.name
        piece.graph.node.extend(nodes)
        piece.graph.initializer.extend(constants[name] for name in taken if name in constants)
        piece.graph.input.extend((inputs | values)[name] for name in taken if name not in constants)
        piece.graph.output.extend(value for name, value in (outputs | values).items() if name in made)
        nodes = []
        yield piece
