"""The grown family as other programs take it: a checkpoint with a tokenizer, and conversions of it, made once.

A member's folder is that of `models/recipe/grow.py`, with `bundle/` and `checkpoint/`. Here `hf/` is added (the
checkpoint, linked, with the tokenizer files that ours does not need), `ct2/` (int8) and `ggml/` (float16).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from bench.rounds import BenchError  # noqa: E402

from specedge.models.recipe.grow import default_folder, grow, growth_of, original, write_checkpoint  # noqa: E402
from support.checkpoints import Layout  # noqa: E402
from support.vocab import write_hf_tokenizer  # noqa: E402

__all__ = ["ct2_of", "folder_of", "ggml_of", "hf_of"]

N_VOCAB, N_AUDIO_CTX = 51_866, 500
_CONVERT = "from ctranslate2.converters.transformers import main; main()"


def folder_of(shape: str, grown: Path | None, of: str = "demo") -> Path:
    """Where a member of the family lies: in `grown`, else in the user's cache."""
    usual = default_folder(shape, of)
    return usual if grown is None else grown / usual.name


def hf_of(shape: str, folder: Path) -> Path:
    """The float32 checkpoint with a tokenizer."""

    def make(out: Path) -> None:
        checkpoint = folder / "checkpoint"
        if not (checkpoint / "model.safetensors").is_file():
            growth = growth_of(shape, "demo")
            with grow(original("demo"), growth, f"grown-{shape}") as grown:
                write_checkpoint(grown, checkpoint, growth.times)
        out.mkdir()
        for path in sorted(checkpoint.resolve().iterdir()):
            os.symlink(path, out / path.name)
        write_hf_tokenizer(out, Layout.of(N_VOCAB, n_audio_ctx=N_AUDIO_CTX, en=False))

    return _made(folder / "hf", make)


def ct2_of(shape: str, folder: Path, python: str) -> Path:
    """CTranslate2's int8 conversion; `python` has ctranslate2 and transformers."""

    def make(out: Path) -> None:
        command = [python, "-c", _CONVERT, "--model", str(hf_of(shape, folder)), "--output_dir", str(out)]
        command += ["--quantization", "int8", "--low_cpu_mem_usage"]
        _run([*command, "--copy_files", "tokenizer.json", "preprocessor_config.json"])

    return _made(folder / "ct2", make)


def ggml_of(shape: str, folder: Path, python: str, script: Path, whisper: Path) -> Path:
    """whisper.cpp's float16 file by its own convert-h5-to-ggml.py; `whisper`: the folder of the package openai-whisper
    is in."""

    def make(out: Path) -> None:
        out.mkdir()
        _run([python, str(script), str(hf_of(shape, folder)), str(whisper), str(out)])

    return _made(folder / "ggml", make) / "ggml-model.bin"


def _made(out: Path, make: Callable[[Path], None]) -> Path:
    """`out`, made under another name first, so that what was cut short is made again."""
    if not out.is_dir():
        unfinished = out.with_name(f"{out.name}.unfinished")
        if unfinished.exists():
            raise BenchError(f"{unfinished}: left by a run that was cut short; remove it")
        make(unfinished)
        unfinished.rename(out)
    return out


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise BenchError(f"{' '.join(command[:3])}: failed with {done.returncode}; its reason is above")
