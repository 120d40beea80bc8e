"""Open a Whisper checkpoint of any layout as one lazily read set of named float32 weights.

Names are those of transformers' WhisperForConditionalGeneration. Every weight's shape is checked when a checkpoint is
opened, from headers alone; values are read one tensor at a time.

folder or hub   Hugging Face's layout, also whisper-medusa's and lite-whisper's; CTranslate2's
file            openai-whisper's pickle or a trainer's, safetensors, whisper.cpp's .bin: told by their content
adapter         a folder of peft's, merged into any of these
heads           heads.safetensors of `specedge train heads`: canonical names (`heads`), and head_tokens, ids as float32,
                where the vocabulary is a part. The kind is what the names say

`optimum_onnx` opens folders of ONNX files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import CheckpointError, CheckpointNotFoundError, UsageError
from specedge.files import Kind
from specedge.models import catalogue
from specedge.runtime.text.special import TokenLayout

from . import ctranslate2, ggml, lora, openai_pt
from .decoder_graph import PROJECTION, VOCABULARY
from .heads import BLOCK, Heads, HeadsSpec, head_shapes
from .layers import BASE_HEAD
from .qwen3_asr import SpeechSpec
from .spec import (
    Source,
    Spec,
    Stored,
    Tensors,
    check_tensor,
    plain_name,
    read_json,
    read_optional,
    read_weights,
    readable,
    shard_names,
)
from .vocabulary import read_vocabulary

_HEADS = ("medusa_heads.", "medusa_block.")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


class Checkpoint(Tensors):
    """The weights and configs of one Whisper model. A context manager; reads are lazy."""

    def __init__(
        self,
        spec: Spec,
        entries: Mapping[str, Stored],
        *,
        folder: Path | None = None,
        where: str,
        vocabulary: tuple[list[bytes], TokenLayout] | None = None,
    ) -> None:
        """Check the shape and type of every weight `spec` needs; `where` names the checkpoint in errors.

        `entries`: tensors by canonical name. `folder` holds tokenizer files, or is None; `vocabulary`: if it is known
        otherwise. Raises CheckpointError naming the first tensor missing or wrong.
        """
        super().__init__(entries, where)
        self.spec, self.folder, self._vocabulary = spec, folder, vocabulary
        if spec.tied:
            self.entries.pop(PROJECTION, None)
        self.shapes = dict(spec.shapes())
        for name, shape in self.shapes.items():
            check_tensor(self.entries.get(name), name, shape, where)

    def adapt(self, adapter: lora.Adapter) -> None:
        """Read weights with `adapter` merged from now on. Raises CheckpointError unless it fits."""
        source = self.spec.source
        self.entries |= adapter.merged(source, self.entries, self.spec.config)
        self.spec = replace(self.spec, source=replace(source, id=f"{source.id}+{adapter.name}"))

    def vocabulary(self) -> tuple[list[bytes], TokenLayout]:
        """The byte strings of the text tokens by id, and the special-token layout read from the configs."""
        spec = self.spec
        if self._vocabulary is not None:
            return self._vocabulary
        if isinstance(spec, SpeechSpec) and self.folder is not None:
            return spec.vocabulary(self.folder)
        return read_vocabulary(self.folder, spec.config, spec.generation, spec.dims.n_vocab)

    def close(self) -> None:
        """Forget the weights, and so what is mapped of their files."""
        self.entries.clear()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _canonical(stored: Mapping[str, Stored], spec: Spec) -> dict[str, Stored]:
    """By canonical names; Medusa and base-model checkpoints differ by a prefix."""
    found = dict(stored)
    for prefix in ("whisper_model.", "model.whisper_model."):
        if f"{prefix}{VOCABULARY}" in stored:
            found = {name.removeprefix(prefix): stored[name] for name in stored if name.startswith((prefix, *_HEADS))}
    if VOCABULARY.removeprefix("model.") in stored:  # saved from WhisperModel, which has no head
        found = {name if name == PROJECTION else f"model.{name}": stored[name] for name in stored}
    if spec.heads is not None and spec.heads.replaces_base:
        return {_counted_from_base(name): tensor for name, tensor in found.items()}
    return found


def _counted_from_base(name: str) -> str:
    """The canonical name of a head's tensor where the published head 0 is the base head (`heads`)."""
    found = re.fullmatch(r"medusa_heads\.(\d+)\.(.*)", name)
    if found is None:
        return name
    number = int(found[1])
    return f"medusa_heads.{number - 1}.{found[2]}" if number else f"{BASE_HEAD}.{found[2]}"


