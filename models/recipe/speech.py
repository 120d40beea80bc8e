"""Speak text lists with free synthesizers, and join recorded digits into strings: the demo models' training audio.

    python -m specedge.models.recipe.speech train OUT --count 36000     # training voices, training lists
    python -m specedge.models.recipe.speech varied OUT --count 9000     # the same lists in voices that nobody has
    python -m specedge.models.recipe.speech dev OUT                     # held-out voices, dev lists
    python -m specedge.models.recipe.speech digits OUT --recordings FOLDER
    python -m specedge.models.recipe.speech german OUT-DE --count 5000  # a second language: both its lists

They write into OUT/train, OUT/varied, OUT/dev, OUT/digits-train-SEED and OUT/digits-dev-SEED; OUT is the --speech of
`train` and `evaluate`. All but the last need `espeak-ng`, `flite` and `festival` with the voice `ked` (Debian packages
of the same names and `festvox-kdlpc16k`). A shard depends on the seed and its number alone, so the number of processes
changes nothing, and a run that was cut off goes on where it stopped. Digit strings are in words ("Four two seven.").

A voice is written `espeak:ACCENT+VARIANT`, `flite:NAME` or `festival:NAME`. Held out of training, for the dev lists and
every published figure: six espeak-ng variants in every accent, and one accent with every variant. All five recorded
speakers (slt, awb, kal, ked, rms) are trained on, because a model that had never heard rms made most of its errors
there; only the digits of a speaker left out say how another recorded speaker fares. Left out altogether, as hard to
follow: whisper, whisperf, Demonic, fast, Alicia, Lee and the RicishayMax variants. kal16 is kal at 16 kHz.

`varied` is for CTC heads: espeak-ng variants that are made up (`invented`, written `espeak:ACCENT+invented-SEED`), and
recorded speakers made into others (`disguise`), so that a head does not learn the few voices that there are by heart.
"""

from __future__ import annotations

import html
import io
import itertools
import multiprocessing
import os
import random
import shutil
import subprocess
import tempfile
import wave
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
import soxr

from specedge.errors import ResourceError, UsageError
from specedge.export.training import corpus
from specedge.export.training.corpus import RATE_HZ, Samples, Utterance, list_lines, write_shard

from . import augment
from .command_line import run_command
from .german import DOMAIN, german_lines

__all__ = [
    "ACCENTS",
    "DIGITS",
    "FESTIVAL",
    "FLITE",
    "HELD_OUT_ACCENT",
    "HELD_OUT_VARIANTS",
    "Job",
    "VARIANTS",
    "Voice",
    "digit_text",
    "disguise",
    "draw",
    "draw_german",
    "draw_varied",
    "invented",
    "join_digits",
    "roughen",
    "speak",
    "usable",
]

ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbcwmd", "en-029", "en-us-nyc")
HELD_OUT_ACCENT = "en-gb-x-gbclan"
GERMAN = "de"

VARIANTS = tuple(
    """m1 m2 m4 m5 m6 m8 f1 f3 f4 adam Alex Andrea Andy Annie AnxiousAndy Denis Diogo Gene Gene2 Henrique Hugo Jacky
    Marco Mario Mike Nguyen Storm Tweaky UniRobot anika anikaRobot announcer antonio aunty belinda benjamin boris
    caleb croak david ed edward edward2 grandma grandpa gustave iven iven2 iven3 iven4 john kaukovalta klatt klatt2
    klatt3 klatt4 klatt5 klatt6 marcelo max michel miguel norbert pablo paul pedro quincy rob robert robosoft
    robosoft2 robosoft3 robosoft4 robosoft5 robosoft6 robosoft7 robosoft8 sandro shelby steph steph2 steph3 travis
    victor zac""".split()
)

HELD_OUT_VARIANTS = ("m3", "m7", "Michael", "f2", "f5", "linda")
FLITE = ("slt", "awb", "kal", "kal16", "rms")
FESTIVAL = ("ked",)
_INVENTED = "invented-"
_PLAIN_VARIANTS = ("m1", "m2", "m4", "m5", "m6", "m8", "f1", "f3", "f4", "")  # the clearest ones, drawn more often


MARGIN_SAMPLES = 320


