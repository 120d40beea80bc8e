"""`specedge map` and `specedge disk`, run as the command runs them, with the bundled model's vocabulary."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from specedge.models import store
from specedge.runtime.cli.main import main
from support.bundles import write_bundle
from support.paths import DEMO

TEXT = "Check the oil level of pump two.\nCheck the oil filter of pump nine.\nReplace the fuse on motor two.\n" * 4


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text(TEXT)
    return path


def _build(corpus: Path, name: str = "x.tmap", *options: str) -> Path:
    path = corpus.parent / name
    assert main(["map", "build", str(corpus), "-o", str(path), *options]) == 0
    return path


def test_build_and_show(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _build(corpus, "x.tmap", "-n", "3", "--candidates", "2", "--max-length", "16", "--min-count", "2")
    assert "12 sentences" in capsys.readouterr().err
    assert main(["map", "show", str(path), "--json", "--top", "0"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["build"]["sentences"] == 12 and set(found["keys"]) == {"1", "2", "3"}
    assert found["build"]["candidates"] == 2 and found["size_bytes"] == path.stat().st_size
    assert main(["map", "show", str(path)]) == 0
    assert "sentences   12" in capsys.readouterr().out


def test_a_map_needs_no_model(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where none is named or installed, and nothing is fetched for one."""
    monkeypatch.delenv("SPECEDGE_MODEL")
    monkeypatch.setenv("SPECEDGE_HOME", str(tmp_path / "home"))
    assert main(["map", "build", str(corpus), "-o", str(tmp_path / "any.tmap")]) == 0
    assert "fits every multilingual Whisper" in capsys.readouterr().err


