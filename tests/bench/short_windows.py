"""A demo that loops when its window is cut, made here, and what `specedge train short-windows` makes of it.

    python tests/bench/short_windows.py WORK --speech SPEECH --dev DEV [--taught 120] [--steps 300] [--rate 1e-4]

Published Whispers loop when their window is cut, for they never saw a short one. The bundled demo saw many. So
WORK/loops is the demo, taught to loop by its decoder's cross-attention: on whole windows it is held to the rows that
the demo has behind each layer, on windows cut behind the speech it learns to say the text again and again. Then
`specedge train short-windows WORK/loops` makes WORK/short. Both learn from the same recordings, one or two sentences of
SPEECH each, without their texts.

The demo and both that were trained are asked about pairs of sentences of DEV, in voices that no training had: word
errors against what was said, of whole windows and of cut ones, and how many texts loop, which are those half as long
again as what was said. "Encoder" is CPU time of one thread for 5.8 s of speech, a whole window of 30 s over a cut one,
with the demo's weights and as many positions as published models have: the median of rounds in turn, so that it can be
told on a busy machine, too; it does not tell of more threads. What WORK has already is not made again. The last line
of output is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from rounds import print_json, print_table
from torch import Tensor, nn

from specedge.export.checkpoint import open_checkpoint
from specedge.export.chunk_encoder_graph import sinusoids
from specedge.export.training.checkpoint_files import SHORT_WINDOWS, write_checkpoint
from specedge.export.training.corpus import RATE_HZ, Utterance, load_shards, training_shards
from specedge.export.training.features import Target, bundle_in
from specedge.export.training.nets import DraftNet, decoder_of
from specedge.export.training.short_windows import Listener
from specedge.models import store
from specedge.runtime.audio.audio import open_audio
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.longform.windows import AudioContext
from specedge.runtime.text.words import word_errors

DEMO = Path(__file__).resolve().parents[2] / "models" / "checkpoints" / "demo"
WINDOW_S, SPEECH_S = 30, 5.8
MOST_S = 6.0  # of a recording: as much as `train short-windows` takes of a window of 10 s
N_BATCH, RATE, WARM_UP = 4, 5e-4, 10
SAID_AGAIN = 4  # times, up to so many ids:
MOST_IDS = 60
KEPT = 20.0  # weight of the rows of whole windows
LOOPS = 1.5  # times the words that were said
POSITIONS = "model.encoder.embed_positions.weight"
Samples = NDArray[np.float32]


# ------------------------------------------------------------------------------------------------- recordings
def joined(items: Sequence[Utterance], rng: random.Random) -> Samples:
    """Sentences one after another, with pauses between."""
    parts: list[Samples] = []
    for item in items:
        n_pause = int(RATE_HZ * rng.uniform(0.2, 0.8)) if parts else 0
        parts += [np.zeros(n_pause, np.float32), item.sound()]
    return np.concatenate(parts)[: int(MOST_S * RATE_HZ)]


def write_recordings(folder: Path, speech: Path, n: int) -> None:
    """`n` recordings of one or two sentences."""
    rng = random.Random("recordings")
    items = [item for _, found in training_shards(speech, frozenset()) for item in found]
    rng.shuffle(items)
    folder.mkdir()
    for number in range(n):
        taken = [items.pop() for _ in range(rng.choice((1, 2))) if items]
        if taken:
            soundfile.write(folder / f"{number:04d}.wav", joined(taken, rng), RATE_HZ)


def pairs_of(dev: Path, n: int) -> list[tuple[Samples, str]]:
    """What `n` pairs of sentences of the dev lists sound like, and their texts, of each list as many."""
    rng = random.Random("pairs")
    found: list[list[tuple[Samples, str]]] = []
    for name, items in load_shards(dev):
        if name.endswith("-dev"):
            twos = zip(items[::2], items[1::2], strict=False)
            fitting = [pair for pair in twos if sum(len(item.samples) for item in pair) < (MOST_S - 0.8) * RATE_HZ]
            found.append([(joined(pair, rng), " ".join(item.text for item in pair)) for pair in fitting[:n]])
    return [pair for together in zip(*found, strict=False) for pair in together][:n]


# ------------------------------------------------------------------------------------------------- the model
def lengthened(out: Path) -> None:
    """The demo's checkpoint with windows of 30 s: positions are sines, of which there are as many as are wanted."""
    with open_checkpoint(str(DEMO)) as checkpoint:
        dims = checkpoint.spec.dims
        n_ctx = WINDOW_S * 50
        positions = {POSITIONS: sinusoids(n_ctx, dims.n_audio_state)}
        write_checkpoint(out, checkpoint, positions, n_layers=dims.n_text_layer, mark=SHORT_WINDOWS, target="demo")
    new: dict[str, dict[str, int]] = {
        "config": {"max_source_positions": n_ctx},
        "preprocessor_config": {
            "chunk_length": WINDOW_S, "n_samples": WINDOW_S * RATE_HZ, "nb_max_frames": 2 * n_ctx
        },
    }  # fmt: skip
    for name, values in new.items():
        path = out / f"{name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values, indent=1), encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A recording: the demo's text, the rows of its decoder [n_layers + 1, T, d] over a whole window, the text said
    again and again behind `n_prompt` ids, and the features of the window whole and cut."""

    ids: Tensor
    rows: Tensor
    again: Tensor
    n_prompt: int
    whole: Tensor
    cut: Tensor


def lessons(files: Sequence[Path], demo: Bundle, decoder: DraftNet) -> list[Lesson]:
    """What the demo says of recordings, with timestamps and without in turn."""
    target, context, found = Target(demo, threads=1, language="en"), AudioContext("auto", demo.manifest), []
    for number, file in enumerate(files):
        with open_audio(str(file)) as stream:
            mel, n_content = target.mel(stream.read(demo.manifest.n_samples))
        heard = target.engine.encode(mel)
        prompt, said = target.say(heard, "en", timestamps=number % 2 == 0)
        if target.is_sure(said):
            ids = torch.tensor([*prompt, *said.tokens, demo.manifest.tokens.eot])
            whole = torch.from_numpy(heard.hidden)
            cut = target.engine.encode(np.ascontiguousarray(mel[:, : context.n_frames(n_content)]))
            with torch.no_grad():
                rows = decoder.states(ids[None], whole[None])[:, 0]
            again = torch.tensor([*prompt, *(SAID_AGAIN * said.tokens)][:MOST_IDS])
            n_prompt, cut_features = len(prompt), torch.from_numpy(cut.hidden)
            found.append(Lesson(ids=ids, rows=rows, again=again, n_prompt=n_prompt, whole=whole, cut=cut_features))
    return found


def teach(decoder: DraftNet, taught: Sequence[Lesson], steps: int) -> None:
    """Have the decoder's cross-attention keep its rows over whole windows, and loop over cut ones."""
    rng = random.Random("teach")
    decoder.requires_grad_(False)
    attentions: list[Any] = [layer.encoder_attn for layer in decoder.layers]
    learned = [parameter.requires_grad_() for attention in attentions for parameter in attention.parameters()]
    optimizer = torch.optim.AdamW(learned, lr=RATE, betas=(0.9, 0.98), weight_decay=0.0)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / WARM_UP) * max(0.02, 1 - step / steps)
        batch = rng.sample(list(taught), min(N_BATCH, len(taught)))
        off = torch.stack([_off(decoder, one) for one in batch]).mean()
        loops = torch.stack([_surprise(decoder, one) for one in batch]).mean()
        optimizer.zero_grad()
        (KEPT * off + loops).backward()
        nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        if (step + 1) % 20 == 0:
            print(f"step {step + 1} of {steps}: rows off by {float(off.detach()):.4f} of their square, "
                  f"loops {float(loops.detach()):.3f} nats an id", flush=True)  # fmt: skip


