"""Other programs on the same recordings, from file to text, where they are installed beside specedge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specedge.errors import UsageError

from ..audio.audio import decode_audio
from ..console import notify

PEERS = {"faster-whisper": "faster_whisper", "openai-whisper": "whisper"}
"""Names of peers, and the modules they come in."""

Peer = Callable[[str, str | None], str]
"""The text of a file in a language."""


def peers_here(model: str) -> list[tuple[str, str]]:
    """Peers that are installed, with what they may have on disk of OpenAI's `model`, such as "base"."""
    checkpoint = Path.home() / ".cache" / "whisper" / f"{model}.pt"
    places = {"faster-whisper": model, "openai-whisper": str(checkpoint)}
    return [(name, place) for name, place in places.items() if find_spec(PEERS[name]) is not None]


def open_peers(peers: Iterable[tuple[str, str]], threads: int, precision: str) -> Iterator[tuple[str, Peer]]:
    """Peers with their models: CTranslate2's folder for faster-whisper, a .pt file for openai-whisper, or what the
    program calls a model that it has on disk. Greedy, else as its users get it, in our precision where it has it. One
    that is not installed or cannot open its model is named and left out."""
    for name, model in peers:
        opened = {"faster-whisper": _faster_whisper, "openai-whisper": _openai_whisper}[name]
        try:
            peer = opened(model, threads, precision)
        except Exception as error:  # theirs, of any kind
            notify(f"left out: --peer {name}={model}: {error}")
        else:
            yield name, peer


def _faster_whisper(model: str, threads: int, precision: str) -> Peer:
    from faster_whisper import WhisperModel

    kind = "float32" if precision == "fp32" else "int8"
    theirs = WhisperModel(model, device="cpu", compute_type=kind, cpu_threads=threads, local_files_only=True)

    def transcribe(file: str, language: str | None) -> str:
        return "".join(one.text for one in theirs.transcribe(file, language=language, beam_size=1)[0])

    return transcribe


def _openai_whisper(model: str, threads: int, precision: str) -> Peer:
    import torch
    import whisper

    torch.set_num_threads(threads)
    if not Path(model).is_file():  # it would be fetched
        raise UsageError("expected a .pt file")
    theirs: Any = whisper.load_model(model, device="cpu")

    def transcribe(file: str, language: str | None) -> str:
        return str(theirs.transcribe(decode_audio(file), language=language, fp16=False)["text"])

    return transcribe
