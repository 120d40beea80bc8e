"""Shards of spoken utterances on disk, and random acoustics for training windows.

A shard is a pair of files: `NAME.npy`, int16 [n_samples_total], utterances of 16 kHz mono one after another, and
`NAME.json`, written last, that lists them. A shard exists when its json exists, so a synthesis that was cut off leaves
no half shard and goes on with the same command. Utterances are trimmed to their first and last audible sample, with a
margin; `start` and `end` say where the speech is.

The acoustics (gain, room, band limits, noise) take and give float32 samples at 16 kHz in [-1, 1] and a seeded NumPy
generator; `strength` 0..1 scales how often and how hard.
"""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

from specedge.errors import UsageError
from specedge.runtime.audio.audio import decode_audio
from specedge.runtime.audio.media import resampled

RATE_HZ = 16000
Samples = npt.NDArray[np.int16]


@dataclass(frozen=True, kw_only=True)
class Utterance:
    """One spoken sentence: int16 16 kHz samples, its text, the voice, and where in the samples it is audible."""

    samples: Samples
    text: str
    voice: str
    source: str
    start: int
    end: int

    def sound(self) -> npt.NDArray[np.float32]:
        """The samples as float32 in [-1, 1]."""
        return np.asarray(self.samples / np.float32(32768), np.float32)


def list_lines(name: str) -> list[str]:
    """The lines of a text list: a file (plain or .gz), or the name of a list kept with this package.

    Raises UsageError when there is neither.
    """
    path = Path(name)
    if path.is_file():
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    else:
        found = resources.files(__package__).joinpath("lists").joinpath(f"{name}.txt.gz")
        if not found.is_file():
            raise UsageError(f"text list {name!r}: expected a file or one of the lists in export/training/lists")
        data = gzip.decompress(found.read_bytes())
    return [line.strip() for line in data.decode("utf-8").splitlines() if line.strip()]


def write_shard(folder: Path, name: str, utterances: Sequence[Utterance]) -> None:
    """Write `name.npy` and then `name.json` into `folder`, each under a temporary name first."""
    audio = np.concatenate([item.samples for item in utterances]) if utterances else np.zeros(0, np.int16)
    rows = []
    for item in utterances:
        row = asdict(item)
        row["samples"] = int(item.samples.size)
        rows.append(row)
    data, index = folder / f"{name}.npy", folder / f"{name}.json"
    with open(data.with_suffix(".part"), "wb") as file:
        np.save(file, audio)
    os.replace(data.with_suffix(".part"), data)
    index.with_suffix(".tmp").write_text(json.dumps({"rate_hz": RATE_HZ, "utterances": rows}), encoding="utf-8")
    os.replace(index.with_suffix(".tmp"), index)


def load_shards(folder: Path, *, known: frozenset[str] = frozenset()) -> Iterator[tuple[str, list[Utterance]]]:
    """Yield (name, utterances) of the finished shards in `folder` that are not in `known`; samples stay mapped."""
    for index in sorted(folder.glob("*.json")):
        if index.stem in known:
            continue
        audio = np.load(index.with_suffix(".npy"), mmap_mode="r", allow_pickle=False)
        at, items = 0, []
        for row in json.loads(index.read_text(encoding="utf-8"))["utterances"]:
            n_samples = int(row.pop("samples"))
            items.append(Utterance(samples=audio[at : at + n_samples], **row))
            at += n_samples
        yield index.stem, items


def is_dev(folder: Path) -> bool:
    """Whether a folder of shards is for measuring: `dev` and `digits-dev*` are."""
    return folder.name == "dev" or folder.name.startswith("digits-dev")


