"""Sessions and Ctrl-C: a run or a load stops within half a second, a second Ctrl-C ends the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from specedge.errors import BundleError, Interrupted, ResourceError, SpecedgeError, Terminated
from specedge.export.onnx_builder import GraphBuilder
from specedge.runtime.engine.session import Canceller, Session, bind_array_input
from specedge.runtime.interrupt import TerminationSignal
from support.exported import bundle

STOPS_WITHIN_S = 0.5
WIDTH = 512
needs_signals = pytest.mark.skipif(os.name == "nt", reason="SIGINT cannot be sent to a process of its own here")


def write_slow_graph(folder: Path, n_nodes: int) -> Path:
    """Many products one after another: each quick, all together many seconds."""
    with GraphBuilder(folder, "slow") as g:
        x = g.input("x", TensorProto.FLOAT, ["n", WIDTH])
        weight = g.const("weight", np.eye(WIDTH, dtype=np.float32))
        for _ in range(n_nodes):
            x = g.node("MatMul", [x, weight])
        g.output(x, "y", TensorProto.FLOAT, ["n", WIDTH])
        g.save()
    return g.path


def slow_run(session: Session) -> None:
    binding = session.binding()
    x = np.zeros((WIDTH, WIDTH), np.float32)
    bind_array_input(binding, "x", x)
    binding.bind_output("y", "cpu")
    session.run(binding)


@pytest.fixture(scope="module")
def slow_graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_slow_graph(tmp_path_factory.mktemp("slow"), 1500)


def test_a_run_in_flight_stops_at_once(slow_graph: Path) -> None:
    canceller = Canceller()
    session = Session(slow_graph, canceller, threads=1)
    cancelled_at: list[float] = []

    def cancel() -> None:
        assert canceller.running
        cancelled_at.append(time.monotonic())
        canceller.cancel()

    timer = threading.Timer(0.3, cancel)
    timer.start()
    with pytest.raises(Interrupted):
        slow_run(session)
    assert time.monotonic() - cancelled_at[0] < STOPS_WITHIN_S
    assert not canceller.running
    with pytest.raises(Interrupted):
        slow_run(session)


@pytest.mark.slow
def test_one_thread_is_stopped_and_the_next_run_is_not(slow_graph: Path) -> None:
    canceller = Canceller()
    session = Session(slow_graph, canceller, threads=1)
    ident = threading.get_ident()
    threading.Timer(0.1, lambda: canceller.stop_running(ident + 1)).start()
    threading.Timer(0.3, lambda: canceller.stop_running(ident)).start()
    with pytest.raises(Interrupted):
        slow_run(session)
    assert not canceller.running and not canceller.cancelled


def test_a_stop_that_comes_late_does_not_end_the_run_behind(tmp_path: Path) -> None:
    session = Session(write_slow_graph(tmp_path, 50), Canceller(), threads=1)
    late = threading.Timer(0.02, session._stop)
    late.start()
    slow_run(session)
    late.join()
    slow_run(session)


@pytest.mark.slow
def test_a_cancel_before_the_load_stops_it(slow_graph: Path) -> None:
    canceller = Canceller()
    canceller.cancel()
    with pytest.raises(Interrupted):
        Session(slow_graph, canceller, threads=1)
    canceller.reset()
    Session(slow_graph, canceller, threads=1)


def test_a_load_in_flight_stops(slow_graph: Path) -> None:
    """The first load of a large model packs its weights, which takes seconds."""
    for delay_s in (0.0, 0.002, 0.01):
        canceller = Canceller()
        timer = threading.Timer(delay_s, canceller.cancel)
        timer.start()
        with pytest.raises(Interrupted):
            while True:
                Session(slow_graph, canceller, threads=1)


def test_a_cancel_during_the_last_run_is_not_lost() -> None:
    """It came too late to stop the run, but the caller asked to stop and must hear of it."""
    canceller = Canceller()
    with pytest.raises(Interrupted):
        with canceller.stoppable(lambda: None):
            canceller.cancel()
    assert not canceller.running


def test_failures_that_are_no_cancel_keep_their_own_error() -> None:
    canceller = Canceller()
    for error in (ValueError("mine"), BundleError("mine")):
        with pytest.raises(type(error), match="mine"):
            with canceller.stoppable(lambda: None):
                raise error
    with pytest.raises(Interrupted):
        with canceller.stoppable(lambda: None):
            canceller.cancel()
            raise ValueError("the run was terminated")


def test_a_wrong_input_is_one_line() -> None:
    session = Session(bundle("int8").file("encoder.onnx"), Canceller(), threads=1)
    binding = session.binding()
    bind_array_input(binding, "mel", np.zeros((1, 3, 10), np.float32))
    binding.bind_output("features", "cpu")
    with pytest.raises(SpecedgeError, match="ONNX Runtime .* failed") as raised:
        session.run(binding)
    assert "\n" not in str(raised.value) and raised.value.exit_code == 1


@pytest.mark.parametrize("text", ["std::bad_alloc", "bad allocation", "Failed to allocate memory for requested buffer"])
def test_out_of_memory_is_a_resource_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(onnxruntime, "InferenceSession", fail)
    with pytest.raises(ResourceError, match="not enough memory"):
        Session(bundle("int8").file("encoder.onnx"), Canceller(), threads=1)


def test_handlers_come_back() -> None:
    seen: list[int] = []

    def mine(signum: int, _frame: Any) -> None:
        seen.append(signum)

    old = signal.signal(signal.SIGINT, mine)
    try:
        with Canceller().on_sigint():
            assert signal.getsignal(signal.SIGINT) != mine
        assert signal.getsignal(signal.SIGINT) is mine
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(signal.SIGINT, old)


def test_no_descriptor_and_no_thread_is_left() -> None:
    n_threads = threading.active_count()
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(20):
        with Canceller().on_sigint():
            pass
    assert threading.active_count() == n_threads
    assert not before or len(os.listdir("/proc/self/fd")) == before


def test_other_threads_leave_signals_alone() -> None:
    handlers: list[Any] = []

    def inside() -> None:
        with Canceller().on_sigint():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGINT)]


def test_a_process_that_ignores_ctrl_c_goes_on_ignoring_it() -> None:
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Canceller().on_sigint():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, old)


@needs_signals
def test_ctrl_c_in_python_code_is_a_keyboard_interrupt() -> None:
    canceller = Canceller()
    with pytest.raises(KeyboardInterrupt):
        with canceller.on_sigint():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
    assert not canceller.cancelled


@pytest.mark.slow
@needs_signals
def test_ctrl_c_in_a_run_is_interrupted_and_the_next_run_is_free(slow_graph: Path) -> None:
    canceller = Canceller()
    session = Session(slow_graph, canceller, threads=1)
    sent_at: list[float] = []

    def send() -> None:
        sent_at.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.3, send)
    with pytest.raises(Interrupted):
        with canceller.on_sigint():
            timer.start()
            slow_run(session)
    assert time.monotonic() - sent_at[0] < STOPS_WITHIN_S
    assert not canceller.cancelled


PROGRAM = """
import sys, time
sys.path.insert(0, {tests!r})
import numpy as np
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.engine.engine import Engine
from specedge.errors import Interrupted

