"""Train the demo's speech LLM on the frozen encoder of a bundle: one command, resumable by the same command.

    python -m specedge.models.recipe.speech_llm train --speech SPEECH --out RUN --minutes 80
    python -m specedge.models.recipe.speech_llm measure RUN [--limit 400]

SPEECH holds folders of shards (see speech.py). RUN gets `features/` (audio rows, made once, with the bundle's encoder),
`state.pt` (the resumable state), `hf/` (the running mean of the weights, in Voxtral's layout) and `log.jsonl`. A run
goes by steps (`--steps`, reproducible) or by the clock (`--minutes`, from the first step on): then stopped time counts,
and the learning rate still ends at the end. `measure` reports word errors on the dev lists in held-out voices, and how
many tokens a call of the decoder gives when the heads' guesses are verified strictly, as a drafter would have them.
"""

from __future__ import annotations

import copy
import json
import math
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from specedge.errors import UsageError
from specedge.export.training.labels import IGNORE
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.text.words import word_errors

from .command_line import run_command
from .llm_network import AUDIO, HEAD_WEIGHTS, SIZES, LlmNet, export_llm, losses
from .llm_tokens import TOKENIZER_NAME, Tokens, learn, read, training_texts
from .llm_windows import Example, read_features, write_features

__all__ = ["LlmPlan", "LlmTrainer", "batch_of", "measure_run", "tokens_a_call", "transcribe_all"]

MODELS_FOLDER = Path(__file__).resolve().parents[1]
_ROWS = 2048  # of a batch, padding included
_MOST = 64  # windows of a batch


@dataclass(frozen=True, kw_only=True)
class LlmPlan:
    """Settings of a run. noise: added to half of the audio, over its standard deviation."""

    size: str = "demo-llm"
    seed: int = 1
    learning_rate: float = 1.5e-3
    warm_up: int = 60
    noise: float = 0.1
    mean_decay: float = 0.99
    save_minutes: float = 3.0


