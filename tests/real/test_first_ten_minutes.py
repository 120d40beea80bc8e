"""What a new user types first with real tiny.en, and a server of base: exit codes, errors of one line, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
import wave
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from real import golden

from specedge.export.export import export_to
from support.serving import served

pytestmark = pytest.mark.real

COMMANDS = (
    (2, "", "Usage: specedge "),
    (0, "--help", "transcribe  Turn speech into text."),
    (0, "models list", "tiny.en"),
    (0, "transcribe jfk.flac", "ask what you can do for your country"),
    (0, "transcribe jfk.flac -f srt", "1\n00:00:00,000 --> 00:00:"),
    (0, "transcribe jfk.flac -f srt -o out/jfk.srt", ""),
    (3, "transcribe missing.wav", "specedge: error: missing.wav: no such file\n"),
    (3, "transcribe note.wav", "specedge: error: note.wav: this is no audio "),
    (0, "transcribe silence.wav", "specedge: silence.wav: no speech\n"),
    (0, "transcribe jfk.flac --stats", "specedge: jfk.flac: 11.0 s of audio in "),
    (0, "bench jfk.flac --rounds 1", "on this device use --drafter "),
    (0, "doctor", "every promise holds"),
    (0, "disk", "remove with `specedge disk --clear WHAT`"),
    (2, "transcribe --sats", "specedge: error: No such option '--sats'"),
    (4, "transcribe jfk.flac -m nonesuch", "specedge: error: no model 'nonesuch' in "),
)


def test_every_command_ends_as_it_should(real_models: Path, tmp_path: Path) -> None:
    (tmp_path / "jfk.flac").write_bytes((golden.ROOT / golden.OWN).read_bytes())
    (tmp_path / "note.wav").write_text("no sound\n")
    with wave.open(str(tmp_path / "silence.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(bytes(160_000))
    own = {"SPECEDGE_HOME": str(tmp_path / "home"), "SPECEDGE_CACHE": str(tmp_path / "cache"), "SPECEDGE_MODEL": ""}
    export = (0, f"export {real_models / 'tiny.en'} --name tiny.en", "next: specedge transcribe talk.wav -m tiny.en\n")
    for code, words, said in (export, *COMMANDS):
        command = [sys.executable, "-m", "specedge", *words.split()]
        done = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **own}, capture_output=True, text=True, timeout=300
        )
        shown = done.stdout + done.stderr
        assert done.returncode == code and said in shown and "Traceback" not in shown, (words, shown)
        assert code == 0 or not words or (done.stdout == "" and done.stderr.count("\n") == 1), (words, shown)
    assert (tmp_path / "out" / "jfk.srt").read_text().startswith("1\n00:00:00,000 --> 00:00:")


def test_the_openai_client_over_32_threads_gets_what_one_gets(real_models: Path, tmp_path: Path) -> None:
    openai, pool = pytest.importorskip("openai"), ThreadPoolExecutor(32)
    bundle = export_to(str(real_models / "base"), tmp_path / "base").path
    with served("-m", str(bundle)) as server, pool:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)

        def ask(_: int) -> str:
            text: str = client.audio.transcriptions.create(model="whisper-1", file=golden.ROOT / golden.OWN).text
            return text

        assert set(pool.map(ask, range(64))) == {ask(0)} and "ask what you can do for your country" in ask(0)
