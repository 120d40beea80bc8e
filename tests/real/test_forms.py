"""Published models in every form that people have them in: the same bundle, the same text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import specedge
from specedge.errors import CheckpointError
from specedge.export.checkpoint import open_checkpoint
from specedge.export.export import export_to
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.text.tokenizer import Tokenizer
from support.paths import shared
from support.real_forms import FORMS, SAME_WEIGHTS, SUFFIXES, write_hugging_face

pytestmark = pytest.mark.slow

FILES = ("encoder.onnx", "encoder.data", "cross_kv.data", "decoder.onnx", "decoder.data", "tokenizer.bin")
WORDS = "and so my fellow americans ask not what your country can do for you ask what you can do for your country"
FORMS_OF_BASE = ("hf-half", "hf-sharded", "hf-padded", "ct2-int8")


@pytest.fixture(scope="module")
def bundles(real_models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """Of the folders as they are."""
    out = tmp_path_factory.mktemp("bundles")
    return {name: export_to(str(real_models / name), out / name) for name in ("tiny.en", "base", "base-b")}


def heard(bundle: Bundle) -> str:
    recording = shared("audio", "jfk.flac")
    segments, _ = specedge.WhisperModel(str(bundle.path), cpu_threads=2).transcribe(str(recording), language="en")
    said = "".join(segment.text for segment in segments).lower()
    return " ".join("".join(each if each.isalpha() else " " for each in said).split())


@pytest.mark.parametrize("name", ["tiny.en", "base", "base-b"])
def test_the_folders_as_they_are(name: str, bundles: dict[str, Bundle]) -> None:
    assert heard(bundles[name]) == WORDS


def test_both_conversions_of_base_are_one_model(bundles: dict[str, Bundle]) -> None:
    ours, theirs = bundles["base"].manifest, bundles["base-b"].manifest
    assert ours.files == theirs.files and ours.vocabulary_sha256 == theirs.vocabulary_sha256


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_tiny_en(form: str, real_models: Path, bundles: dict[str, Bundle], tmp_path: Path) -> None:
    _check(form, real_models / "tiny.en", bundles["tiny.en"], tmp_path)


@pytest.mark.parametrize("form", FORMS_OF_BASE)
@pytest.mark.parametrize("name", ["base", "base-b"])
def test_forms_of_base(name: str, form: str, real_models: Path, bundles: dict[str, Bundle], tmp_path: Path) -> None:
    _check(form, real_models / name, bundles[name], tmp_path)


def _check(form: str, source: Path, whole: Bundle, folder: Path) -> None:
    """A form gives the same text, and the same files where its weights are the same floats."""
    made = folder / f"form{SUFFIXES.get(form, '')}"
    FORMS[form](source, made)
    bundle = export_to(str(made), folder / "bundle")
    assert heard(bundle) == WORDS
    assert bundle.manifest.vocabulary_sha256 == whole.manifest.vocabulary_sha256
    if form in SAME_WEIGHTS:
        assert {name: bundle.manifest.files[name] for name in FILES} == {
            name: whole.manifest.files[name] for name in FILES
        }


def without_tokenizer(source: Path, out: Path) -> Path:
    """A copy of a folder of CTranslate2's with the list of tokens as its only vocabulary."""
    return Path(shutil.copytree(source, out, ignore=shutil.ignore_patterns("tokenizer.json")))


@pytest.mark.parametrize("name", ["tiny.en", "base", "base-b"])
def test_the_list_of_tokens_alone(name: str, real_models: Path, bundles: dict[str, Bundle], tmp_path: Path) -> None:
    with open_checkpoint(without_tokenizer(real_models / name, tmp_path / "copy")) as opened:
        ranks, special = opened.vocabulary()
    assert tuple(ranks) == bundles[name].tokenizer.ranks and special == bundles[name].manifest.tokens


def test_a_fine_tune_with_tokens_of_its_own(real_models: Path, tmp_path: Path) -> None:
    folder = write_hugging_face(real_models / "base-b", tmp_path / "hf", n_rows=51868)

    def add(data: dict[str, Any]) -> None:
        more = {51865: ("<|mine|>", True), 51866: ("Grüße", False), 51867: ("[noise]", False)}
        data["added_tokens"] += [
            {"id": id_, "content": content, "special": special} for id_, (content, special) in more.items()
        ]

    _edit(folder / "tokenizer.json", add)
    bundle = export_to(str(folder), tmp_path / "bundle")
    assert heard(bundle) == WORDS and bundle.tokenizer.decode([51865, 51866, 51867]) == "Grüße[noise]"


def _edit(path: Path, change: Any) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


@pytest.mark.parametrize(
    ("weights", "tokenizer", "message"),
    [
        ("base", "tiny.en", "those of a Whisper of 51864 tokens, its weights have 51865 rows; put the model's own"),
        ("tiny.en", "base", "those of a Whisper of 51865 tokens, its weights have 51864 rows; put the model's own"),
        ("tiny.en", "base-b", "those of a Whisper of 51865 tokens, its weights have 51864 rows; put the model's own"),
    ],
)
def test_the_vocabulary_of_another_model(
    weights: str, tokenizer: str, message: str, real_models: Path, tmp_path: Path
) -> None:
    copy = without_tokenizer(real_models / weights, tmp_path / "copy")
    shutil.copyfile(real_models / tokenizer / "tokenizer.json", copy / "tokenizer.json")
    _is_refused(copy, message)


def test_a_tokenizer_that_ends_in_the_middle(real_models: Path, tmp_path: Path) -> None:
    copy = without_tokenizer(real_models / "tiny.en", tmp_path / "copy")
    whole = (real_models / "tiny.en" / "tokenizer.json").read_bytes()
    for n_bytes in (0, 100, len(whole) // 2, len(whole) - 2):
        (copy / "tokenizer.json").write_bytes(whole[:n_bytes])
        _is_refused(copy, "tokenizer.json: is not valid JSON")


def _is_refused(folder: Path, message: str) -> None:
    with pytest.raises(CheckpointError) as caught, open_checkpoint(folder) as opened:
        opened.vocabulary()
    said = str(caught.value)
    assert message in said and said.startswith(str(folder)) and "\n" not in said


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # theirs
@pytest.mark.parametrize("name", ["tiny.en", "base", "base-b"])
def test_prompts_get_openai_whisper_s_ids(name: str, real_models: Path) -> None:
    tokenizer: Any = pytest.importorskip("whisper.tokenizer")
    theirs = tokenizer.get_tokenizer(not name.endswith(".en"))
    with open_checkpoint(real_models / name) as opened:
        ours = Tokenizer(*opened.vocabulary())
    for text in (" the theatre, that there", "Grüße, 世界! don't 1,234.56", " ♪ la la ♪"):
        assert ours.encode(text) == theirs.encode(text)
