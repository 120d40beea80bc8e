"""ONNX Runtime sessions: options, bindings, cancellation, and graphs of a bundle checked against its manifest.

The only file that runs onnxruntime; `device` asks for its version. Sessions register no custom operators and load only
paths that `bundle` has checked. ONNX Runtime's telemetry, which from version 1.29 on goes over the
network, is switched off by the package's `__init__` before it is loaded, and here for programs that loaded it before.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from specedge.errors import BundleError, Interrupted, OutOfMemoryError, SpecedgeError, Terminated

from ..bundle.bundle import Bundle
from ..bundle.manifest import (
    ALIGN_GRAPH,
    CTC_GRAPH,
    LEARN_GRAPH,
    MANY_GRAPH,
    PLAIN_ENCODER_GRAPH,
    PROJECTOR_GRAPH,
    SHORT_ENCODER_GRAPH,
    SHORTLIST_GRAPH,
    VECTORS_GRAPH,
    Manifest,
    TensorSpec,
)
from ..interrupt import TerminationSignal, on_signal
from ..options import BLOCK_KIND, BLOCK_KV_GRAPH, HEAD_KINDS

ort.disable_telemetry_events()


RUNTIME_VERSION: str = ort.__version__
CPU_PROVIDER: tuple[str, dict[str, str]] = ("CPUExecutionProvider", {})
SEVERITY_FATAL = 4  # of ONNX Runtime's log; its errors reach the user as one line of ours
_EXIT_OF_SIGNAL = {signal.SIGINT: Interrupted.exit_code, signal.SIGTERM: Terminated.exit_code}
# Longer waits win nothing on an idle machine and take the cores of other work on a busy one.
SPIN_US = "20"
# Giving buffers back costs a sixth of a short pass, since each page of them is found again; these take some 15 MB.
FEW_POSITIONS = 400
OrtValue: TypeAlias = ort.OrtValue
Binding: TypeAlias = ort.IOBinding
_NO_MEMORY = ("bad_alloc", "bad alloc", "allocate memory", "cannot allocate", "out of memory")
_DTYPES = {"float": "float32", "float16": "float16", "double": "float64", "bool": "bool"}  # integers keep their names


class Canceller:
    """Stops the runs and the loads in flight and all later ones, from any thread.

    A run raises Interrupted within one graph node (about 0.1 s at most).
    """

    def __init__(self) -> None:
        self._told = False  # by `cancel`, until `reset`
        self._signal: int | None = None  # Ctrl-C or SIGTERM, until `on_sigint` is left
        self._in_flight: list[Stoppable] = []

    @property
    def cancelled(self) -> bool:
        """Whether runs are refused."""
        return self._told or self._signal is not None

    @property
    def running(self) -> bool:
        return bool(self._in_flight)

    def cancel(self) -> None:
        """Stop the runs in flight, and every later one until `reset`."""
        self._told = True
        self.stop_running()

    def stop_running(self, thread: int | None = None) -> None:
        """Stop what runs now, in all threads or in the one of this number."""
        for run in self._in_flight.copy():
            if thread in (None, run.thread):
                run.is_stopped = True
                run.stop()

    def reset(self) -> None:
        """Allow runs again after `cancel`."""
        self._told = False

    def stoppable(self, stop: Callable[[], None]) -> Stoppable:
        """For a `with`: inside, `cancel` calls `stop`. Raises Interrupted when cancelled before, inside or just after.

        No generator, because every pass enters it.
        """
        return Stoppable(self, self._in_flight, stop)

    @contextlib.contextmanager
    def on_sigint(self) -> Iterator[None]:
        """While inside, the first Ctrl-C cancels the run in flight at once and the second ends the process.

        SIGTERM does the same where no program handles it, and the run raises Terminated. Python runs its own handler
        only after the native call returns, which can take seconds, so a thread reads the signal's byte. Does nothing
        outside the main thread, in a process that ignores Ctrl-C (nohup, `&`), or where a program that embeds Python
        handles it.
        """
        in_main_thread = threading.current_thread() is threading.main_thread()
        old = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        if old[signal.SIGTERM] not in (signal.SIG_DFL, on_signal):
            del old[signal.SIGTERM]
        if not in_main_thread or old[signal.SIGINT] in (None, signal.SIG_IGN):
            yield
            return
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        watcher = threading.Thread(target=self._watch, args=(reader, set(old)), daemon=True, name="specedge-sigint")
        watcher.start()
        for number in old:
            signal.signal(number, self._on_signal)
        old_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(old_fd)
            for number, handler in old.items():
                signal.signal(number, handler)
            writer.close()
            watcher.join(timeout=1)
            reader.close()
            self._signal = None

    def refuse(self) -> None:
        """Raise Interrupted, or Terminated after SIGTERM."""
        if self._signal == signal.SIGTERM:
            raise Terminated("terminated") from None
        raise Interrupted("interrupted") from None

    def _interrupt(self, number: int) -> None:
        self._signal = number
        self.stop_running()

    def _watch(self, reader: socket.socket, numbers: Collection[int]) -> None:
        n_seen = 0
        while True:
            try:
                data = reader.recv(16)
            except OSError:
                return
            if not data:
                return
            for number in data:
                if number not in numbers:
                    continue
                n_seen += 1
                if n_seen > 1:
                    os._exit(_EXIT_OF_SIGNAL[signal.Signals(number)])
                if self.running:
                    self._interrupt(number)

    def _on_signal(self, number: int, _frame: object) -> None:
        # Inside a run the watcher stops it, which raises Interrupted; elsewhere raise as Python does.
        if self.running:
            self._interrupt(number)
        elif number == signal.SIGTERM:
            raise TerminationSignal
        else:
            raise KeyboardInterrupt


class Stoppable:
    """A run or a load in flight, see `Canceller.stoppable`. is_stopped: by `cancel`, whatever `reset` says since."""

    __slots__ = ("_canceller", "_in_flight", "is_stopped", "stop", "thread")

    def __init__(self, canceller: Canceller, in_flight: list[Stoppable], stop: Callable[[], None]) -> None:
        self._canceller, self._in_flight, self.stop = canceller, in_flight, stop
        self.is_stopped, self.thread = False, threading.get_ident()

    def __enter__(self) -> None:
        try:
            # Read after publishing `stop`: a cancel between the two has set the flag, a later one calls `stop`.
            self._in_flight.append(self)
            if self._canceller.cancelled:
                self._canceller.refuse()
        except BaseException:
            if self in self._in_flight:
                self._in_flight.remove(self)
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._in_flight.remove(self)
        # Last, or a Ctrl-C that found the run still in flight would be lost when no other run follows.
        if self.is_stopped or self._canceller.cancelled:
            if error is None or (isinstance(error, Exception) and not isinstance(error, SpecedgeError)):
                self._canceller.refuse()


class Session:
    """One graph loaded, on the CPU unless told otherwise.

    path: the `.onnx` file; threads: worker threads, the calling one included; they sleep behind a pass, so that graphs
    that take turns leave each other the cores; keep_buffers: whether a run's buffers stay allocated for the next one;
    prepack: whether weights are rearranged for the kernels, in memory of their own (else they are used where they are
    mapped); kleidiai: whether Arm's KleidiAI kernels may be used (with SME some take over at a number of rows, so a
    row's bits depend on its neighbours); provider: another of ONNX Runtime's execution providers and its settings,
    which must take the whole graph; free_axes: sizes of its free dimensions.

    Raises BundleError when ONNX Runtime cannot load the graph, ResourceError when memory runs out, Interrupted when
    cancelled.
    """

    def __init__(
        self,
        path: Path,
        canceller: Canceller,
        *,
        threads: int,
        keep_buffers: bool = True,
        prepack: bool = True,
        kleidiai: bool = True,
        provider: tuple[str, dict[str, str]] = CPU_PROVIDER,
        free_axes: Mapping[str, int] | None = None,
    ) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = SEVERITY_FATAL
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.add_session_config_entry("session.intra_op.spin_duration_us", SPIN_US)
        if not kleidiai:
            options.add_session_config_entry("mlas.disable_kleidiai", "1")
        if not prepack:
            options.add_session_config_entry("session.disable_prepacking", "1")
        if provider != CPU_PROVIDER:
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        for name, size in (free_axes or {}).items():
            options.add_free_dimension_override_by_name(name, size)
        try:
            with canceller.stoppable(lambda: options.set_load_cancellation_flag(True)):
                self._session = ort.InferenceSession(str(path), options, providers=[provider])
        except SpecedgeError:
            raise
        except Exception as error:  # ONNX Runtime has no common base class for its errors
            if _out_of_memory(error):
                raise OutOfMemoryError(f"{path}: not enough memory to load this graph") from error
            raise BundleError(
                f"{path}: ONNX Runtime {RUNTIME_VERSION} cannot load this graph: {_first_line(error)}; "
                "export the model again with this version of specedge"
            ) from error
        self._canceller = canceller
        self._keep_buffers = keep_buffers
        self._run_options = self._new_run_options(keep_buffers)
        self.inputs = _tensors(self._session.get_inputs())
        self.outputs = _tensors(self._session.get_outputs())
        self.metadata: dict[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)

    def binding(self) -> ort.IOBinding:
        return self._session.io_binding()

    def run(self, binding: ort.IOBinding, *, n_positions: int | None = None) -> None:
        """One pass over the bound tensors. Raises Interrupted when cancelled, ResourceError when memory runs out.

        n_positions: of a pass over so few, at most `FEW_POSITIONS`, buffers stay allocated all the same.
        """
        keep_buffers = self._keep_buffers or (n_positions is not None and n_positions <= FEW_POSITIONS)
        while True:
            if self._run_options.terminate or keep_buffers != self._keeps:  # set by the canceller, it stays set
                self._run_options = self._new_run_options(keep_buffers)
            try:
                with self._canceller.stoppable(self._stop):
                    self._session.run_with_iobinding(binding, self._run_options)
                return
            except SpecedgeError:
                raise
            except Exception as error:  # ONNX Runtime has no common base class for its errors
                if not self._run_options.terminate:  # else the stop was meant for the run before this one
                    raise _runtime_failure(error) from error

    def run_once(
        self,
        inputs: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, NDArray[Any]],
        *,
        n_positions: int | None = None,
    ) -> None:
        """One pass over `inputs` by name, which writes into `outputs`. Raises, and n_positions is, as of `run`."""
        binding = self.binding()
        for name, array in inputs.items():
            bind_array_input(binding, name, array)
        for name, array in outputs.items():
            bind_array_output(binding, name, array)
        self.run(binding, n_positions=n_positions)

    def _stop(self) -> None:
        self._run_options.terminate = True

    def _new_run_options(self, keep_buffers: bool) -> ort.RunOptions:
        options, self._keeps = ort.RunOptions(), keep_buffers
        # ONNX Runtime's Python looks this up in every pass; a miss costs 50 microseconds.
        options.add_run_config_entry("gpu_graph_id", "0")
        if not keep_buffers:
            # Not by switching the arena off: the C library would keep twice as much, in pieces.
            options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        return options


def ort_value(array: NDArray[Any]) -> ort.OrtValue:
    """An ONNX Runtime tensor over the memory of `array`, which the caller must keep alive."""
    return ort.OrtValue.ortvalue_from_numpy(array)


def bind_array_input(binding: ort.IOBinding, name: str, array: NDArray[Any]) -> None:
    """Bind `array` by address: later runs see later values."""
    binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


def bind_array_output(binding: ort.IOBinding, name: str, array: NDArray[Any]) -> None:
    """Have a run write the output `name` into `array`."""
    binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


def run_outputs(session: Session, binding: ort.IOBinding, names: Sequence[str]) -> list[NDArray[Any]]:
    """One pass whose outputs `names` have sizes that only the pass knows. Raises as `Session.run`."""
    for name in names:
        binding.bind_output(name, "cpu")
    session.run(binding)
    outputs: list[NDArray[Any]] = binding.copy_outputs_to_cpu()
    return outputs


def encoder_output(
    session: Session,
    windows: NDArray[np.float32],
    n_state: int,
    n_ctx: int | None = None,
    more: Mapping[str, NDArray[Any]] | None = None,
) -> NDArray[np.float32]:
    """What an encoder of `n_state` channels makes of log-mels, float32 `[n_windows, n_mels, n_frames]`: float32
    `[n_windows, n_ctx, n_state]`, a position for two frames unless told. more: arrays of its other outputs, which are
    filled. Raises Interrupted, ResourceError."""
    n_windows, _, n_frames = windows.shape
    # Outputs go to our arrays: in the session's arena they would keep all of it resident.
    hidden = np.empty((n_windows, -(-n_frames // 2) if n_ctx is None else n_ctx, n_state), np.float32)
    session.run_once({"mel": windows}, {"features": hidden, **(more or {})}, n_positions=n_windows * hidden.shape[1])
    return hidden


def cross_keys_values(session: Session, hidden: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """Cross-attention keys and values by name, from encoder output float32 `[n_windows, n_ctx, n_audio_state]`.

    The session runs a graph of `export.encoder_graph.build_cross_kv`. Raises Interrupted, ResourceError.
    """
    n_windows, n_ctx, _ = hidden.shape
    cross: dict[str, NDArray[Any]] = {}
    for name, tensor in session.outputs.items():
        sizes = [axis if isinstance(axis, int) else n_windows if axis == "batch" else n_ctx for axis in tensor.shape]
        cross[name] = np.empty(sizes, tensor.dtype)
    session.run_once({"features": hidden}, cross, n_positions=n_windows * n_ctx)
    return cross


def available_providers() -> list[str]:
    """The execution providers that the installed ONNX Runtime has."""
    names: list[str] = ort.get_available_providers()
    return names


def runtime_release() -> tuple[int, ...]:
    """The first two numbers of ONNX Runtime's version."""
    return tuple(int(part) for part in RUNTIME_VERSION.split(".")[:2] if part.isdigit())