# ---------------------------------------------------------------------------------------------------------- opening


def open_checkpoint(source: str | Path, *, adapter: Path | None = None, revision: str | None = None) -> Checkpoint:
    """Open a folder or a file of a known format, a hub id or a catalogue's short name.

    An existing path wins over a hub id. `adapter`: a folder of peft's to merge. `revision` is the hub's. Raises
    CheckpointError with what was looked for, UsageError for a revision of something that is not on the hub,
    ResourceError when the disk is full.
    """
    opened = None if adapter is None else lora.open_adapter(adapter)  # before a download of gigabytes
    path = _local(source)
    if path is None:
        from .sources import fetch_checkpoint

        checkpoint = _open_folder(*fetch_checkpoint(str(source), revision=revision))
    elif revision is not None:
        raise UsageError(f"{source} is a local path; a revision can be given for a hub id only")
    else:
        with readable(path):
            local = Source(kind="", id=path.resolve().name)
            checkpoint = _open_file(path) if path.is_file() else _open_folder(path, local)
    if opened is not None:
        checkpoint.adapt(opened)
    return checkpoint


def _local(source: str | Path) -> Path | None:
    """The path that `source` names, if there is anything at it."""
    try:
        path = Path(source).expanduser()
        return path if str(source) and path.exists() else None
    except (OSError, RuntimeError):  # a name too long for a path, or ~somebody who has no home
        return None


def _open_file(path: Path) -> Checkpoint:
    with path.open("rb") as file:
        head = file.read(9)
    is_pickle = head[:4] == b"PK\x03\x04" or head[:1] == b"\x80" or path.suffix == ".pt"
    is_safetensors = head[8:] == b"{"
    opened: tuple[Spec, dict[str, Stored]]
    if ggml.is_ggml(head[:8]):
        opened = ggml.open_ggml(path)
    elif (is_pickle or is_safetensors) and path.name in _WEIGHTS and (path.parent / "config.json").is_file():
        return _open_folder(path.parent, Source(kind="", id=path.resolve().parent.name))
    elif is_pickle or is_safetensors:
        opened = openai_pt.open_single(path, is_pickle=is_pickle)
    else:
        raise CheckpointError(
            f"{path}: is neither a PyTorch pickle, nor safetensors, nor whisper.cpp's; give the checkpoint's folder"
        )
    return Checkpoint(*opened, where=str(path))


def _open_folder(folder: Path, source: Source) -> Checkpoint:
    """source: with an empty kind for a local folder, which its format then gives."""
    kind = "folder"
    opens: Callable[[Path, Source], tuple[Spec, dict[str, Stored]]] = _open_transformers
    if ctranslate2.is_ctranslate2(folder):
        kind, opens = "ctranslate2", ctranslate2.open_ctranslate2
    spec, weights = opens(folder, replace(source, kind=source.kind or kind))
    return Checkpoint(spec, weights, folder=folder, where=str(folder))


def _open_transformers(folder: Path, source: Source) -> tuple[Spec, dict[str, Stored]]:
    config, generation, preprocessor = load_configs(folder)
    where = str(folder / "config.json")
    if config.get("model_type") == "qwen3_asr":
        weights = _open_weights(folder)
        qwen = SpeechSpec.from_qwen(config, generation=generation, stored=weights, source=source, where=where)
        return qwen, qwen.named(weights)
    known = catalogue.alignment_heads(source.id) if source.kind == "hub" else []
    if known:  # distilled ones carry the list of their deeper teacher
        generation = generation | {"alignment_heads": known}
    spec = Spec.from_config(config, generation=generation, preprocessor=preprocessor, source=source, where=where)
    return spec, _canonical(_open_weights(folder), spec)


def load_configs(folder: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """config.json (required), generation_config.json and preprocessor_config.json ({} where absent) of a folder.

    Newer transformers keep the preprocessor inside processor_config.json, under `feature_extractor`.
    """
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder}: is no checkpoint folder ({_what_is(folder)})")
    names = ("generation_config.json", "preprocessor_config.json", "processor_config.json")
    generation, preprocessor, processor = (read_optional(folder / name) for name in names)
    inner = processor.get("feature_extractor")
    return read_json(folder / "config.json"), generation, preprocessor or (inner if isinstance(inner, dict) else {})


