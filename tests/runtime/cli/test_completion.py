"""The scripts that shells read, and what they get back."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from specedge.runtime.cli import main


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--completion", shell]) == 0
    text = capsys.readouterr().out
    assert f"_SPECEDGE_COMPLETE={shell}_complete" in text and "specedge" in text


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("specedge tr", {"train", "transcribe"}),
        ("specedge transcribe --word", {"--word-timestamps"}),
        ("specedge transcribe --output-format s", {"srt"}),
        ("specedge transcribe --task tr", {"transcribe", "translate"}),
        ("specedge transcribe --output-format srt,j", {"srt,json"}),
        ("specedge transcribe --fp", set()),
        ("specedge transcribe -m dem", {"demo"}),
        ("specedge transcribe -l fin", {"finnish"}),
        ("specedge models pull tiny", {"tiny", "tiny.en"}),
        ("specedge models show dem", {"demo"}),
    ],
)
def test_what_is_completed(words: str, found: set[str]) -> None:
    environment = {
        **os.environ,
        "_SPECEDGE_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    code = "import sys; from specedge.runtime.cli.main import main; sys.exit(main([]))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == ""
    assert {line.partition(",")[2] for line in done.stdout.split()} == found
