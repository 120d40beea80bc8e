"""Programs written for faster-whisper run here with one word of one line changed, and print the same."""

from __future__ import annotations

import difflib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from support.tree import ROOT

pytest.importorskip("faster_whisper", reason="faster-whisper is not installed")
pytest.importorskip("transformers", reason="the checkpoint is converted by transformers")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # what the converter warns of is its own

PROGRAMS = Path(__file__).parent / "programs"
SAMPLES = ROOT / "tests" / "assets" / "samples"
_RUNNER = """
import functools, runpy, sys
package, script = sys.argv.pop(1), sys.argv.pop(1)
if package == "faster_whisper":
    import faster_whisper.transcribe as module
    module.pad_or_trim = functools.partial(module.pad_or_trim, length=1000)
runpy.run_path(script, run_name="__main__")
"""


@pytest.fixture(scope="module")
def audio(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both samples twice, with 4 s of near silence after each."""
    quiet = 1e-4 * np.random.default_rng(0).standard_normal(4 * 16_000)
    parts = []
    for name in ("maintenance", "notes", "notes", "maintenance"):
        samples, rate_hz = soundfile.read(SAMPLES / f"{name}.wav")
        assert rate_hz == 16_000
        parts += [samples, quiet]
    path = tmp_path_factory.mktemp("audio") / "both.wav"
    soundfile.write(path, np.concatenate(parts), 16_000, subtype="PCM_16")
    return path


def run(package: str, program: str, audio: Path, tmp_path: Path) -> list[str]:
    """The lines that the program prints when it imports from this package."""
    from support.demo import for_faster_whisper, for_specedge

    source = (PROGRAMS / f"{program}.py").read_text(encoding="utf-8")
    assert source.count("faster_whisper") == 1
    copy = tmp_path / f"{program}_{package}.py"
    copy.write_text(source.replace("faster_whisper", package), encoding="utf-8")
    model = for_faster_whisper() if package == "faster_whisper" else for_specedge()
    command = [sys.executable, "-I", "-c", _RUNNER, package, str(copy), str(model), str(audio)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.splitlines()


def both(program: str, audio: Path, tmp_path: Path) -> tuple[list[str], list[str]]:
    ours, theirs = (run(package, program, audio, tmp_path) for package in ("specedge", "faster_whisper"))
    assert len(theirs) >= 2
    return ours, theirs


@pytest.mark.parametrize("program", ["file_object", "batched", "language", "changed"])
def test_the_output_is_the_same(program: str, audio: Path, tmp_path: Path) -> None:
    ours, theirs = both(program, audio, tmp_path)
    assert ours == theirs


def test_the_readme_s_example(audio: Path, tmp_path: Path) -> None:
    ours, theirs = both("readme", audio, tmp_path)
    assert ours[1:] == theirs[1:]
    assert ours[0][:40] == theirs[0][:40]  # the probability, to two digits or so


def test_every_field_of_a_segment(audio: Path, tmp_path: Path) -> None:
    ours, theirs = (list(map(json.loads, lines)) for lines in both("fields", audio, tmp_path))
    assert len(ours) == len(theirs)
    for our, their in zip(ours, theirs, strict=True):
        assert our.keys() == their.keys()
        for name, value in their.items():
            assert our[name] == (pytest.approx(value, abs=2e-3) if isinstance(value, float) else value), name


def test_word_times(audio: Path, tmp_path: Path) -> None:
    """The same words at mostly the same times; how close they are to openai-whisper's is test_words_parity.py's."""
    ours, theirs = (list(map(_timed, lines)) for lines in both("words", audio, tmp_path))
    assert [word for *_, word in ours] == [word for *_, word in theirs]
    n_close = sum(our[:2] == pytest.approx(their[:2], abs=0.021) for our, their in zip(ours, theirs, strict=True))
    assert n_close > 0.7 * len(theirs)


def test_without_silence(audio: Path, tmp_path: Path) -> None:
    """Spans of speech end at other moments, and the small model then hears some words otherwise."""
    ours, theirs = (list(map(_timed, lines)) for lines in both("silence", audio, tmp_path))
    assert ours[0][2] == theirs[0][2]
    ours_joined, theirs_joined = (" ".join(text for *_, text in lines).split() for lines in (ours, theirs))
    assert difflib.SequenceMatcher(None, ours_joined, theirs_joined).ratio() > 0.5
    assert (ours[0][0], ours[-1][1]) == pytest.approx((theirs[0][0], theirs[-1][1]), abs=0.6)


def _timed(line: str) -> tuple[float, float, str]:
    match = re.fullmatch(r"\[(.*)s -> (.*)s\] (.*)", line)
    assert match is not None, line
    return float(match[1]), float(match[2]), match[3].strip()
