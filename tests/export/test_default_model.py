"""The model of a run that names none: the variable, then the best one installed, then one that is fetched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specedge.errors import CheckpointError, ModelNotFoundError, UsageError
from specedge.export import default_model as module
from specedge.export.default_model import default_model, installed_default
from specedge.models import store
from specedge.runtime.bundle.manifest import Source
from support.bundles import DIMS, TOKENS, write_bundle

ENGLISH = replace(TOKENS, languages={})
MANY = replace(TOKENS, languages={"en": 258, "de": 259, "fr": 266}, timestamp_begin=267, n_timestamps=50)


@pytest.fixture(autouse=True)
def _no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SPECEDGE_MODEL")


def install(name: str, *, layers: int = 2, tokens: Any = MANY, source: str = "x", precision: str = "int8") -> Path:
    return write_bundle(
        store.folder() / name,
        name=name,
        dims=replace(DIMS, n_audio_layer=layers),
        tokens=tokens,
        precision=precision,
        source=Source(kind="hub", id=source, revision="1"),
    )


@pytest.fixture
def pulls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were fetched; what cannot be is in `refused` of the module."""
    names: list[str] = []

    def pull_model(name: str) -> tuple[Path, bool]:
        names.append(name)
        if name in REFUSED:
            raise CheckpointError(f"cannot reach the hub to fetch {name}")
        return install(name), True

    REFUSED.clear()
    monkeypatch.setattr(module, "pull_model", pull_model)
    return names


REFUSED: set[str] = set()


def test_the_variable_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pulls: list[str]) -> None:
    install("large", layers=4)
    small = install("small", layers=1)
    monkeypatch.setenv("SPECEDGE_MODEL", "small")
    assert default_model() == small
    monkeypatch.setenv("SPECEDGE_MODEL", str(small))
    assert default_model("de") == small
    monkeypatch.setenv("SPECEDGE_MODEL", "nonesuch")
    with pytest.raises(ModelNotFoundError, match="SPECEDGE_MODEL: no model 'nonesuch'"):
        default_model()
    assert not pulls


def test_the_largest_that_knows_the_language(pulls: list[str]) -> None:
    english = install("big.en", layers=4, tokens=ENGLISH)
    small, many = install("small", layers=1), install("many", layers=2)
    assert default_model() == many  # the language is to be detected
    assert default_model("en") == default_model("English") == english
    assert default_model("de") == many and default_model(task="translate") == many
    assert default_model("en", "translate") == many
    assert small.is_dir() and not pulls


def test_among_equals_the_english_one_and_int8(pulls: list[str]) -> None:
    install("a", precision="fp32")
    both = install("b")
    install("c", precision="int4")
    assert default_model() == both
    english = install("d.en", tokens=ENGLISH)
    assert default_model("en") == english and default_model("fr") == both


def test_a_model_of_one_language_is_asked_for_no_other(pulls: list[str]) -> None:
    """Distil-Whisper's vocabulary has a hundred languages, and the model knows one."""
    install("distil-large-v3", layers=4, source="distil-whisper/distil-large-v3")
    small = install("small", layers=1)
    assert default_model("de") == small and default_model() == small
    assert default_model("en").name == "distil-large-v3"


def test_memory_decides_and_the_smallest_runs_anyhow(monkeypatch: pytest.MonkeyPatch, pulls: list[str]) -> None:
    large, small = install("large", layers=4), install("small", layers=1)
    (large / "decoder.data").write_bytes(bytes(1_000_000))
    size = store.size_bytes(large)
    monkeypatch.setattr(module, "total_memory_bytes", lambda: 2 * (module._BASE_BYTES + size))
    assert default_model() == large
    monkeypatch.setattr(module, "total_memory_bytes", lambda: 2 * (module._BASE_BYTES + size) - 1)
    assert default_model() == small
    monkeypatch.setattr(module, "total_memory_bytes", lambda: 1)
    assert default_model() == small and not pulls


def test_a_broken_bundle_is_passed_over(pulls: list[str]) -> None:
    good = install("good", layers=1)
    broken = install("broken", layers=4)
    (broken / "specedge.json").write_bytes(b"{}")
    assert default_model() == good and not pulls


@pytest.mark.parametrize(
    ("language", "task", "expected"),
    [
        (None, "transcribe", "whisper-tiny"),
        ("en", "transcribe", "whisper-tiny.en"),
        ("de", "transcribe", "whisper-tiny"),
    ]
    + [("en", "translate", "whisper-tiny")],
)
def test_tiny_is_fetched_once(
    language: str | None, task: str, expected: str, pulls: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert default_model(language, task, quiet=True).name == expected
    assert f"{expected} is installed now" in capsys.readouterr().err
    assert installed_default() is not None and default_model().name == expected
    assert pulls == [expected]


def test_the_next_larger_where_tiny_cannot_be_had(pulls: list[str]) -> None:
    REFUSED.add("whisper-tiny")
    assert default_model().name == "whisper-base"
    assert pulls == ["whisper-tiny", "whisper-base"]


def test_one_line_where_none_can_be_fetched(pulls: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    REFUSED.update(("whisper-tiny", "whisper-base"))
    with pytest.raises(ModelNotFoundError) as raised:
        default_model()
    line = str(raised.value)
    for part in ("cannot reach the hub to fetch whisper-tiny", "models pull tiny", "export FOLDER", "pull FOLDER"):
        assert part in line
    assert raised.value.exit_code == 4 and not capsys.readouterr().err


def test_nothing_is_fetched_that_is_not_wanted(pulls: list[str]) -> None:
    with pytest.raises(ModelNotFoundError, match="no model is installed: get one with `specedge models pull tiny`"):
        default_model(download=False)
    with pytest.raises(ModelNotFoundError, match="no model that knows de is installed"):
        default_model("German", download=False)
    with pytest.raises(UsageError, match="unknown language"):
        default_model("klingon")
    assert not pulls