def _tensors(args: Iterable[ort.NodeArg]) -> dict[str, TensorSpec]:
    found = {}
    for arg in args:
        name = str(arg.type).removeprefix("tensor(").removesuffix(")")
        axes = ["" if axis is None else axis for axis in arg.shape]  # a free one may have no name
        found[arg.name] = TensorSpec(name=arg.name, dtype=_DTYPES.get(name, name), shape=tuple(axes))
    return found


def _runtime_failure(error: Exception) -> SpecedgeError:
    text = _first_line(error)
    if _out_of_memory(error):
        return OutOfMemoryError(f"not enough memory for a pass over the model: {text}")
    return SpecedgeError(f"ONNX Runtime {RUNTIME_VERSION} failed: {text}")


def _out_of_memory(error: Exception) -> bool:
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(phrase in text for phrase in _NO_MEMORY)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


MOST_PADDING = 15  # columns of logits behind the vocabulary


def load_graph(bundle: Bundle, graph: str, canceller: Canceller, *, threads: int) -> Session:
    """Load one graph of `bundle`. Raises BundleError where its signature is not the manifest's."""
    spec = bundle.manifest.graphs[graph]
    # These run many short passes a window; graphs that run once give their large buffers back.
    often = graph in ("decoder", SHORTLIST_GRAPH, LEARN_GRAPH, MANY_GRAPH, VECTORS_GRAPH, *HEAD_KINDS)
    path = bundle.path / spec.file
    session = Session(
        path,
        canceller,
        threads=threads,
        keep_buffers=often,
        # A packed copy would double the weights for one pass a window.
        prepack=graph not in (ALIGN_GRAPH, VECTORS_GRAPH),
        # In 4 bits rows are exact with KleidiAI's kernels, and not without.
        kleidiai=graph not in ("decoder", LEARN_GRAPH, MANY_GRAPH) or bundle.manifest.precision == "int4",
    )
    for side, found, listed in (("inputs", session.inputs, spec.inputs), ("outputs", session.outputs, spec.outputs)):
        expected = {tensor.name: tensor for tensor in listed}
        wrong = sorted(found.keys() ^ expected.keys()) or [n for n in found if not _agree(found[n], expected[n])]
        if wrong:
            raise BundleError(
                f"{path}: its {side} are not those the manifest lists for {graph} (see {wrong[0]}); "
                "export the model again"
            )
    for name, fixed in _fixed_axes(bundle.manifest, graph).items():
        tensor = session.inputs.get(name) or session.outputs.get(name)
        if tensor is None or len(tensor.shape) <= max(fixed) or any(tensor.shape[i] != n for i, n in fixed.items()):
            raise BundleError(f"{path}: {name} does not fit the manifest's dimensions; export the model again")
    return session


