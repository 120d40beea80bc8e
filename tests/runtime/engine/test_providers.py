"""Encoders on another provider: what is refused, what is kept, and that drafts change nothing behind one."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import numpy as np
import onnxruntime as ort
import pytest

from specedge import WhisperModel
from specedge.errors import BundleError, Interrupted, ProviderError, UsageError
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.device import packed_folder
from specedge.runtime.drafters.registry import runnable
from specedge.runtime.engine import execution_providers, provider_check, providers
from specedge.runtime.engine.engine import Engine
from specedge.runtime.engine.execution_providers import InWheel
from specedge.runtime.engine.made_up import probe_mel
from specedge.runtime.engine.provider_task import Place
from specedge.runtime.engine.session import Canceller
from specedge.runtime.options import ENCODER_PROVIDERS, DrafterOptions
from support.exported import bundle
from support.paths import DEMO, samples
from support.providers import CpuBackend, demo_with_plain, micro_with_plain, take_for_openvino

needs_openvino = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="openvino is not installed: pip install openvino"
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECEDGE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return micro_with_plain(tmp_path_factory.mktemp("plain") / "micro")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> CpuBackend:
    backend = CpuBackend()
    take_for_openvino(backend, monkeypatch)
    return backend


# ------------------------------------------------------------------------------------------------- what it does
def test_windows_are_padded_to_a_few_lengths_and_compiled_once(
    made: Bundle, fake: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "_LENGTHS_S", (1,))
    engine = Engine(made, threads=1, cache=False, encoder_provider="openvino")
    assert engine.encoder_provider == "openvino 1 (a CPU)" and engine.window_lengths == (100, 200)
    short, mel = probe_mel(engine.dims, 62), probe_mel(engine.dims, 200)
    assert len(engine.encode(short).hidden) == 50
    windows = engine.encode_all([mel, mel])
    assert len(windows[0].hidden) == 100 and (windows[0].hidden == windows[1].hidden).all()
    Engine(made, threads=1, cache=False, encoder_provider="openvino").encode(short)
    assert fake.n_compiled == 2
    assert len(list(packed_folder().glob(f"{made.digest[:24]}-openvino-*"))) == 2


def test_one_that_takes_all_lengths_is_compiled_once_and_pads_nothing(
    made: Bundle, fake: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "takes_all_lengths", True)
    engine = Engine(made, threads=1, cache=False, encoder_provider="openvino")
    assert engine.window_lengths == ()
    assert [len(engine.encode(probe_mel(engine.dims, n)).hidden) for n in (62, 200)] == [31, 100]
    assert fake.n_compiled == 1


@pytest.mark.parametrize("place", [Place(version="2", device="a CPU"), Place(version="1", device="another CPU")])
def test_another_version_or_device_compiles_anew(
    place: Place, made: Bundle, fake: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n_compiled in (1, 1, 2, 2):
        if n_compiled == 2:
            monkeypatch.setattr(fake, "place", lambda: place)
        Engine(made, threads=1, cache=False, encoder_provider="openvino")
        assert fake.n_compiled == n_compiled
    Engine(made, threads=2, cache=False, encoder_provider="openvino")
    assert fake.n_compiled == 3


def test_a_provider_works_where_nothing_can_be_kept(
    made: Bundle, fake: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECEDGE_CACHE_BYTES", "0")
    engine = Engine(made, threads=1, cache=False, encoder_provider="openvino")
    assert engine.encode(probe_mel(engine.dims)).hidden.any()
    assert not packed_folder().exists()


def test_what_is_measured_belongs_to_the_provider(made: Bundle, fake: CpuBackend) -> None:
    model = WhisperModel(made.path, cpu_threads=1, encoder_provider="openvino")
    assert model.bundle.digest != made.digest
    assert model.engine.bundle.digest == made.digest  # by which weights are packed, and removed with the model
    segments, info = model.transcribe(np.zeros(16000, np.float32), language="en", drafter="none", temperature=0.0)
    list(segments)
    assert info.encoder_provider == "openvino 1 (a CPU)"


# ------------------------------------------------------------------------------------------------- what is refused
@pytest.mark.parametrize(
    ("name", "words"),
    [("webgpu", "onnxruntime-ep-webgpu"), ("qnn", "onnxruntime-qnn"), ("openvino-ep", "onnxruntime-ep-openvino")],
)
def test_a_missing_provider_names_its_package(
    name: str, words: str, made: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = providers._BACKENDS[name].module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=f"{name}: the package {words} is not installed; pip install {words}"):
        Engine(made, threads=1, cache=False, encoder_provider=name)


def test_openvino_and_coreml_are_named_too(made: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(UsageError, match="pip install openvino"):
        Engine(made, threads=1, cache=False, encoder_provider="openvino")
    if sys.platform != "darwin":
        with pytest.raises(UsageError, match="the installed package onnxruntime .* has no CoreML"):
            Engine(made, threads=1, cache=False, encoder_provider="coreml")
    with pytest.raises(UsageError, match=f"got 'tpu', expected one of {', '.join(ENCODER_PROVIDERS)}"):
        Engine(made, threads=1, cache=False, encoder_provider="tpu")


def test_a_bundle_without_the_graph_says_how_to_get_it() -> None:
    with pytest.raises(BundleError, match="--encoder-plain"):
        Engine(bundle("int8"), threads=1, cache=False, encoder_provider="openvino")


def test_a_provider_that_leaves_nodes_to_the_cpu_is_an_error(made: Bundle) -> None:
    """Of ONNX Runtime's wheel, the provider for Azure takes none."""
    azure = InWheel(name="azure", provider="AzureExecutionProvider")
    azure.place()
    with pytest.raises(ProviderError, match=r"azure does not take the whole encoder \(onnxruntime \d"):
        azure.load(providers.encoder_task(made, 200, 1), Path(), Canceller())


