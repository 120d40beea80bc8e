"""Byte tables from every kind of tokenizer file, and what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unicodedata import category

import pytest

from specedge.errors import CheckpointError
from specedge.export.vocabulary import built_in_table, read_vocabulary, standard_layout
from specedge.runtime.text.tokenizer import Tokenizer
from support.checkpoints import SIZES, Layout, generation_config
from support.vocab import GPT2_PATTERN, HF_FILES, mixed_text, spell, table, toy_ranks, write_hf_tokenizer

MICRO = Layout.of(1000, 100, False)
CLASSIC = ("vocab.json", "merges.txt", "added_tokens.json")


@pytest.mark.parametrize("files", [HF_FILES, HF_FILES[:1], CLASSIC, (*CLASSIC[:2], "tokenizer_config.json")])
@pytest.mark.parametrize("n_vocab", [51865, *(pytest.param(n, marks=pytest.mark.slow) for n in (51864, 51866))])
def test_hugging_face_files_give_the_rank_tables(files: tuple[str, ...], n_vocab: int, tmp_path: Path) -> None:
    layout = Layout.of(n_vocab, 1500, n_vocab == 51864)
    write_hf_tokenizer(tmp_path, layout, files=files, timestamps=files != CLASSIC, pairs_as_text=files == HF_FILES)
    ranks, special = read_vocabulary(tmp_path, {}, {}, n_vocab)
    assert special == standard_layout(n_vocab)
    assert tuple(ranks) == table("gpt2" if layout.en else "multilingual")


@pytest.mark.parametrize("n_vocab", [51864, 51865, 51866])
def test_without_files_the_built_in_table_is_taken(n_vocab: int, tmp_path: Path) -> None:
    expected = table("gpt2" if n_vocab == 51864 else "multilingual")
    for folder in (None, tmp_path):
        ranks, special = read_vocabulary(folder, {}, {}, n_vocab)
        assert tuple(ranks) == expected and special == standard_layout(n_vocab)
        Tokenizer(ranks, special)


def test_the_empty_token_may_be_left_out(tmp_path: Path) -> None:
    write_hf_tokenizer(tmp_path, Layout.of(51865, 1500, False), files=CLASSIC)
    vocab = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    del vocab[""]
    (tmp_path / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    assert tuple(read_vocabulary(tmp_path, {}, {}, 51865)[0]) == table("multilingual")


@pytest.mark.parametrize("files", [("tokenizer.json",), CLASSIC])
def test_what_a_fine_tune_added_is_kept(files: tuple[str, ...], tmp_path: Path) -> None:
    write_hf_tokenizer(tmp_path, MICRO, files=files, extra={"Grüße": 1000, "<|mine|>": 1001, "[x]": 1002})
    ranks, special = read_vocabulary(tmp_path, {}, {}, 1010)
    assert (special.timestamp_end, special.n_vocab, len(ranks)) == (1000, 1010, 1003)
    tokenizer = Tokenizer(ranks, special)
    assert tokenizer.decode([1000, 1001, 1002, 1009, 900]) == "Grüße[x]"
    ranks, _ = read_vocabulary(tmp_path, {}, {}, 1002)  # the tokenizer was extended and the weights were not
    assert len(ranks) == 1001 and ranks[1000] == "Grüße".encode()


def _vocab(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "vocab.json"
        data = json.loads(path.read_text(encoding="utf-8"))
        change(data)
        path.write_text(json.dumps(data), encoding="utf-8")

    return apply


def _write(name: str, content: str | bytes) -> Callable[[Path], None]:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data) and None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_vocab(lambda vocab: vocab.pop(spell(b"a"))), "no token has id"),
        (_vocab(lambda vocab: vocab.update(a=500)), "has id 500, expected one of its own"),
        (_vocab(lambda vocab: vocab.update(a=-1)), "id -1"),
        (_vocab(lambda vocab: vocab.update(a="1")), "id '1'"),
        (_vocab(lambda vocab: vocab.update(abcdef=890)), "has id 890, expected one of its own"),
        (_vocab(lambda vocab: vocab.update(abcdef=950)), "has id 950, expected one of its own"),
        (_vocab(lambda vocab: vocab.update(abcdef=2000)), "has id 2000, expected"),
        (_vocab(lambda vocab: vocab.update({"日": vocab.pop("a")})), "stands for no byte"),
        (_vocab(lambda vocab: vocab.update({"<|startoftranscript|>": 889})), "two ids"),
        (_write("vocab.json", "[]"), "expected a JSON object"),
        (_write("vocab.json", "{"), "not valid JSON"),
        (_write("vocab.json", b"\xff\xfe"), "cannot be read"),
        (_write("added_tokens.json", '{"<|sot|>": "x"}'), "added token"),
    ],
)
def test_damaged_files_are_refused(damage: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    write_hf_tokenizer(tmp_path, MICRO, files=CLASSIC, timestamps=False)
    damage(tmp_path)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_vocabulary(tmp_path, {}, {}, 1000)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("merges", [None, "", "#version: 0.2\n", "#version: 0.2\nt h\nt h\n", "a b c"])
def test_merges_beside_vocab_json_do_not_matter(merges: str | None, tmp_path: Path) -> None:
    write_hf_tokenizer(tmp_path, MICRO, files=("vocab.json", "added_tokens.json"))
    if merges is not None:
        (tmp_path / "merges.txt").write_text(merges, encoding="utf-8")
    _gives_what_tiktoken_gives(tmp_path)


def _gives_what_tiktoken_gives(folder: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    ranks = toy_ranks(887)
    read, special = read_vocabulary(folder, {}, {}, 1000)
    assert read == ranks
    ours, id_of = Tokenizer(read, special), {token: id_ for id_, token in enumerate(ranks)}
    theirs = tiktoken.Encoding("toy", pat_str=GPT2_PATTERN, mergeable_ranks=id_of, special_tokens={})
    for text in (" the theatre, that there", mixed_text(random.Random(5), 60)):
        assert ours.encode(text) == theirs.encode_ordinary(text)


def _as_ctranslate2(folder: Path, tokens: list[str], name: str) -> None:
    """A folder of CTranslate2's without tokenizer.json."""
    folder.mkdir(exist_ok=True)
    (folder / "model.bin").touch()
    text = json.dumps(tokens) if name.endswith(".json") else "\n".join(tokens) + "\n"
    (folder / name).write_text(text, encoding="utf-8", newline="")


