"""The command: exit codes, the one line on standard error, what is printed and what is written."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from specedge.errors import AudioError, Interrupted, ModelError, ResourceError, SpecedgeError, UsageError
from specedge.runtime import model as models
from specedge.runtime.cli import main
from specedge.runtime.drafters import registry
from support.fake_cli import SENTENCE, wav
from support.paths import DEMO


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_text_is_printed_as_segments(here: Path, model: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["transcribe", wav("a.wav"), "-l", "en"]) == 0
    captured = capsys.readouterr()
    assert captured.out == SENTENCE * 2
    assert captured.err == ""
    assert model == [(DEMO, None)]


def test_json_to_standard_output(here: Path, model: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["transcribe", wav("a.wav"), "-m", "x", "-f", "json", "--language", "English"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["text"] == " the pump is on the pump is on" and value["language"] == "en"
    assert [(s["id"], s["seek"], s["start"], s["end"]) for s in value["segments"]] == [
        (0, 0, 0.0, 1.0),
        (1, 100, 1.0, 2.0),
    ]
    assert value["duration"] == 2.0 and value["speculation"]["drafter"] == "none"
    assert value["speculation"]["passes"] == value["speculation"]["tokens"] == 16


def test_files_go_into_a_folder_that_is_made(here: Path, model: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    names = [wav("a.wav"), wav("b.b.wav")]
    assert main.main(["transcribe", *names, "-m", "x", "-o", "out/deep"]) == 0
    assert sorted(os.listdir("out/deep")) == ["a.txt", "b.b.txt"]
    assert Path("out/deep/a.txt").read_text() == SENTENCE * 2
    assert capsys.readouterr().out == "" and len(model) == 1, "the model is loaded once"


def test_openai_whispers_spelling_is_accepted_and_not_shown(
    here: Path, model: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--output_format", "json", "--output_dir=out", "--threads", "0", "--task", "transcribe"]
    assert main.main(["transcribe", wav("a.wav"), "--model", "x", *args]) == 0
    assert os.listdir("out") == ["a.json"]
    assert model == [(Path("x"), None)]
    assert main.main(["transcribe", "--help"]) == 0
    assert "--output_dir" not in capsys.readouterr().out


def test_raw_pcm(here: Path, model: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.pcm").write_bytes(b"\0\1" * 8000)
    assert main.main(["transcribe", "a.pcm", "-m", "x", "--raw", "s16le:8000"]) == 0
    assert capsys.readouterr().out == SENTENCE


def test_one_bad_file_does_not_stop_the_others(
    here: Path, model: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.wav").write_bytes(b"RIFF")
    assert main.main(["transcribe", "missing.wav", wav("a.wav"), "bad.wav", wav("b.wav"), "-m", "x", "-o", "out"]) == 1
    assert sorted(os.listdir("out")) == ["a.txt", "b.txt"]
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "specedge: 2/4 wrote out/a.txt" and lines[3] == "specedge: 4/4 wrote out/b.txt"
    assert lines[0].startswith("specedge: error: missing.wav") and lines[2].startswith("specedge: error: bad.wav")
    assert lines[4].startswith("specedge: 2 done, 2 failed: 0:04 of audio in ") and len(lines) == 5


def test_a_fault_of_ours_in_one_file_does_not_stop_the_others(
    here: Path, model: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    transcribe = models.Transcription

    def sometimes(engine: Any, bundle: Any, stream: Any, *args: Any, **kwargs: Any) -> Any:
        if "a.wav" in stream.name:
            raise ZeroDivisionError("oops")
        return transcribe(engine, bundle, stream, *args, **kwargs)

    monkeypatch.setattr(models, "Transcription", sometimes)
    assert main.main(["transcribe", wav("a.wav"), wav("b.wav"), "-m", "x"]) == 1
    captured = capsys.readouterr()
    assert captured.out == SENTENCE * 2 and "internal fault, ZeroDivisionError: oops" in captured.err


def test_a_failing_drafter_is_one_warning(
    here: Path, model: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from specedge.runtime.decoding.drafter import EmptyDrafter

    class Broken(EmptyDrafter):
        def propose(self, context: Any, budget: int) -> Any:
            raise ValueError("no map")

    monkeypatch.setitem(registry._MAKERS, "none", lambda target, options: Broken())
    assert main.main(["transcribe", wav("a.wav"), "-m", "x", "--drafter", "none"]) == 0
    captured = capsys.readouterr()
    assert captured.out == SENTENCE * 2
    assert captured.err == "specedge: a.wav: the drafter none failed and was dropped: ValueError: no map\n"


def test_an_output_that_replaces_its_input_is_refused(
    here: Path, model: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    wav("a.txt")
    assert main.main(["transcribe", "a.txt", "-o", "."]) == 2
    assert "would replace the input" in capsys.readouterr().err and model == []


SEE = " (see `specedge transcribe --help`)"
MEANT = "unknown command 'tranzcribe', did you mean transcribe? (see `specedge --help`)"
WRONG = {
    "transcribe": f"Missing argument 'FILE...'{SEE}",
    "a.wav": "a.wav is no command; to turn it into text: specedge transcribe a.wav",
    "no.MP3 -m base": "no.MP3 is no command; to turn it into text: specedge transcribe no.MP3",
    "help tranzcribe": MEANT,
    "tranzcribe": MEANT,
    "what": f"unknown command 'what', expected one of {', '.join(main._COMMANDS)} (see `specedge --help`)",
    "transcribe - -": "'-' is given twice: standard input can be read once",
    "transcribe a.wav ./a.wav -o out": "a.wav and ./a.wav would share an output: rename one, or use two runs",
    "transcribe a.wav b.wav -f vtt": "vtt of 2 inputs cannot share standard output: add -o DIR, or use -f txt",
}
WRONG_OPTIONS = {
    "-f srt,doc": "Invalid value for '-f' / '--output-format': 'doc' is not one of txt, srt, vtt, tsv, json, lrc, all"
    + SEE,
    "-t two": "--threads: got 'two', expected a whole number",
    "-f srt,txt": "several formats (srt, txt) need a folder: add -o DIR, or give one format",
    "--drafter none --token-map x.tmap": "--token-map: the drafter none reads no token maps; use tokenmap, ctc, draft "
    "or auto",
    "--best-of 0": "--best-of: got 0, expected 1 to 64",
    "--best-of many": "--best-of: got 'many', expected a whole number",
    "--max-line-width 9": "--max-line-width needs word times: add --word-timestamps",
    "--device cuda": "--device cuda: specedge runs on the CPU; leave the option out",
    "-o a.wav": "-o a.wav: this is a file, expected a folder",
    "--raw mp3": "raw format 'mp3': expected ENCODING:RATE or ENCODING:RATE:CHANNELS, for example s16le:16000",
    "--batch-size 2 --clip-timestamps 1,2": "--batch-size looks for speech itself: leave out --clip-timestamps",
    "--batch-size 0": "--batch-size: got 0, expected 1 or more, or None",
}
WRONG |= {f"transcribe a.wav {options}": line for options, line in WRONG_OPTIONS.items()}


@pytest.mark.parametrize("command", WRONG)
def test_usage(here: Path, model: list[Any], capsys: pytest.CaptureFixture[str], command: str) -> None:
    wav("a.wav")
    assert main.main(command.split()) == 2
    captured = capsys.readouterr()
    assert captured.err == f"specedge: error: {WRONG[command]}\n" and captured.out == ""
    assert model == [] and os.listdir(here) == ["a.wav"], "nothing was loaded or made"


@pytest.mark.parametrize(
    ("args", "code", "part"),
    [
        (["transcribe", "a.wav", "--language", "klingon"], 2, "unknown language 'klingon'"),
        (["transcribe", "a.wav", "-l", "ja", "-m", "x"], 2, "ja"),
        (["transcribe", "a.wav", "--nonsense"], 2, "--nonsense"),
        (["transcribe", "missing.wav", "-m", "x"], 3, "missing.wav"),
        (["transcribe", "empty.wav", "-m", "x"], 3, "empty.wav"),
        (["transcribe", "nothing", "-m", "x"], 3, "nothing: no audio file is in this folder"),
    ],
)
def test_bad_input(
    here: Path, model: list[Any], capsys: pytest.CaptureFixture[str], args: list[str], code: int, part: str
) -> None:
    wav("a.wav")
    Path("empty.wav").touch()
    Path("nothing").mkdir()
    assert main.main(args) == code
    captured = capsys.readouterr()
    assert captured.err.startswith("specedge: error: ") and captured.err.count("\n") == 1 and part in captured.err


def test_an_unknown_model(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["transcribe", wav("a.wav"), "-m", "no-such-model"]) == 4
    assert "no-such-model" in capsys.readouterr().err
    assert main.main(["models", "show", "no-such-model"]) == 4
    assert capsys.readouterr().err.count("\n") == 1


NO_MEMORY = "error: out of memory: use a smaller model, close other programs, or raise the limit of memory (ulimit -v)"
OPEN_FILES = "close other programs, or raise the limit of open files"
FLEET = "pip install '.[fleet]' in specedge's source"
AGAIN = "run it again with --debug to see where, and please report it"


def missing(name: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (SpecedgeError("a\nb"), 1, "error: a b"),
        (UsageError("x"), 2, "error: x"),
        (AudioError("x"), 3, "error: x"),
        (ModelError("x"), 4, "error: x"),
        (ResourceError("x"), 5, "error: x"),
        (MemoryError(), 5, NO_MEMORY),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 5, NO_MEMORY),
        (OSError(errno.ENOSPC, "Full", "/x"), 5, "error: /x: Full: free some disk space, or choose another place"),
        (OSError(errno.EMFILE, "Many", "/x"), 5, f"error: /x: Many: {OPEN_FILES}"),
        (Interrupted("interrupted"), 130, "interrupted"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (missing("onnx.helper"), 2, "error: this needs onnx, which is not installed: pip install onnx"),
        (missing("dask"), 2, f"error: this needs dask, which is not installed: {FLEET}"),
        (KeyError("spam"), 1, f"error: internal fault, KeyError: 'spam' ({AGAIN})"),
    ],
)
def test_errors_become_exit_codes_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    @click.command()
    def fails() -> None:
        raise error

    monkeypatch.setattr(main, "_failing_command", fails, raising=False)
    monkeypatch.setitem(main._COMMANDS, "fails", (f"{main.__name__}:_failing_command", ""))
    assert main.main(["fails"]) == code
    assert capsys.readouterr().err == f"specedge: {line}\n"
    assert main.main(["fails", "--debug"]) == code
    captured = capsys.readouterr().err
    assert "Traceback" in captured and captured.endswith(f"specedge: {line}\n")
    monkeypatch.setenv("SPECEDGE_DEBUG", "1")
    assert main.main(["fails"]) == code and "Traceback" in capsys.readouterr().err


def test_a_missing_extra_is_said_when_the_command_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setitem(main._COMMANDS, "needs", ("onnx:command", ""))
    assert main.main(["needs"]) == 2
    assert "needs onnx, which is not installed: pip install onnx" in capsys.readouterr().err


def test_warnings_of_the_library_are_lines_of_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    import logging

    @click.command()
    def warns() -> None:
        logging.getLogger("specedge.runtime.audio.audio").warning("odd\nfile")

    monkeypatch.setattr(main, "_warning_command", warns, raising=False)
    monkeypatch.setitem(main._COMMANDS, "warns", (f"{main.__name__}:_warning_command", ""))
    assert main.main(["warns"]) == 0
    assert capsys.readouterr().err == "specedge: warning: odd file\n"
    logging.getLogger("specedge").warning("after")
    assert "after" in caplog.text, "the process's own logging is left as it was"


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    from specedge import __version__

    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out == f"specedge {__version__}\n"
    assert main.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "Examples:" in text and all(name in text for name in main._COMMANDS)
    assert main.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == text


@pytest.mark.parametrize("name", list(main._COMMANDS))
def test_every_command_has_help_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([name, "--help"]) == 0
    captured = capsys.readouterr()
    assert "Examples:" in captured.out and captured.err == ""
    assert "..." not in captured.out.partition("\nCommands:")[2], "no summary is cut"