# ------------------------------------------------------------------------------------------------- plug-ins
@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The package of "webgpu", whose library is ONNX Runtime's own CPU provider; gives what was registered."""
    registered: list[tuple[str, str]] = []
    module = SimpleNamespace(get_ep_name=lambda: "CPUExecutionProvider", get_library_path=lambda: "/a/library.so")
    monkeypatch.setitem(sys.modules, "onnxruntime_ep_webgpu", module)
    monkeypatch.setattr(execution_providers, "_registered", set())
    monkeypatch.setattr(ort, "register_execution_provider_library", lambda *given: registered.append(given))
    return registered


def test_a_plug_in_is_registered_once_and_added_by_its_devices(
    made: Bundle, plug_in: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    webgpu = providers.backend("webgpu")
    assert "CPU" in webgpu.place().device and webgpu.place() == webgpu.place()
    monkeypatch.setattr(execution_providers, "_NO_CPU", "session.not_asked")  # this plug-in is the CPU
    task, mel = providers.encoder_task(made, 62, 1), probe_mel(made.manifest.dims, 62)[None]
    webgpu.compile(task, tmp_path)
    (tmp_path / "compiled").write_bytes(b"made once")
    found = webgpu.load(task, tmp_path, Canceller())(mel)
    assert np.abs(found - CpuBackend().load(task, tmp_path, Canceller())(mel)).max() < 1e-4
    assert plug_in == [("CPUExecutionProvider", "/a/library.so")]


def test_a_plug_in_that_would_run_on_the_cpu_is_an_error(made: Bundle, plug_in: list[tuple[str, str]]) -> None:
    with pytest.raises(ProviderError, match=r"webgpu does not take the whole encoder \(onnxruntime-ep-webgpu\)"):
        providers.backend("webgpu").load(providers.encoder_task(made, 200, 1), Path(), Canceller())


def test_a_plug_in_without_a_device_or_a_library_names_its_package(
    plug_in: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort, "get_ep_devices", list)
    with pytest.raises(UsageError, match="webgpu: onnxruntime-ep-webgpu finds no device of its kind"):
        providers.backend("webgpu").place()

    def broken(*given: str) -> None:
        raise RuntimeError("no such symbol\nat line 5")

    monkeypatch.setattr(execution_providers, "_registered", set())
    monkeypatch.setattr(ort, "register_execution_provider_library", broken)
    with pytest.raises(UsageError, match=r"cannot load onnxruntime-ep-webgpu: no such symbol$"):
        providers.backend("webgpu").place()


# ------------------------------------------------------------------------------------------------- the first use
@pytest.mark.parametrize("off", [3.0, float("nan")])
def test_features_beyond_the_bound_are_refused(off: float, made: Bundle, fake: CpuBackend) -> None:
    fake.off = off
    with pytest.raises(ProviderError, match="does not compute this encoder: features are off by"):
        Engine(made, threads=1, cache=False, encoder_provider="openvino")
    assert not list(packed_folder().iterdir())


def test_other_bits_each_time_are_refused() -> None:
    noise = np.random.default_rng(0)
    with pytest.raises(ProviderError, match="other bits each time"):
        provider_check._twice(lambda mel: noise.random(3).astype(np.float32), [np.zeros(1, np.float32)], "x")


@pytest.mark.skipif(os.name == "nt", reason="a shell script stands for the child")
def test_a_crash_while_compiling_is_one_line(made: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = tmp_path / "child"
    child.write_text("#!/bin/sh\nkill -FPE $$\n")
    child.chmod(0o755)
    monkeypatch.setitem(providers._BACKENDS, "openvino", CpuBackend())
    monkeypatch.setattr(providers, "sys", SimpleNamespace(executable=str(child)))
    with pytest.raises(ProviderError, match=r"openvino 1 \(a CPU\): ended by SIGFPE while it compiled"):
        Engine(made, threads=1, cache=False, encoder_provider="openvino")
    assert not list(packed_folder().iterdir())


@pytest.mark.skipif(os.name == "nt", reason="a shell script stands for the child")
def test_a_stop_ends_the_child_that_compiles(made: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = tmp_path / "child"
    child.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nmv {tmp_path}/pid {tmp_path}/started\nexec sleep 60\n")
    child.chmod(0o755)
    monkeypatch.setitem(providers._BACKENDS, "openvino", CpuBackend())
    monkeypatch.setattr(providers, "sys", SimpleNamespace(executable=str(child)))
    canceller = Canceller()

    def cancel() -> None:
        while not (tmp_path / "started").exists():
            time.sleep(0.01)
        canceller.cancel()

    Thread(target=cancel, daemon=True).start()
    with pytest.raises(Interrupted):
        Engine(made, threads=1, cache=False, canceller=canceller, encoder_provider="openvino")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "started").read_text()), 0)
    assert not list(packed_folder().iterdir())


