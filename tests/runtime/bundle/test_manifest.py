"""The manifest is strict JSON with known keys and sane values, and every refusal is one `BundleError` line."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from specedge.errors import BundleError
from specedge.runtime.bundle.bundle import MANIFEST_NAME, Bundle, FileEntry, Manifest, read_manifest
from specedge.runtime.bundle.manifest import CHECKSUM, MAX_MANIFEST_BYTES, _checksum
from specedge.runtime.bundle.typed_json import shown
from support.bundles import DATA, manifest, manifest_json, put_manifest, write_bundle

ZERO = "0" * 64


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle")


@pytest.fixture(scope="module")
def value(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The manifest of the small bundle as JSON values; a test that changes it copies it first."""
    return manifest_json(write_bundle(tmp_path_factory.mktemp("shared") / "bundle"))


def refusal(path: Path) -> str:
    """The one line with which the manifest of `path` is refused, soon."""
    start_s = time.monotonic()
    with pytest.raises(BundleError) as caught:
        Bundle.open(path)
    assert time.monotonic() - start_s < 5.0  # the promise is 1 s; a busy machine may take longer
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_manifest_round_trips_to_the_same_bytes(folder: Path) -> None:
    data = (folder / MANIFEST_NAME).read_bytes()
    parsed = Manifest.from_bytes(data, "m")
    assert parsed.to_bytes() == data
    assert Manifest.from_json(parsed.to_json(), "m") == parsed
    assert read_manifest(folder) == (parsed, hashlib.sha256(data).hexdigest())


def test_what_older_manifests_say_of_windows_is_read_over_or_refused(tmp_path: Path) -> None:
    told = {key: value for key, value in manifest_json(write_bundle(tmp_path / "b")).items() if key != CHECKSUM}
    older = {**told, "short_windows": False, "least_positions": 0}
    assert Manifest.from_json({**older, CHECKSUM: _checksum(older)}, "m") == Manifest.from_json(told, "m")
    for changes in ({"short_windows": True}, {"least_positions": 160}):
        with pytest.raises(BundleError, match=f"{[*changes][0]}' is unknown in this format version; .*export it again"):
            Manifest.from_json({**older, **changes}, "m")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "int3"}, "precision: found 'int3'"),
        ({"selfcheck": {"difference": float("nan")}}, ", expected Unicode text, finite numbers"),
        ({"selfcheck": {"array": b"no json"}}, "type bytes is not JSON serializable, expected Unicode text"),
        ({"window_s": 1.0001}, "window_s: found 1.0001, expected 1,"),
    ],
)
def test_a_writer_cannot_write_what_a_reader_refuses(changes: dict[str, Any], message: str) -> None:
    files = {name: FileEntry(size=1, sha256=ZERO) for name in (*DATA, "tokenizer.bin")}
    with pytest.raises(BundleError) as caught:
        manifest(files, **changes).to_bytes()
    assert message in str(caught.value)


@pytest.mark.parametrize("flip", [0x20, *(pytest.param(flip, marks=pytest.mark.slow) for flip in (0x01, 0x04))])
def test_every_changed_byte_of_the_manifest_is_refused(folder: Path, flip: int) -> None:
    """By syntax, by value or by its own hash; another spelling of a value (1E-05) is the same manifest."""
    data = (folder / MANIFEST_NAME).read_bytes()
    known = Manifest.from_bytes(data, "m.json")
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
        try:
            parsed = Manifest.from_bytes(changed, "m.json")
        except BundleError as error:
            assert str(error).startswith("m.json: ")
        else:
            assert parsed == known


def test_a_changed_value_is_found_by_the_hash_of_the_manifest(value: Any) -> None:
    changed = {**value, "max_initial_timestamp_index": 49}
    with pytest.raises(BundleError, match="m.json: manifest_sha256: the manifest was changed after it was written"):
        Manifest.from_bytes(json.dumps(changed).encode(), "m.json")
    del changed["manifest_sha256"]
    assert Manifest.from_bytes(json.dumps(changed).encode(), "m.json").max_initial_timestamp_index == 49