def _agree(found: TensorSpec, listed: TensorSpec) -> bool:
    """Whether type and fixed sizes are the same, whatever free axes are called."""
    axes = [size if isinstance(size, int) else None for size in found.shape]
    return found.dtype == listed.dtype and axes == [size if isinstance(size, int) else None for size in listed.shape]


def _fixed_axes(manifest: Manifest, graph: str) -> dict[str, dict[int, int]]:
    """Sizes that passes rely on: tensor name to axis to size."""
    dims = manifest.dims
    if graph in ("encoder", SHORT_ENCODER_GRAPH, PLAIN_ENCODER_GRAPH):
        return {"mel": {1: dims.n_mels}, "features": {2: dims.n_audio_state}}
    if graph in ("cross_kv", CTC_GRAPH, BLOCK_KV_GRAPH):
        return {"features": {2: dims.n_audio_state}}
    if graph == ALIGN_GRAPH:
        return {"scores": {0: len(manifest.alignment_heads)}}
    if graph == PROJECTOR_GRAPH:
        return {"features": {2: dims.n_audio_state}, "audio": {2: dims.n_text_state}}
    head = {1: dims.n_kv_head, 3: dims.head_dim}
    if graph == VECTORS_GRAPH:
        return {"vectors": {1: dims.n_text_state}}
    n_layers = dims.n_text_layer if graph not in HEAD_KINDS else int(graph == BLOCK_KIND)
    fixed = {f"self_{part}_{layer}": head for layer in range(n_layers) for part in "kv"}
    if graph == LEARN_GRAPH:
        fixed |= {"learn_a": {0: dims.n_text_state}, "learn_b": {1: dims.n_text_state}}
    return {"hidden": {2: dims.n_text_state}, **fixed} if graph in HEAD_KINDS else fixed


def logit_columns(session: Session, graph: str, n_vocab: int, where: Path) -> int:
    """Columns of a decoder's logits: `n_vocab` tokens, fewer in a shortlist, and padding. Raises BundleError."""
    shape = session.outputs["logits"].shape
    least = 1 if graph == SHORTLIST_GRAPH else n_vocab
    if len(shape) != 3 or not isinstance(shape[2], int) or not least <= shape[2] <= n_vocab + MOST_PADDING:
        raise BundleError(f"{where}: logits do not fit the manifest's dimensions; export the model again")
    return shape[2]
