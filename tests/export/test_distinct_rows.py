"""A compact vocabulary is the plain one, bit for bit, in every kind of pass, and written only where it pays."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.errors import BundleError
from specedge.export import decoder_graph
from specedge.export.bundling import write_bundle
from specedge.export.checkpoint import open_checkpoint
from specedge.runtime.bundle import manifest
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.cli.main import main
from specedge.runtime.engine.engine import Engine
from support.checkpoints import make_checkpoint, weight
from support.edits import edit_config, read_tensors, write_tensors
from support.exported import PRECISIONS, bundle, noise_mel

N_VOCAB, N_KNOWN = 1000, 301
IDS = [3, 999, 700, 5, 640, 641, 12, 300, 7, 0, 998]
EMBEDDING, HEAD = "model.decoder.embed_tokens.weight", "proj_out.weight"


def repeated(matrix: NDArray[np.float16], n_known: int) -> NDArray[np.float16]:
    """The same matrix with one and the same row from `n_known` on, but for the last row; row 5 is row 4."""
    made = matrix.copy()
    made[n_known:-1] = matrix[n_known]
    made[5] = matrix[4]
    return made


@functools.cache
def folder() -> Path:
    held = tempfile.TemporaryDirectory(prefix="specedge-distinct-", ignore_cleanup_errors=True)
    _HELD.append(held)
    return Path(held.name)


_HELD: list[tempfile.TemporaryDirectory[str]] = []


@functools.cache
def checkpoint(n_known: int, untied: bool) -> Path:
    made = make_checkpoint(folder() / f"checkpoint-{n_known}-{untied}")
    tensors = read_tensors(made / "model.safetensors")
    tensors[EMBEDDING] = repeated(tensors[EMBEDDING], n_known)
    if untied:
        tensors[HEAD] = repeated(weight(HEAD, tensors[EMBEDDING].shape, 0).astype(np.float16), n_known + 99)
    write_tensors(made / "model.safetensors", tensors)
    edit_config(made, tie_word_embeddings=not untied)
    return made


def exported(precision: str, *, compact: bool, untied: bool = False) -> Bundle:
    return _exported(precision, compact, untied)


@functools.cache
def _exported(precision: str, compact: bool, untied: bool) -> Bundle:
    out = folder() / f"{precision}-{compact}-{untied}"
    share = decoder_graph.LARGEST_SHARE if compact else 0.0
    source_folder = checkpoint(N_KNOWN, untied)
    with open_checkpoint(source_folder) as source, mock.patch.object(decoder_graph, "LARGEST_SHARE", share):
        return write_bundle(source, out, precision=precision, name="micro", version="0.1.0")


def everything(opened: Bundle, *, cache: bool = False) -> dict[str, bytes]:
    """The bits of a pass, a pass after it, a pass over several paths, and an alignment."""
    made = Engine(opened, threads=2, cache=cache)
    features = made.encode(noise_mel(80, 200))
    state, of_tokens = made.start(features), opened.token_rows.of_tokens
    found = {"first": of_tokens(made.forward(state, IDS)).tobytes()}
    made.commit(state, len(IDS))
    found["some rows"] = of_tokens(made.forward(state, [4, 999, 500], [2])).tobytes()
    made.commit(state, 2)
    for turn in ("paths", "fewer paths"):
        paths = [[5, 700, 2], [5, 400], [999]][: 3 if turn == "paths" else 2]
        rows = [row for path in made.forward_paths(state, 999, paths) for row in path]
        found[turn] = b"".join(of_tokens(row).tobytes() for row in rows)
    aligned = made.align(features, IDS)
    return {**found, "scores": aligned.scores.tobytes(), "probs": aligned.token_probs.tobytes()}


@pytest.mark.parametrize(
    ("precision", "untied"), [*((precision, False) for precision in PRECISIONS), ("fp32", True), ("int8", True)]
)
def test_a_compact_vocabulary_has_the_bits_of_the_plain_one(precision: str, untied: bool) -> None:
    compact, plain = (exported(precision, compact=which, untied=untied) for which in (True, False))
    assert (compact.manifest.version, plain.manifest.version) == (2, 1)
    n_distinct = N_KNOWN + 1 if not untied else N_KNOWN + 99 + 1  # less one for row 5, and one more for the last
    assert compact.token_rows.n_rows == n_distinct and plain.token_rows.n_rows == N_VOCAB
    assert compact.size_bytes < plain.size_bytes
    assert everything(compact) == everything(plain)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_weights_packed_for_this_processor_have_them_too(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECEDGE_CACHE", str(tmp_path))
    opened = exported(precision, compact=True)
    assert everything(opened, cache=True) == everything(opened, cache=True) == everything(opened)
    assert list((tmp_path / "prepacked").glob("*/decoder.data"))


def test_tokens_of_one_row_have_the_same_logits() -> None:
    made = Engine(exported("int8", compact=True), threads=1, cache=False)
    state = made.start(made.encode(noise_mel(80, 200)))
    logits = made.token_rows.of_tokens(made.forward(state, IDS))
    assert (logits[:, 4] == logits[:, 5]).all() and (logits[:, N_KNOWN:-1] == logits[:, [N_KNOWN]]).all()
    assert (logits[:, -1] != logits[:, N_KNOWN]).all()


@pytest.mark.parametrize(("n_known", "compact"), [(748, True), (752, False), (999, False)])
def test_it_is_made_where_it_saves_a_quarter(n_known: int, compact: bool) -> None:
    with open_checkpoint(checkpoint(n_known, False)) as source:
        assert (decoder_graph.rows_of_tokens(source) is not None) == compact
    assert bundle("int8").manifest.token_rows is None


def test_inspect_and_doctor_know_it(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(exported("int8", compact=True).path)
    assert main(["inspect", path]) == 0
    shown = capsys.readouterr().out
    assert "format      version 2" in shown and f"1000 tokens, {N_KNOWN + 1} of them distinct, layout" in shown
    assert main(["doctor", "-m", path, "--threads", "1"]) == 0


def test_an_earlier_specedge_refuses_it_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    path = exported("int8", compact=True).path
    monkeypatch.setattr(manifest, "VERSIONS", (1,))
    with pytest.raises(BundleError, match="format version 2 is newer than version 1.*upgrade specedge"):
        Bundle.open(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 1}, "the key 'token_rows' is unknown"),
        ({"token_rows": "other.bin"}, "token_rows: found 'other.bin', expected one of the files"),
        ({"token_rows": "tokenizer.bin"}, "tokenizer.bin: (not the rows of|cannot be read)"),
        ({"token_rows": None}, "token_rows: found null"),
    ],
)
def test_a_manifest_that_is_wrong_about_it_is_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    source = exported("int8", compact=True).path
    for path in source.iterdir():
        (tmp_path / path.name).hardlink_to(path)
    value = json.loads((source / "specedge.json").read_bytes()) | changes
    del value["manifest_sha256"]
    (tmp_path / "specedge.json").unlink()
    (tmp_path / "specedge.json").write_text(json.dumps(value))
    with pytest.raises(BundleError, match=message):
        Engine(Bundle.open(tmp_path), cache=False)


def test_rows_that_are_not_the_graphs_are_refused() -> None:
    """Of a bundle whose hashes nobody looked at."""
    compact, plain = exported("int8", compact=True), exported("int8", compact=False)
    mixed = Bundle(path=plain.path, manifest=plain.manifest, digest="")
    mixed.__dict__["token_rows"] = compact.token_rows
    with pytest.raises(BundleError, match="logits do not fit the manifest's dimensions"):
        Engine(mixed, cache=False)
