"""Folders become the audio files in them; outputs have openai-whisper's names and never replace an input."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specedge.errors import AudioError, ResourceError, UsageError
from specedge.runtime.audio.audio import expand_folders
from specedge.runtime.cli.output_names import output_paths


def expand(*names: str) -> tuple[list[str], list[str], list[Exception]]:
    said: list[str] = []
    errors: list[Exception] = []
    return expand_folders(names, notify=said.append, report=errors.append), said, errors


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fill(folder: Path, **files: bytes) -> None:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def test_a_folder_is_its_audio_files_in_order(here: Path) -> None:
    fill(
        here / "talks", b_dot_mp3=b"", a_dot_WAV=b"", notes_dot_txt=b"no", sub__c_dot_m4a=b"", sub__deep__d_dot_flac=b""
    )
    names = [
        os.path.join("talks", *parts) for parts in (["a.WAV"], ["b.mp3"], ["sub", "c.m4a"], ["sub", "deep", "d.flac"])
    ]
    assert expand("x.wav", "talks", "-") == (["x.wav", *names, "-"], ["talks: 4 audio files"], [])


def test_hidden_files_and_folders_are_passed_over(here: Path) -> None:
    fill(here / "talks", a_dot_wav=b"")
    fill(here / "talks" / ".trash", b_dot_wav=b"")
    (here / "talks" / "._a.wav").touch()
    assert expand("talks")[0] == [os.path.join("talks", "a.wav")]


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
def test_links_to_folders_are_not_followed_and_broken_links_are_passed_over(here: Path) -> None:
    fill(here / "talks", a_dot_wav=b"")
    (here / "talks" / "again").symlink_to(here / "talks")
    (here / "talks" / "gone.wav").symlink_to(here / "nothing.wav")
    assert expand("talks")[0] == [os.path.join("talks", "a.wav")]


def test_a_folder_without_audio_is_an_error_of_its_own(here: Path) -> None:
    fill(here / "texts", notes_dot_txt=b"no")
    with pytest.raises(AudioError, match="texts: no audio file is in this folder"):
        expand("texts")
    files, said, errors = expand("texts", "a.wav")
    assert (files, said) == (["a.wav"], []) and [type(e) for e in errors] == [AudioError]


def test_outputs_are_named_after_the_inputs(here: Path) -> None:
    paths = output_paths(["a.wav", "sub/b.b.mp3", "-"], Path("out"), ["txt", "srt"])
    assert [sorted(str(p) for p in each.values()) for each in paths] == [
        [os.path.join("out", f"{stem}.{name}") for name in ("srt", "txt")] for stem in ("a", "b.b", "stdin")
    ]
    assert os.listdir("out") == []
    assert output_paths(["a.wav", "b.wav"], None, ["txt"]) == [{}, {}]


def test_a_file_s_name_is_the_output_of_one_input(here: Path) -> None:
    assert output_paths(["a.wav"], Path("new", "b.srt"), ["srt"]) == [{"srt": Path("new", "b.srt")}]
    assert os.listdir("new") == []
    with pytest.raises(UsageError, match="-o b.srt: one file cannot hold 2 transcripts; give a folder"):
        output_paths(["a.wav", "b.wav"], Path("b.srt"), ["srt"])
    os.mkdir("c.srt")
    assert output_paths(["a.wav"], Path("c.srt"), ["srt"]) == [{"srt": Path("c.srt", "a.srt")}]


@pytest.mark.parametrize(
    ("sources", "given", "names"),
    [
        (["a/talk.wav"], [], ["talk"]),
        (["a/talk.wav", "b/talk.wav", "b/other.wav"], [], ["a/talk", "b/talk", "other"]),
        (["x/a/talk.wav", "y/a/Talk.mp3"], [], ["x/a/talk", "y/a/Talk"]),
        (["talk.wav", "talk.mp3", "rest.mp3"], [], ["talk.wav", "talk.mp3", "rest"]),
        (["a/talk.wav", "a/talk.mp3", "b/talk.wav"], [], ["a/talk.wav", "a/talk.mp3", "b/talk"]),
        (["talks/1.wav", "talks/mon/1.wav", "talks/tue/2.wav"], ["talks"], ["1", "mon/1", "tue/2"]),
        (["p/talks/1.wav", "q/talks/1.wav"], ["p/talks", "q/talks/"], ["p/talks/1", "q/talks/1"]),
        (["talks/sub/1.wav", "sub/1.wav"], ["talks", "sub/1.wav"], ["sub/1", "1"]),
        (["-", "b/stdin.wav"], ["-", "b/stdin.wav"], ["stdin", "b/stdin"]),
    ],
)
def test_outputs_keep_the_folders_that_tell_them_apart(
    here: Path, sources: list[str], given: list[str], names: list[str]
) -> None:
    found = output_paths(sources, Path("out"), ["txt"], given or sources)
    assert [paths["txt"].as_posix() for paths in found] == [f"out/{name}.txt" for name in names]
    assert all(paths["txt"].parent.is_dir() for paths in found)


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        (["a.wav", "./a.wav"], "a.wav and ./a.wav would share an output"),
        (["a.wav", "A.wav"], "a.wav and A.wav would share an output"),
        (["-", "-"], "'-' is given twice"),
        (["out/a.srt"], "the output out/a.srt would replace the input"),
    ],
)
def test_outputs_that_cannot_be(here: Path, sources: list[str], said: str) -> None:
    fill(here / "out", a_dot_srt=b"RIFF")
    with pytest.raises(UsageError, match=said):
        output_paths(sources, Path("out"), ["txt", "srt"])


def test_a_place_where_no_folder_can_be(here: Path) -> None:
    fill(here, file=b"")
    with pytest.raises(UsageError, match="-o file: this is a file"):
        output_paths(["a.wav"], Path("file"), ["txt"])
    with pytest.raises(ResourceError, match="cannot make the folder"):
        output_paths(["a.wav"], Path("file", "deeper"), ["txt"])
