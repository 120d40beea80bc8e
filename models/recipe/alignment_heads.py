"""Find the decoder heads of a checkpoint that follow the audio, and write them down as its alignment heads.

    python -m specedge.models.recipe.alignment_heads CHECKPOINT --speech SPEECH [--limit 40] [--keep 8]

OpenAI published such heads for its models by a measurement of its own. Here held-out sentences are fed with their right
text; each head's attention is warped alone (as word times are, `runtime/longform/words.py`), and a head is good when
most of its attention lies on its own path through the audio. The best are written to `alignment_heads` in
generation_config.json.

This module knows attention. It does not know whether word times are right: the recipe's speech has no word times.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import torch
from transformers import WhisperForConditionalGeneration

from specedge.export.training.corpus import Utterance
from specedge.export.training.labels import layout_of, tokenizer_of
from specedge.runtime.audio.mel import HOP_SAMPLES, log_mel
from specedge.runtime.longform.words import dtw_path, median_filter

from .command_line import run_command
from .evaluate import read_dev

__all__ = ["best_heads", "mass_on_path", "sharpness"]

Float = npt.NDArray[np.float32]
_FILTER_WIDTH = 7
_LISTS = ("maintenance-dev", "notes-dev")
_REACH = 2  # encoder positions on each side of the path that count as on it


def mass_on_path(attention: Float) -> float:
    """The mean share of each row's attention `[n_rows, n_ctx]` that lies on the path it is warped to."""
    spread = attention.std(0)
    normal = (attention - attention.mean(0)) / np.maximum(spread, 1e-9)
    rows, columns = dtw_path(-median_filter(normal[None], _FILTER_WIDTH)[0])
    shares = []
    for row in range(len(attention)):
        on_path = columns[rows == row]
        shares.append(attention[row, max(0, on_path.min() - _REACH) : on_path.max() + _REACH + 1].sum())
    return float(np.mean(shares))


def sharpness(model: Any, items: Sequence[Utterance]) -> npt.NDArray[np.float64]:
    """`mass_on_path` of every head, float64 [n_layers, n_heads], mean over `items`, fed with their right text."""
    config = model.config
    layout = layout_of(config.vocab_size, "the checkpoint")
    special, encode = layout.special, tokenizer_of(layout.name).encode
    prompt = special.prompt("en" if special.is_multilingual else None, timestamps=False)
    total = np.zeros((config.decoder_layers, config.decoder_attention_heads))
    for item in items:
        samples = item.sound()[: 2 * config.max_source_positions * HOP_SAMPLES]
        mel = log_mel(samples, config.num_mel_bins, 2 * config.max_source_positions)
        n_frames = len(samples) // HOP_SAMPLES
        mel[:, n_frames:] = 0.0
        ids = [*prompt, *encode(" " + item.text), special.eot]
        with torch.no_grad():
            found = model(
                input_features=torch.from_numpy(mel[None]),
                decoder_input_ids=torch.tensor([ids]),
                output_attentions=True,
            )
        for layer, attention in enumerate(found.cross_attentions):
            for head, weights in enumerate(attention[0].numpy()):
                total[layer, head] += mass_on_path(weights[len(prompt) :, : n_frames // 2])
    return total / max(1, len(items))


def best_heads(masses: npt.NDArray[np.float64], n_keep: int) -> list[list[int]]:
    """The `n_keep` heads with the largest masses, as [layer, head] in rising order."""
    order = np.argsort(-masses, axis=None, kind="stable")[:n_keep]
    return sorted([int(at) // masses.shape[1], int(at) % masses.shape[1]] for at in order)


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--speech", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)
@click.option("--limit", default=40, show_default=True, help="sentences")
@click.option("--keep", default=8, show_default=True, help="heads")
def main(checkpoint: Path, speech: Path, limit: int, keep: int) -> None:
    """Write the alignment heads of CHECKPOINT into its generation_config.json."""
    items = [item for name, found in sorted(read_dev(speech).items()) if name in _LISTS for item in found]
    random.Random(3).shuffle(items)
    model = WhisperForConditionalGeneration.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    masses = sharpness(model, items[:limit])
    heads = best_heads(masses, keep)
    path = checkpoint / "generation_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["alignment_heads"] = heads
    path.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    click.echo(json.dumps({"heads": heads, "masses": masses.round(3).tolist()}))


if __name__ == "__main__":
    run_command(main)