GOOD_HEAD = b'{"format": "specedge-bundle", "version": 6, '


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no JSON (Expecting value: line 1"),
        (b"{", "no JSON (Expecting property name"),
        (b"{}\n{}", "no JSON (Extra data: line 2"),
        (b"[]", "found [], expected a JSON object"),
        (b'"text"', "found 'text', expected a JSON object"),
        (b"\xef\xbb\xbf{}", "no JSON (Unexpected UTF-8 BOM"),
        (b'{"format": "\xff"}', "byte 0xff in position 12"),
        ('{"format": 1}'.encode("utf-16"), "byte 0xff in position 0"),
        (b'{"a": 1, "b": 2, "a": 3}', "the key 'a' appears twice"),
        (b'{"x": {"deep": 1, "deep": 1}}', "the key 'deep' appears twice"),
        (b'{"a\\u001b[31m": 1, "a\\u001b[31m": 1}', "the key 'a\\x1b[31m' appears twice"),
        (GOOD_HEAD + b'"x": NaN}', "expected Unicode text, finite numbers"),
        (GOOD_HEAD + b'"x": -Infinity}', "expected Unicode text, finite numbers"),
        (GOOD_HEAD + b'"x": 1e999}', "expected Unicode text, finite numbers"),
        (GOOD_HEAD + b'"x": ' + b"9" * 5000 + b"}", "no JSON (Exceeds the limit"),
        (GOOD_HEAD + b'"x": "\\ud800"}', "surrogates not allowed, expected Unicode text"),
        (b"[" * 1_000_000, "nested too deeply"),
        (b'{"a":' * 500_000, "nested too deeply"),
        (GOOD_HEAD + b'"x": [' + b"0," * 300_000 + b"0]}", "more than 200000 values"),
        (GOOD_HEAD + b'"x": [' + b"[]," * 1_300_000 + b"0]}", "more than 200000 values"),
        (b" " * (MAX_MANIFEST_BYTES + 1), "larger than 4 MiB"),
        (b'{"format": "other", "version": 1}', "the key 'format' must be 'specedge-bundle'"),
        (b'{"version": 1}', "the key 'format' must be 'specedge-bundle'"),
        (b'{"format": "specedge-bundle"}', "found version None of the bundle format"),
        (b'{"format": "specedge-bundle", "version": 0}', "found version 0 of"),
        (b'{"format": "specedge-bundle", "version": true}', "found version True of"),
        (b'{"format": "specedge-bundle", "version": 1.0}', "found version 1.0 of"),
        (b'{"format": "specedge-bundle", "version": "2"}', "found version '2' of"),
    ],
)
def test_bytes_that_are_no_manifest(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / MANIFEST_NAME).write_bytes(data)
    line = refusal(tmp_path)
    assert line.startswith(str(tmp_path / MANIFEST_NAME))
    assert message in line
    assert len(line) < len(str(tmp_path)) + 300


@pytest.mark.parametrize("version", [1, 5, 7])
def test_another_version_says_what_to_do_whatever_else_it_holds(version: int, folder: Path) -> None:
    put_manifest(folder, {"format": "specedge-bundle", "version": version, "new": [[[]]], "dims": None})
    (folder / "encoder.onnx").unlink()
    assert refusal(folder) == (
        f"{folder / MANIFEST_NAME}: found version {version} of the bundle format, and this specedge reads version 6: "
        "export or pull the model again, or upgrade specedge (pip install -U specedge)"
    )


ENTRY = {"size": 1, "sha256": ZERO}
DROP = object()
NO_FILES = (
    "specedge.json", "", "../secret", "maps/../../secret", "/etc/passwd", "C:/secret", "c:secret", "\\\\host\\share",
    "a\0b", "file:stream", "a//b", "a/", "./a", ".hidden", "a.", "a b", "ümlaut", "nul.onnx", "maps/COM1",
    "a/" * 8 + "a", "x" * 241,
)  # fmt: skip