# ------------------------------------------------------------------------------------------------- OpenVINO itself
@pytest.mark.slow
@needs_openvino
def test_no_drafter_changes_a_text_behind_openvino(tmp_path: Path) -> None:
    demo = demo_with_plain(tmp_path / "demo")
    model = WhisperModel(demo.path, encoder_provider="openvino", cpu_threads=2)
    assert model.engine.encoder_provider.startswith("openvino 20")
    draft = DEMO  # the target as its own draft: it is given what the target's encoder found

    def said(drafter: str, context: str) -> list[object]:
        options = {"draft_model": draft} if drafter in ("draft", "cascade") else {}
        found: list[object] = []
        for sample in samples():
            segments, _ = model.transcribe(
                str(sample), language="en", drafter=drafter, audio_context=context, **options
            )
            found += [(s.tokens, s.avg_logprob, s.start, s.end, s.seek) for s in segments]
        return found

    drafters = runnable(demo, DrafterOptions("auto", draft_model=str(draft)))
    assert {"ctc", "draft", "tokenmap", "ngram", "medusa-block"} <= set(drafters)
    for context in ("full", "auto"):
        plain = said("none", context)
        assert plain
        for drafter in drafters:
            assert said(drafter, context) == plain, (drafter, context)


@pytest.mark.slow
@needs_openvino
def test_its_features_are_near_those_of_float32(made: Bundle, tmp_path: Path) -> None:
    folder = tmp_path / "compiled"
    folder.mkdir()
    error = provider_check.check(made, "openvino", 200, 2, folder)
    assert error < 0.1 and list(folder.iterdir())


@pytest.mark.slow
@needs_openvino
@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_stop_while_compiling_leaves_no_half_entry(number: signal.Signals, made: Bundle) -> None:
    program = (
        "from specedge.runtime.bundle.bundle import Bundle\n"
        "from specedge.runtime.engine.engine import Engine\n"
        "from specedge.runtime.engine.session import Canceller\n"
        "c = Canceller()\n"
        "with c.on_sigint():\n"
        f"    bundle = Bundle.open({str(made.path)!r})\n"
        "    Engine(bundle, threads=1, cache=False, canceller=c, encoder_provider='openvino')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL, start_new_session=True)
    until = time.monotonic() + 60
    while not list(packed_folder().glob(".new-*")) and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.3)
    os.kill(process.pid, number)
    assert process.wait(60) != 0
    assert not list(packed_folder().glob("[!.]*"))
    engine = Engine(made, threads=1, cache=False, encoder_provider="openvino")
    assert engine.encode(probe_mel(engine.dims)).hidden.any()
    assert len(list(packed_folder().iterdir())) == 1  # what was left behind is swept
