"""Before the first draft of a model the machine is asked whether drafts leave the text as it is, and believed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge import WhisperModel
from specedge.errors import ExactnessError
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.cli.main import main
from specedge.runtime.decoding.drafter import EmptyDrafter, TargetModel
from specedge.runtime.device import threads_allowed
from specedge.runtime.drafters.ngram import NgramDrafter
from specedge.runtime.drafters.registry import make_drafter
from specedge.runtime.engine import exactness
from specedge.runtime.engine.engine import Engine, State
from specedge.runtime.engine.exactness import answer_path, probe_shortly, rows_are_exact
from specedge.runtime.options import DrafterOptions
from support.exported import PRECISIONS, bundle
from support.paths import DEMO, samples

SAMPLE = str(samples()[0])


class CoupledRows(Engine):
    """A machine that takes another kernel from 16 rows on, as Arm with SME does for long texts."""

    def forward(self, state: State, ids: Sequence[int], logit_rows: Sequence[int] | None = None) -> NDArray[np.float32]:
        logits = super().forward(state, ids, logit_rows)
        if len(ids) >= 16:
            logits[-1, 3] = np.nextafter(logits[-1, 3], np.float32(np.inf))
        return logits


class CoupledPaths(Engine):
    """A machine on which only passes over several paths differ."""

    def forward_paths(
        self, state: State, pending: int, paths: Sequence[Sequence[int]]
    ) -> list[list[NDArray[np.float32]]]:
        return [
            [np.nextafter(row, np.float32(9)) for row in rows] for rows in super().forward_paths(state, pending, paths)
        ]


class CoupledTexts(Engine):
    """A machine on which passes over several texts differ."""

    def _run_shared(self, texts: Any) -> Any:
        for rows in super()._run_shared(texts):
            yield rows + np.arange(rows.shape[1], dtype=np.float32) % 7


class CoupledWindows(CoupledTexts):
    """A machine on which they differ where the texts have windows of their own."""

    def _run_shared(self, texts: Any) -> Any:
        if len({id(state.features) for state, _, _ in texts}) > 1:
            return super()._run_shared(texts)
        return Engine._run_shared(self, texts)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECEDGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    """The engines that were probed."""
    seen: list[Engine] = []

    def note(engine: Engine) -> exactness.Invariance:
        seen.append(engine)
        return probe_shortly(engine)

    monkeypatch.setattr(exactness, "probe_shortly", note)
    return seen


def say_inexact(opened: Bundle, threads: int) -> None:
    """Have the machine say that the rows of this model are not exact."""
    assert rows_are_exact(Engine(opened, threads=threads), opened)
    path = answer_path(opened, threads)
    answer = json.loads(path.read_text(encoding="utf-8"))
    assert answer["exact"] is True
    path.write_text(json.dumps({**answer, "exact": False}), encoding="utf-8")


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process has asked is forgotten, as in a new one."""
    monkeypatch.setattr("specedge.runtime.engine.exactness._known", {})


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_sound_machine_is_found_sound(precision: str) -> None:
    found = probe_shortly(Engine(bundle(precision), threads=2))
    assert found.exact and found.windows_exact
    assert {(row.n_windows, row.n_paths) for row in found.results} == {(1, 1), (1, 3), (4, 1)}


@pytest.mark.parametrize("faulty", [CoupledRows, CoupledPaths, CoupledTexts])
def test_a_faulty_machine_is_found_out(faulty: type[Engine]) -> None:
    found = probe_shortly(faulty(bundle("int8"), threads=1))
    assert not found.exact and not found.windows_exact and found.max_difference > 0


def test_a_machine_that_is_faulty_for_several_windows_alone_may_draft() -> None:
    found = probe_shortly(CoupledWindows(bundle("int8"), threads=1))
    assert found.exact and not found.windows_exact