def _open_weights(folder: Path) -> dict[str, Stored]:
    for name in _WEIGHTS:
        is_pickle, index = name.endswith(".bin"), folder / f"{name}.index.json"
        if (folder / name).is_file():
            return read_weights([folder / name], is_pickle=is_pickle)
        if index.is_file():
            weights = read_weights([folder / shard for shard in shard_names(index)], is_pickle=is_pickle)
            for tensor, file in read_json(index)["weight_map"].items():
                stored = weights.get(plain_name(tensor))
                if stored is None or stored.path.name != file:
                    raise CheckpointError(f"{index}: places tensor {tensor} in {file}, which does not hold it")
            return weights
    raise CheckpointError(f"{folder}: holds no weights ({_what_is(folder)})")


def _what_is(folder: Path) -> str:
    """What a folder that is no checkpoint seems to be, or what was looked for in it."""
    have = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    if lora.CONFIG in have:
        base = read_json(folder / lora.CONFIG).get("base_model_name_or_path")
        return f"it is an adapter (LoRA): {lora.how_to_merge(base)} merges it into its base model"
    onnx = any(name.endswith(".onnx") for name in have) or (folder / "onnx").is_dir()
    known: Mapping[str, bool] = {
        "it is a specedge bundle already: use it with -m": "specedge.json" in have,
        "it holds ONNX files: export it with --from optimum": onnx,
        "its model.bin is none of CTranslate2's: copy or download it again": "model.bin" in have,
        "its weights are for TensorFlow or Flax: save them from transformers as safetensors first":
            bool(have & {"tf_model.h5", "flax_model.msgpack"}),
    }  # fmt: skip
    looked_for = "looked for config.json with model.safetensors or pytorch_model.bin, or their *.index.json"
    return next((text for text, so in known.items() if so), looked_for)


HEADS_FILE = "heads.safetensors"
TOKENS = "head_tokens"
HEADS = Kind("file of trained heads", lambda head: head[8:9] == b"{" and f'"{TOKENS}":'.encode() in head)


def open_heads(path: Path, spec: Spec) -> Heads:
    """The heads in a file of `specedge train heads`, or in the one in a folder, for the model of `spec`.

    Raises CheckpointError for a file that holds no heads, or heads of another shape than this model needs.
    """
    file = path / HEADS_FILE if path.is_dir() else path
    if not file.is_file():
        raise CheckpointNotFoundError(f"{file}: there is no such file; expected trained heads")
    weights = Tensors(read_weights([file]), str(file))
    found = _spec_of(set(weights.entries), file)
    d, n_vocab = spec.dims.n_text_state, spec.dims.n_vocab
    tokens = _tokens(weights, n_vocab, file) if weights.has(TOKENS) else None
    n_rows = n_vocab if tokens is None else len(tokens)
    for name, shape in head_shapes(found, d, spec.n_text_ffn, n_rows):
        check_tensor(weights.entries.get(name), name, shape, str(file))
    return Heads(spec=found, weights=weights, tokens=tokens)


def _spec_of(names: set[str], file: Path) -> HeadsSpec:
    has_block = any(name.startswith(f"{BLOCK}.") for name in names)
    kinds = {
        "medusa": "medusa-block" if has_block else "medusa-linear",
        "latent": "mtp-latent",
        "projection": "mtp-projection",
    }
    for prefix, kind in kinds.items():
        n_heads, n_layers = (_count(names, rf"{prefix}_heads\.{pattern}") for pattern in (r"(\d+)\.", r"0\.(\d+)\."))
        if n_heads:
            return HeadsSpec(kind=kind, n_heads=n_heads, n_layers=max(n_layers, 1))
    raise CheckpointError(f"{file}: holds no heads: no tensor is called as one of a known layout")


def _count(names: set[str], pattern: str) -> int:
    """One more than the highest number that the pattern finds at the beginning of a name, 0 where it finds none."""
    return 1 + max((int(found[1]) for name in names if (found := re.match(pattern, name))), default=-1)


def _tokens(weights: Tensors, n_vocab: int, file: Path) -> NDArray[np.int64]:
    check_tensor(weights.entries[TOKENS], TOKENS, weights.entries[TOKENS].shape, str(file))
    tokens = weights.tensor(TOKENS).astype(np.int64)
    if tokens.ndim != 1 or not tokens.size or tokens[0] < 0 or tokens[-1] >= n_vocab or (np.diff(tokens) <= 0).any():
        raise CheckpointError(f"{file}: {TOKENS} must be rising token ids below {n_vocab}")
    return tokens