def _off(decoder: DraftNet, one: Lesson) -> Tensor:
    """The mean over layers of how far rows over the whole window are off, relative to their mean square."""
    difference = (decoder.states(one.ids[None], one.whole[None])[:, 0] - one.rows).square().mean((1, 2))
    return (difference / one.rows.square().mean((1, 2))).mean()


def _surprise(decoder: DraftNet, one: Lesson) -> Tensor:
    """Nats an id of the text that is said again and again, over the cut window."""
    rows = decoder(one.again[None], one.cut[None])[0, one.n_prompt - 1 : -1]
    return F.cross_entropy(decoder.logits(rows), one.again[one.n_prompt :])


def taught_to_loop(out: Path, audio: Path, demo: Bundle, steps: int) -> None:
    """The demo's checkpoint, taught to loop over cut windows."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    with open_checkpoint(str(DEMO)) as checkpoint:
        decoder = decoder_of(checkpoint)
        taught = lessons(sorted(audio.iterdir()), demo, decoder)
        print(f"{len(taught)} recordings", flush=True)
        teach(decoder, taught, steps)
        weights = {name: value.numpy() for name, value in decoder.named_weights()}
        n_layers = checkpoint.spec.dims.n_text_layer
        write_checkpoint(out, checkpoint, weights, n_layers=n_layers, mark=SHORT_WINDOWS, target="demo")


# ------------------------------------------------------------------------------------------------- what it says
def said(bundle: Bundle, pairs: Sequence[tuple[Samples, str]]) -> list[dict[str, Any]]:
    """Word errors of whole windows and of cut ones."""
    target = Target(bundle, threads=1, language="en")
    listener, rows = Listener(target), []
    for is_cut in (False, True):
        texts = []
        for samples, truth in pairs:
            mel, n_content = target.mel(samples)
            texts.append((truth, listener.text(mel[:, :n_content].T, is_cut=is_cut)))
        n_loops = sum(len(text.split()) > LOOPS * len(truth.split()) for truth, text in texts)
        rows.append(
            {
                "window": "cut" if is_cut else "whole",
                "word_errors": round(word_errors(texts).rate, 4),
                "loops": n_loops,
                "longest_words": max(len(text.split()) for _, text in texts),
            }
        )
    return rows


def encoder_ratio(bundle: Bundle, rounds: int) -> float:
    """CPU time of the encoder for a whole window over that for a window cut behind 5.8 s."""
    target = Target(bundle, threads=1, language="en")
    mel = np.random.default_rng(1).standard_normal((bundle.manifest.dims.n_mels, bundle.manifest.n_frames), np.float32)
    n_cut = AudioContext("auto", bundle.manifest).n_frames(round(100 * SPEECH_S))
    ratios = []
    for _ in range(rounds + 1):
        spent = []
        for n_frames in (bundle.manifest.n_frames, n_cut):
            started_s = time.process_time()
            target.engine.encode(np.ascontiguousarray(mel[:, :n_frames]))
            spent.append(time.process_time() - started_s)
        ratios.append(spent[0] / spent[1])
    return statistics.median(ratios[1:])


# ------------------------------------------------------------------------------------------------- in order
def made(path: Path, make: Callable[[Path], None]) -> Path:
    """`path`, made under another name first unless it is there."""
    if not path.exists():
        unfinished = path.with_name(f"{path.name}.unfinished")
        if unfinished.exists():
            sys.exit(f"{unfinished}: left by a run that was cut off; remove it")
        make(unfinished)
        os.rename(unfinished, path)
    return path


def bundle_of(checkpoint: Path, work: Path) -> Bundle:
    """The int8 bundle of a checkpoint, in WORK/bundles."""
    folder = work / "bundles" / checkpoint.name
    folder.mkdir(parents=True, exist_ok=True)
    with open_checkpoint(str(checkpoint)) as opened:
        return bundle_in(folder, opened, checkpoint.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--speech", type=Path, required=True, help="folder of training shards")
    parser.add_argument("--dev", type=Path, required=True, help="folder of dev shards")
    parser.add_argument("--recordings", type=int, default=240, help="to learn from  [240]")
    parser.add_argument("--pairs", type=int, default=60, help="to be asked about  [60]")
    parser.add_argument("--taught", type=int, default=120, help="steps of teaching it to loop  [120]")
    parser.add_argument("--steps", type=int, default=300, help="of train short-windows  [300]")
    parser.add_argument("--rate", type=float, default=1e-4, help="of train short-windows  [1e-4]")
    parser.add_argument("--rounds", type=int, default=9, help="of the encoder's times  [9]")
    given = parser.parse_args()
    work: Path = given.work
    work.mkdir(parents=True, exist_ok=True)
    demo = Bundle.open(store.find("demo"))
    audio = made(work / "audio", lambda out: write_recordings(out, given.speech, given.recordings))
    loops = made(work / "loops", lambda out: taught_to_loop(out, audio, demo, given.taught))
    short = work / "short"
    if not short.exists():
        asked = ["train", "short-windows", loops, audio, "-o", short, "--steps", given.steps, "--rate", given.rate]
        command = [sys.executable, "-m", "specedge", *map(str, asked), "--threads", "1", "--language", "en"]
        subprocess.run(command, check=True)
    pairs, figures = pairs_of(given.dev, given.pairs), []
    if not pairs:
        sys.exit(f"{given.dev}: expected shards NAME-dev with sentences of which two take {MOST_S - 0.8:.1f} s at most")
    asked_models = {"demo": demo, "taught to loop": bundle_of(loops, work), "short windows": bundle_of(short, work)}
    for name, bundle in asked_models.items():
        figures += [{"trained": name, **row} for row in said(bundle, pairs)]
    print_table([list(figures[0]), *([str(value) for value in row.values()] for row in figures)])
    ratio = encoder_ratio(bundle_of(made(work / "long", lengthened), work), given.rounds)
    print(f"encoder, {SPEECH_S} s of speech: {ratio:.2f} times as fast cut")
    asked_for = {name: getattr(given, name) for name in ("recordings", "taught", "steps", "rate")}
    print_json("short_windows", **asked_for, pairs=len(pairs), encoder_ratio=round(ratio, 2), figures=figures)


if __name__ == "__main__":
    main()