def _all_tokens(layout: Layout) -> list[str]:
    """What CTranslate2's converter lists."""
    ranks = table("gpt2" if layout.en else "multilingual")[: layout.n_text]
    return [*map(spell, ranks), *layout.specials, *layout.timestamps]


@pytest.mark.parametrize("name", ["vocabulary.txt", "vocabulary.json"])
@pytest.mark.parametrize("n_vocab", [51864, 51865, 51866])
def test_ctranslate2_s_list_alone(n_vocab: int, name: str, tmp_path: Path) -> None:
    layout = Layout.of(n_vocab, 1500, n_vocab == 51864)
    _as_ctranslate2(tmp_path, _all_tokens(layout), name)
    ranks, special = read_vocabulary(tmp_path, {}, {}, n_vocab)
    assert special == standard_layout(n_vocab) and tuple(ranks) == table("gpt2" if layout.en else "multilingual")
    if name.endswith(".txt"):  # as a checkout for Windows leaves it
        path = tmp_path / name
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
        assert read_vocabulary(tmp_path, {}, {}, n_vocab) == (ranks, special)


def test_ctranslate2_s_list_of_a_fine_tune(tmp_path: Path) -> None:
    """Of a size of its own, with tokens that it added, and padded, for which the converter names timestamps again."""
    tokens = [*_all_tokens(MICRO), "Grüße", "<|mine|>", "<|0.00|>", "<|0.02|>"]
    _as_ctranslate2(tmp_path, tokens, "vocabulary.json")
    ranks, special = read_vocabulary(tmp_path, {}, {}, 1004)
    assert (special.timestamp_begin, special.timestamp_end, len(ranks)) == (899, 1000, 1001)
    assert ranks[:887] == toy_ranks(887) and ranks[1000] == "Grüße".encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('["a", "b"]', "expected a list of tokens with <|endoftext|>; put the model's own tokenizer.json"),
        ('["a', "not valid JSON"),
        ('["a", "<|endoftext|>"]', "do not say which token is sot"),
    ],
)
def test_lists_that_are_none_are_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    (tmp_path / "vocabulary.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError) as caught:
        read_vocabulary(tmp_path, {}, {}, 51865)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("timestamps", [True, False])
@pytest.mark.parametrize(("files", "weights"), [(51864, 51865), (51865, 51864), (51865, 51866), (51866, 51865)])
def test_the_tokenizer_of_another_published_model_is_refused(
    files: int, weights: int, timestamps: bool, tmp_path: Path
) -> None:
    write_hf_tokenizer(tmp_path, Layout.of(files, 1500, files == 51864), files=CLASSIC[::2], timestamps=timestamps)
    with pytest.raises(CheckpointError, match=f"of a Whisper of {files} tokens, its weights have {weights} rows; put"):
        read_vocabulary(tmp_path, {}, {}, weights)


@pytest.mark.parametrize("n_rows", [51872, 51904, 51968, 52224])
@pytest.mark.parametrize("n_vocab", [51864, 51865, 51866])
def test_a_vocabulary_padded_to_a_multiple(n_vocab: int, n_rows: int, tmp_path: Path) -> None:
    layout = Layout.of(n_vocab, 1500, n_vocab == 51864)
    write_hf_tokenizer(tmp_path, layout, files=CLASSIC[::2], timestamps=False)
    expected = tuple(table("gpt2" if layout.en else "multilingual"))
    ranks, special = read_vocabulary(tmp_path, {}, {}, n_rows)
    assert special == replace(standard_layout(n_vocab), n_vocab=n_rows) and tuple(ranks) == expected
    _as_ctranslate2(
        tmp_path / "ct2", [*_all_tokens(layout), *list(layout.timestamps)[: n_rows - n_vocab]], "vocabulary.txt"
    )
    assert read_vocabulary(tmp_path / "ct2", {}, {}, n_rows) == (ranks, special)


def test_a_padded_vocabulary_without_a_tokenizer(tmp_path: Path) -> None:
    generation = generation_config(SIZES["base"], Layout.of(51865, 1500, False))
    ranks, special = read_vocabulary(None, {}, generation, 51968)
    assert special == replace(standard_layout(51865), n_vocab=51968) and tuple(ranks) == table("multilingual")
    write_hf_tokenizer(tmp_path, MICRO, files=("added_tokens.json",))
    with pytest.raises(CheckpointError, match="no tokenizer files, and its text ends at token 887"):
        read_vocabulary(tmp_path, {}, generation_config(SIZES["micro"], MICRO), 1000)


def test_one_token_more_than_a_published_model_has(tmp_path: Path) -> None:
    """A fine-tune of v2 with a token of its own has as many rows as v3."""
    write_hf_tokenizer(tmp_path, Layout.of(51865, 1500, False), files=CLASSIC[::2], extra={"<|mine|>": 51865})
    special = read_vocabulary(tmp_path, {}, {}, 51866)[1]
    assert special == replace(standard_layout(51865), n_vocab=51866)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"type": "Unigram", "vocab": []}}, "no byte-pair tokenizer"),
        ({"pre_tokenizer": {"type": "Whitespace"}, "decoder": None}, "does not spell bytes as GPT-2"),
        ({"added_tokens": ["x"]}, "expected an object"),
        ({"added_tokens": [{"id": "1", "content": "x"}]}, "added token"),
    ],
    ids=str,
)
def test_other_kinds_of_tokenizer_json_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_hf_tokenizer(tmp_path, MICRO, files=("tokenizer.json",))
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | change), encoding="utf-8")
    with pytest.raises(CheckpointError, match=message):
        read_vocabulary(tmp_path, {}, {}, 1000)


def test_a_table_that_is_not_installed_says_so() -> None:
    with pytest.raises(CheckpointError, match="reinstall specedge"):
        built_in_table("absent")


@pytest.mark.slow
@pytest.mark.parametrize("n_vocab", [51864, 51866])
def test_transformers_reads_the_same_files_and_gives_the_same_ids(n_vocab: int, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is the oracle of this test")
    write_hf_tokenizer(tmp_path, Layout.of(n_vocab, 1500, n_vocab == 51864))
    ours = Tokenizer(*read_vocabulary(tmp_path, {}, {}, n_vocab))
    theirs = transformers.WhisperTokenizer.from_pretrained(tmp_path)
    rng = random.Random(6)
    for _ in range(300):
        # Without characters that newer versions of Unicode call letters, and what theirs takes for special tokens.
        text = "".join(c for c in mixed_text(rng, 20) if category(c) != "Cn").replace("<|", "< |")
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), repr(text)