def test_another_number_of_threads_or_switch_is_another_machine(
    cache: Path, forgetful: None, probes: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = bundle("int8")
    assert rows_are_exact(Engine(opened, threads=1), opened)
    assert rows_are_exact(Engine(opened, threads=2), opened)
    monkeypatch.setenv("ORT_GQA_DISABLE_FLASH_ATTENTION", "0")
    assert rows_are_exact(Engine(opened, threads=1), opened)
    assert len(probes) == 3


@pytest.mark.parametrize("damage", ["", "{}", "[1]", '{"exact": "yes", "windows_exact": true}'])
def test_a_damaged_answer_is_asked_for_again(
    damage: str, cache: Path, forgetful: None, probes: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = bundle("int8")
    rows_are_exact(Engine(opened, threads=1), opened)
    answer_path(opened, 1).write_text(damage, encoding="utf-8")
    monkeypatch.setattr("specedge.runtime.engine.exactness._known", {})
    assert rows_are_exact(Engine(opened, threads=1), opened)
    assert len(probes) == 2


def test_a_cache_that_cannot_be_written_costs_only_time(
    tmp_path: Path, forgetful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECEDGE_CACHE", str(tmp_path / "file"))
    opened = bundle("int8")
    assert rows_are_exact(Engine(opened, threads=1), opened)


def test_nobody_asks_for_plain_decoding(cache: Path, forgetful: None, probes: list[Engine]) -> None:
    model = WhisperModel(str(DEMO), cpu_threads=1)
    segments, _ = model.transcribe(SAMPLE, drafter="none")
    assert list(segments) and not probes


def test_beams_share_passes_only_where_rows_are_exact(
    cache: Path, forgetful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = WhisperModel(bundle("int8").path, cpu_threads=1)
    say_inexact(model.bundle, 1)
    exactness._known.clear()
    monkeypatch.setattr(Engine, "_run_shared", lambda *_: pytest.fail("texts shared a pass"))
    segments, _ = model.transcribe(SAMPLE, language="en", beam_size=3, temperature=0.0, max_new_tokens=4)
    assert list(segments) and model.engine.is_exact is False


def test_beams_say_the_same_on_a_machine_whose_shared_passes_differ(cache: Path, forgetful: None) -> None:
    said = []
    for kind, shares in ((Engine, False), (CoupledTexts, True)):
        exactness._known.clear()
        model = WhisperModel(bundle("int8").path, cpu_threads=1)
        model._engine = kind(model.bundle, threads=1)
        model.engine.shares_passes = shares
        beams: dict[str, Any] = {"beam_size": 3, "temperature": 0.0, "max_new_tokens": 6}
        segments, _ = model.transcribe(SAMPLE, language="en", drafter="none", **beams)
        said.append([(segment.tokens, segment.avg_logprob) for segment in segments])
    assert not model.engine.is_exact
    assert said[0] == said[1] and said[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Engine, CoupledTexts, CoupledWindows])
def test_callers_get_their_text_whatever_the_machine_does_with_shared_passes(
    kind: type[Engine], cache: Path, forgetful: None
) -> None:
    model = WhisperModel(bundle("int8").path, cpu_threads=1)
    model._engine = kind(model.bundle, threads=1)
    shared: list[int] = []
    run_shared = model.engine._run_shared
    sounds = [np.random.default_rng(i).normal(0, 0.1, 16_000 * (2 + i)).astype(np.float32) for i in range(4)]

    def texts_of(sound: Any) -> list[tuple[list[int], float]]:
        options: dict[str, Any] = {"temperature": 0.0, "no_speech_threshold": None}
        segments, _ = model.transcribe(sound, language="en", drafter="none", **options)
        return [(segment.tokens, segment.avg_logprob) for segment in segments]

    def note(texts: Any) -> Any:
        if model.engine.lock._owner is not None and model.engine.lock._in_flight:  # callers, not the probe
            shared.append(len(texts))
        return run_shared(texts)

    alone = [texts_of(sound) for sound in sounds]
    assert model.engine.is_exact is None, "nobody asks for plain decoding by one caller"
    model.engine._run_shared = note  # type: ignore[method-assign]
    for _ in range(5):
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(texts_of, sounds)) == alone
        if shared or kind is not Engine:
            break
    assert bool(shared) == (kind is Engine)


def test_no_drafter_drafts_unasked(cache: Path, forgetful: None, caplog: pytest.LogCaptureFixture) -> None:
    opened = bundle("int8")
    say_inexact(opened, 1)
    exactness._known.clear()
    target = TargetModel(opened, threads=1, engine=Engine(opened, threads=1))
    assert isinstance(make_drafter("auto", target), EmptyDrafter)
    assert [record.getMessage().count("drafting is off") for record in caplog.records] == [1]
    for drafter in ("ngram", NgramDrafter.__new__(NgramDrafter)):
        with pytest.raises(ExactnessError, match="drafts could change the text.*--allow-inexact"):
            make_drafter(drafter, target)
    assert isinstance(make_drafter("none", target), EmptyDrafter)


@pytest.mark.slow
def test_the_command_says_so_in_a_line(
    cache: Path, forgetful: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    say_inexact(Bundle.open(DEMO), threads_allowed())
    said = []
    for arguments, code in (
        (["--drafter", "tokenmap"], 4),
        (["--drafter", "auto", "-f", "json"], 0),
        (["--drafter", "tokenmap", "--allow-inexact", "-f", "json"], 0),
        (["--drafter", "none", "-f", "json"], 0),
    ):
        monkeypatch.setattr("specedge.runtime.engine.exactness._known", {})
        assert main(["transcribe", SAMPLE, "-m", str(DEMO), *arguments]) == code
        said.append(capsys.readouterr())
    refused, auto, allowed, plain = said
    assert refused.err.count("\n") == 1 and "--allow-inexact" in refused.err and not refused.out
    assert auto.err.count("\n") == 1 and "drafting is off" in auto.err
    assert json.loads(auto.out)["speculation"]["lossless"] is False
    assert allowed.err == "" and json.loads(allowed.out)["speculation"]["lossless"] is False
    assert json.loads(allowed.out)["speculation"]["proposed"] > 0
    assert json.loads(auto.out)["text"] == json.loads(plain.out)["text"]


@pytest.mark.slow
def test_inexact_is_allowed_beside_options_too(cache: Path, forgetful: None) -> None:
    model = WhisperModel(bundle("int8").path, cpu_threads=1)
    say_inexact(model.bundle, 1)
    exactness._known.clear()
    asked = DrafterOptions("ngram")
    with pytest.raises(ExactnessError):
        model.transcribe(SAMPLE, language="en", drafter=asked)
    segments, info = model.transcribe(SAMPLE, language="en", drafter=asked, allow_inexact=True)
    list(segments)
    assert info.speculation["drafter"] == "ngram"
