"""Open a Whisper checkpoint, wherever it lies, as one lazily read set of named float32 weights.

Names are those of transformers' WhisperForConditionalGeneration. Every weight's shape is checked when a checkpoint is
opened, from headers alone; values are read one tensor at a time. It does not know what is built from the weights.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from specedge.export.heads import BASE_HEAD
from specedge.export.spec import Source, Spec, expected_shapes, read_json
from specedge.export.tensors import F32, FLOATS, SafetensorsSource, Stored, TensorSource, TorchSource
from specedge.runtime.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from specedge.runtime.text.tokenizer import SpecialTokens

__all__ = ["Checkpoint", "Progress", "load_configs", "open_checkpoint"]

Progress = Callable[[str], None]
"""Called with one line of text whenever a slow step begins."""

TOKEN_EMBEDDING = "model.decoder.embed_tokens.weight"
HEAD = "proj_out.weight"

_HEADS = ("medusa_heads.", "medusa_block.")

_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


class Checkpoint:
    """The weights and configs of one Whisper model. A context manager; reads are lazy."""

    def __init__(self, spec: Spec, weights: TensorSource, *, folder: Path | None = None, where: str) -> None:
        """Check the shape and type of every weight `spec` needs; `where` names the checkpoint in errors.

        `folder` holds tokenizer files, or is None. Raises CheckpointError naming the first tensor missing or wrong.
        """
        self.spec = spec
        self._weights, self._folder, self._where = weights, folder, where
        self._stored_as = _canonical(weights.entries)
        if spec.heads is not None and spec.heads.replaces_base:
            self._stored_as = {_counted_from_base(name): stored for name, stored in self._stored_as.items()}
        for name, shape in expected_shapes(spec):
            self._check(name, shape)

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        stored = self._entry(name)
        if stored is None:
            raise CheckpointError(f"{self._where}: tensor {name} is missing; expected shape {list(shape)}")
        if stored.shape != shape:
            raise CheckpointError(
                f"{self._where}: tensor {name} has shape {list(stored.shape)}; the config asks for {list(shape)}"
            )
        if stored.dtype not in FLOATS:
            raise CheckpointError(
                f"{self._where}: tensor {name} is stored as {stored.dtype}; expected one of {', '.join(FLOATS)} "
                "(quantised checkpoints cannot be exported, give the float one)"
            )

    def _entry(self, name: str) -> Stored | None:
        stored_as = self._stored_as.get(name)
        return None if stored_as is None else self._weights.entries[stored_as]

    def has(self, name: str) -> bool:
        """Whether a tensor of this canonical name is stored and used; False for a tied `proj_out.weight`."""
        return name in self._stored_as and not (name == HEAD and self.spec.tied)

    def tensor(self, name: str) -> F32:
        """One weight by canonical name: float32, C-contiguous, freshly read and owned by the caller.

        A tied `proj_out.weight` is the token embedding. Raises CheckpointError naming the tensor if it is missing, if
        its file ends early, or if it holds NaN or infinity (also after conversion from float64).
        """
        if name == HEAD and self.spec.tied:
            name = TOKEN_EMBEDDING
        if name not in self._stored_as:
            raise CheckpointError(f"{self._where}: tensor {name} is missing")
        value = self._weights.read(self._stored_as[name])
        if not _is_finite(value):
            raise CheckpointError(f"{self._where}: tensor {name} holds NaN or infinity; the checkpoint is damaged")
        return value

    def vocabulary(self) -> tuple[list[bytes], SpecialTokens]:
        """The byte strings of the text tokens by id, and the special-token layout read from the configs."""
        from specedge.export.vocabulary import read_vocabulary

        spec = self.spec
        return read_vocabulary(self._folder, spec.config, spec.generation, spec.dims.n_vocab)

    def close(self) -> None:
        """Forget what is mapped or cached; reading again opens it again."""
        self._weights.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _is_finite(value: F32) -> bool:
    flat, step = value.reshape(-1), 1 << 22
    return all(bool(np.isfinite(flat[i : i + step]).all()) for i in range(0, flat.size, step))


def _canonical(stored: Iterable[str]) -> dict[str, str]:
    """Canonical name -> stored name; Medusa and base-model checkpoints differ by a prefix."""
    names = set(stored)
    for prefix in ("whisper_model.", "model.whisper_model."):
        if f"{prefix}{TOKEN_EMBEDDING}" in names:
            return {name.removeprefix(prefix): name for name in names if name.startswith((prefix, *_HEADS))}
    if TOKEN_EMBEDDING.removeprefix("model.") in names:  # saved from WhisperModel, which has no head
        return {name if name == HEAD else f"model.{name}": name for name in names}
    return {name: name for name in names}


def _counted_from_base(name: str) -> str:
    """The canonical name of a head's tensor where the published head 0 is the base head (`heads`)."""
    found = re.fullmatch(r"medusa_heads\.(\d+)\.(.*)", name)
    if found is None:
        return name
    number = int(found[1])
    return f"medusa_heads.{number - 1}.{found[2]}" if number else f"{BASE_HEAD}.{found[2]}"