def trim(samples: Float, *, margin: int = MARGIN_SAMPLES) -> tuple[Samples, int, int]:
    """Cut to the audible part of a clean recording: float32 [n] -> int16 [m] scaled to a peak of one half, start, end.

    Audible is a sample above 1 % of the peak. An empty or silent input gives an empty array and zeros.
    """
    peak = float(np.abs(samples).max()) if samples.size else 0.0
    if peak < 1e-4:
        return np.zeros(0, np.int16), 0, 0
    loud = np.flatnonzero(np.abs(samples) > 0.01 * peak)
    first, last = int(loud[0]), int(loud[-1]) + 1
    begin, stop = max(0, first - margin), min(samples.size, last + margin)
    scaled = np.round(samples[begin:stop] * (0.5 * 32767 / peak)).astype(np.int16)
    return scaled, first - begin, last - begin


@dataclass(frozen=True, kw_only=True)
class Voice:
    """One speaker and the prosody of one utterance.

    `speed_wpm` words a minute (espeak-ng), `stretch` a factor on durations (flite, festival), `pitch` 0..99 and
    `pitch_range` in percent of the voice's own (espeak-ng), `pitch_hz` the mean (flite, festival), `gap_10ms` the pause
    added between words (espeak-ng).
    """

    name: str
    speed_wpm: int = 165
    stretch: float = 1.0
    pitch: int = 50
    pitch_range: int = 100
    pitch_hz: int = 120
    gap_10ms: int = 0


def draw(rng: random.Random, *, held_out: bool) -> Voice:
    """Draw a voice with random prosody, from the training voices or from the held-out ones, never mixed.

    Of the held-out draws, three in four are a held-out variant in a known accent, one in four the held-out accent with
    a known variant. Recorded speakers are few, so in training they also speak at pitches far from their own.
    """
    prosody = {
        "speed_wpm": rng.randint(120, 210) if not held_out else rng.randint(135, 190),
        "stretch": round(rng.uniform(0.8, 1.3) if not held_out else rng.uniform(0.85, 1.2), 3),
        "pitch": rng.randint(15, 85) if not held_out else rng.randint(30, 70),
        "pitch_range": rng.randint(20, 180) if not held_out else rng.randint(70, 130),
        "gap_10ms": rng.choice((0, 0, 0, 0, 0, 1, 2, 4)),
    }
    choice = rng.random()
    if held_out and choice < 0.75:
        name = f"espeak:{rng.choice(ACCENTS)}+{rng.choice(HELD_OUT_VARIANTS)}"
    elif held_out:
        name = f"espeak:{HELD_OUT_ACCENT}+{rng.choice(VARIANTS[:9])}"
    elif choice < 0.33:
        name = f"flite:{rng.choice(FLITE)}"
    elif choice < 0.45:
        name = f"festival:{rng.choice(FESTIVAL)}"
    else:
        variant = rng.choice(_PLAIN_VARIANTS) if rng.random() < 0.3 else rng.choice(VARIANTS)
        name = f"espeak:{rng.choice(ACCENTS)}" + (f"+{variant}" if variant else "")
    female = name.endswith("slt")
    prosody["pitch_hz"] = rng.randint(140, 230) if female else rng.randint(80, 170)
    if not held_out and rng.random() < 0.35:
        prosody["pitch_hz"] = rng.randint(75, 235)
    return Voice(name=name, **prosody)  # type: ignore[arg-type]


def usable(name: str) -> bool:
    """Whether a voice may be trained on: neither held out nor left out. Recorded voices always may."""
    kind, _, rest = name.partition(":")
    if kind in ("flite", "festival"):
        return rest in (FLITE if kind == "flite" else FESTIVAL)
    accent, _, variant = rest.partition("+")
    known = not variant or variant in VARIANTS or variant.startswith(_INVENTED)
    return kind != "espeak" or (accent in (*ACCENTS, GERMAN) and known)


def draw_varied(rng: random.Random) -> Voice:
    """A voice of `varied`: of five, two are invented, two are recorded speakers and one is a training variant."""
    voice = draw(rng, held_out=False)
    choice = rng.random()
    if choice < 0.45:
        name = f"espeak:{rng.choice(ACCENTS)}+{_INVENTED}{rng.randrange(1 << 31)}"
    elif choice < 0.75:
        name = f"flite:{rng.choice(FLITE)}"
    elif choice < 0.8:
        name = f"festival:{rng.choice(FESTIVAL)}"
    else:
        name = f"espeak:{rng.choice(ACCENTS)}+{rng.choice(VARIANTS)}"
    return replace(voice, name=name, pitch_hz=rng.randint(75, 235))