def test_a_new_map_says_which_models_it_fits_and_the_next_command(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECEDGE_HOME", str(tmp_path / "home"))
    path = _build(corpus, "x.tmap", "-m", str(DEMO))
    said, then = capsys.readouterr().err.splitlines()
    assert said.startswith(f"specedge: {path}: 12 sentences, ")
    assert said.endswith("; fits every multilingual Whisper and its fine-tunes, no English-only one")
    assert then == f"specedge: next: specedge transcribe talk.wav -m {DEMO} --drafter tokenmap --token-map {path}"
    write_bundle(tmp_path / "home" / "models" / "mine")
    _build(corpus, "y.tmap", "-m", "mine")
    said, then = capsys.readouterr().err.splitlines()
    assert said.endswith(" tokens; fits models with this vocabulary alone")
    assert " -m mine --drafter tokenmap " in then


def test_the_same_text_gives_the_same_bytes_from_a_pipe_and_in_other_shapes(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _build(corpus)
    lines = TEXT.splitlines()
    jsonl = corpus.with_suffix(".jsonl")
    jsonl.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    assert _build(jsonl, "y.tmap").read_bytes() == path.read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert main(["map", "build", "-", "-o", str(path.with_name("z.tmap"))]) == 0
    assert path.with_name("z.tmap").read_bytes() == path.read_bytes()


def test_bad_files_are_passed_over_and_counted(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = corpus.with_name("bad.json")
    bad.write_text("{")
    path = corpus.with_name("x.tmap")
    assert main(["map", "build", str(corpus), str(bad), "-o", str(path)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert path.exists() and any("bad.json: no JSON" in line for line in lines)
    assert lines[-1] == "specedge: 1 of the transcripts could not be used"
    path.unlink()
    assert main(["map", "build", str(bad), "-o", str(path)]) == 2
    assert not path.exists() and len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["build", "missing.txt", "-o", "x.tmap"], 2, "missing.txt: no such file or folder"),
        (["build", "corpus.txt", "-o", "x.tmap", "--budget", "ten"], 2, "'ten' is no size"),
        (["build", "corpus.txt", "-o", "x.tmap", "--budget", "100"], 2, "budget of 100 bytes is too small"),
        (["build", "corpus.txt", "-o", "x.tmap", "-n", "6"], 2, "6 is not in the range"),
        (["build", "corpus.txt", "-o", "gone/x.tmap"], 5, "cannot write gone/x.tmap: No such file or directory"),
        (["build", "corpus.txt"], 2, "-o"),
        (["show", "missing.tmap"], 4, "cannot read the token map missing.tmap: No such file"),
        (["show", "corpus.txt"], 4, "this is no token map"),
        (["build", "missing.tmap", "-o", "x.tmap"], 4, "cannot read the token map"),
        (["build", "missing.tmap", "corpus.txt", "-o", "x.tmap"], 2, "token maps of one vocabulary, not both"),
    ],
)
def test_what_cannot_be_is_one_line(
    corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(corpus.parent)
    assert main(["map", *arguments]) == code
    err = capsys.readouterr().err
    assert message in err and len(err.splitlines()) == 1
    assert [path.name for path in corpus.parent.iterdir()] == ["corpus.txt"]


def test_budget_and_merge(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = corpus.with_name("other.txt")
    other.write_text("Check the brake of motor two.\n" * 9)
    a, b = _build(corpus, "a.tmap"), _build(other, "b.tmap")
    whole = a.stat().st_size
    assert _build(corpus, "c.tmap", "--budget", f"{whole - 2000}B").stat().st_size <= whole - 2000
    merged = corpus.with_name("m.tmap")
    assert main(["map", "build", str(a), str(b), "-o", str(merged)]) == 0
    capsys.readouterr()
    assert main(["map", "show", str(merged), "the brake", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["count"] == 9


def test_the_cache_is_shown_exported_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from specedge.maps.ngram_cache import UserCache

    monkeypatch.setenv("SPECEDGE_HOME", str(tmp_path))
    monkeypatch.setenv("SPECEDGE_CACHE", str(tmp_path / "cache"))
    assert main(["disk"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["WHAT", "SIZE", "WHERE"],
        ["all", "0", "B"],
    ]
    with UserCache(store.user_cache_path(), bytes(32)) as cache:
        cache.learn([5, 6])
    assert main(["disk"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("learned  ")
    assert main(["disk", "--learned", "-m", str(DEMO)]) == 0
    assert json.loads(capsys.readouterr().out) == {"vocabulary": "00" * 32, "key": [5], "id": 6, "count": 1}
    assert main(["disk", "--clear", "learned", "--yes"]) == 0
    assert not list(tmp_path.iterdir())


def test_everything_on_disk_is_shown_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SPECEDGE_CACHE", str(tmp_path / "cache"))
    write_bundle(tmp_path / "home" / "models" / "mine")
    (tmp_path / "home" / "own.txt").write_text("not ours")
    (tmp_path / "home" / "learned.sqlite").write_text("no database")
    for folder in ("compiled/x", "compiled/y", "calibration"):
        (tmp_path / "cache" / folder).mkdir(parents=True)
        (tmp_path / "cache" / folder / "file").write_bytes(bytes(4096))
    os.link(tmp_path / "cache/compiled/y/file", tmp_path / "cache/compiled/y/same")
    assert main(["disk", "clear", "all"]) == 2 and main(["disk", "--json"]) == 0
    rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == ["models", "downloads", "compiled", "measured", "learned"]
    assert rows["models"]["paths"] == [str(tmp_path / "home" / "models" / "mine")]
    assert (rows["compiled"]["size_bytes"], rows["measured"]["size_bytes"]) == (8192, 4096), "blocks count, not names"
    assert main(["disk", "--clear", "compiled"]) == 2
    assert "this removes compiled (8.2 kB) for good: add --yes" in capsys.readouterr().err
    assert main(["disk", "--clear", "compiled", "--clear", "learned", "--yes"]) == 0
    assert "compiled: 8.2 kB removed" in capsys.readouterr().err and store.find("mine").is_dir()
    assert main(["disk", "--clear", "all", "--yes"]) == 0
    left = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()]
    assert left == ["home/own.txt"], "and nothing that is not ours"
    assert main(["disk", "--clear", "all", "--yes"]) == 0
