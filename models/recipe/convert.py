"""A draft from a checkpoint's own weights: in another version's mels and tokens, with fewer layers.

    python -m specedge.models.recipe.convert CHECKPOINT --model demo-draft --speech SPEECH --out RUN --steps 1500

The first convolution is folded with the linear map from the new mels to the old ones that fits speech best, rows of
the vocabulary go by the bytes they stand for, and layers that are too many are left out, evenly. Then the encoder alone
learns to give what the checkpoint's gives, in mean square; no labels are needed. The checkpoint's decoder works behind
it as it is, and `specedge train draft --from` goes on from there. RUN gets `hf/`, the checkpoint, rewritten every few
minutes, and `state.pt`, from which the same command goes on.
"""

from __future__ import annotations

import copy
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import torch
from torch import Tensor, nn

from specedge.errors import UsageError
from specedge.export.training import corpus
from specedge.export.training.nets import spaced_layers
from specedge.runtime.audio.mel import filterbank
from specedge.runtime.console import Progress

from . import augment
from .command_line import run_command
from .data import Batch, Mix, Pool, collate
from .labels import Vocabulary, layout_of, same_tokens, tokenizer_of
from .network import MODELS, LogMel, Net, Size, export
from .train import check_run, refresh
from .trainer import demo_vocabulary, load_checkpoint

__all__ = ["Hearing", "convert", "fold_mels", "mel_bridge", "read_source", "rows_by_meaning"]

_MIX = Mix(short=0.75, packed=0.15, padded=0.1, strength=0.5, n_short=16)
_N_BRIDGE = 300  # utterances that the map between mels is fitted to
_RIDGE = 1e-3


