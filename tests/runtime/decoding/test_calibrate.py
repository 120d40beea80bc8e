"""The device profile: what is measured, what is kept, and that a bad file is no more than no file."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from specedge.errors import ResourceError
from specedge.runtime.bundle.manifest import FileEntry
from specedge.runtime.cli.main import main
from specedge.runtime.device import Profile, device_path, load_profile, save_profile
from specedge.runtime.engine.calibrate import PASS_ROWS, measure
from support.exported import bundle, engine

PROFILE = Profile(threads=2, pass_s={1: 0.001, 2: 0.001, 8: 0.002}, encode_s=0.05, paths_s=0.002, rounds=3)


def test_measure_covers_every_size_and_never_falls() -> None:
    found = measure(engine(variant="one head of 64"), rounds=1)
    assert tuple(found.pass_s) == PASS_ROWS
    seconds = list(found.pass_s.values())
    assert seconds == sorted(seconds) and seconds[0] > 0 and found.encode_s > 0
    assert found.rounds == 1 and found.threads == 2


def test_a_profile_comes_back_as_it_was_kept() -> None:
    path = save_profile("ab" * 32, PROFILE)
    assert path == device_path("ab" * 32, 2)
    assert load_profile("ab" * 32, 2) == PROFILE
    assert load_profile("ab" * 32, 1) is None
    assert load_profile("cd" * 32, 2) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b'{"kind": "specedge calibration"}',
        b"[" * 100_000,
        json.dumps(PROFILE.to_json() | {"version": 1}).encode(),
        json.dumps(PROFILE.to_json() | {"paths_s": -0.1}).encode(),
        json.dumps(PROFILE.to_json() | {"paths_s": 1e999}).encode(),
        json.dumps(PROFILE.to_json() | {"pass_s": {"2": 0.1, "4": 0.1}}).encode(),
        json.dumps(PROFILE.to_json() | {"pass_s": {"1": 0.1}}).encode(),
        json.dumps(PROFILE.to_json() | {"pass_s": {"1": 0.1, "0": 0.1}}).encode(),
        json.dumps(PROFILE.to_json() | {"pass_s": {"1": -0.1}}).encode(),
        json.dumps(PROFILE.to_json() | {"pass_s": {"1": 1e999}}).encode(),
        json.dumps(PROFILE.to_json() | {"encode_s": None}).encode(),
        json.dumps(PROFILE.to_json() | {"threads": 3}).encode(),
    ],
)
def test_a_bad_file_is_no_profile(content: bytes) -> None:
    path = device_path("ef" * 32, 2)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    assert load_profile("ef" * 32, 2) is None


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECEDGE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ResourceError, match="cannot write"):
        save_profile("ab" * 32, PROFILE)


def test_a_busy_machine_is_measured_once_more_and_then_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = engine()
    monkeypatch.setattr("specedge.runtime.engine.engine.Engine", lambda bundle, threads, encoder_provider: made)
    monkeypatch.setattr("specedge.runtime.cli.options.ModelOptions.open", lambda asked: made.bundle)
    path = device_path(made.bundle.timed_digest, PROFILE.threads)

    def calibrated(*scatters: float, args: tuple[str, ...] = ()) -> int:
        path.unlink(missing_ok=True)
        left = iter(scatters)
        measured = lambda engine, on_progress: replace(PROFILE, scatter=next(left))  # noqa: E731
        monkeypatch.setattr("specedge.runtime.engine.calibrate.measure", measured)
        return main(["doctor", "--calibrate", *args])

    assert calibrated(1.4, 1.01) == 0 and path.is_file() and "measuring once more" in capsys.readouterr().err
    assert calibrated(1.4, 1.3) == ResourceError.exit_code and not path.exists()
    assert "1.30 times as long; nothing is kept" in capsys.readouterr().err
    assert calibrated(1.4, args=("--force",)) == 0 and path.is_file()


def test_a_profile_belongs_to_what_the_encoder_runs_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECEDGE_CACHE", str(tmp_path))
    made = SimpleNamespace(encoder_provider="openvino 1 (a CPU)", interruptible=nullcontext)
    opened = bundle()
    monkeypatch.setattr("specedge.runtime.engine.speech.open_engine", lambda bundle, threads, encoder_provider: made)
    monkeypatch.setattr("specedge.runtime.cli.options.ModelOptions.open", lambda asked: opened)
    monkeypatch.setattr("specedge.runtime.engine.calibrate.measure", lambda engine, on_progress: PROFILE)
    assert main(["doctor", "--calibrate", "--encoder-provider", "openvino"]) == 0
    assert load_profile(opened.behind("openvino 1 (a CPU)").timed_digest, PROFILE.threads) == PROFILE
    assert load_profile(opened.timed_digest, PROFILE.threads) is None
    assert load_profile(opened.behind("openvino 2 (a CPU)").timed_digest, PROFILE.threads) is None
    head = replace(opened.manifest, files={**opened.manifest.files, "ctc.onnx": FileEntry(size=1, sha256="0" * 64)})
    with_head = replace(opened, manifest=head, digest="1" * 64).behind("openvino 1 (a CPU)")
    assert load_profile(with_head.timed_digest, PROFILE.threads) == PROFILE, "a head costs no calibration"