def training_shards(speech: Path, known: frozenset[str]) -> Iterator[tuple[str, list[Utterance]]]:
    """The finished shards below `speech` that may be trained on and are not in `known` (by their path in `speech`).

    Raises UsageError when one of them holds what models are measured on: dev sentences in whatever voice, or a dev
    shard of digits that was moved out of its folder.
    """
    kept = {line for name in ("maintenance.dev", "notes.dev") for line in list_lines(name)}
    for folder in sorted({index.parent for index in speech.rglob("*.json")}):
        if is_dev(folder):
            continue
        inside = str(folder.relative_to(speech))
        there = frozenset(name.rpartition("/")[2] for name in known if name.rpartition("/")[0] == inside)
        for name, items in load_shards(folder, known=there):
            if name.startswith("digits-dev") or any(item.text in kept for item in items):
                raise UsageError(
                    f"{folder / name}: holds what models are measured on, which must not be trained on; "
                    "move it into a folder named dev"
                )
            yield f"{inside}/{name}", items


Float = npt.NDArray[np.float32]
Rng = np.random.Generator


def noise(rng: Rng, n_samples: int, babble: list[Float] | None = None) -> Float:
    """Noise of unit power: coloured, humming, knocking, or (when voices are given) babble of them."""
    kind = rng.integers(0, 6)
    if kind == 0 and babble:
        out = np.zeros(n_samples, np.float32)
        for voice in babble:
            shift = int(rng.integers(0, max(1, voice.size)))
            out += np.resize(np.roll(voice, shift), n_samples) * float(rng.uniform(0.5, 1.0))
    elif kind == 1:
        t = np.arange(n_samples, dtype=np.float32) / RATE_HZ
        base = rng.choice((50.0, 60.0, 100.0, 120.0)) * rng.uniform(0.98, 1.02)
        out = np.zeros(n_samples, np.float32)
        for k in range(1, 8):
            out += np.sin(2 * np.pi * base * k * t + rng.uniform(0, 6.28), dtype=np.float32) * rng.uniform(0, 1) / k
        out += rng.standard_normal(n_samples, np.float32) * 0.1
    elif kind == 2:
        out = rng.standard_normal(n_samples, np.float32) * 0.03
        for at in rng.integers(0, max(1, n_samples - 400), int(rng.integers(3, 25))):
            n = min(400, n_samples - int(at))
            out[at : at + n] += rng.standard_normal(n, np.float32) * np.exp(-np.arange(n, dtype=np.float32) / 60)
    else:
        # colour by a random walk over a few bands of a half-second loop: cheap, and as varied as needed
        loop = rng.standard_normal(16384, np.float32)
        slope = rng.uniform(0.0, 1.6)
        spectrum = np.fft.rfft(loop)
        shape = np.arange(1, spectrum.size + 1, dtype=np.float32) ** (-slope / 2)
        loop = np.fft.irfft(spectrum * shape).astype(np.float32)
        out = np.resize(loop, n_samples).astype(np.float32)
        if kind == 5:
            out = out * (1 + 0.9 * np.sin(np.arange(n_samples, dtype=np.float32) * float(rng.uniform(1e-4, 3e-3))))
    return np.asarray(out / (np.sqrt(np.mean(out * out)) + 1e-9), np.float32)


def reverb(rng: Rng, samples: Float) -> Float:
    """Convolve with a synthetic room: exponentially falling noise of 0.08 to 0.5 s behind the direct sound."""
    decay_s = rng.uniform(0.08, 0.5)
    n = int(RATE_HZ * decay_s)
    tail = rng.standard_normal(n, np.float32) * np.exp(-6.9 * np.arange(n, dtype=np.float32) / n)
    tail[: int(rng.integers(20, 300))] = 0
    tail *= float(rng.uniform(0.1, 0.7)) / (np.sqrt(np.sum(tail * tail)) + 1e-9)
    tail[0] = 1.0
    size = 1 << (samples.size + n - 1).bit_length()
    wet = np.fft.irfft(np.fft.rfft(samples, size) * np.fft.rfft(tail, size), size)[: samples.size]
    return np.asarray(wet, np.float32)


