"""Which bundle a program's model name, precision and revision stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

from specedge.errors import ModelError, UsageError
from specedge.runtime.bundle.bundle import choose_bundle
from support.bundles import write_bundle


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "home" / "models"
    write_bundle(folder / "whisper-small")
    write_bundle(folder / "whisper-small-fp32", precision="fp32")
    return folder


@pytest.mark.parametrize("name", ["small", "whisper-small", "openai/whisper-small"])
@pytest.mark.parametrize("compute_type", ["default", "auto", "int8", "int8_float32"])
def test_a_name_is_looked_up_in_the_store(home: Path, name: str, compute_type: str) -> None:
    assert choose_bundle(name, compute_type=compute_type) == home / "whisper-small"


def test_another_precision_is_looked_for_under_its_name(home: Path) -> None:
    assert choose_bundle("small", compute_type="float32") == home / "whisper-small-fp32"
    with pytest.raises(UsageError, match="'int4': the weights of small are int8.*--precision int4"):
        choose_bundle("small", compute_type="int4")
    with pytest.raises(UsageError, match="the weights of small-fp32 are fp32"):
        choose_bundle("small-fp32", compute_type="int8")


def test_a_folder_of_one_s_own_comes_first(home: Path, tmp_path: Path) -> None:
    write_bundle(tmp_path / "mine" / "small", precision="fp32")
    assert choose_bundle("small", root=tmp_path / "mine") == tmp_path / "mine" / "small"
    assert choose_bundle("small-fp32", root=tmp_path / "mine") == home / "whisper-small-fp32"
    assert choose_bundle(tmp_path / "mine" / "small") == tmp_path / "mine" / "small"


@pytest.mark.parametrize("compute_type", ["float16", "bfloat16", "int8_float16", "int16", ""])
def test_what_a_cpu_does_not_compute_in(compute_type: str) -> None:
    with pytest.raises(UsageError, match="expected default, auto, int8"):
        choose_bundle("small", compute_type=compute_type)


def test_a_revision_must_be_the_bundle_s(home: Path) -> None:
    from specedge.runtime.bundle.bundle import read_manifest

    revision = read_manifest(home / "whisper-small")[0].source.revision
    if revision is not None:
        assert choose_bundle("small", revision=revision) == home / "whisper-small"
    with pytest.raises(UsageError, match="revision"):
        choose_bundle("small", revision="0" * 40)


def test_a_missing_model(home: Path) -> None:
    with pytest.raises(ModelError, match="models pull whisper-tiny"):
        choose_bundle("tiny", compute_type="float32")
