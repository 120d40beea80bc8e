"""A second language in minutes: the upper layers of a trained model learn, over rows that the lower ones give once.

    python -m specedge.models.recipe.upper --model demo-de --speech SPEECH-DE --from CHECKPOINT --out RUN --steps 700

The lower encoder layers hear much the same in all languages, and are most of a step's work. They are asked once for
each batch of utterances of about the same length, every sixth in a whole window, half of them with a little noise. The
upper two encoder layers, the decoder and the tokens then learn the texts, without timestamps, and the encoder the
characters by CTC beside them. OUT gets the running mean of the weights in Hugging Face layout as `hf`; a run that was
stopped goes on from `state.pt`. `train` makes better models, in hours.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specedge.errors import UsageError
from specedge.export.training.corpus import RATE_HZ, Utterance, training_shards
from specedge.export.training.labels import IGNORE, read_spelling

from . import augment
from .command_line import run_command
from .labels import Sentence, Vocabulary, build, characters
from .network import MODELS, LogMel, Net, ctc_loss, export, take_weights, token_loss
from .speech import usable
from .train import check_run
from .trainer import demo_vocabulary

__all__ = ["Lesson", "UpperTrainer", "lessons_of"]

_N_UPPER = 2
_N_BATCH = 16
_RATE, _WARM_UP, _CTC_WEIGHT = 8e-4, 60, 0.5
_WHOLE = 6  # every so many batches one of whole windows
_SPREAD = 0.02  # of what the rows of new tokens begin with


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A batch: rows bfloat16 [B, T, d] of the lower layers, tokens and targets int64 [B, L], the texts' characters."""

    rows: Tensor
    tokens: Tensor
    targets: Tensor
    texts: list[list[int]]


def begin(model: str, start: Path) -> tuple[Net, Vocabulary]:
    """A model with the weights of the checkpoint `start`, whose new tokens differ a little. Raises UsageError."""
    size = MODELS[model]
    vocabulary = demo_vocabulary(size)
    net = Net(size, vocabulary)
    take_weights(net, vocabulary, start)
    with torch.no_grad():
        table = net.whisper.model.decoder.embed_tokens.weight
        is_new = (table - table[vocabulary.other]).abs().amax(1) < 1e-3
        table[is_new] += _SPREAD * torch.randn(int(is_new.sum()), table.shape[1])
    spelling = read_spelling(start)
    if spelling is not None and spelling.weight.shape == net.ctc.weight.shape:
        net.ctc.load_state_dict({"weight": spelling.weight, "bias": spelling.bias})
    return net, vocabulary


def _lower(net: Net, mel: LogMel, sounds: np.ndarray[Any, np.dtype[np.float32]], seed: int) -> Tensor:
    """Rows bfloat16 [B, T, d] behind the lower encoder layers, of float32 [B, n_samples]."""
    encoder = net.whisper.model.encoder
    middle = len(augment.WARPS) // 2
    generator = torch.Generator().manual_seed(seed)
    which = torch.randint(middle - 2, middle + 3, (len(sounds),), generator=generator)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        hidden = F.gelu(encoder.conv1(mel(torch.from_numpy(sounds), which)))
        hidden = F.gelu(encoder.conv2(hidden)).transpose(1, 2)
        hidden = hidden + encoder.embed_positions.weight[: hidden.shape[1]]
        return _through(encoder.layers[:-_N_UPPER], hidden).to(torch.bfloat16)


def _through(layers: Any, hidden: Tensor) -> Tensor:
    for layer in layers:
        out = layer(hidden, None)
        hidden = out[0] if isinstance(out, tuple) else out
    return hidden


