"""Speak text lists with free synthesizers, and join recorded digits into strings: the demo models' training audio.

    python -m specedge.export.training.speech train OUT --count 36000     # training voices, training lists
    python -m specedge.export.training.speech dev OUT                     # held-out voices, dev lists
    python -m specedge.export.training.speech digits OUT --recordings FOLDER

Needs the programs `espeak-ng` and `flite` (Debian packages of the same names) for the first two. Every shard is made
from the seed and its own number alone, so the result does not depend on the number of processes, and a run that was
cut off goes on where it stopped. A digit string is written in words, capitalised and with a full stop, like the other
lists ("Four two seven."), whether it is spoken by a synthesizer or joined from recordings; 0 is "zero".

This module knows programs, voices and shards. It knows nothing of mels, tokens or models.
"""

from __future__ import annotations

import html
import io
import multiprocessing
import os
import random
import shutil
import subprocess
import tempfile
import wave
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
import soxr

from specedge.export.training.corpus import RATE_HZ, Utterance, list_lines, trim, write_shard
from specedge.export.training.voices import Voice, draw
from specedge.runtime.errors import ResourceError, SpecedgeError, UsageError

__all__ = ["DIGITS", "Job", "digit_text", "join_digits", "speak"]

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
MAX_SAMPLES = int(9.5 * RATE_HZ)
Float = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One shard to make: its name, the random seed it is made from, and its lines (text, list name)."""

    name: str
    seed: str
    lines: tuple[tuple[str, str], ...]
    held_out: bool = False


def digit_text(digits: list[int]) -> str:
    """[4, 2, 7] -> "Four two seven."."""
    return " ".join(DIGITS[digit] for digit in digits).capitalize() + "."


def _decode_wav(data: bytes) -> tuple[int, Float]:
    # espeak-ng writes a length of 2 GB into the header of a piped file: take what is there
    with wave.open(io.BytesIO(data)) as file:
        rate_hz = file.getframerate()
    raw = np.frombuffer(data[44 : len(data) & ~1], dtype="<i2")
    return rate_hz, np.asarray(raw / np.float32(32768), np.float32)


def speak(text: str, voice: Voice, scratch: Path) -> Float:
    """One utterance as float32 [n_samples] at 16 kHz; empty when the program gave nothing usable."""
    kind, _, name = voice.name.partition(":")
    if kind == "espeak":
        command = ["espeak-ng", "-v", name, "-s", str(voice.speed_wpm), "-p", str(voice.pitch)]
        marked = f'<prosody range="{voice.pitch_range}%">{html.escape(text, quote=False)}</prosody>'
        command += ["-g", str(voice.gap_10ms), "-m", "--stdout", marked]
        data = subprocess.run(command, capture_output=True, check=False).stdout
    else:
        target = scratch / "utterance.wav"
        command = ["flite", "-voice", name, "--setf", f"duration_stretch={voice.stretch}"]
        command += ["--setf", f"int_f0_target_mean={voice.pitch_hz}", "-t", text, "-o", str(target)]
        subprocess.run(command, capture_output=True, check=False)
        data = target.read_bytes() if target.exists() else b""
        target.unlink(missing_ok=True)
    if len(data) < 2000:
        return np.zeros(0, np.float32)
    rate_hz, samples = _decode_wav(data)
    return np.asarray(soxr.resample(samples, rate_hz, RATE_HZ), np.float32)


def _make(folder: Path, job: Job) -> str:
    rng = random.Random(job.seed)
    made = []
    with tempfile.TemporaryDirectory() as scratch:
        for text, source in job.lines:
            voice = draw(rng, held_out=job.held_out)
            samples, start, end = trim(speak(text, voice, Path(scratch)))
            if RATE_HZ // 4 <= samples.size <= MAX_SAMPLES:
                made.append(
                    Utterance(samples=samples, text=text, voice=voice.name, source=source, start=start, end=end)
                )
    write_shard(folder, job.name, made)
    return job.name


def _run(folder: Path, jobs: list[Job], n_processes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    todo = [job for job in jobs if not (folder / f"{job.name}.json").exists()]
    click.echo(f"{len(jobs)} shards, {len(todo)} to make, {n_processes} processes", err=True)
    with multiprocessing.get_context("spawn").Pool(n_processes) as pool:
        for n_done, name in enumerate(pool.imap(partial(_make, folder), todo), start=1):
            click.echo(f"{name} ({n_done}/{len(todo)})", err=True)


def _plan_train(seed: int, count: int, shard: int, weights: dict[str, float]) -> list[Job]:
    """Whole shards of mixed lines: each list is walked in random order, again and again, at its share."""
    rng = random.Random(f"plan {seed}")
    decks: dict[str, list[str]] = {name: [] for name in weights}
    lines: list[tuple[str, str]] = []
    for _ in range(count):
        name = rng.choices(list(weights), list(weights.values()))[0]
        if name == "digits":
            lines.append((digit_text([rng.randrange(10) for _ in range(rng.randint(1, 8))]), name))
            continue
        if not decks[name]:
            decks[name] = list_lines(f"{name}.train")
            rng.shuffle(decks[name])
        lines.append((decks[name].pop(), name))
    return [
        Job(name=f"train-{seed}-{at // shard:04d}", seed=f"{seed} {at // shard}", lines=tuple(lines[at : at + shard]))
        for at in range(0, count, shard)
    ]


def read_recordings(folder: Path) -> dict[str, dict[int, list[Float]]]:
    """Recorded digits `D_SPEAKER_N.wav` of a folder, at 16 kHz: speaker -> digit -> takes, in order of N."""
    takes: dict[str, dict[int, list[Float]]] = {}
    files = [path for path in folder.glob("*_*_*.wav")]
    for path in sorted(files, key=lambda p: (p.stem.split("_")[1], p.stem[0], int(p.stem.split("_")[2]))):
        digit, speaker, _ = path.stem.split("_")
        with wave.open(str(path)) as file:
            raw = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
            rate_hz = file.getframerate()
        samples = np.asarray(soxr.resample(raw, rate_hz, RATE_HZ), np.float32)
        takes.setdefault(speaker, {}).setdefault(int(digit), []).append(samples)
    if not takes:
        raise UsageError(f"{folder}: no recordings named DIGIT_SPEAKER_TAKE.wav")
    return takes


def join_digits(rng: random.Random, takes: dict[int, list[Float]], digits: list[int], tempo: float) -> Float:
    """Join one take of each digit with short pauses; `tempo` resamples (speed and pitch together)."""
    parts: list[Float] = []
    pause_s = rng.choice((0.05, 0.15, 0.3, 0.5))
    for digit in digits:
        take = rng.choice(takes[digit])
        take = take / (float(np.abs(take).max()) + 1e-6) * 0.5
        parts += [take, np.zeros(int(RATE_HZ * pause_s * rng.uniform(0.3, 1.5)), np.float32)]
    joined = np.concatenate(parts[:-1])
    return np.asarray(soxr.resample(joined, RATE_HZ * tempo, RATE_HZ), np.float32) if tempo != 1 else joined


def _digit_shards(folder: Path, recordings: Path, seed: int, count: int, held_out: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    speakers = read_recordings(recordings)
    if held_out not in speakers:
        raise UsageError(f"speaker {held_out!r} is not in {recordings}: choose one of {', '.join(sorted(speakers))}")
    for name, chosen, n_wanted in (
        (f"digits-train-{seed}", [s for s in sorted(speakers) if s != held_out], count),
        (f"digits-dev-{seed}", [held_out], 200),
    ):
        rng = random.Random(f"{name} {held_out}")
        made: list[Utterance] = []
        while len(made) < n_wanted:
            speaker = rng.choice(chosen)
            digits = [rng.randrange(10) for _ in range(rng.randint(1, 8))]
            tempo = 1.0 if speaker == held_out else rng.choice((0.8, 0.87, 0.93, 1.0, 1.0, 1.08, 1.16, 1.25))
            samples, start, end = trim(join_digits(rng, speakers[speaker], digits, tempo))
            if RATE_HZ // 8 <= samples.size <= MAX_SAMPLES:
                made.append(
                    Utterance(
                        samples=samples,
                        text=digit_text(digits),
                        voice=f"recorded:{speaker}",
                        source="digits-recorded",
                        start=start,
                        end=end,
                    )
                )
        (folder / name).mkdir(exist_ok=True)
        for at in range(0, n_wanted, 500):
            write_shard(folder / name, f"{name}-{at // 500:03d}", made[at : at + 500])


def _programs() -> None:
    for program in ("espeak-ng", "flite"):
        if shutil.which(program) is None:
            raise ResourceError(f"the program {program} is not installed: install the package of that name")


@click.group()
def main() -> None:
    """Synthesise the speech of the demo recipe."""


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--count", default=36000, show_default=True, help="utterances")
@click.option("--shard", default=400, show_default=True, help="utterances in a shard")
@click.option("--seed", default=1, show_default=True)
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="processes")
def train(folder: Path, count: int, shard: int, seed: int, jobs: int) -> None:
    """Training voices speak the training lists, 42 % maintenance, 52 % notes and 6 % digit strings."""
    _programs()
    _run(folder, _plan_train(seed, count, shard, {"maintenance": 0.42, "notes": 0.52, "digits": 0.06}), jobs)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--seed", default=1, show_default=True)
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="processes")
def dev(folder: Path, seed: int, jobs: int) -> None:
    """Held-out voices speak every sentence of the dev lists once; training voices speak them into seen-*."""
    _programs()
    plan = []
    for name in ("maintenance", "notes"):
        lines = tuple((line, name) for line in list_lines(f"{name}.dev"))
        plan.append(Job(name=f"{name}-dev", seed=f"dev {seed} {name}", lines=lines, held_out=True))
        plan.append(Job(name=f"{name}-seen", seed=f"seen {seed} {name}", lines=lines[:200]))
    _run(folder, plan, jobs)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--recordings", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)
@click.option("--count", default=4000, show_default=True, help="training strings")
@click.option("--seed", default=1, show_default=True)
@click.option("--held-out", default="theo", show_default=True, help="the speaker kept for the digit test")
def digits(folder: Path, recordings: Path, count: int, seed: int, held_out: str) -> None:
    """Join recorded digits into strings: folders digits-train-SEED and digits-dev-SEED."""
    _digit_shards(folder, recordings, seed, count, held_out)


if __name__ == "__main__":
    try:
        main()
    except SpecedgeError as error:
        click.echo(f"specedge: {error}", err=True)
        raise SystemExit(error.exit_code) from None