# ---------------------------------------------------------------------------------------------------------- opening
def open_checkpoint(
    source: str | Path, *, revision: str | None = None, cache_dir: Path | None = None, progress: Progress | None = None
) -> Checkpoint:
    """Open a folder in Hugging Face layout, an openai-whisper `.pt`, a hub id or a catalogue's short name.

    An existing path wins over a hub id. `revision` and `cache_dir` are the hub's. Raises CheckpointError with what was
    looked for, UsageError for a revision of something that is not on the hub, ResourceError when the disk is full.
    """
    path = _local(source)
    if path is not None:
        if revision is not None:
            raise UsageError(f"{source} is a local path; a revision can be given for a hub id only")
        try:
            is_file = path.is_file()
            return _open_file(path) if is_file else _open_folder(path, Source(kind="folder", id=path.resolve().name))
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    from specedge.export import hub

    snapshot = hub.fetch(hub.resolve(str(source)), revision=revision, cache_dir=cache_dir, progress=progress)
    return _open_folder(snapshot.folder, Source(kind="hub", id=snapshot.hub_id, revision=snapshot.revision))


def _local(source: str | Path) -> Path | None:
    """The path that `source` names, if there is anything at it."""
    try:
        path = Path(source).expanduser()
        return path if str(source) and path.exists() else None
    except (OSError, RuntimeError):  # a name too long for a path, or ~somebody who has no home
        return None


def _open_file(path: Path) -> Checkpoint:
    if path.suffix != ".pt":
        raise CheckpointError(f"{path}: a single file is a checkpoint only as openai-whisper's .pt; give the folder")
    from specedge.export.openai_pt import open_pt

    spec, weights = open_pt(path)
    return Checkpoint(spec, weights, where=str(path))


def _open_folder(folder: Path, source: Source) -> Checkpoint:
    config, generation, preprocessor = load_configs(folder)
    spec = Spec.from_config(
        config, generation=generation, preprocessor=preprocessor, source=source, where=str(folder / "config.json")
    )
    weights = _open_weights(folder)
    try:
        return Checkpoint(spec, weights, folder=folder, where=str(folder))
    except BaseException:
        weights.close()
        raise


def load_configs(folder: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """config.json (required), generation_config.json and preprocessor_config.json ({} where absent) of a folder.

    Newer transformers keep the preprocessor inside processor_config.json, under `feature_extractor`.
    """
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder}: is no checkpoint folder ({_what_is(folder)})")
    names = ("generation_config.json", "preprocessor_config.json", "processor_config.json")
    generation, preprocessor, processor = (
        read_json(folder / name) if (folder / name).is_file() else {} for name in names
    )
    inner = processor.get("feature_extractor")
    return read_json(folder / "config.json"), generation, preprocessor or (inner if isinstance(inner, dict) else {})


def _open_weights(folder: Path) -> TensorSource:
    for name in _WEIGHTS:
        kind = SafetensorsSource if name.endswith(".safetensors") else TorchSource
        if (folder / name).is_file():
            return kind([folder / name])
        index = folder / f"{name}.index.json"
        if index.is_file():
            return _checked_shards(kind([folder / shard for shard in shard_names(index)]), index)
    raise CheckpointError(f"{folder}: holds no weights ({_what_is(folder)})")


def shard_names(index: Path) -> list[str]:
    """The files that a *.index.json names, each once. Raises CheckpointError for a name outside its folder."""
    places = read_json(index, max_bytes=64 << 20).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{index}: has no weight_map; expected tensor names with the file of each")
    for name, file in places.items():
        if not isinstance(file, str) or not re.fullmatch(r"[\w][\w.\-]*", file):
            raise CheckpointError(f"{index}: places tensor {name} in {file!r}; expected the name of a file beside it")
    return sorted(set(places.values()))


def _checked_shards(weights: TensorSource, index: Path) -> TensorSource:
    for name, file in read_json(index, max_bytes=64 << 20)["weight_map"].items():
        stored = weights.entries.get(name)
        if stored is None or stored.path.name != file:
            weights.close()
            raise CheckpointError(f"{index}: places tensor {name} in {file}, which does not hold it")
    return weights


def _what_is(folder: Path) -> str:
    """What a folder that is no checkpoint seems to be, or what was looked for in it."""
    have = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    onnx = any(name.endswith(".onnx") for name in have) or (folder / "onnx").is_dir()
    known: Mapping[str, bool] = {
        "it is a specedge bundle already: use it with -m": "specedge.json" in have,
        "it is an adapter (LoRA): merge it into its base model first, peft's merge_and_unload() then save_pretrained()":
            "adapter_config.json" in have,
        "it holds ONNX files: export it with --from optimum": onnx,
        "it is a CTranslate2 model, whose weights are quantised or fused: give the checkpoint it was made from":
            "model.bin" in have,
        "its weights are for TensorFlow or Flax: save them from transformers as safetensors first":
            bool(have & {"tf_model.h5", "flax_model.msgpack"}),
    }  # fmt: skip
    looked_for = "looked for config.json with model.safetensors or pytorch_model.bin, or their *.index.json"
    return next((text for text, so in known.items() if so), looked_for)
