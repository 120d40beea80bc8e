"""What all peers of one run get: a window (samples, prompt), or recordings; and checks that they have the same weights.

Imports the standard library alone. It does not know any peer.
"""

from __future__ import annotations

import array
import json
import math
import random
import sys
import wave
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SAMPLE_RATE_HZ = 16000


@dataclass(frozen=True, kw_only=True)
class Job:
    """One window of work.

    samples: file of float32 mono samples at 16 kHz, exactly one window; prompt: start token, language, task, no
    timestamps; eot: the end of text, which every peer suppresses so that the token count is fixed.
    """

    samples: str
    n_mels: int
    prompt: tuple[int, ...]
    eot: int
    threads: int

    def save(self, path: Path) -> Path:
        """Write the job for the workers."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str) -> Job:
        """Read what `save` wrote."""
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        return cls(**{**data, "prompt": tuple(data["prompt"])})

    @property
    def mel_file(self) -> str:
        """Where specedge leaves the window's log-mel for peers that have no code for it."""
        return f"{self.samples}.mel.npy"

    def past(self, n_rows: int) -> list[int]:
        """Token ids for passes whose speed is measured: the prompt, then text."""
        return [*self.prompt, *range(100, 100 + n_rows)][:n_rows]


@dataclass(frozen=True, kw_only=True)
class SpeechJob:
    """How recordings are transcribed: threads, language, the frames of the model's window, and what our encoder runs
    on."""

    threads: int
    language: str
    n_frames: int
    encoder_provider: str = "cpu"

    def save(self, path: Path) -> Path:
        """Write the job for the workers."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str) -> SpeechJob:
        """Read what `save` wrote."""
        return cls(**json.loads(Path(path).read_text(encoding="utf-8")))


def make_job(bundle: Path, folder: Path, *, threads: int, audio: Path | None) -> Job:
    """The job for a bundle's window, with its samples written into `folder`."""
    manifest = json.loads((bundle / "specedge.json").read_text(encoding="utf-8"))
    n_samples = round(manifest["window_s"] * SAMPLE_RATE_HZ)
    samples = synthetic(n_samples) if audio is None else wav_samples(audio, n_samples)
    path = folder / "samples.f32"
    path.write_bytes(samples.tobytes())
    tokens = manifest["tokens"]
    prompt = [tokens["sot"]]
    if tokens["languages"]:
        languages = tokens["languages"]
        prompt += [languages.get("en", next(iter(languages.values()))), tokens["transcribe"]]
    prompt.append(tokens["no_timestamps"])
    return Job(
        samples=str(path),
        n_mels=manifest["dims"]["n_mels"],
        prompt=tuple(prompt),
        eot=tokens["eot"],
        threads=threads,
    )


def synthetic(n_samples: int, seed: int = 0) -> array.array[float]:
    """A sweeping tone with harmonics, pauses and noise: no speech, but no silence either."""
    noise = random.Random(seed)
    values = array.array("f", bytes(4 * n_samples))
    phase = 0.0
    for i in range(n_samples):
        t = i / SAMPLE_RATE_HZ
        phase += 2 * math.pi * (140 + 60 * math.sin(1.7 * t)) / SAMPLE_RATE_HZ
        loud = max(0.0, math.sin(2.3 * t)) * 0.2
        tone = math.sin(phase) + 0.5 * math.sin(3 * phase) + 0.3 * math.sin(9 * phase)
        values[i] = loud * tone + 0.01 * (noise.random() - 0.5)
    return values


def wav_samples(path: Path, n_samples: int) -> array.array[float]:
    """A 16-bit mono wav at 16 kHz, repeated to the window's length."""
    with wave.open(str(path), "rb") as file:
        if (file.getnchannels(), file.getsampwidth(), file.getframerate()) != (1, 2, SAMPLE_RATE_HZ):
            raise ValueError(f"{path}: expected 16-bit mono at 16 kHz")
        pcm = array.array("h", file.readframes(file.getnframes()))
    if sys.byteorder == "big":
        pcm.byteswap()
    repeated = (pcm * (n_samples // max(1, len(pcm)) + 1))[:n_samples]
    return array.array("f", (value / 32768 for value in repeated))


def write_wav(path: Path, samples: Sequence[float]) -> None:
    """Write samples as a 16-bit mono wav at 16 kHz."""
    pcm = array.array("h", (max(-32768, min(32767, round(value * 32767))) for value in samples))
    if sys.byteorder == "big":
        pcm.byteswap()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE_HZ)
        file.writeframes(pcm.tobytes())


def check_shape(folder: Path, bundle: Path) -> None:
    """Compare a Hugging Face folder's config.json with the bundle's dimensions. Raises ValueError."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    dims = json.loads((bundle / "specedge.json").read_text(encoding="utf-8"))["dims"]
    names = {
        "d_model": "n_audio_state",
        "encoder_layers": "n_audio_layer",
        "decoder_layers": "n_text_layer",
        "vocab_size": "n_vocab",
        "num_mel_bins": "n_mels",
        "max_source_positions": "n_audio_ctx",
    }
    for theirs, ours in names.items():
        if config[theirs] != dims[ours]:
            raise ValueError(f"{folder}: {theirs} is {config[theirs]}, the bundle's {ours} is {dims[ours]}")


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    """Likeness of two samples of the same thing: near 1 for the same weights and audio, near 0 for other ones."""
    if len(a) != len(b):
        return 0.0
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
