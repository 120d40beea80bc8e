"""Cut windows that attend to what silence has in the positions cut off: does that keep a Whisper from looping?

    python tests/bench/silent_suffix.py CHECKPOINT WORK [--windows 40]

WORK is a work folder of `specedge train short-windows CHECKPOINT`: its bundle and its log-mels of speech. The encoder
runs in torch, on the whole window, cut a little behind the speech, and cut with a silent suffix: in every layer the
speech attends to the keys and values that a window of silence has in the positions cut off, too. Printed: how far the
features of the speech are off the whole window's, word errors against its text, and the longest text, whose length
tells loops. It does not measure time. The last line of output is JSON.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rounds import print_json, print_table
from torch import Tensor

from specedge.export.checkpoint import open_checkpoint
from specedge.export.training.features import Target, load_mels
from specedge.export.training.nets import EncoderNet, encoder_of
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.text.words import word_errors

MARGIN_FRAMES = 32
KINDS = ("whole", "cut", "silent suffix")
Known = list[tuple[Tensor, Tensor]]


def _heads(attention: Any, rows: Tensor, name: str) -> Tensor:
    return getattr(attention, name)(rows).unflatten(-1, (attention.n_head, -1)).transpose(1, 2)  # type: ignore[no-any-return]


@torch.no_grad()
def encode(net: EncoderNet, mel: Tensor, silence: Known | None = None) -> tuple[Tensor, Known]:
    """Features [n_ctx, d] of a log-mel [1, n_mels, n_frames], and each layer's keys and values."""
    rows = F.gelu(net.conv2(F.gelu(net.conv1(mel)))).transpose(1, 2)
    n_ctx = rows.shape[1]
    rows = rows + net.get_buffer("positions")[:n_ctx]
    known: Known = []
    for i, layer in enumerate(net.layers):
        attention, y = layer.self_attn, layer.self_attn_layer_norm(rows)
        query, keys, values = (_heads(attention, y, name) for name in ("q_proj", "k_proj", "v_proj"))
        known.append((keys, values))
        if silence is not None:
            pairs = zip(known[i], silence[i], strict=True)
            keys, values = (torch.cat([mine, its[:, :, n_ctx:]], 2) for mine, its in pairs)
        mixed = F.scaled_dot_product_attention(query, keys, values)
        rows = rows + attention.out_proj(mixed.transpose(1, 2).flatten(-2))
        rows = rows + layer.fc2(F.gelu(layer.fc1(layer.final_layer_norm(rows))))
    return net.layer_norm(rows)[0], known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("work", type=Path)
    parser.add_argument("--windows", type=int, default=40)
    given = parser.parse_args()
    with open_checkpoint(given.checkpoint) as checkpoint:
        net = encoder_of(checkpoint).eval()
    target = Target(Bundle.open(given.work / "bundle"), threads=1)
    dims, n_frames = target.manifest.dims, target.manifest.n_frames
    _, silence = encode(net, torch.zeros(1, dims.n_mels, n_frames))
    texts: dict[str, list[str]] = {kind: [] for kind in KINDS}
    errors: dict[str, list[float]] = {kind: [] for kind in KINDS}
    longest = dict.fromkeys(KINDS, 0)
    for mel, _, _ in list(load_mels(given.work / "mels"))[: given.windows]:
        whole = torch.zeros(1, dims.n_mels, n_frames)
        whole[0, :, : len(mel)] = torch.from_numpy(mel.astype(np.float32).T)
        n_cut = min(-(-(len(mel) + MARGIN_FRAMES) // 2) * 2, n_frames)
        cut = whole[:, :, :n_cut]
        found = (encode(net, whole)[0], encode(net, cut)[0], encode(net, cut, silence)[0])
        expected = found[0][: n_cut // 2]
        for kind, hidden in zip(KINDS, found, strict=True):
            errors[kind].append(float((hidden[: n_cut // 2] - expected).norm() / expected.norm()))
            features = target.engine.project(np.ascontiguousarray(hidden.numpy()))
            _, result = target.say(features, target.language_of(features))
            texts[kind].append(target.tokenizer.decode(result.tokens))
            longest[kind] = max(longest[kind], len(result.tokens))
    found_rates = {kind: word_errors(zip(texts["whole"], texts[kind], strict=True)).rate for kind in KINDS}
    figures = [
        {
            "window": kind,
            "features_error": round(float(np.mean(errors[kind])), 4),
            "word_errors": round(found_rates[kind] or 0.0, 4),
            "longest_text": longest[kind],
        }
        for kind in KINDS
    ]
    print_table([list(figures[0]), *([str(value) for value in row.values()] for row in figures)])
    print_json("silent_suffix", windows=len(texts["whole"]), figures=figures)


if __name__ == "__main__":
    main()
