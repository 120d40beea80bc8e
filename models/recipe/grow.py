"""Grow a model of the demo family to the shape of a published Whisper without changing its function.

    python -m specedge.models.recipe.grow base|small|medium|large-v2 [-o FOLDER] [--bundle] [--speech SPEECH]
    python -m specedge.models.recipe.grow base --of demo-draft --bundle        # a draft of base's shape

Net2Net (Chen, Goodfellow and Shlens 2016, section 3): every channel is repeated `times` times, whole copies one behind
the other, and the inputs of each product are divided by `times`. LayerNorm's mean and variance stay. Whole heads are
repeated, so that a head keeps its width and its scores. The decoder's last norm is divided by `times`, since logits are
made with the embedding that tokens are read with. Layers are added whose outputs are zero; what else is in them is
copied from the layer before, so that they do the work of any other. Tokens that share a row of the embedding get rows
that differ by noise; it sums to zero over the copies of a channel, so no logit sees it.

In float32 the logits stay within 1e-4. In int8 rounding makes more of that: 4 of 800 texts of base have another word.
Noise of 1e-6 in the samples does that to 3 of 400 of the demo's own texts.

Mels, window and vocabulary stay those of the original: 128 bands, 10 s and 51,866 tokens of the demo.

FOLDER gets `checkpoint/` (Hugging Face layout, float32, written a tensor at a time) and with --bundle `bundle/`, an
int8 bundle with the demo's CTC head, its other heads, its token map and a draft: the same encoder with two decoder
layers, as distil-whisper has, out of demo-draft-same. Without -o it is a folder in the user's cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from safetensors import safe_open
from safetensors.numpy import save_file

from specedge import WhisperModel, decode_audio
from specedge.errors import ExactnessError, ResourceError, UsageError
from specedge.export.bundling import add_ctc_head, add_learn_graphs, write_bundle
from specedge.export.checkpoint import Checkpoint, open_checkpoint
from specedge.export.ctc_graph import encoder_weights_sha256
from specedge.export.heads import Heads
from specedge.export.selfcheck import decode, encode
from specedge.export.spec import Source, Spec, Stored, expected_shapes
from specedge.export.training.early_stopping import writing
from specedge.export.training.labels import SPELLING_NAME
from specedge.models import store
from specedge.runtime.audio.mel import log_mel
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.bundle.manifest import HOP_SAMPLES, MANIFEST_NAME, SAMPLE_RATE_HZ
from specedge.runtime.device import cache_home
from specedge.runtime.drafters.ctc.head import WEIGHTS_KEY
from specedge.runtime.options import HEAD_KINDS
from specedge.version import __version__

from .command_line import run_command
from .dequantised import BundleWeights, InMemory, bundle_spec, bundled_heads
from .evaluate import read_dev

__all__ = [
    "FAMILY",
    "Growth",
    "ORIGINALS",
    "bundle_at",
    "check_logits",
    "default_folder",
    "farthest_logit",
    "grow",
    "grown_ctc",
    "grown_heads",
    "growth_of",
    "make_bundle",
    "original",
    "texts_of",
    "write_checkpoint",
]

Float = NDArray[np.float32]
DEMO = Path(__file__).resolve().parents[1] / "checkpoints" / "demo"
ORIGINALS = ("demo", "demo-draft", "demo-draft-same")
SAME = "demo-draft-same"
LARGEST_LOGIT_ERROR = 1e-4
_DRAFT_LAYERS = 2  # of the decoders of distil-large-v2 and -v3
_APART = 1e-2  # noise between rows of one value, over the rms of all rows
_ROWS_AT_ONCE = 4096
_LAYER = re.compile(r"model\.(encoder|decoder)\.layers\.(\d+)\.(.*)")
_SILENT = re.compile(r".*(out_proj|fc2)\.(weight|bias)")  # what a layer adds to its rows
_MADE_ANEW = re.compile(
    r"config\.json|generation_config\.json|preprocessor_config\.json|.*\.(safetensors|bin|index\.json)"
)


@dataclass(frozen=True, kw_only=True)
class Growth:
    """How often channels are repeated, and how many layers there are in the end."""

    times: int
    n_audio_layer: int
    n_text_layer: int


FAMILY = {
    "base": Growth(times=2, n_audio_layer=6, n_text_layer=6),
    "small": Growth(times=3, n_audio_layer=12, n_text_layer=12),
    "medium": Growth(times=4, n_audio_layer=24, n_text_layer=24),
    "large-v2": Growth(times=5, n_audio_layer=32, n_text_layer=32),
}


class _Computed:
    """Named tensors that are computed when they are read."""

    def __init__(self, spec: Spec, read: Callable[[str], Float]) -> None:
        where = Path(spec.source.id)
        self.entries: Mapping[str, Stored] = {
            name: Stored(shape, "F32", where) for name, shape in expected_shapes(spec)
        }
        self.read = read

    def close(self) -> None:
        """Nothing is held open."""


# ------------------------------------------------------------------------------------------------------ originals
def original(name: str) -> Checkpoint:
    """A model of the family by name. Drafts are read from their int8 bundles, of which there is no float copy.

    The encoder of demo-draft-same is the demo's, and is read from the demo's checkpoint: grown alike, the two share
    their features. Raises UsageError where the files are missing.
    """
    if not DEMO.is_dir():
        raise UsageError(f"{DEMO}: not found; grow works in a checkout of the repository, which has the checkpoint")
    demo = open_checkpoint(DEMO)
    if name == "demo":
        return demo
    bundle = Bundle.open(store.find(name))
    weights, spec = BundleWeights(bundle), bundle_spec(bundle)

    def read(tensor: str) -> Float:
        shared = name == SAME and tensor.startswith("model.encoder.")
        return demo.tensor(tensor) if shared else weights.tensor(tensor)

    return Checkpoint(spec, _Computed(spec, read), where=name)


# -------------------------------------------------------------------------------------------------------- growing
def grow(source: Checkpoint, growth: Growth, name: str) -> Checkpoint:
    """The checkpoint called `name` that computes what `source` does, in another shape. Nothing is computed yet.

    Raises UsageError for fewer layers than the source has, and for a source with heads or an untied vocabulary.
    """
    dims = source.spec.dims
    if not source.spec.tied or source.spec.heads is not None:
        raise UsageError(f"{name}: only a model with one vocabulary matrix and without heads can be grown")
    if growth.times < 2:
        raise UsageError(f"{name}: channels can be repeated 2 times or more, got {growth.times}")
    if growth.n_audio_layer < dims.n_audio_layer or growth.n_text_layer < dims.n_text_layer:
        raise UsageError(
            f"{name}: {growth.n_audio_layer} and {growth.n_text_layer} layers are fewer than the {dims.n_audio_layer} "
            f"and {dims.n_text_layer} there are; layers are added, never left out"
        )
    layers = {
        "encoder": Layers.spread(dims.n_audio_layer, growth.n_audio_layer),
        "decoder": Layers.spread(dims.n_text_layer, growth.n_text_layer),
    }

    def read(tensor: str) -> Float:
        found = _LAYER.fullmatch(tensor)
        if found is None:
            return widened(tensor, source.tensor(tensor), growth.times)
        side, number, part = found.groups()
        from_layer, is_added = layers[side].comes_from(int(number))
        value = source.tensor(f"model.{side}.layers.{from_layer}.{part}")
        if is_added and _SILENT.fullmatch(part):
            value = np.zeros_like(value)
        return widened(tensor, value, growth.times)

    spec = _grown_spec(source.spec, growth, name, layers["decoder"])
    return Checkpoint(spec, _Computed(spec, read), folder=source.folder, where=name)


@dataclass(frozen=True, kw_only=True)
class Layers:
    """places[i]: where the layer i of the original comes to stand."""

    places: tuple[int, ...]

    @classmethod
    def spread(cls, n: int, n_grown: int) -> Layers:
        return cls(places=tuple(i * n_grown // n for i in range(n)))

    def comes_from(self, layer: int) -> tuple[int, bool]:
        """The layer of the original that a grown one is made of, and whether it is an added one."""
        before = [i for i, place in enumerate(self.places) if place <= layer]
        return before[-1], layer not in self.places


def _grown_spec(spec: Spec, growth: Growth, name: str, text_layers: Layers) -> Spec:
    times, config = growth.times, dict(spec.config)
    for key in ("d_model", "encoder_attention_heads", "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim"):
        config[key] *= times
    config |= {"encoder_layers": growth.n_audio_layer, "decoder_layers": growth.n_text_layer}
    config |= {"num_hidden_layers": growth.n_audio_layer, "torch_dtype": "float32", "dtype": "float32"}
    generation = {key: value for key, value in spec.generation.items() if value is not None}
    if "alignment_heads" in generation:
        # The first copies of the heads, which have the numbers that they had.
        generation["alignment_heads"] = [[text_layers.places[at], head] for at, head in generation["alignment_heads"]]
    window_s = 2 * spec.dims.n_audio_ctx * HOP_SAMPLES / SAMPLE_RATE_HZ
    preprocessor = {
        "chunk_length": round(window_s),
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": spec.dims.n_mels,
        "hop_length": HOP_SAMPLES,
        "n_fft": 400,
        "n_samples": round(window_s * SAMPLE_RATE_HZ),
        "nb_max_frames": 2 * spec.dims.n_audio_ctx,
        "padding_side": "right",
        "padding_value": 0.0,
        "processor_class": "WhisperProcessor",
        "return_attention_mask": False,
        "sampling_rate": SAMPLE_RATE_HZ,
    }
    source = Source(kind="folder", id=name)
    return Spec.from_config(
        config, generation=generation, preprocessor=preprocessor | spec.preprocessor, source=source, where=name
    )


def widened(name: str, value: Float, times: int) -> Float:
    """The grown tensor `name` of the original's `value`."""
    if name.endswith("embed_tokens.weight"):
        return _apart(np.tile(value, (1, times)), value, times)
    if name.endswith("embed_positions.weight"):
        return np.tile(value, (1, times))
    if name.endswith("conv1.weight"):  # its inputs are mels, which are not repeated
        return np.tile(value, (times, 1, 1))
    if value.ndim == 1:
        wide = np.tile(value, times)
        return wide / np.float32(times) if name.startswith("model.decoder.layer_norm.") else wide
    return np.tile(value / np.float32(times), (times, times, *[1] * (value.ndim - 2)))


