"""A trained CTC head on its way into bundles, and the heads that are refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from specedge.errors import ResourceError, UsageError
from specedge.export.bundling import add_to_bundle, write_bundle
from specedge.export.checkpoint import open_checkpoint
from specedge.export.ctc_graph import encoder_weights_sha256, write_head
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.cli.main import main
from specedge.runtime.drafters.ctc.head import CtcHead
from specedge.runtime.engine.session import Canceller
from support.ctc_heads import bundle_with_head, random_head
from support.exported import bundle, checkpoint


def _fingerprint(made: Bundle) -> str:
    return encoder_weights_sha256(made.manifest, made.path)


@pytest.fixture
def head(tmp_path: Path) -> Path:
    path = tmp_path / "head.onnx"
    write_head(path, random_head(bundle().manifest.dims.n_audio_state), _fingerprint(bundle()))
    return path


def test_an_export_brings_the_head_along(head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bundle"
    assert main(["export", str(checkpoint()), "-o", str(out), "--ctc", str(head), "--name", "micro"]) == 0
    made = Bundle.open(out)
    assert made.manifest.graphs["ctc"].file == "ctc.onnx" and "ctc.onnx" in made.manifest.files
    CtcHead(made, Canceller())


def test_a_model_whose_draft_has_its_encoder_takes_the_head(head: Path, tmp_path: Path) -> None:
    with open_checkpoint(checkpoint()) as source:
        draft, out = bundle("int8", "draft same"), tmp_path / "bundle"
        made = write_bundle(source, out, precision="int8", name="micro", version="1", draft=draft)
    CtcHead(add_to_bundle(made.path, ctc=head), Canceller())


def test_adding_it_gives_the_bundle_of_a_new_export(
    head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = bundle_with_head(bundle(), tmp_path / "bundle")
    first = made.digest
    other = tmp_path / "other.onnx"
    write_head(other, random_head(made.manifest.dims.n_audio_state, bias=1.0), _fingerprint(made))
    assert main(["export", str(made.path), "--add-ctc", str(other)]) == 2
    assert "has a CTC head, so it is not changed in place" in capsys.readouterr().err
    assert Bundle.open(made.path).digest == first
    assert main(["export", str(made.path), "--add-ctc", str(other), "--force"]) == 0
    assert "micro has a CTC head now" in capsys.readouterr().out
    assert Bundle.open(made.path).digest != first
    add_to_bundle(made.path, ctc=head)
    assert Bundle.open(made.path).digest == first
    assert not [path.name for path in made.path.iterdir() if path.name.startswith(".")]
    CtcHead(Bundle.open(made.path), Canceller())


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:500])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _other_encoder(path: Path) -> None:
    write_head(path, random_head(bundle().manifest.dims.n_audio_state), "0" * 64)


def _no_head(path: Path) -> None:
    path.write_bytes((bundle().path / "encoder.onnx").read_bytes())


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_cut, "cannot be read as a CTC head"),
        (_empty, "cannot be read as a CTC head"),
        (Path.unlink, "no such file"),
        (_other_encoder, "a CTC head for another encoder than this model's"),
        (_no_head, "CTC head"),
    ],
)
@pytest.mark.parametrize("in_place", [False, True])
def test_what_is_no_head_for_it_is_code_4_and_changes_nothing(
    spoil: Callable[[Path], None],
    message: str,
    in_place: bool,
    head: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spoil(head)
    out = tmp_path / "bundle"
    if in_place:
        before = bundle_with_head(bundle(), out).digest
        assert main(["export", str(out), "--add-ctc", str(head), "--force"]) == 4
        assert Bundle.open(out).digest == before
    else:
        assert main(["export", str(checkpoint()), "-o", str(out), "--ctc", str(head)]) == 4
        assert not out.exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("specedge: error: ") and message in line


@pytest.mark.parametrize("n_moved", [0, 1])
def test_a_full_disk_leaves_the_bundle_as_it_was(
    n_moved: int, head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bundle_with_head(bundle(), tmp_path / "bundle", random_head(bundle().manifest.dims.n_audio_state, bias=1.0))
    before = {path.name: path.read_bytes() for path in made.path.iterdir() if path.is_file()}
    rename = os.rename
    calls = iter(range(100))

    def move(source: Path, target: Path) -> None:
        if next(calls) == n_moved:
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr("specedge.leftovers.os.rename", move)
    with pytest.raises(ResourceError, match="No space left on device; free some space"):
        add_to_bundle(made.path, ctc=head)
    assert {path.name: path.read_bytes() for path in made.path.iterdir() if path.is_file()} == before


def test_it_goes_with_no_other_option(head: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in (["--name", "other"], ["--ctc", str(head)]):
        assert main(["export", str(bundle().path), "--add-ctc", str(head), *more]) == 2
        assert "give no option but --force" in capsys.readouterr().err


def test_a_head_takes_no_other_graph_s_place(head: Path, tmp_path: Path) -> None:
    weights = random_head(bundle().manifest.dims.n_audio_state)
    graph = tmp_path / "encoder.onnx"
    shutil.copyfile(bundle().path / "encoder.onnx", graph)
    with pytest.raises(UsageError, match="exists and is no CTC head, so it is not replaced"):
        write_head(graph, weights, "0" * 64)
    assert graph.read_bytes() == (bundle().path / "encoder.onnx").read_bytes()
    head.chmod(0o600)
    write_head(head, weights, "0" * 64)
    assert head.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder.onnx", "head.onnx"]