engine = Engine(Bundle.open({bundle!r}), threads=2)
mel = np.zeros((engine.dims.n_mels, 2 * engine.dims.n_audio_ctx), np.float32)
with engine.interruptible():
    try:
        print("ready", flush=True)
        while True:
            engine.encode(mel)
    except (Interrupted, KeyboardInterrupt):
        {body}
"""


def start(body: str, path: Path) -> subprocess.Popen[str]:
    code = PROGRAM.format(
        tests=str(Path(__file__).resolve().parents[2]), bundle=str(path), body=textwrap.indent(body, 8 * " ").strip()
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise AssertionError(process.communicate()[1])
    return process


def interrupt(process: subprocess.Popen[str]) -> float:
    """Seconds from SIGINT to the end of the process."""
    sent_at = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.wait(20)
    return time.monotonic() - sent_at


# A program that will not hear: it catches the first Ctrl-C and goes on.
DEAF = """
print("caught", flush=True)
for _ in range(600):
    time.sleep(0.1)
"""


@needs_signals
def test_ctrl_c_ends_a_busy_process() -> None:
    with start("sys.exit(130)", bundle("int8").path) as process:
        time.sleep(0.1)
        # Not the model's time but Python's own at exit is most of this, on a busy machine.
        assert interrupt(process) < 3 and process.returncode == 130


@needs_signals
def test_the_second_ctrl_c_ends_a_process_that_will_not_hear() -> None:
    with start(DEAF, bundle("int8").path) as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "caught\n"
        assert interrupt(process) < 1 and process.returncode == 130


@needs_signals
@pytest.mark.slow
@pytest.mark.parametrize("command", ["transcribe", "doctor", "export"])
def test_ctrl_c_in_a_command_over_a_large_model(command: str, tmp_path: Path) -> None:
    """The base shape in float32: one encode takes seconds, and so does loading."""
    from specedge.export.export import export_to
    from support.checkpoints import make_checkpoint
    from support.fake_cli import wav

    checkpoint = make_checkpoint(tmp_path / "base", size="base")
    arguments = [command, str(checkpoint), "-o", str(tmp_path / "other"), "--precision", "fp32"]
    if command != "export":
        export_to(str(checkpoint), tmp_path / "bundle", precision="fp32")
        arguments = [command, "-m", str(tmp_path / "bundle")]
        if command == "transcribe":
            arguments += [wav(tmp_path / "long.wav", 600.0), "-l", "en"]
    left_before = sorted(path.name for path in tmp_path.iterdir())
    took: list[float] = []
    for delay_s in (1.5, 2.5, 4.0, 6.0):
        process = subprocess.Popen(
            [sys.executable, "-m", "specedge", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        time.sleep(delay_s)
        assert process.poll() is None, process.communicate()
        took.append(interrupt(process))
        assert process.returncode == 130
        assert process.communicate()[1].splitlines()[-1].startswith("specedge: interrupted")
    assert sorted(path.name for path in tmp_path.iterdir()) == left_before
    assert max(took) < STOPS_WITHIN_S + 0.3, took  # and what Python takes to end


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_sigterm_cancels_the_run_in_flight() -> None:
    canceller = Canceller()
    stopped: list[bool] = []
    with canceller.on_sigint():
        with pytest.raises(Terminated), canceller.stoppable(lambda: stopped.append(True)):
            signal.raise_signal(signal.SIGTERM)
        assert stopped
        with pytest.raises(Terminated), canceller.stoppable(lambda: None):
            raise AssertionError("runs are refused until the signals are somebody else's again")
    with canceller.stoppable(lambda: None):
        pass
    with canceller.on_sigint(), pytest.raises(TerminationSignal):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_a_program_keeps_its_own_handler_of_sigterm() -> None:
    seen: list[int] = []
    old = signal.signal(signal.SIGTERM, lambda number, _frame: seen.append(number))
    try:
        with Canceller().on_sigint():
            signal.raise_signal(signal.SIGTERM)
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, old)