def _apart(wide: Float, rows: Float, times: int) -> Float:
    """`wide` with a little noise, always the same, on the rows that are not alone with their value in `rows`."""
    as_bytes = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.strides[0]))).ravel()
    _, of, counts = np.unique(as_bytes, return_inverse=True, return_counts=True)
    shared = np.flatnonzero(counts[of.ravel()] > 1)
    rng = np.random.default_rng(0)
    size = np.float32(_APART * math.sqrt(float(np.square(rows, dtype=np.float64).mean())))
    for start in range(0, len(shared), _ROWS_AT_ONCE):
        some = shared[start : start + _ROWS_AT_ONCE]
        noise = rng.standard_normal((len(some), times, rows.shape[1]), np.float32)
        noise -= noise.mean(axis=1, keepdims=True)
        wide[some] += size * noise.reshape(len(some), -1)
    return wide


def grown_heads(heads: Heads, times: int) -> Heads:
    """`heads` for the grown model, whose hidden rows are the original's over `times`, repeated.

    A row that becomes logits may have any copies whose sum is right. What passes a SiLU, which no factor passes,
    stands in the first copy alone. Raises UsageError for kinds that no bundle of the family has.
    """
    if heads.spec.n_layers != 1 or heads.spec.replaces_base:
        raise UsageError(f"{heads.spec.kind}: only heads of one map each can be grown")
    arrays: dict[str, Float] = {}
    for name, value in _named(heads).items():
        if name.startswith("projection_heads."):
            arrays[name] = np.tile(value, (1, times))
        elif name.startswith("medusa_heads."):
            wide = np.tile(value, (1, times)) if value.ndim == 2 else value
            arrays[name] = np.concatenate([wide, np.zeros(((times - 1) * len(value), *wide.shape[1:]), np.float32)])
        else:
            # What is added to a hidden row, or becomes one, is over `times` as that is.
            is_added = _SILENT.fullmatch(name) or (name.startswith("latent_heads.") and value.ndim == 1)
            arrays[name] = widened(name, value, times) / np.float32(times if is_added else 1)
    return replace(heads, weights=InMemory(arrays))


