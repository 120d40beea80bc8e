"""Grow demo-llm to the decoder of Qwen3-ASR-0.6B without changing its function: what it says, at a real model's price.

    python -m specedge.models.recipe.grow_llm -o OUT [--speech SPEECH]

Channels, layers and heads are repeated and added as `grow` does it: width 256 to 1,024, 4 layers to 28, 4 heads on 2 to
16 on 8. Heads grow from 64 to 128 values: each pair that is turned together comes to stand where a head of 128 turns at
its speed, with zeros between; queries are a root of 2 larger, since scores are divided by the root of a head's size.
The vocabulary gets as many rows as Qwen's has, 151,936; those without a token are control ids, which no text has. Only
the norms of single heads are missing. The encoder is the demo's as it was, so what grew is the decoder's price alone.

OUT is an int8 bundle with the CTC head, the token map and the latent heads, which guess among the 552 real tokens.
Weights are computed when the export reads them, from the bundled 8-bit ones, of which there is no float copy.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from specedge.export.bundling import add_ctc_head, write_bundle
from specedge.export.checkpoint import Checkpoint
from specedge.export.ctc_graph import encoder_weights_sha256
from specedge.export.decoder_graph import VOCABULARY
from specedge.export.heads import Heads, HeadsSpec
from specedge.export.llama_graph import PROJECTOR, ROOT
from specedge.export.spec import F32, Source, Stored
from specedge.export.speech_layouts import SpeechSpec
from specedge.models import store
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.bundle.manifest import SPEECH_GRAPHS
from specedge.runtime.text.speech_tokens import SpeechTokens
from specedge.version import __version__

from .command_line import run_command
from .dequantised import BundleWeights, InMemory
from .evaluate import read_dev
from .grow import Layers, grown_ctc, grown_heads, texts_of, widened
from .llm_network import SIZES

__all__ = ["Size", "grow_llm"]

Float = NDArray[np.float32]
ORIGINAL = "demo-llm"
TIMES = 4  # as many copies of each channel and head
_SILENT = ("self_attn.o_proj", "mlp.down_proj")  # what a layer adds to its rows
_FUSED = (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj"))


@dataclass(frozen=True, kw_only=True)
class Size:
    """Of the grown decoder: layers, and rows of the vocabulary."""

    n_layers: int = 28
    n_vocab: int = 151_936


@dataclass(frozen=True, kw_only=True)
class _GrownSpec(SpeechSpec):
    """ranks, tokens: the vocabulary, which lies in no file."""

    ranks: tuple[bytes, ...] = ()
    tokens: SpeechTokens

    def names(self, stored: object) -> dict[str, str]:
        """See `SpeechSpec.names`: canonical ones."""
        return {name: name for name, _ in self.shapes()}

    def vocabulary(self, folder: Path) -> tuple[list[bytes], SpeechTokens]:
        """See `SpeechSpec.vocabulary`."""
        return list(self.ranks), self.tokens


class _Grown:
    """The tensors of the grown model, each computed when it is read."""

    def __init__(self, spec: SpeechSpec, bundle: Bundle) -> None:
        self.entries: Mapping[str, Stored] = {name: Stored(shape, "F32", bundle.path) for name, shape in spec.shapes()}
        self._weights = BundleWeights(bundle, SPEECH_GRAPHS)
        dims = bundle.manifest.dims
        self._sizes = {"q": dims.n_text_head * dims.head_dim, "k": dims.n_kv_head * dims.head_dim}
        self._sizes["v"] = self._sizes["k"]
        self._head_size = dims.head_dim
        self._layers = Layers.spread(dims.n_text_layer, spec.dims.n_text_layer)
        self._n_vocab = spec.dims.n_vocab

    def read(self, name: str) -> F32:
        """One tensor by its canonical name."""
        if name == VOCABULARY:
            rows = widened(name, self._weights.tensor(name), TIMES)
            return np.concatenate([rows, np.zeros((self._n_vocab - len(rows), rows.shape[1]), np.float32)])
        if name == f"{PROJECTOR}.linear_1.weight":  # its inputs are the encoder's
            return np.tile(self._weights.tensor(name), (TIMES, 1))
        if name == f"{ROOT}.norm.weight":  # logits are sums over the copies of a channel
            return widened(name, self._weights.tensor(name), TIMES) / np.float32(TIMES)
        if not name.startswith(f"{ROOT}.layers."):
            return widened(name, self._weights.tensor(name), TIMES) if PROJECTOR in name else self._weights.tensor(name)
        number, part = name.removeprefix(f"{ROOT}.layers.").removesuffix(".weight").split(".", 1)
        source, is_added = self._layers.comes_from(int(number))
        value = self._of_layer(f"{ROOT}.layers.{source}", part)
        return widened(name, np.zeros_like(value) if is_added and part in _SILENT else value, TIMES)

    def close(self) -> None:
        """Nothing is held open."""

    def _of_layer(self, layer: str, part: str) -> Float:
        """A weight of the original's layer, its heads of twice the size."""
        for group in _FUSED:
            if part in group:
                whole = self._weights.matrix("+".join(f"{layer}.{one}" for one in group))
                sizes = [self._sizes.get(one[-6], len(whole) // 2) for one in group]
                value = np.split(whole, np.cumsum(sizes)[:-1])[group.index(part)]
                break
        else:
            value = self._weights.tensor(f"{layer}.{part}.weight")
        if part in ("self_attn.q_proj", "self_attn.k_proj"):
            return _with_zeros(value, self._head_size) * np.float32(math.sqrt(2) if part.endswith("q_proj") else 1)
        if part == "self_attn.v_proj":
            return _with_zeros(value, self._head_size)
        return _with_zeros(value.T, self._head_size).T if part == "self_attn.o_proj" else value


def _with_zeros(rows: Float, head_size: int) -> Float:
    """`rows`, those of heads one after another, with a row of zeros behind each: heads of twice the size.

    Value i of a head turns with value i + `head_size` / 2 at the speed theta ** (-2 i / `head_size`), which is that of
    the values 2 i and 2 i + `head_size` of the larger head.
    """
    wide = np.zeros((len(rows) // head_size, head_size, 2, rows.shape[1]), np.float32)
    wide[:, :, 0] = rows.reshape(len(wide), head_size, -1)
    return wide.reshape(-1, rows.shape[1])


def _spec(bundle: Bundle, size: Size) -> _GrownSpec:
    dims, tokens = bundle.manifest.dims, bundle.manifest.tokens
    assert isinstance(tokens, SpeechTokens)  # for the type alone
    llama = SIZES[ORIGINAL].config(dims.n_vocab)
    config = {
        "model_type": "voxtral",
        "audio_config": {
            "hidden_size": dims.n_audio_state,
            "intermediate_size": SIZES[ORIGINAL].n_audio,
            "num_hidden_layers": dims.n_audio_layer,
            "num_attention_heads": dims.n_audio_head,
            "num_mel_bins": dims.n_mels,
            "max_source_positions": dims.n_audio_ctx,
        },
        "text_config": {
            "vocab_size": size.n_vocab,
            "hidden_size": TIMES * dims.n_text_state,
            "intermediate_size": TIMES * SIZES[ORIGINAL].n_ffn,
            "num_hidden_layers": size.n_layers,
            "num_attention_heads": TIMES * dims.n_text_head,
            "num_key_value_heads": TIMES * dims.n_kv_head,
            "head_dim": 2 * dims.head_dim,
            "max_position_embeddings": dims.n_text_ctx,
            "rms_norm_eps": llama.rms_norm_eps,
            "rope_theta": SIZES[ORIGINAL].rope_theta,
            "tie_word_embeddings": True,
        },
    }
    source = Source(kind="folder", id=f"grown-{ORIGINAL}")
    plain = SpeechSpec.from_voxtral(config, n_control=0, source=source, where=source.id)
    return _GrownSpec(
        **vars(plain), ranks=tuple(bundle.tokenizer.ranks[: tokens.eot]), tokens=replace(tokens, n_vocab=size.n_vocab)
    )


def _heads(bundle: Bundle) -> Heads:
    """The latent heads, grown; their vocabulary is that of the original."""
    maps = BundleWeights(bundle, ["mtp-latent"]).matrix("first_maps")
    n_heads = len(maps) // maps.shape[1]
    arrays = {f"latent_heads.{i}.weight": one for i, one in enumerate(np.split(maps, n_heads))}
    heads = Heads(
        spec=HeadsSpec(kind="mtp-latent", n_heads=n_heads),
        weights=InMemory(arrays),
        tokens=np.arange(bundle.manifest.dims.n_vocab),
    )
    return grown_heads(heads, TIMES)


def grow_llm(out: Path, size: Size | None = None, *, force: bool = False) -> Bundle:
    """Write the bundle `out`; size: None for that of Qwen3-ASR-0.6B. Raises as `write_bundle`."""
    bundle = Bundle.open(store.find(ORIGINAL))
    spec = _spec(bundle, size or Size())
    with (
        Checkpoint(spec, _Grown(spec, bundle), folder=bundle.path, where=spec.source.id) as checkpoint,
        tempfile.TemporaryDirectory(prefix="specedge-grow-") as scratch,
    ):
        made = write_bundle(
            checkpoint,
            out,
            precision="int8",
            name=spec.source.id,
            version=__version__,
            replace_existing=force,
            short_windows=bundle.manifest.short_windows,
            least_positions=bundle.manifest.least_positions,
            heads=[_heads(bundle)],
            maps=sorted((bundle.path / "maps").glob("*.tmap")),
        )
        head = Path(scratch) / "ctc.onnx"
        grown_ctc(bundle.path / "ctc.onnx", 1, encoder_weights_sha256(made.manifest, made.path), head)
        return add_ctc_head(made.path, head)


@click.command()
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="bundle to write")
@click.option("--speech", type=click.Path(path_type=Path, exists=True, file_okay=False), help="compare texts on it")
@click.option("--limit", default=40, show_default=True, help="utterances of each list whose texts are compared")
@click.option("--force", is_flag=True, help="replace what is there")
def main(out: Path, speech: Path | None, limit: int, force: bool) -> None:
    """Grow demo-llm to the shape of Qwen3-ASR-0.6B's decoder; its function stays."""
    made = grow_llm(out, force=force)
    for source, items in [] if speech is None else sorted(read_dev(speech).items()):
        sounds = [item.sound() for item in items[:limit]]
        pairs = list(zip(texts_of(store.find(ORIGINAL), sounds), texts_of(made.path, sounds), strict=True))
        click.echo(f"{source}: of {len(pairs)} texts {sum(a == b for a, b in pairs)} are the original's")


if __name__ == "__main__":
    run_command(main)
