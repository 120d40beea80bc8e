"""From a draft's name to its drafter: what is refused in one line, and what goes on without drafts."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specedge.errors import BundleError, ModelError, ResourceError, UsageError
from specedge.runtime import device
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.bundle.manifest import check_fit
from specedge.runtime.cli.main import main
from specedge.runtime.decoding.drafter import EmptyDrafter, TargetModel
from specedge.runtime.drafters.draft import load
from specedge.runtime.drafters.registry import make_drafter
from specedge.runtime.model import WhisperModel
from specedge.runtime.options import DrafterOptions
from specedge.runtime.text.special import SpecialTokens
from support.drafts import compared, opened
from support.exported import bundle, checkpoint
from support.noise import noise
from support.sound import wav_bytes


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store and profiles of nobody."""
    monkeypatch.setenv("SPECEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("specedge.runtime.device.cache_home", lambda: tmp_path / "cache")
    return tmp_path / "home"


def asked(draft: Any, **more: Any) -> DrafterOptions:
    return DrafterOptions("draft", **{"draft_model": draft, **more})


def refused(target: Bundle, options: DrafterOptions) -> str:
    with pytest.raises((UsageError, ModelError)) as caught:
        make_drafter(options, TargetModel(target, threads=1))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_draft_that_is_larger_than_its_target() -> None:
    said = refused(bundle("int8", "draft"), asked(bundle().path))
    assert "is larger than that of" in said and "swap the two" in said


def test_a_draft_with_shorter_windows() -> None:
    said = refused(bundle(), asked(bundle("int8", "odd lengths").path))
    assert "hears windows of 1.5 s, expected 2 s or more" in said


def with_languages(target: Any, *codes: str) -> Any:
    tokens: SpecialTokens = target.tokens
    ids = sorted(tokens.languages.values())[: len(codes)]
    return replace(target, tokens=replace(tokens, languages=dict(zip(codes, ids, strict=True))))


def test_a_draft_of_other_languages() -> None:
    target = bundle().manifest
    with pytest.raises(UsageError, match=r"knows other languages than micro \(fr but not"):
        check_fit(with_languages(target, "en", "fr"), target)
    for codes in (("en",), ("en", "de"), (*target.tokens.languages,)):
        check_fit(with_languages(target, *codes), target)
    check_fit(target, with_languages(target, "en"))
    check_fit(bundle("int8", "draft en").manifest, target)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lookahead": "far"}, "lookahead: got 'far', expected cost, rule, adaptive, joint or a number"),
        ({"lookahead": "0"}, "lookahead: got '0'"),
        ({"translation": "sounds"}, "translation: got 'sounds', expected words, tokens or direct"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_drafter(asked(bundle("int8", "draft").path, **options), TargetModel(bundle(), threads=1))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_draft_that_is_not_there_or_broken(tmp_path: Path) -> None:
    assert "nowhere" in refused(bundle(), asked("nowhere"))
    with pytest.raises(BundleError):
        make_drafter(asked(tmp_path), TargetModel(bundle(), threads=1))


def test_too_little_memory_is_one_warning_and_no_drafter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:       100 kB\n")
    monkeypatch.setattr(device, "MEMORY_INFO", meminfo)
    with caplog.at_level(logging.WARNING):
        made = make_drafter(asked(bundle("int8", "draft").path), TargetModel(bundle(), threads=1))
    assert isinstance(made, EmptyDrafter)
    assert [record.message for record in caplog.records if "decoding goes on without drafts" in record.message]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("error", [ResourceError("not enough memory to load this graph"), MemoryError()])
def test_memory_that_runs_out_while_loading(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any, **named: Any) -> Any:
        raise error

    monkeypatch.setattr(load, "load_draft", fail)
    with caplog.at_level(logging.WARNING):
        assert isinstance(
            make_drafter(asked(bundle("int8", "draft").path), TargetModel(bundle(), threads=1)), EmptyDrafter
        )
    assert len(caplog.records) == 1


@pytest.mark.parametrize("translation", ["tokens", "direct"])
def test_the_other_translations_change_no_text_either(translation: str) -> None:
    drafter = opened(bundle(), bundle("int8", "draft en"), translation=translation)
    for _ in range(2):
        compared("plain", "prompt, no timestamps", drafter)


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that brings a draft along, made by the command."""
    out = tmp_path_factory.mktemp("nested") / "bundle"
    draft = bundle("int8", "draft same").path
    assert main(["export", str(checkpoint()), "-o", str(out), "--name", "micro", "--draft", str(draft)]) == 0
    return out


def test_a_bundle_brings_its_draft_along(nested: Path) -> None:
    target = Bundle.open(nested)
    assert "draft/specedge.json" in target.manifest.files
    made = make_drafter(DrafterOptions("draft", lookahead="3"), TargetModel(target, threads=1))
    assert made.name == "draft" and not made.listens  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_bundle_s_own_draft_changes_no_text(nested: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(wav_bytes(noise(30_000, rms=0.05, color="pink", seed=2)))
    texts = []
    for more in ([], ["--drafter", "draft"], ["--draft-model", str(bundle("int8", "draft en").path), "--stats"]):
        capsys.readouterr()
        command = ["transcribe", str(path), "-m", str(nested), "-l", "en", "-t", "1", "--lookahead", "3", "-f", "json"]
        assert main([*command, *more]) == 0
        printed = capsys.readouterr()
        texts.append(printed.out.split('"speculation"')[0])
    assert texts[0] == texts[1] == texts[2]
    assert "draft" in printed.err


def test_a_lookahead_may_be_a_number_or_its_name(nested: Path) -> None:
    target = TargetModel(Bundle.open(nested), threads=1)
    for given in (3, "3"):
        made = make_drafter(DrafterOptions("draft", lookahead=given), target)
        assert made.name == "draft"
        made.close()
    with pytest.raises(UsageError, match="lookahead: got True, expected a policy such as 'cost', or a number"):
        DrafterOptions("draft", lookahead=True)


def test_a_changed_file_of_the_draft_is_found_by_the_target(nested: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(nested, copy)
    data = bytearray((copy / "draft" / "decoder.data").read_bytes())
    data[100] ^= 1
    (copy / "draft" / "decoder.data").write_bytes(bytes(data))
    with pytest.raises(BundleError, match="the file was changed"):
        Bundle.open(copy)


def test_a_draft_in_a_draft_and_one_that_does_not_fit_are_not_brought_along(
    nested: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for draft, said in ((nested, "brings a draft of its own"), (bundle("int8", "deep text").path, "is larger than")):
        out = tmp_path / "out"
        assert main(["export", str(checkpoint()), "-o", str(out), "--draft", str(draft)]) == 2
        assert said in capsys.readouterr().err and not out.exists()


@pytest.mark.slow
def test_programs_ask_for_a_draft_by_its_model() -> None:
    model = WhisperModel(bundle().path, cpu_threads=1)
    sound = noise(30_000, rms=0.05, color="pink", seed=2)
    plain = list(model.transcribe(sound, language="en")[0])
    segments, info = model.transcribe(sound, language="en", draft_model=bundle("int8", "draft").path)
    assert list(segments) == plain and info.speculation["drafter"] == "draft"
    kept = model.draft
    assert kept is not None
    segments, _ = model.transcribe(sound, language="en", draft_model=bundle("int8", "draft").path)
    assert list(segments) == plain and model.draft is kept
    plain = list(model.transcribe(sound, language="en", beam_size=2)[0])
    segments, info = model.transcribe(sound, language="en", draft_model=bundle("int8", "draft").path, beam_size=2)
    assert list(segments) == plain and info.speculation["drafter"] == "draft"
    with pytest.raises(UsageError, match="ngram has no model of its own"):
        model.transcribe(sound, drafter="ngram", draft_model=bundle("int8", "draft").path)