def _named(heads: Heads) -> dict[str, Float]:
    weights = heads.weights
    assert isinstance(weights, InMemory)  # for the type alone: dequantised heads are
    return weights.arrays


def grown_ctc(head: Path, times: int, encoder_sha256: str, out: Path) -> None:
    """Write to `out` the CTC head in the file `head` for an encoder grown from its own, of this fingerprint."""
    model = onnx.load(str(head))
    for tensor in model.graph.initializer:
        if tensor.name not in ("trunk", "characters", "unit_in"):
            continue
        value = numpy_helper.to_array(tensor)
        n_state = model.graph.input[0].type.tensor_type.shape.dim[2].dim_value
        features, others = value[:n_state] / np.float32(times), value[n_state:]
        tensor.CopyFrom(numpy_helper.from_array(np.concatenate([*[features] * times, others]), tensor.name))
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value *= times
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    helper.set_model_props(model, {**metadata, WEIGHTS_KEY: encoder_sha256})
    out.write_bytes(model.SerializeToString())


# -------------------------------------------------------------------------------------------------------- writing
def write_checkpoint(checkpoint: Checkpoint, folder: Path, times: int) -> None:
    """Write a grown checkpoint in Hugging Face layout, float32, one tensor in memory at a time; the weights come last.

    Raises ResourceError when the disk is too full or `folder` cannot be written.
    """
    spec = checkpoint.spec
    needed = sum(4 * math.prod(shape) for _, shape in expected_shapes(spec))
    with writing(folder / "model.safetensors"):
        folder.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(folder).free < needed:
            raise ResourceError(f"{folder}: the checkpoint needs {needed / 1e9:.1f} GB; make room or give another -o")
        configs = {
            "config": spec.config,
            "generation_config": spec.generation,
            "preprocessor_config": spec.preprocessor,
        }
        for name, values in configs.items():
            (folder / f"{name}.json").write_text(json.dumps(values, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        for path in sorted(checkpoint.folder.iterdir()) if checkpoint.folder is not None else ():
            if path.is_file() and not _MADE_ANEW.fullmatch(path.name):
                shutil.copyfile(path, folder / path.name)
        if checkpoint.folder is not None and (checkpoint.folder / SPELLING_NAME).is_file():
            _grow_spelling(checkpoint.folder / SPELLING_NAME, folder / SPELLING_NAME, times)
        _write_weights(checkpoint, folder / "model.tmp")
        os.replace(folder / "model.tmp", folder / "model.safetensors")


def _write_weights(checkpoint: Checkpoint, path: Path) -> None:
    """A safetensors file (README of huggingface/safetensors, "Format"): its own writer wants all tensors at once."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in expected_shapes(checkpoint.spec):
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode("ascii")
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, _ in expected_shapes(checkpoint.spec):
            file.write(np.ascontiguousarray(checkpoint.tensor(name), "<f4").reshape(-1).data)


def _grow_spelling(source: Path, out: Path, times: int) -> None:
    with safe_open(source, framework="numpy") as file:
        weight, bias, metadata = file.get_tensor("weight"), file.get_tensor("bias"), file.metadata()
    save_file({"weight": np.tile(weight / np.float32(times), (1, times)), "bias": bias}, out, metadata=metadata)


def make_bundle(name: str, of: str, growth: Growth, out: Path, *, force: bool = False) -> Bundle:
    """The int8 bundle `out` of the original `of` in the shape `name`; the demo's brings heads, map and a draft.

    Nothing but the bundle is written: weights are computed when the export reads them. Raises as `write_bundle`.
    """
    with contextlib.ExitStack() as stack:
        checkpoint = stack.enter_context(grow(original(of), growth, f"grown-{name}"))
        if of != "demo":
            return add_learn_graphs(_export(checkpoint, out, force).path)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="specedge-grow-")))
        same = replace(growth, n_text_layer=_DRAFT_LAYERS)
        draft = make_bundle(f"{name}-same", SAME, same, scratch / "draft")
        demo = Bundle.open(store.find("demo"))
        heads = [grown_heads(bundled_heads(demo, kind), growth.times) for kind in HEAD_KINDS]
        maps = sorted((demo.path / "maps").glob("*.tmap"))
        bundle = _export(checkpoint, out, force, heads=heads, draft=draft, maps=maps)
        head = scratch / "ctc.onnx"
        grown_ctc(demo.path / "ctc.onnx", growth.times, encoder_weights_sha256(bundle.manifest, bundle.path), head)
        return add_ctc_head(bundle.path, head)


def _export(checkpoint: Checkpoint, out: Path, force: bool, **brought: Any) -> Bundle:
    return write_bundle(
        checkpoint,
        out,
        precision="int8",
        name=checkpoint.spec.source.id,
        version=__version__,
        replace_existing=force,
        short_windows=True,
        **brought,
    )


# ------------------------------------------------------------------------------------------------------- checking
def farthest_logit(ours: Checkpoint, theirs: Checkpoint, mel: Float, ids: list[int]) -> float:
    """The largest difference of a logit of the rows `ids` over `mel` [n_mels, n_frames], both in float32."""
    logits = [decode(ids, encode(mel, one.spec.dims, one), one.spec.dims, one) for one in (ours, theirs)]
    return float(np.abs(logits[0] - logits[1]).max())


def check_logits(checkpoint: Checkpoint, of: str) -> float:
    """The largest difference from the logits of the original, in float32, over the bundled recordings and their texts.

    Raises ExactnessError when it is more than LARGEST_LOGIT_ERROR.
    """
    source, bundle = original(of), store.find(of)
    farthest = 0.0
    for path in sorted((store.bundled() / "samples").glob("*.wav")):
        samples = decode_audio(str(path))
        tokens = [token for tokens in texts_of(bundle, [samples]) for token in tokens]
        prompt = Bundle.open(bundle).manifest.whisper_tokens.prompt("en", timestamps=True)
        mel = log_mel(samples, source.spec.dims.n_mels, n_frames=2 * source.spec.dims.n_audio_ctx)
        farthest = max(farthest, farthest_logit(checkpoint, source, mel, [*prompt, *tokens]))
    if not farthest <= LARGEST_LOGIT_ERROR:
        raise ExactnessError(f"{checkpoint.spec.source.id}: a logit is off by {farthest:.2g}; expected 1e-4 at most")
    return farthest


def texts_of(bundle: Path, sounds: Sequence[Float]) -> list[list[int]]:
    """What plain decoding makes of each sound, float32 [n_samples] at 16 kHz: token ids, timestamps too."""
    model = WhisperModel(str(bundle))
    found = []
    for samples in sounds:
        segments, _ = model.transcribe(samples, language="en", temperature=0.0)
        found.append([token for segment in segments for token in segment.tokens])
    return found


def bundle_at(name: str, of: str, folder: Path) -> Bundle:
    """The int8 bundle in `folder`/bundle, made first where there is none or where its sources have changed."""
    stamp, digest = folder / "sources.sha256", _sources_sha256(of)
    is_current = stamp.is_file() and stamp.read_text(encoding="ascii") == digest
    if is_current and (folder / "bundle" / MANIFEST_NAME).is_file():
        return Bundle.open(folder / "bundle")
    bundle = make_bundle(name, of, growth_of(name, of), folder / "bundle", force=True)
    with writing(stamp):
        stamp.write_text(digest, encoding="ascii")
    return bundle


def _sources_sha256(of: str) -> str:
    """A fingerprint of all that a bundle is made of: the exporter, this module, the weights."""
    hasher = hashlib.sha256()
    here = Path(__file__).resolve()
    sources = sorted(here.parents[2].joinpath("export").glob("*.py"))
    for path in (*sources, here, here.with_name("dequantised.py"), DEMO / "model.safetensors"):
        hasher.update(path.read_bytes())
    for bundle in sorted({"demo", of, SAME}):
        hasher.update(Bundle.open(store.find(bundle)).digest.encode("ascii"))
    return hasher.hexdigest()


def default_folder(name: str, of: str) -> Path:
    """Where a model of the family lies when no folder is given."""
    return cache_home() / "grown" / (name if of == "demo" else f"{name}-of-{of}")


def growth_of(name: str, of: str) -> Growth:
    """The growth to the shape `name`; drafts on the target's own encoder get distil-whisper's decoder layers."""
    return replace(FAMILY[name], n_text_layer=_DRAFT_LAYERS) if of == SAME else FAMILY[name]


@click.command()
@click.argument("name", metavar="SHAPE", type=click.Choice(list(FAMILY)))
@click.option("-o", "--out", type=click.Path(path_type=Path), help="folder to write  [default: in the user's cache]")
@click.option("--of", type=click.Choice(ORIGINALS), default="demo", show_default=True, help="what is grown")
@click.option("--bundle", is_flag=True, help="export the int8 bundle too, with heads, map and draft")
@click.option("--speech", type=click.Path(path_type=Path, exists=True, file_okay=False), help="compare texts on it")
@click.option("--limit", default=400, show_default=True, help="utterances of each list whose texts are compared")
@click.option("--force", is_flag=True, help="replace what is there")
def main(name: str, out: Path | None, of: str, bundle: bool, speech: Path | None, limit: int, force: bool) -> None:
    """Grow the demo to the SHAPE of a published Whisper; its function stays."""
    if speech is not None and not bundle:
        raise UsageError("--speech compares texts of bundles; give --bundle too")
    folder, growth = out or default_folder(name, of), growth_of(name, of)
    if any((folder / made).exists() for made in ("checkpoint", "bundle")) and not force:
        raise UsageError(f"{folder}: there is a grown model already; give another -o, or --force to replace it")
    with grow(original(of), growth, f"grown-{name}") as checkpoint:
        click.echo(f"largest difference of a float32 logit: {check_logits(checkpoint, of):.1g}")
        write_checkpoint(checkpoint, folder / "checkpoint", growth.times)
    if not bundle:
        return
    made = bundle_at(name, of, folder)
    rows = made.manifest.selfcheck["row_invariance"]["exact"]
    click.echo(f"rows of the int8 bundle are {'exact' if rows else 'NOT exact'} on this machine")
    for source, items in [] if speech is None else sorted(read_dev(speech).items()):
        sounds = [item.sound() for item in items[:limit]]
        pairs = list(zip(texts_of(store.find(of), sounds), texts_of(made.path, sounds), strict=True))
        words = [[[token for token in one if token < made.manifest.tokens.eot] for one in pair] for pair in pairs]
        click.echo(
            f"{source}: of {len(pairs)} texts {sum(a == b for a, b in words)} are the original's, "
            f"{sum(a == b for a, b in pairs)} with all times"
        )


if __name__ == "__main__":
    run_command(main)