def lessons_of(net: Net, vocabulary: Vocabulary, items: list[Utterance], seed: int = 1) -> list[Lesson]:
    """Batches of utterances of about the same length, the rest left out."""
    items = sorted(items, key=lambda item: item.samples.size)
    rng, wave = random.Random(seed), np.random.default_rng(seed)
    mel = LogMel(augment.warped_filters(net.size.tokens.n_mels))
    window = round(net.size.window_s * RATE_HZ)
    found = []
    for at in range(0, len(items) - _N_BATCH + 1, _N_BATCH):
        batch = items[at : at + _N_BATCH]
        longest = max(item.samples.size for item in batch)
        step = RATE_HZ // 5
        n = min(window, -(-(longest + rng.randrange(RATE_HZ // 10, RATE_HZ)) // step) * step)
        sounds = np.zeros((_N_BATCH, window if at // _N_BATCH % _WHOLE == 0 else n), np.float32)
        for row, item in zip(sounds, batch, strict=True):
            first = rng.randrange(min(2 * step, len(row) - item.samples.size + 1))
            row[first : first + item.samples.size] = item.sound() * rng.uniform(0.4, 1)
            if rng.random() < 0.5:
                row += wave.standard_normal(len(row), np.float32) * 10 ** rng.uniform(-4, -2.3)
        tokens, targets = _labels(vocabulary, [item.text for item in batch], rng)
        texts = [characters(item.text) for item in batch]
        found.append(Lesson(rows=_lower(net, mel, sounds, at), tokens=tokens, targets=targets, texts=texts))
    return found


def _labels(vocabulary: Vocabulary, texts: list[str], rng: random.Random) -> tuple[Tensor, Tensor]:
    """Tokens and targets int64 [B, L] of texts without timestamps, in restricted rows."""
    layout = vocabulary.layout
    made = [build(layout, [Sentence(text=text, start_s=0, end_s=1)], rng, timestamps=False) for text in texts]
    length = max(len(labels.tokens) for labels in made)
    tokens = torch.full((len(made), length), int(vocabulary.row_of[layout.special.eot]))
    targets = torch.full((len(made), length), IGNORE)
    for at, labels in enumerate(made):
        rows = [target if target < 0 else int(vocabulary.row_of[target]) for target in labels.targets]
        tokens[at, : len(rows)] = torch.tensor(vocabulary.restrict(labels.tokens))
        targets[at, : len(rows)] = torch.tensor(rows)
    return tokens, targets


class UpperTrainer:
    """Training in the folder `out` for `n_steps`, or `minutes` of running, whatever ends first."""

    def __init__(self, net: Net, vocabulary: Vocabulary, out: Path, *, n_steps: int, minutes: float) -> None:
        self.net, self.vocabulary, self.out = net, vocabulary, out
        self.n_steps, self._seconds = n_steps, 60 * minutes
        self.step, self._spent_s = 0, 0.0
        encoder = net.whisper.model.encoder
        for module in (encoder.conv1, encoder.conv2, encoder.layers[:-_N_UPPER], net.clock):
            module.requires_grad_(False)
        self._parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=_RATE, betas=(0.9, 0.98), weight_decay=0.01, fused=True
        )
        self._mean = {name: value.clone() for name, value in net.state_dict().items()}
        if (out / "state.pt").is_file():
            state = torch.load(out / "state.pt", weights_only=True)
            net.load_state_dict(state["net"])
            self._optimizer.load_state_dict(state["optimizer"])
            self._mean, self.step, self._spent_s = state["mean"], state["step"], state["spent_s"]

    @property
    def fraction(self) -> float:
        """Of the training that is done."""
        return max(self.step / self.n_steps, self._spent_s / self._seconds)

    def loss(self, lesson: Lesson) -> tuple[Tensor, Tensor]:
        """Of tokens and of characters."""
        with torch.autocast("cpu", torch.bfloat16):
            encoder = self.net.whisper.model.encoder
            features = encoder.layer_norm(_through(encoder.layers[-_N_UPPER:], lesson.rows))
            first = torch.zeros(len(lesson.tokens), dtype=torch.long)
            tokens = token_loss(self.net, self.net.decode(lesson.tokens, features, first), lesson.targets)
            spelling = self.net.ctc(features).float()
            n_frames = torch.full((len(spelling),), spelling.shape[1])
            return tokens, ctc_loss(spelling, lesson.texts, n_frames)

    def run(self, lessons: list[Lesson]) -> None:
        """All steps; a line and the weights now and then."""
        order: list[int] = []
        last = time.monotonic()
        while self.fraction < 1:
            order = order or random.Random(self.step).sample(range(len(lessons)), len(lessons))
            tokens, spelling = self.loss(lessons[order.pop()])
            self._optimizer.zero_grad()
            (tokens + _CTC_WEIGHT * spelling).backward()
            torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
            cosine = 0.5 * (1 + math.cos(math.pi * self.fraction))
            for group in self._optimizer.param_groups:
                group["lr"] = _RATE * min(1, (self.step + 1) / _WARM_UP) * (0.02 + 0.98 * cosine)
            self._optimizer.step()
            self.step += 1
            self._blend()
            now = time.monotonic()
            self._spent_s, last = self._spent_s + now - last, now
            if self.step % 50 == 0:
                losses = f"tokens {float(tokens.detach()):.3f}, characters {float(spelling.detach()):.3f}"
                click.echo(f"step {self.step}: {losses}", err=True)
            if self.step % 100 == 0:
                self.save()
        self.save()

    def _blend(self) -> None:
        """Move the running mean towards the weights."""
        keep = min(0.98, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for name, value in self.net.state_dict().items():
                if value.is_floating_point():
                    self._mean[name].lerp_(value, 1 - keep)

    def save(self) -> None:
        """The state, and the mean as a checkpoint."""
        own = {name: value.clone() for name, value in self.net.state_dict().items()}
        state = {"net": own, "optimizer": self._optimizer.state_dict(), "mean": self._mean}
        torch.save({**state, "step": self.step, "spent_s": self._spent_s}, self.out / "state.tmp")
        (self.out / "state.tmp").replace(self.out / "state.pt")
        self.net.load_state_dict(self._mean)
        export(self.net, self.vocabulary, self.out / "hf")
        self.net.load_state_dict(own)


@click.command()
@click.option("--model", type=click.Choice(list(MODELS)), default="demo-de", show_default=True)
@click.option("--speech", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)
@click.option("--from", "start", type=click.Path(path_type=Path), required=True, help="checkpoint to start with")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="the run's folder")
@click.option("--steps", default=700, show_default=True)
@click.option("--minutes", default=60.0, show_default=True, help="of running, at most")
@click.option("--seed", default=1, show_default=True)
@click.option("--threads", default=1, show_default=True)
def main(model: str, speech: Path, start: Path, out: Path, steps: int, minutes: float, seed: int, threads: int) -> None:
    """Teach the upper layers of a trained model another language."""
    check_run(out)
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    net, vocabulary = begin(model, start)
    items = [item for _, part in training_shards(speech, frozenset()) for item in part if usable(item.voice)]
    if len(items) < _N_BATCH:
        raise UsageError(f"{speech}: {len(items)} utterances to train on; make them with `speech german` first")
    trainer = UpperTrainer(net, vocabulary, out, n_steps=steps, minutes=minutes)
    trainer.run(lessons_of(net, vocabulary, items, seed))


if __name__ == "__main__":
    run_command(main)