# (keys to the value, the new value, what the message says)
HOSTILE: list[tuple[tuple[Any, ...], Any, str]] = [
    (("name",), DROP, "the key 'name' is missing"),
    (("surprise",), 1, "the key 'surprise' is unknown in this format version"),
    (("suppress",), [], "the key 'suppress' is unknown"),
    (("name",), "", "name: found '', expected 1 to 1000 printable characters"),
    (("name",), "a\nb", "name: found 'a\\nb', expected 1 to 1000 printable"),
    (("name",), "x" * 1001, "name: found 'xxx"),
    (("name",), 5, "name: found 5, expected 1 to 1000 printable"),
    (("specedge_version",), None, "specedge_version: found None"),
    (("source",), "hub", "source: found 'hub', expected an object"),
    (("source", "revision"), DROP, "source: the key 'revision' is missing"),
    (("source", "revision"), "", "source.revision: found ''"),
    (("precision",), "int2", "precision: found 'int2', expected one of fp32, int8, int4"),
    (("precision",), ["int8"], "precision: found ['int8']"),
    (("dims",), [], "dims: found [], expected an object"),
    (("dims", "n_vocab"), DROP, "dims: the key 'n_vocab' is missing"),
    (("dims", "n_extra"), 1, "dims: the key 'n_extra' is unknown"),
    (("dims", "n_text_layer"), 0, "dims.n_text_layer: found 0, expected an integer from 1 to 256"),
    (("dims", "n_text_layer"), -1, "dims.n_text_layer: found -1"),
    (("dims", "n_text_layer"), 257, "dims.n_text_layer: found 257"),
    (("dims", "n_text_layer"), True, "dims.n_text_layer: found True"),
    (("dims", "n_text_layer"), 2.0, "dims.n_text_layer: found 2.0"),
    (("dims", "n_text_layer"), "2", "dims.n_text_layer: found '2'"),
    (("dims", "n_vocab"), 2**20 + 1, "dims.n_vocab: found 1048577, expected an integer from 1 to 1048576"),
    (("dims", "n_audio_ctx"), 2**62, "dims.n_audio_ctx: found 4611686018427387904"),
    (("dims", "n_text_head"), 3, "dims.n_text_state: found 8, expected a multiple of n_text_head, 3"),
    (("dims", "n_audio_head"), 5, "dims.n_audio_state: found 8, expected a multiple of n_audio_head, 5"),
    (("dims", "n_mels"), 128, "expected the mel recipe of this specedge, {'n_mels': 128,"),
    (("mel", "sample_rate_hz"), 8000, "mel: found {'hop_samples': 160, 'n_fft': 400, 'n_mels': 80"),
    (("mel", "n_fft"), 512, "'n_fft': 400"),
    (("mel", "hop_samples"), 160.5, "'hop_samples': 160"),
    (("mel", "window"), "hann", "mel: found {'hop_samples': 160, 'n_fft': 400, 'n_mels': 80"),
    (("window_s",), 0, "window_s: found 0, expected 1, for n_audio_ctx is 50"),
    (("window_s",), 30.0, "window_s: found 30.0, expected 1,"),
    (("window_s",), -1, "window_s: found -1, expected 1"),
    (("window_s",), "1", "window_s: found '1', expected a number"),
    (("window_s",), True, "window_s: found True, expected a number"),
    (("dims", "n_audio_ctx"), 51, "window_s: found 1.0, expected 1.02"),
    (("tokens",), [], "tokens: found [], expected an object"),
    (("tokens", "eot"), 317, "tokens: special tokens: eot has id 317"),
    (("tokens", "eot"), -1, "tokens: special tokens: eot has id -1"),
    (("tokens", "sot"), 256, "have the same id 256"),
    (("tokens", "sot"), "257", "sot has id '257'"),
    (("tokens", "sot"), [], "tokens: special tokens: sot has id []"),
    (("tokens", "sot"), DROP, "tokens: not the special tokens of a vocabulary"),
    (("tokens", "new"), 1, "tokens: not the special tokens of a vocabulary"),
    (("tokens", "languages"), ["en"], "tokens: special tokens: language"),
    (("tokens", "languages", "en"), None, "tokens: special tokens"),
    (("tokens", "languages", "x" * 9999), 250, "tokens: special tokens"),
    (("tokens", "timestamp_begin"), 400, "tokens: special tokens: timestamp_begin"),
    (("tokens", "time_precision_s"), 0, "time_precision_s"),
    (("dims", "n_vocab"), 260, "tokens: special tokens"),
    (("suppress_tokens",), {}, "suppress_tokens: found {}, expected a list"),
    (("suppress_tokens",), [317], "suppress_tokens: found 317, expected an integer from 0 to 316"),
    (("suppress_begin",), [0, -1], "suppress_begin: found -1"),
    (("max_initial_timestamp_index",), -1, "max_initial_timestamp_index: found -1"),
    (("max_initial_timestamp_index",), 50.0, "max_initial_timestamp_index: found 50.0"),
    (("alignment_heads",), [[2, 0]], "alignment_heads[0][0]: found 2, expected an integer from 0 to 1"),
    (("alignment_heads",), [[0, 2]], "alignment_heads[0][1]: found 2, expected an integer from 0 to 1"),
    (("alignment_heads",), [[0]], "alignment_heads[0]: found [0], expected a list of 2"),
    (("alignment_heads",), [[0, 0, 0]], "alignment_heads[0]: found [0, 0, 0]"),
    (("graphs",), [], "graphs: found [], expected an object"),
    (("graphs", "encoder"), DROP, "graphs: the key 'encoder' is missing"),
    (("graphs", "align"), {}, "graphs.align: the key 'file' is missing"),
    (("graphs", "plugin"), {}, "graphs: the key 'plugin' is unknown"),
    (("graphs", "encoder", "file"), "tokenizer.txt", "graphs.encoder.file: 'tokenizer.txt' is not among the files"),
    (("graphs", "encoder", "file"), "../e.onnx", "graphs.encoder.file: '../e.onnx' is not among the files"),
    (("graphs", "encoder", "custom_ops"), "x.so", "graphs.encoder: the key 'custom_ops' is unknown"),
    (("graphs", "encoder", "inputs"), [], "graphs.encoder.inputs: found [], expected one or more tensors"),
    (
        ("graphs", "encoder", "inputs", 1, "name"),
        "ids",
        "graphs.encoder.inputs: found [{...}, {...}, {...}], expected one or more",
    ),
    (("graphs", "decoder", "outputs", 0, "dtype"), "object", "graphs.decoder.outputs[0].dtype: found 'object'"),
    (("graphs", "decoder", "outputs", 0, "shape"), [-1], "graphs.decoder.outputs[0].shape: found [-1]"),
    (("graphs", "decoder", "outputs", 0, "shape"), [1.5], "graphs.decoder.outputs[0].shape[0]: found 1.5"),
    (("graphs", "decoder", "outputs", 0, "shape"), [""], "graphs.decoder.outputs[0].shape[0]: found ''"),
    (("quantisation",), [], "quantisation: found [], expected an object"),
    (("selfcheck",), None, "selfcheck: found None, expected an object"),
    (("vocabulary_sha256",), "A" * 64, "vocabulary_sha256: found 'AAA"),
    (("vocabulary_sha256",), "0" * 63, "vocabulary_sha256: found '000"),
    (("vocabulary_sha256",), 0, "vocabulary_sha256: found 0, expected 1 to"),
    (("files",), [], "files: found [], expected an object"),
    (("files",), {}, "is not among the files"),
    (("files", "tokenizer.bin"), DROP, "files: 'tokenizer.bin' is missing"),
    (("files", "encoder.onnx"), 13, "files.'encoder.onnx': found 13, expected an object"),
    (("files", "encoder.onnx", "size"), -1, "files.'encoder.onnx'.size: found -1, expected an integer from 0 to"),
    (("files", "encoder.onnx", "size"), 2**41, "files.'encoder.onnx'.size: found 2199023255552"),
    (("files", "encoder.onnx", "size"), None, "files.'encoder.onnx'.size: found None"),
    (("files", "encoder.onnx", "sha256"), "", "files.'encoder.onnx'.sha256: found ''"),
    (("files", "encoder.onnx", "url"), "x", "files.'encoder.onnx': the key 'url' is unknown"),
    (("files", "Encoder.onnx"), ENTRY, "files: 'Encoder.onnx' and 'encoder.onnx' differ in case only"),
    *((("files", name), ENTRY, f"files: found {shown(name)}, expected a name inside the bundle") for name in NO_FILES),
]


@pytest.mark.parametrize(
    ("keys", "new", "message"), HOSTILE, ids=[f"{i}-{row[0][-1]}"[:30] for i, row in enumerate(HOSTILE)]
)
def test_hostile_values(value: Any, keys: tuple[Any, ...], new: Any, message: str) -> None:
    changed = json.loads(json.dumps(value))
    at = changed
    for key in keys[:-1]:
        at = at[key]
    if new is DROP:
        del at[keys[-1]]
    else:
        at[keys[-1]] = new
    data = json.dumps(changed).encode()
    with pytest.raises(BundleError) as caught:
        Manifest.from_bytes(data, "m.json")
    assert str(caught.value).startswith("m.json: ")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 500