def batch_of(
    tokens: Tokens, examples: Sequence[Example], *, with_text: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids int64 [B, L], padded behind; audio rows float32 [n_rows, n_audio]; targets int64 [B, L], text and its end."""
    rows, wanted = [], []
    for example in examples:
        text = [*tokens.encode(example.text), tokens.end] if with_text else []
        prompt = [*tokens.prefix, *[AUDIO] * len(example.audio), *tokens.suffix]
        rows.append([*prompt, *text[:-1]])
        wanted.append([*[IGNORE] * (len(prompt) - 1), *text])
    length = max(map(len, rows))
    ids = torch.full((len(rows), length), tokens.end)
    targets = torch.full((len(rows), length), IGNORE)
    for at, (row, asked) in enumerate(zip(rows, wanted, strict=True)):
        ids[at, : len(row)] = torch.tensor(row)
        targets[at, : len(asked)] = torch.tensor(asked)
    audio = np.concatenate([example.audio for example in examples]).astype(np.float32)
    return ids, torch.from_numpy(audio), targets


class LlmTrainer:
    """Net, optimizer and running mean; a step's batch depends on the seed, the step and the examples alone."""

    def __init__(self, plan: LlmPlan, tokens: Tokens, examples: Sequence[Example]) -> None:
        torch.manual_seed(plan.seed)
        self.plan, self.tokens = plan, tokens
        self.net = LlmNet(SIZES[plan.size], tokens.n_vocab)
        self.mean = copy.deepcopy(self.net).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(
            self.net.parameters(), lr=plan.learning_rate, betas=(0.9, 0.98), weight_decay=0.02, fused=True
        )
        self.step_number, self.fraction = 0, 0.0
        self.losses = [0.0] * len(HEAD_WEIGHTS)
        self.take(examples)

    def take(self, examples: Sequence[Example]) -> None:
        """Learn from these from now on."""
        self.examples = sorted(examples, key=lambda example: (len(example.audio) + len(example.text) / 3, example.text))

    def rate(self) -> float:
        """Learning rate: linear warm-up by steps, then a cosine over the fraction down to 2 %."""
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, self.fraction)))
        return self.plan.learning_rate * min(1.0, (self.step_number + 1) / self.plan.warm_up) * (0.98 * cosine + 0.02)

    def _draw(self) -> list[Example]:
        """Windows of about the same length."""
        rng = random.Random(f"{self.plan.seed} {self.step_number}")
        first = rng.randrange(len(self.examples))
        longest = self.examples[min(first + _MOST, len(self.examples)) - 1]
        n = max(1, min(_MOST, _ROWS // (len(longest.audio) + len(longest.text) // 2 + 8)))
        return self.examples[first : first + n]

    def step(self) -> None:
        """One batch forward and back. The caller sets `fraction`."""
        ids, audio, targets = batch_of(self.tokens, self._draw())
        generator = torch.Generator().manual_seed(self.plan.seed * 1_000_003 + self.step_number)
        if torch.rand((), generator=generator) < 0.5:
            audio = audio + self.plan.noise * audio.std() * torch.randn(audio.shape, generator=generator)
        with torch.autocast("cpu", torch.bfloat16):
            found = losses(self.net, self.net.hidden(ids, audio), targets)
        total = sum((weight * loss for weight, loss in zip(HEAD_WEIGHTS, found, strict=True)), torch.zeros(()))
        self.optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.param_groups[0]["lr"] = self.rate()
        self.optimizer.step()
        self.step_number += 1
        decay = min(self.plan.mean_decay, (1 + self.step_number) / (10 + self.step_number))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.mean.parameters()), list(self.net.parameters()), 1 - decay)
        blend = 0.03 if self.step_number > 1 else 1.0
        self.losses = [old + blend * (float(new.detach()) - old) for old, new in zip(self.losses, found, strict=True)]

    def save(self, out: Path, encoder: Path) -> None:
        """Replace state.pt, then the checkpoint, which gets the running mean."""
        out.mkdir(parents=True, exist_ok=True)
        state = {
            "size": self.plan.size,
            "net": self.net.state_dict(),
            "mean": self.mean.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step_number,
            "fraction": self.fraction,
            "losses": self.losses,
        }
        torch.save(state, out / "state.tmp")
        os.replace(out / "state.tmp", out / "state.pt")
        export_llm(self.mean, self.tokens, encoder, out / "hf")

    def load(self, out: Path) -> bool:
        """Go on from the state of an earlier call, if there is one. Raises UsageError for one of another size."""
        path = out / "state.pt"
        if not path.exists():
            return False
        state = torch.load(path, weights_only=True)
        if state["size"] != self.plan.size:
            raise UsageError(f"{path} holds {state['size']}, asked for {self.plan.size}; use another --out")
        self.net.load_state_dict(state["net"])
        self.mean.load_state_dict(state["mean"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step_number, self.fraction, self.losses = state["step"], state["fraction"], state["losses"]
        return True


def run(trainer: LlmTrainer, out: Path, encoder: Path, *, steps: int | None, minutes: float | None) -> None:
    """Steps until the schedule's end; logs every 50 steps and saves every few minutes."""
    last = saved = time.time()
    deadline = last + 60 * (minutes or 0)
    while trainer.fraction < 1.0:
        trainer.step()
        now = time.time()
        if steps is not None:
            trainer.fraction = trainer.step_number / steps
        else:
            done = 1.0 if now >= deadline else (now - last) / (deadline - last)
            trainer.fraction += (1 - trainer.fraction) * done
        last = now
        if trainer.step_number % 50 == 0 or trainer.fraction >= 1.0:
            _log(trainer, out)
        if now - saved > 60 * trainer.plan.save_minutes:
            trainer.save(out, encoder)
            saved = now
    trainer.save(out, encoder)


def _log(trainer: LlmTrainer, out: Path) -> None:
    row: dict[str, Any] = {"step": trainer.step_number, "fraction": round(trainer.fraction, 4), "rate": trainer.rate()}
    row |= {"losses": [round(loss, 4) for loss in trainer.losses], "time": round(time.time(), 1)}
    with open(out / "log.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    click.echo(f"{datetime.now():%H:%M:%S} {row}", err=True)


@torch.no_grad()
def transcribe_all(
    net: LlmNet, tokens: Tokens, examples: Sequence[Example], *, most: int = 160
) -> list[tuple[list[int], list[list[int]]]]:
    """Greedy text of each window, its end included, and the heads' best guesses [n_heads, n_text] at each of its rows.

    Row i is the one that token i of the text is read from.
    """
    found: list[tuple[list[int], list[list[int]]]] = [([], []) for _ in examples]
    by_length: dict[int, list[int]] = {}
    for at, example in enumerate(examples):
        by_length.setdefault(len(example.audio), []).append(at)
    for places in by_length.values():
        ids, audio, _ = batch_of(tokens, [examples[at] for at in places], with_text=False)
        n_prompt = ids.shape[1]
        ended = torch.zeros(len(places), dtype=torch.bool)
        for _ in range(most):
            best = (net.hidden(ids, audio)[:, -1] @ net.table.T).argmax(-1)
            ids = torch.cat([ids, best[:, None]], 1)
            ended |= best == tokens.end
            if bool(ended.all()):
                break
        hidden = net.hidden(ids, audio)[:, n_prompt - 1 : -1]
        guessed = torch.stack([logits.argmax(-1) for logits in net.guesses(hidden)[1:]])
        for row, at in enumerate(places):
            text = ids[row, n_prompt:].tolist()
            n = text.index(tokens.end) + 1 if tokens.end in text else len(text)
            found[at] = text[:n], guessed[:, row, :n].tolist()
    return found


def tokens_a_call(text: Sequence[int], guesses: Sequence[Sequence[int]]) -> int:
    """Calls of the decoder for `text`: each gives a token and those of the heads' guesses behind it that are right."""
    at = n_calls = 0
    while at < len(text):
        n_calls += 1
        n = 1
        while n <= len(guesses) and at + n < len(text) and guesses[n - 1][at] == text[at + n]:
            n += 1
        at += n
    return n_calls


def measure_run(net: LlmNet, tokens: Tokens, examples: Sequence[Example], *, limit: int) -> dict[str, Any]:
    """Figures of each list of dev windows: word errors, and tokens and words for each call of the decoder."""
    report: dict[str, Any] = {}
    for source in sorted({example.source for example in examples}):
        chosen = [example for example in examples if example.source == source][:limit]
        found = transcribe_all(net, tokens, chosen)
        pairs = [(example.text, tokens.decode(text)) for example, (text, _) in zip(chosen, found, strict=True)]
        errors = word_errors(pairs)
        n_tokens = sum(len(text) for text, _ in found)
        n_calls = sum(tokens_a_call(text, guesses) for text, guesses in found)
        report[source] = {
            "texts": len(chosen),
            "wer": round(errors.rate, 5),
            "tokens_a_call": round(n_tokens / max(1, n_calls), 3),
            "calls_a_word": round(n_calls / max(1, errors.n_words), 3),
            "tokens_a_word": round(n_tokens / max(1, errors.n_words), 3),
            "wrong": [pair for pair in pairs if pair[0] != pair[1]][:8],
        }
    return report


def tokens_of(out: Path) -> Tokens:
    """The tokenizer of a run, learned when there is none."""
    path = out / TOKENIZER_NAME
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".tmp").write_text(json.dumps(learn(training_texts()).content) + "\n", encoding="utf-8")
        os.replace(path.with_suffix(".tmp"), path)
    return read(path)


@click.group()
def main() -> None:
    """Train and measure the demo's speech LLM."""


@main.command()
@click.option("--speech", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="the run's folder")
@click.option("--steps", type=int, help="length in steps (reproducible)")
@click.option("--minutes", type=float, help="length in minutes from the first step on")
@click.option("--bundle", type=click.Path(path_type=Path), default=MODELS_FOLDER / "bundled" / "demo", help="encoder")
@click.option("--encoder", type=click.Path(path_type=Path), default=MODELS_FOLDER / "checkpoints" / "demo", help="same")
@click.option("--seed", default=1, show_default=True)
@click.option("--threads", default=os.cpu_count() or 1, show_default=True)
def train(
    speech: Path,
    out: Path,
    steps: int | None,
    minutes: float | None,
    bundle: Path,
    encoder: Path,
    seed: int,
    threads: int,
) -> None:
    """Make the features that are missing, and train on them. --encoder is the checkpoint that --bundle was made of."""
    if (steps is None) == (minutes is None):
        raise click.UsageError("give either --steps or --minutes")
    torch.set_num_threads(threads)
    write_features(
        speech, out / "features", Bundle.open(bundle), threads=threads, notify=lambda line: click.echo(line, err=True)
    )
    trainer = LlmTrainer(LlmPlan(seed=seed), tokens_of(out), read_features(out / "features" / "train"))
    if trainer.load(out):
        click.echo(f"taking up step {trainer.step_number} at {trainer.fraction:.3f}", err=True)
    run(trainer, out, encoder, steps=steps, minutes=minutes)


@main.command()
@click.argument("out", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--limit", default=400, show_default=True, help="windows of each list")
def measure(out: Path, limit: int) -> None:
    """Measure the run in OUT on held-out voices."""
    examples = read_features(out / "features" / "dev")
    trainer = LlmTrainer(LlmPlan(), tokens_of(out), examples)
    if not trainer.load(out):
        raise UsageError(f"{out}: no state.pt; train first")
    click.echo(json.dumps(measure_run(trainer.mean, trainer.tokens, examples, limit=limit), indent=1))


if __name__ == "__main__":
    run_command(main)