def read_source(folder: Path) -> Net:
    """A checkpoint of this recipe, of whatever size, as a frozen Net. Raises UsageError where there is none."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        size = Size(
            name=folder.name,
            layout=layout_of(config["vocab_size"], folder).name,
            d_model=config["d_model"],
            n_encoder=config["encoder_layers"],
            n_decoder=config["decoder_layers"],
            n_heads=config["encoder_attention_heads"],
            n_audio_ctx=config["max_source_positions"],
            n_text_ctx=config["max_target_positions"],
        )
    except UsageError:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{folder}: no checkpoint of this recipe: {error}") from error
    return load_checkpoint(folder, size, needs_spelling=False)


def mel_bridge(pool: Pool, n_from: int, n_to: int, seed: int = 1) -> Tensor:
    """The linear map from log-mels of `n_from` bands to `n_to` that fits speech best: float32 [n_from + 1, n_to].

    The last row is a constant. Least squares over augmented utterances of the pool, drawn by the seed.
    """
    rng = np.random.default_rng(seed)
    mels = [LogMel(filterbank(n)) for n in (n_from, n_to)]
    square, product = np.zeros((n_from + 1, n_from + 1)), np.zeros((n_from + 1, n_to))
    for at in rng.integers(0, len(pool.items), _N_BRIDGE):
        samples = corpus.acoustics(rng, pool.items[at].sound(), float(rng.uniform(0, 0.6)))
        theirs, ours = (mel(torch.from_numpy(samples)[None])[0].numpy().T.astype(np.float64) for mel in mels)
        known = np.hstack([theirs, np.ones((len(theirs), 1))])
        square += known.T @ known
        product += known.T @ ours
    return torch.from_numpy(np.linalg.solve(square + _RIDGE * np.eye(n_from + 1), product).astype(np.float32))


def fold_mels(conv: nn.Conv1d, weight: Tensor, bias: Tensor, bridge: Tensor) -> None:
    """Fill `conv` so that it gives for the new mels what weight [d, n_old, 3] and bias [d] give for the bridged ones.

    The two frames at a window's ends differ, because the padding outside lacks the bridge's constant.
    """
    with torch.no_grad():
        conv.weight.copy_(torch.einsum("dmk,nm->dnk", weight, bridge[:-1]))
        assert conv.bias is not None  # for the type alone: Whisper's has one
        conv.bias.copy_(bias + torch.einsum("dmk,m->d", weight, bridge[-1]))


def rows_by_meaning(vocabulary: Vocabulary, theirs: Vocabulary, table: Tensor) -> Tensor:
    """The rows [n_rows, d] of `vocabulary` out of the restricted table [n_rows, d] of another one.

    A token that the other vocabulary spells with several gets their mean; `other` stays `other`.
    """
    same = same_tokens(vocabulary.layout, theirs.layout)
    mine, encode = tokenizer_of(vocabulary.layout.name), tokenizer_of(theirs.layout.name).encode
    rows = []
    for id_ in vocabulary.rows.tolist():
        ids = [int(same[id_])] if same[id_] >= 0 else encode(mine.decode([id_]))
        rows.append(table[theirs.restrict(ids)].mean(0))
    return torch.stack([*rows, table[theirs.other]])


def convert(source: Net, size: Size, bridge: Tensor | None) -> Net:
    """A Net of `size` with the weights of `source`; `bridge` from its mels to the source's where they differ.

    Raises UsageError where the two differ in more than version and layers.
    """
    theirs = source.size
    if (size.d_model, size.n_heads, size.n_audio_ctx, size.n_text_ctx) != (
        theirs.d_model, theirs.n_heads, theirs.n_audio_ctx, theirs.n_text_ctx,
    ):  # fmt: skip
        raise UsageError(
            f"{theirs.name} is of another width or window than {size.name}: only layers and version change"
        )
    if size.n_encoder > theirs.n_encoder or size.n_decoder > theirs.n_decoder:
        raise UsageError(f"{theirs.name} has fewer layers than {size.name}: layers are left out, never added")
    vocabulary, known = demo_vocabulary(size), demo_vocabulary(theirs)
    net = Net(size, vocabulary)
    net.ctc.load_state_dict(source.ctc.state_dict())
    mine, model = net.whisper.model, source.whisper.model
    for part, there in ((mine.encoder, model.encoder), (mine.decoder, model.decoder)):
        for at, kept in enumerate(spaced_layers(len(part.layers), len(there.layers))):
            part.layers[at].load_state_dict(there.layers[kept].state_dict())
        for name in ("layer_norm", "embed_positions"):
            getattr(part, name).load_state_dict(getattr(there, name).state_dict())
    mine.encoder.conv2.load_state_dict(model.encoder.conv2.state_dict())
    if bridge is None:
        mine.encoder.conv1.load_state_dict(model.encoder.conv1.state_dict())
    else:
        fold_mels(mine.encoder.conv1, model.encoder.conv1.weight, model.encoder.conv1.bias, bridge)
    with torch.no_grad():
        mine.decoder.embed_tokens.weight.copy_(rows_by_meaning(vocabulary, known, model.decoder.embed_tokens.weight))
    return net


class Hearing:
    """The encoder of `net` learns to give what that of `source` gives; `error` is the running share that it misses."""

    def __init__(self, net: Net, source: Net, pool: Pool, out: Path, *, steps: int, rate: float, seed: int) -> None:
        self.net, self.source, self.pool, self.out = net, source, pool, out
        self.steps, self.rate, self.seed = steps, rate, seed
        self.step, self.error = 0, 0.0
        self._vocabulary = demo_vocabulary(net.size)
        self._mels = [LogMel(augment.warped_filters(size.tokens.n_mels)) for size in (net.size, source.size)]
        net.requires_grad_(False)
        self._encoder = net.whisper.model.encoder
        self._encoder.requires_grad_(True)
        self._encoder.embed_positions.requires_grad_(False)
        self._parameters = [p for p in self._encoder.parameters() if p.requires_grad]
        self.mean = copy.deepcopy(self._encoder)
        self._optimizer = torch.optim.AdamW(self._parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)

    def run(self, save_every: int = 200) -> None:
        """All the steps that are left; the state and the checkpoint are kept every so many, and at the end."""
        with Progress(self.steps, "steps", "hear") as progress:
            while self.step < self.steps:
                self._learn()
                progress.update_to(self.step)
                if self.step % save_every == 0 or self.step == self.steps:
                    self.save()

    def _learn(self) -> None:
        batch = collate(
            self.seed, self.step, self.pool, _MIX, self._vocabulary,
            window_samples=round(self.net.size.window_s * 16000), n_ctx=self.net.size.n_text_ctx,
        )  # fmt: skip
        torch.manual_seed(self.seed * 7_919 + self.step)
        with torch.autocast("cpu", torch.bfloat16):
            heard, wanted = self._features(batch)
        far = (heard.float() - wanted).square().mean() / wanted.var()
        self._optimizer.zero_grad()
        far.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        warm = min(1.0, (self.step + 1) / 50)
        cosine = 0.51 + 0.49 * math.cos(math.pi * self.step / self.steps)
        self._optimizer.param_groups[0]["lr"] = self.rate * warm * cosine
        self._optimizer.step()
        self.step += 1
        self.error += max(0.02, 1 / self.step) * (float(far.detach()) - self.error)
        with torch.no_grad():
            decay = min(0.99, (1 + self.step) / (10 + self.step))
            torch._foreach_lerp_(list(self.mean.parameters()), list(self._encoder.parameters()), 1 - decay)

    def _features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        which = torch.randint(len(augment.WARPS), (len(batch.samples),))
        ends, louder = torch.from_numpy(batch.n_frames), torch.from_numpy(batch.louder)
        with torch.no_grad():
            samples = torch.from_numpy(batch.samples)
            mine, theirs = (mel(samples, which, louder=louder, ends=ends) for mel in self._mels)
            wanted = self.source.encode(theirs).float()
        return self.net.encode(mine), wanted

    def save(self) -> None:
        """Replace state.pt, then hf/, which gets the running mean of the weights."""
        self.out.mkdir(parents=True, exist_ok=True)
        state = {
            "encoder": self._encoder.state_dict(), "mean": self.mean.state_dict(),
            "optimizer": self._optimizer.state_dict(), "step": self.step, "error": self.error,
        }  # fmt: skip
        torch.save(state, self.out / "state.tmp")
        os.replace(self.out / "state.tmp", self.out / "state.pt")
        finished = copy.deepcopy(self.net)
        finished.whisper.model.encoder.load_state_dict(self.mean.state_dict())
        export(finished, self._vocabulary, self.out / "hf")

    def load(self) -> bool:
        """Take up the state of an earlier call, if there is one."""
        if not (self.out / "state.pt").exists():
            return False
        state = torch.load(self.out / "state.pt", weights_only=True)
        self._encoder.load_state_dict(state["encoder"])
        self.mean.load_state_dict(state["mean"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.error = state["step"], state["error"]
        return True


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--model", type=click.Choice(list(MODELS)), required=True, help="version and layers of the draft")
@click.option("--speech", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="the run's folder")
@click.option("--steps", default=1500, show_default=True, help="0: as it is converted")
@click.option("--rate", default=5e-4, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--threads", type=int, help="[default: torch's]")
def main(
    checkpoint: Path, model: str, speech: Path, out: Path, steps: int, rate: float, seed: int, threads: int | None
) -> None:
    """Turn CHECKPOINT into a draft of another version, and teach its encoder to hear as before."""
    check_run(out)
    if threads:
        torch.set_num_threads(threads)
    source = read_source(checkpoint)
    size = replace(MODELS[model], n_audio_ctx=source.size.n_audio_ctx)
    pool = Pool()
    refresh(pool, speech, set())
    n_mels, n_theirs = size.tokens.n_mels, source.size.tokens.n_mels
    net = convert(source, size, None if n_mels == n_theirs else mel_bridge(pool, n_mels, n_theirs, seed))
    hearing = Hearing(net, source, pool, out, steps=steps, rate=rate, seed=seed)
    if hearing.load():
        click.echo(f"{out}: going on from step {hearing.step}", err=True)
    hearing.run()
    hearing.save()
    click.echo(f"{out / 'hf'}: {hearing.step} steps; {100 * hearing.error:.1f} % of the encoder's output is missed")


if __name__ == "__main__":
    run_command(main)