def band(rng: Rng, samples: Float) -> Float:
    """A telephone's or a cheap microphone's band: soft edges at a low and a high frequency, and a tilt."""
    spectrum = np.fft.rfft(samples)
    hz = np.fft.rfftfreq(samples.size, 1 / RATE_HZ).astype(np.float32)
    high = 3400.0 if rng.random() < 0.3 else rng.uniform(3400, 8000)
    if rng.random() < 0.3:
        high = 4000.0  # recorded at 8 kHz
    low = rng.uniform(20, 300)
    tilt = (np.maximum(hz, 50) / 1000) ** float(rng.uniform(-0.35, 0.35))
    shape = tilt / (1 + (hz / high) ** 24) / (1 + (low / np.maximum(hz, 1)) ** 6)
    return np.asarray(np.fft.irfft(spectrum * shape, samples.size), np.float32)


def coded(rng: Rng, samples: Float) -> Float:
    """What is left behind a telephone's 8 bits (mu-law at 8 kHz, ITU-T G.711), or behind MP3 at a low rate."""
    peak = float(np.abs(samples).max()) + 1e-6
    if rng.random() < 0.5:
        few = resampled(samples / np.float32(peak), RATE_HZ, 8000)
        steps = np.round(np.sign(few) * np.log1p(255 * np.abs(few)) / np.log(256) * 127) / 127
        wide = (np.sign(steps) * (256 ** np.abs(steps) - 1) / 255).astype(np.float32)
        found = resampled(wide, 8000, RATE_HZ) * peak
    else:
        found = _through_mp3(samples / np.float32(peak), kbit=int(rng.choice((8, 16, 24, 32)))) * peak
    return np.resize(np.pad(found, (0, max(0, samples.size - found.size))), samples.size).astype(np.float32)


def _through_mp3(samples: Float, kbit: int) -> Float:
    file = io.BytesIO()
    with av.open(file, "w", format="mp3") as container:
        stream = container.add_stream("libmp3lame", rate=RATE_HZ, layout="mono", bit_rate=1000 * kbit)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples[None], np.float32), "flt", "mono")
        frame.sample_rate = RATE_HZ
        container.mux([*stream.encode(frame), *stream.encode(None)])
    file.seek(0)
    return decode_audio(file)


def equalise(rng: Rng, samples: Float, reach_db: float = 9.0) -> Float:
    """Another throat, room or microphone: a smooth random gain, drawn at seven frequencies an octave apart."""
    spectrum = np.fft.rfft(samples)
    hz = np.fft.rfftfreq(samples.size, 1 / RATE_HZ)
    octave = np.log2(np.maximum(hz, 60.0) / 62.5)
    gain_db = np.interp(octave, np.arange(8), rng.uniform(-reach_db, reach_db, 8))
    return np.asarray(np.fft.irfft(spectrum * 10 ** (gain_db / 20), samples.size), np.float32)


def acoustics(rng: Rng, samples: Float, strength: float, babble: list[Float] | None = None) -> Float:
    """Room, band, noise, codec and gain for one window's content, float32 [n] -> float32 [n] within [-1, 1]."""
    level = float(np.sqrt(np.mean(samples * samples))) + 1e-6
    if rng.random() < 0.25 * strength:
        samples = reverb(rng, samples)
    if rng.random() < 0.35 * strength:
        samples = band(rng, samples)
    if rng.random() < 0.6 * strength:
        samples = equalise(rng, samples)
    if rng.random() < 0.55 * strength:
        snr_db = rng.uniform(8, 35)
        samples = samples + noise(rng, samples.size, babble) * (level * 10 ** (-snr_db / 20))
    elif rng.random() < 0.7:
        samples = samples + rng.standard_normal(samples.size, np.float32) * 10 ** rng.uniform(-4.5, -2.7)
    if rng.random() < 0.25 * strength:
        samples = coded(rng, samples)
    gain_db = rng.uniform(-12 - 10 * strength, 4)
    return np.asarray(np.clip(samples * 10 ** (gain_db / 20), -1, 1), np.float32)
