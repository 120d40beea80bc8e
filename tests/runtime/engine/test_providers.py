"""Encoders on another provider: what is refused, what is kept, and that drafts change nothing behind one."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from specedge import WhisperModel
from specedge.errors import BundleError, ProviderError, UsageError
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.drafters.registry import runnable
from specedge.runtime.engine import providers
from specedge.runtime.engine.engine import Engine
from specedge.runtime.engine.made_up import probe_mel
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


def opened(made: Bundle, provider: str = "openvino", threads: int = 1) -> Engine:
    return Engine(made, threads=threads, encoder_provider=provider)


def test_openvino_takes_all_lengths(made: Bundle, fake: CpuBackend) -> None:
    engine = opened(made)
    assert engine.encoder_provider == "openvino 1 (a CPU)"
    assert [len(engine.encode(probe_mel(engine.dims, n)).hidden) for n in (62, 200)] == [31, 100]


def test_auto_is_openvino_where_it_is_quicker(
    made: Bundle, fake: CpuBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for threads, speedup, expected in ((1, 0.9, "cpu"), (2, 1.5, "openvino 1 (a CPU)")):
        monkeypatch.setattr(providers, "_speedup", lambda *of, speedup=speedup: speedup)
        assert chosen(made, threads) == expected
    monkeypatch.setattr(providers, "_speedup", None)  # what was measured is kept
    assert [chosen(made, threads) for threads in (1, 2)] == ["cpu", expected]
    assert chosen(bundle("int8"), 1) == "cpu" and not caplog.text
    monkeypatch.setattr(providers, "_speedup", lambda *of: 1.5)
    (kept,) = (Path(os.environ["SPECEDGE_CACHE"]) / "calibration").glob("*-2-provider.json")
    kept.write_text('{"features_relative_error": 0.1, "speedup": null}')
    assert chosen(made, 2) == expected, "a damaged file counts as none"
    with monkeypatch.context() as unwritable:
        unwritable.setattr(providers, "write_device_file", lambda *of: None)
        assert chosen(made, 3) == "cpu", "another process could find otherwise"
    fake.off = 3.0
    assert chosen(made, 3) == "cpu" and "runs without OpenVINO: " in caplog.text


def chosen(made: Bundle, threads: int) -> str:
    """What `auto` runs on, once a whole window came."""
    engine = opened(made, "auto", threads)
    assert engine.encoder_provider == "cpu", "short audio may be all that comes"
    engine.encode(probe_mel(engine.dims, 42), ends_in_silence=True)
    assert engine.encoder_provider == "cpu"
    engine.encode(probe_mel(engine.dims, engine.dims.n_frames))
    return engine.encoder_provider


def test_short_audio_stays_on_the_cpu(made: Bundle, fake: CpuBackend) -> None:
    fake.off = 1e-3
    found = [
        opened(made, name).encode(probe_mel(made.manifest.dims, 42), ends_in_silence=True)
        for name in ("openvino", "cpu")
    ]
    assert (found[0].hidden == found[1].hidden).all()


def test_others_get_windows_of_one_length(made: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime's CPU stands for a provider of its list."""
    monkeypatch.setattr(providers, "_provider", lambda name: "CPUExecutionProvider")
    monkeypatch.setattr(providers, "_onnxruntime", lambda opened, *_: CpuRun(opened))
    engine = opened(made, "coreml")
    assert "CPUExecutionProvider" in engine.encoder_provider
    windows = engine.encode_all([probe_mel(engine.dims, 62)] * 2)
    assert len(windows[0].hidden) == 100 and (windows[0].hidden == windows[1].hidden).all()


class CpuRun:
    def __init__(self, opened: Bundle) -> None:
        self._dims = opened.manifest.dims
        self._session = providers.Session(opened.path / "encoder_plain.onnx", providers.Canceller(), threads=1)

    def __call__(self, mel: np.ndarray) -> np.ndarray:
        assert mel.shape == (1, self._dims.n_mels, self._dims.n_frames)
        return providers.encoder_output(self._session, mel, self._dims.n_audio_state)


def test_a_missing_provider_is_named(made: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(UsageError, match="pip install openvino"):
        opened(made)
    if sys.platform != "darwin":
        with pytest.raises(UsageError, match="the installed package onnxruntime .* has no coreml"):
            opened(made, "coreml")
    with pytest.raises(UsageError, match=f"got 'tpu', expected one of {', '.join(ENCODER_PROVIDERS)}"):
        opened(made, "tpu")


def test_a_bundle_without_the_graph_says_how_to_get_it() -> None:
    with pytest.raises(BundleError, match="--encoder-plain"):
        opened(bundle("int8"))


def test_a_provider_that_leaves_nodes_to_the_cpu_is_an_error(made: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ONNX Runtime's wheel, the provider for Azure takes none."""
    monkeypatch.setattr(providers, "ENCODER_PROVIDERS", ("azure",))
    with pytest.raises(ProviderError, match=r"azure does not take the whole encoder \("):
        opened(made, "azure")


@pytest.mark.parametrize("off", [3.0, float("nan")])
def test_features_beyond_the_bound_are_refused_each_time(off: float, made: Bundle, fake: CpuBackend) -> None:
    fake.off = off
    for _ in range(2):
        with pytest.raises(ProviderError, match="does not compute this encoder: features are off by"):
            opened(made)


@pytest.mark.slow
@needs_openvino
def test_no_drafter_changes_a_text_behind_openvino(tmp_path: Path) -> None:
    demo = demo_with_plain(tmp_path / "demo")
    model = WhisperModel(demo.path, encoder_provider="openvino", cpu_threads=2)
    assert model.engine.encoder_provider.startswith("openvino 20")
    draft = DEMO  # the target as its own draft: it is given what the target's encoder found

    def said(drafter: str, context: str) -> list[object]:
        options = {"draft_model": draft} if drafter in ("draft", "auto") else {}
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
