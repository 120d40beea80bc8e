"""No command destroys what is there: inputs, files of another kind, older transcripts, their modes and links."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from specedge.runtime import device
from specedge.runtime.cli.main import main
from support.fake_cli import SENTENCE, wav

FAKE_CLI = Path(__file__).resolve().parents[1] / "support" / "fake_cli.py"
TEXT = "Check the oil level of pump two.\nReplace the fuse on motor two.\n" * 4

posix_only = pytest.mark.skipif(os.name == "nt", reason="POSIX signals, modes and links")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line by which a command is refused."""
    assert main(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and err.startswith("specedge: error: ")
    return err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mine.txt", "-o", "mine.txt"], "the output mine.txt would replace the input"),
        (["fold", "-o", "fold/a.txt"], "the output fold/a.txt would replace the input"),
        (["mine.txt", "-o", "link.txt"], "the output link.txt would replace the input"),
        (["mine.txt", "-o", "other.txt"], "other.txt: exists and is no token map, so it is not replaced"),
        # `-o fold/*.txt`, its name forgotten
        (["-o", "fold/a.txt", "fold/b.txt"], "fold/a.txt: exists and is no token map, so it is not replaced"),
        (["mine.txt", "-o", "fold/talk.wav"], "talk.wav: exists and is no token map"),
    ],
)
def test_a_map_takes_no_file_s_place_but_a_map_s(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    Path("fold").mkdir()
    for name in ("mine.txt", "other.txt", "fold/a.txt", "fold/b.txt"):
        Path(name).write_text(TEXT)
    os.link("mine.txt", "link.txt")
    wav("fold/talk.wav")
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    assert said in refused(capsys, "map", "build", *arguments)
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before


def test_a_merged_map_takes_no_transcript_s_place(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.txt").write_text(TEXT)
    for _ in range(2):  # a map takes a map's place
        assert main(["map", "build", "a.txt", "-o", "a.tmap"]) == 0
    capsys.readouterr()
    assert "a.txt: exists and is no token map" in refused(capsys, "map", "build", "a.tmap", "-o", "a.txt")
    assert Path("a.txt").read_text() == TEXT


def test_a_transcript_takes_no_other_file_s_place(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wav("talk.wav")
    wav("other.wav")
    Path("talk.json").write_text('{"speaker": "Jo"}')
    Path("other.wav").rename("talk.txt")  # audio, whatever it is called
    before = {path: path.read_bytes() for path in here.iterdir()}
    said = refused(capsys, "transcribe", "talk.wav", "-o", ".", "-f", "json")
    assert "talk.json: exists and is no json transcript, so it is not replaced" in said
    assert "talk.txt: exists and is no text" in refused(capsys, "transcribe", "talk.wav", "-o", ".")
    # The output of one input is another one.
    Path("b.flac").write_bytes(b"")
    os.link("talk.txt", "b.txt")
    said = refused(capsys, "transcribe", "b.flac", "talk.txt", "-o", ".", "-f", "txt")
    assert "the output b.txt would replace the input" in said
    assert {path: path.read_bytes() for path in before} == before


def _stopped(*arguments: str, number: int = signal.SIGINT) -> str:
    """What a transcription says that is stopped after some segments."""
    command = [sys.executable, str(FAKE_CLI), "--signal", str(int(number)), "--", "transcribe", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 128 + number and done.stdout == ""
    return done.stderr


@posix_only
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_older_transcript_stays_where_one_is_stopped(here: Path, number: int) -> None:
    wav("talk.wav", 120)
    Path("out").mkdir()
    whole = SENTENCE * 120
    Path("out/talk.txt").write_text(whole)
    said = _stopped("talk.wav", "-o", "out", "-f", "txt,json", number=number)
    assert "; what is done is in out/talk.partial.txt, out/talk.partial.json; the older transcript is kept\n" in said
    assert sorted(os.listdir("out")) == ["talk.partial.json", "talk.partial.txt", "talk.txt"]
    assert Path("out/talk.txt").read_text() == whole
    done = json.loads(Path("out/talk.partial.json").read_text())
    assert done["interrupted"] is True and 0 < len(done["segments"]) < 120
    assert Path("out/talk.partial.txt").read_text() == SENTENCE * len(done["segments"])
    _stopped("talk.wav", "-o", "out", "-f", "txt")
    assert Path("out/talk.partial-2.txt").exists() and Path("out/talk.txt").read_text() == whole


@posix_only
def test_a_part_never_has_the_name_of_a_whole_transcript(here: Path) -> None:
    wav("talk.wav", 120)
    assert _stopped("talk.wav", "-o", "out").endswith("; what is done is in out/talk.partial.txt\n")
    assert os.listdir("out") == ["talk.partial.txt"]


@posix_only
def test_mode_and_link_of_a_transcript_are_kept(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wav("talk.wav")
    Path("real").mkdir()
    Path("out").mkdir()
    Path("real/talk.txt").write_text("old")
    Path("real/talk.txt").chmod(0o600)
    Path("out/talk.txt").symlink_to("../real/talk.txt")
    command = [sys.executable, str(FAKE_CLI), "--", "transcribe", "talk.wav", "-o", "out", "-q"]
    assert subprocess.run(command, timeout=120).returncode == 0
    assert Path("out/talk.txt").is_symlink() and Path("real/talk.txt").read_text() == SENTENCE * 2
    assert stat.S_IMODE(Path("real/talk.txt").stat().st_mode) == 0o600
    assert os.listdir("real") == ["talk.txt"] and os.listdir("out") == ["talk.txt"]


@posix_only
def test_a_pipe_in_the_cache_is_as_good_as_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.json")
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.append(device.read_device_file(tmp_path / "x.json")), daemon=True)
    reader.start()
    reader.join(timeout=10)
    assert found == [{}]