def draw_german(rng: random.Random, *, held_out: bool) -> Voice:
    """A German voice: of five training voices two are invented; no recorded speaker knows the language."""
    voice = draw(rng, held_out=held_out)
    if held_out:
        variant = rng.choice(HELD_OUT_VARIANTS)
    else:
        variant = rng.choice(VARIANTS) if rng.random() < 0.6 else f"{_INVENTED}{rng.randrange(1 << 31)}"
    return replace(voice, name=f"espeak:{GERMAN}+{variant}")


def invented(seed: int) -> str:
    """An espeak-ng variant that nobody wrote (docs/voices.md of espeak-ng has the keys): throat, pitch and manner."""
    rng = random.Random(f"voice {seed}")
    size, low = rng.uniform(0.82, 1.22), rng.uniform(60, 210)
    lines = ["language variant", f"name {_INVENTED}{seed}", f"pitch {low:.0f} {low * rng.uniform(1.1, 1.7):.0f}"]
    for number in range(9):
        percent = 100 * size * rng.uniform(0.93, 1.07)
        lines.append(f"formant {number} {percent:.0f} {rng.uniform(60, 135):.0f} {rng.uniform(60, 160):.0f}")
    lines.append(f"voicing {rng.uniform(50, 150):.0f}")
    lines.append(f"consonants {rng.uniform(50, 140):.0f} {rng.uniform(50, 140):.0f}")
    chances = (
        (0.5, f"flutter {rng.randint(0, 12)}"),
        (0.3, f"roughness {rng.randint(0, 5)}"),
        (0.25, f"klatt {rng.randint(1, 5)}"),
        (0.2, "breath " + " ".join(str(rng.randint(0, 4)) for _ in range(8))),
        (0.15, f"echo {rng.randint(20, 130)} {rng.randint(5, 30)}"),
        (0.4, f"tone 150 {rng.randint(60, 255)} 1200 {rng.randint(60, 255)} 3500 {rng.randint(30, 255)}"),
        (0.2, "stressAmp " + " ".join(str(rng.randint(14, 24)) for _ in range(8))),
    )
    return "\n".join([*lines, *[line for chance, line in chances if rng.random() < chance]]) + "\n"


DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
MAX_SAMPLES = int(9.5 * RATE_HZ)
_DISGUISED = 0.6  # share of the utterances of `varied`
Float = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One shard to make: its name, the random seed it is made from, and its lines (text, list name)."""

    name: str
    seed: str
    lines: tuple[tuple[str, str], ...]
    held_out: bool = False
    varied: bool = False
    german: bool = False

    def voice(self, rng: random.Random) -> Voice:
        """Who speaks the next line."""
        if self.german:
            return draw_german(rng, held_out=self.held_out)
        return draw_varied(rng) if self.varied else draw(rng, held_out=self.held_out)


def digit_text(digits: list[int]) -> str:
    """[4, 2, 7] -> "Four two seven."."""
    return " ".join(DIGITS[digit] for digit in digits).capitalize() + "."


def _decode_wav(data: bytes) -> tuple[int, Float]:
    # espeak-ng writes a length of 2 GB into the header of a piped file: take what is there
    with wave.open(io.BytesIO(data)) as file:
        rate_hz = file.getframerate()
    raw = np.frombuffer(data[44 : len(data) & ~1], dtype="<i2")
    return rate_hz, np.asarray(raw / np.float32(32768), np.float32)


def _espeak(text: str, voice: Voice, name: str, scratch: Path) -> bytes:
    command = ["espeak-ng", "-v", name, "-s", str(voice.speed_wpm), "-p", str(voice.pitch)]
    _, _, variant = name.partition("+")
    if variant.startswith(_INVENTED):
        data = _data_with(scratch, variant)
        command.append(f"--path={data}")
    marked = f'<prosody range="{voice.pitch_range}%">{html.escape(text, quote=False)}</prosody>'
    command += ["-g", str(voice.gap_10ms), "-m", "--stdout", marked]
    return subprocess.run(command, capture_output=True, check=False).stdout


def _data_with(scratch: Path, variant: str) -> Path:
    """A folder in which espeak-ng finds its data and an invented variant."""
    ours = scratch / "espeak-ng-data"
    if not ours.exists():
        about = subprocess.run(["espeak-ng", "--version"], capture_output=True, text=True, check=False).stdout
        theirs = Path(about.rpartition("Data at:")[2].strip())
        (ours / "voices" / "!v").mkdir(parents=True)
        for entry in theirs.iterdir():
            if entry.name != "voices":
                (ours / entry.name).symlink_to(entry)
    for old in (ours / "voices" / "!v").iterdir():
        old.unlink()
    text = invented(int(variant.removeprefix(_INVENTED)))
    (ours / "voices" / "!v" / variant).write_text(text, encoding="ascii")
    return scratch


def _flite(text: str, voice: Voice, name: str, target: Path) -> None:
    command = ["flite", "-voice", name, "--setf", f"duration_stretch={voice.stretch}"]
    command += ["--setf", f"int_f0_target_mean={voice.pitch_hz}", "-t", text, "-o", str(target)]
    subprocess.run(command, capture_output=True, check=False)


def _festival(text: str, voice: Voice, name: str, target: Path) -> None:
    quoted = text.replace("\\", " ").replace('"', " ")
    script = f"""
        (voice_{name}_diphone)
        (set! int_lr_params '((target_f0_mean {voice.pitch_hz}) (target_f0_std {round(voice.pitch_hz / 8)})
                              (model_f0_mean 170) (model_f0_std 34)))
        (Parameter.set 'Duration_Stretch {voice.stretch})
        (utt.save.wave (SynthText "{quoted}") "{target}" 'riff)
    """
    source = target.with_suffix(".scm")
    source.write_text(script, encoding="utf-8")
    subprocess.run(["festival", "-b", str(source)], capture_output=True, check=False)


def speak(text: str, voice: Voice, scratch: Path) -> Float:
    """One utterance as float32 [n_samples] at 16 kHz; empty when the program gave nothing usable."""
    kind, _, name = voice.name.partition(":")
    if kind == "espeak":
        data = _espeak(text, voice, name, scratch)
    else:
        target = scratch / "utterance.wav"
        (_flite if kind == "flite" else _festival)(text, voice, name, target)
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
            voice = job.voice(rng)
            sound = speak(text, voice, Path(scratch))
            if job.varied and sound.size and rng.random() < _DISGUISED:
                sound = disguise(rng, sound)
            samples, start, end = trim(sound)
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


def _plan_train(seed: int, count: int, shard: int, weights: dict[str, float], *, varied: bool = False) -> list[Job]:
    """Whole shards of mixed lines: each list is walked in random order, again and again, at its share."""
    kind = "varied" if varied else "train"
    rng = random.Random(f"plan {seed}" if not varied else f"varied {seed}")
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
        Job(
            name=f"{kind}-{seed}-{at // shard:04d}",
            seed=f"{seed} {at // shard}" if not varied else f"varied {seed} {at // shard}",
            lines=tuple(lines[at : at + shard]),
            varied=varied,
        )
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


def roughen(rng: random.Random, take: Float) -> Float:
    """One take as another microphone and another hand would leave it: noise as long as the take, and less at its ends.

    Joined takes have digital silence between them, so each recording's own noise comes and goes with its digit; a
    speaker whose noise was never heard in training gets further digits out of it.
    """
    if rng.random() < 0.4:
        reach = min(RATE_HZ // 20, take.size // 8)
        take = take[rng.randrange(reach + 1) : take.size - rng.randrange(reach + 1)]
    if rng.random() < 0.7:
        noise = corpus.noise(np.random.default_rng(rng.randrange(1 << 32)), take.size)
        take = take + noise * np.float32(float(np.abs(take).max()) * 10 ** (rng.uniform(-42, -18) / 20))
    return take


def join_digits(
    rng: random.Random, takes: Sequence[dict[int, list[Float]]], digits: list[int], *, rough: bool = False
) -> Float:
    """Join one take of each digit with short pauses; of several speakers' `takes`, each digit has one at random.

    With `rough`, each take is changed on its own first, see roughen.
    """
    parts: list[Float] = []
    pause_s = rng.choice((0.05, 0.15, 0.3, 0.5))
    for digit in digits:
        speaker = takes[0] if len(takes) == 1 else rng.choice(takes)
        take = rng.choice(speaker[digit])
        take = roughen(rng, take) if rough else take
        take = take / (float(np.abs(take).max()) + 1e-6) * 0.5
        parts += [take, np.zeros(int(RATE_HZ * pause_s * rng.uniform(0.3, 1.5)), np.float32)]
    return np.concatenate(parts[:-1])


def disguise(rng: random.Random, samples: Float) -> Float:
    """Another speaker out of one: pitch and formants moved together by resampling, and the tempo on its own."""
    samples = np.asarray(soxr.resample(samples, RATE_HZ * rng.uniform(0.72, 1.35), RATE_HZ), np.float32)
    return augment.stretch(samples, rng.uniform(0.75, 1.35))


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
            if speaker == held_out:
                joined = join_digits(rng, [speakers[speaker]], digits)
            elif rng.random() < 0.15:
                several = join_digits(rng, [speakers[s] for s in chosen], digits, rough=True)
                speaker, joined = "several", disguise(rng, several)
            else:
                joined = disguise(rng, join_digits(rng, [speakers[speaker]], digits, rough=True))
            samples, start, end = trim(joined)
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
    for program in ("espeak-ng", "flite", "festival"):
        if shutil.which(program) is None:
            raise ResourceError(f"the program {program} is not installed: install the package of that name")


_FOLDER = click.argument("folder", type=click.Path(path_type=Path))
_COUNT = partial(click.option, "--count", show_default=True, help="training utterances")
_SHARD = partial(click.option, "--shard", show_default=True, help="utterances in a shard")
_SEED = click.option("--seed", default=1, show_default=True)
_JOBS = click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="processes")


@click.group()
def main() -> None:
    """Synthesise the speech of the demo recipe."""


@main.command()
@_FOLDER
@_COUNT(default=36000)
@_SHARD(default=400)
@_SEED
@_JOBS
def train(folder: Path, count: int, shard: int, seed: int, jobs: int) -> None:
    """Training voices speak the training lists into FOLDER/train: 42 % maintenance, 52 % notes, 6 % digit strings."""
    _programs()
    _run(folder / "train", _plan_train(seed, count, shard, {"maintenance": 0.42, "notes": 0.52, "digits": 0.06}), jobs)


@main.command()
@_FOLDER
@_COUNT(default=9000)
@_SHARD(default=200)
@_SEED
@_JOBS
def varied(folder: Path, count: int, shard: int, seed: int, jobs: int) -> None:
    """The training lists, half and half, in invented and disguised voices, into FOLDER/varied, for CTC heads."""
    _programs()
    weights = {"maintenance": 0.5, "notes": 0.5}
    _run(folder / "varied", _plan_train(seed, count, shard, weights, varied=True), jobs)


@main.command()
@_FOLDER
@_SEED
@_JOBS
def dev(folder: Path, seed: int, jobs: int) -> None:
    """Held-out voices speak every sentence of the dev lists once, into FOLDER/dev; training voices half of them."""
    _programs()
    plan = []
    for name in ("maintenance", "notes"):
        lines = tuple((line, name) for line in list_lines(f"{name}.dev"))
        plan.append(Job(name=f"{name}-dev", seed=f"dev {seed} {name}", lines=lines, held_out=True))
        plan.append(Job(name=f"{name}-seen", seed=f"seen {seed} {name}", lines=lines[:200]))
    _run(folder / "dev", plan, jobs)


@main.command()
@_FOLDER
@_COUNT(default=5000)
@_SHARD(default=250)
@_SEED
@_JOBS
def german(folder: Path, count: int, shard: int, seed: int, jobs: int) -> None:
    """German voices speak the German training list into FOLDER/train, held-out ones its dev list into FOLDER/dev."""
    _programs()
    training, kept = german_lines()
    rng = random.Random(f"german {seed}")
    lines = [(line, DOMAIN) for line in itertools.islice(itertools.cycle(rng.sample(training, len(training))), count)]
    plan = [
        Job(name=f"german-{seed}-{at // shard:04d}", seed=f"german {seed} {at // shard}", lines=part, german=True)
        for at in range(0, count, shard)
        for part in [tuple(lines[at : at + shard])]
    ]
    dev_lines = tuple((line, DOMAIN) for line in kept)
    dev_job = Job(name=f"{DOMAIN}-dev", seed=f"german dev {seed}", lines=dev_lines, held_out=True, german=True)
    _run(folder / "dev", [dev_job], 1)
    _run(folder / "train", plan, jobs)


@main.command()
@_FOLDER
@click.option("--recordings", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)
@_COUNT(default=6000, help="training strings")
@_SEED
@click.option("--held-out", default="theo", show_default=True, help="the speaker kept for the digit test")
def digits(folder: Path, recordings: Path, count: int, seed: int, held_out: str) -> None:
    """Join recorded digits into strings: folders digits-train-SEED and digits-dev-SEED."""
    _digit_shards(folder, recordings, seed, count, held_out)


if __name__ == "__main__":
    run_command(main)
