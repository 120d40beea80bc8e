"""Open a Whisper checkpoint of any layout as one lazily read set of named float32 weights.

Names are those of transformers' WhisperForConditionalGeneration. Every weight's shape is checked when a checkpoint is
opened, from headers alone; values are read one tensor at a time.

folder or hub   Hugging Face's layout, also whisper-medusa's
tiny.pt         openai-whisper's own: {"dims": ModelDimensions, "model_state_dict": tensors} in a pickle. Names and
                dimensions are translated. A file with a published name must be the published file. It carries no
                tokenizer and no alignment heads: as in openai-whisper for a file of unknown name (model.py), all heads
                of the upper half of the decoder stand in
heads           heads.safetensors of `specedge train heads`: canonical names (`heads`), and head_tokens, ids as float32,
                where the vocabulary is a part. medusa_lm_head.* of FasterDecoding/Medusa: i.j.linear.{weight,bias}, and
                i.n.weight, a vocabulary matrix a head. The kind is what the names say

`optimum_onnx` opens folders of ONNX files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import CheckpointError, CheckpointNotFoundError, SpecedgeError, UsageError
from specedge.files import Kind
from specedge.models.catalogue import OPENAI_SHA256
from specedge.runtime.text.special import SpecialTokens

from .heads import BLOCK, Heads, HeadsSpec, head_shapes
from .layers import BASE_HEAD
from .spec import (
    F32,
    Progress,
    SafetensorsSource,
    Source,
    Spec,
    Stored,
    TensorSource,
    TorchSource,
    check_tensor,
    expected_shapes,
    load_pickle,
    read_json,
    shard_names,
)
from .vocabulary import read_vocabulary, standard_layout, suppressed_tokens

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
            stored_as = self._stored_as.get(name)
            check_tensor(None if stored_as is None else weights.entries[stored_as], name, shape, where)

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
        spec = self.spec
        return read_vocabulary(self._folder, spec.config, spec.generation, spec.dims.n_vocab)

    @property
    def folder(self) -> Path | None:
        """Where the tokenizer files lie, None where there are none."""
        return self._folder

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
        except SpecedgeError:
            raise
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    from . import hub

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


_DIMS = ("n_mels", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer")
_TEXT_DIMS = ("n_vocab", "n_text_ctx", "n_text_state", "n_text_head", "n_text_layer")
_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}

_RENAMES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"^(encoder|decoder)\.blocks\.(\d+)\.", r"model.\1.layers.\2."),
    (r"^encoder\.ln_post\.", "model.encoder.layer_norm."),
    (r"^decoder\.ln\.", "model.decoder.layer_norm."),
    (r"^(encoder|decoder)\.positional_embedding$", r"model.\1.embed_positions.weight"),
    (r"^decoder\.token_embedding\.", "model.decoder.embed_tokens."),
    (r"^encoder\.(conv[12])\.", r"model.encoder.\1."),
    (r"\.cross_attn_ln\.", ".encoder_attn_layer_norm."),
    (r"\.attn_ln\.", ".self_attn_layer_norm."),
    (r"\.mlp_ln\.", ".final_layer_norm."),
    (r"\.cross_attn\.", ".encoder_attn."),
    (r"\.attn\.", ".self_attn."),
    (r"\.(query|key|value|out)\.", lambda found: f".{_PROJECTIONS[found[1]]}."),
    (r"\.mlp\.0\.", ".fc1."),
    (r"\.mlp\.2\.", ".fc2."),
)


def canonical_name(name: str) -> str:
    """transformers' name of an openai-whisper tensor; unknown names come back as they are."""
    for pattern, replacement in _RENAMES:
        name = re.sub(pattern, replacement, name)
    return name


def open_pt(path: Path) -> tuple[Spec, TorchSource]:
    """Spec and weights of a `.pt`.

    Raises CheckpointError if it is not openai-whisper's, or has the name of a published file and is another.
    """
    sha256 = _check_published(path)
    value = load_pickle(path)
    if not isinstance(value, dict) or "dims" not in value or "model_state_dict" not in value:
        raise CheckpointError(
            f"{path}: is not openai-whisper's format; expected a dictionary with dims and model_state_dict "
            "(a bare state_dict does not say how many heads it has)"
        )
    dims = _dims(value["dims"], path)
    del value
    weights = TorchSource([path], key="model_state_dict", rename=canonical_name)
    ffn = {}
    for side in ("encoder", "decoder"):
        stored = weights.entries.get(f"model.{side}.layers.0.fc1.weight")
        ffn[side] = stored.shape[0] if stored is not None and stored.shape else 4 * dims["n_text_state"]
    config, generation = derive_configs(dims, n_audio_ffn=ffn["encoder"], n_text_ffn=ffn["decoder"], where=str(path))
    source = Source(kind="openai-pt", id=path.name, revision=sha256)
    return Spec.from_config(config, generation=generation, source=source, where=str(path)), weights


def _check_published(path: Path) -> str | None:
    """The sha256 of a file with a published name, None for other names, which promise nothing."""
    expected = OPENAI_SHA256.get(path.name)
    if expected is None:
        return None
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        others = [name for name, sha256 in OPENAI_SHA256.items() if sha256 == found]
        what = f"it is {others[0]}" if others else "it is damaged or another model"
        raise CheckpointError(
            f"{path}: is not the {path.name} that OpenAI publishes, {what} (sha256 {found[:12]}..., expected "
            f"{expected[:12]}...); download it again, or give a model of your own another name"
        )
    return found


def _dims(value: Any, path: Path) -> dict[str, int]:
    dims: dict[str, int] = {}
    for name in _DIMS + _TEXT_DIMS:
        number = value.get(name) if isinstance(value, dict) else None
        if type(number) is not int or number < 1:
            raise CheckpointError(f"{path}: dims.{name} is {number!r}; expected a positive whole number")
        dims[name] = number
    if dims["n_audio_state"] != dims["n_text_state"]:
        raise CheckpointError(
            f"{path}: n_audio_state {dims['n_audio_state']} and n_text_state {dims['n_text_state']} differ; "
            "a Whisper's encoder and decoder have one width"
        )
    return dims


def derive_configs(
    dims: Mapping[str, int], *, n_audio_ffn: int, n_text_ffn: int, where: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(config, generation_config) as transformers would have them, from openai-whisper's dims alone.

    Raises CheckpointError for an n_vocab that is none of openai-whisper's.
    """
    n_vocab = dims["n_vocab"]
    if n_vocab not in (51864, 51865, 51866):
        raise CheckpointError(f"{where}: n_vocab {n_vocab} is none of openai-whisper's (51864, 51865, 51866)")
    special = standard_layout(n_vocab)
    n_layer, n_head = dims["n_text_layer"], dims["n_text_head"]
    config = {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "vocab_size": n_vocab,
        "num_mel_bins": dims["n_mels"],
        "d_model": dims["n_audio_state"],
        "encoder_layers": dims["n_audio_layer"],
        "decoder_layers": n_layer,
        "encoder_attention_heads": dims["n_audio_head"],
        "decoder_attention_heads": n_head,
        "encoder_ffn_dim": n_audio_ffn,
        "decoder_ffn_dim": n_text_ffn,
        "max_source_positions": dims["n_audio_ctx"],
        "max_target_positions": dims["n_text_ctx"],
        "activation_function": "gelu",
        "scale_embedding": False,
        "eos_token_id": special.eot,
        "bos_token_id": special.eot,
        "pad_token_id": special.eot,
        "decoder_start_token_id": special.sot,
    }
    generation: dict[str, Any] = {
        "suppress_tokens": suppressed_tokens(n_vocab),
        "begin_suppress_tokens": [220, special.eot],
        "eos_token_id": special.eot,
        "decoder_start_token_id": special.sot,
        "prev_sot_token_id": special.sot_prev,
        "no_timestamps_token_id": special.no_timestamps,
        "max_initial_timestamp_index": 50,
        "is_multilingual": special.is_multilingual,
        "alignment_heads": [[layer, head] for layer in range(n_layer // 2, n_layer) for head in range(n_head)],
    }
    if special.is_multilingual:
        generation["lang_to_id"] = {f"<|{code}|>": id_ for code, id_ in special.languages.items()}
        generation["task_to_id"] = {"translate": special.translate, "transcribe": special.transcribe}
    return config, generation


HEADS_FILE = "heads.safetensors"
TOKENS = "head_tokens"
HEADS = Kind("file of trained heads", lambda head: head[8:9] == b"{" and f'"{TOKENS}":'.encode() in head)
_NAMES = (HEADS_FILE, "medusa_lm_head.safetensors", "medusa_lm_head.pt")


class _Named:
    """Tensors of a file under canonical names."""

    def __init__(self, source: TensorSource, names: Mapping[str, str], where: Path) -> None:
        self._source, self._names, self._where = source, names, where

    def entry(self, name: str) -> Stored | None:
        return self._source.entries[self._names[name]] if name in self._names else None

    def has(self, name: str) -> bool:
        return name in self._names

    def tensor(self, name: str) -> NDArray[np.float32]:
        value = self._source.read(self._names[name])
        if not np.isfinite(value).all():
            raise CheckpointError(f"{self._where}: tensor {name} holds NaN or infinity; the file is damaged")
        return value


def open_heads(path: Path, spec: Spec) -> Heads:
    """The heads in a file, or in one of a known name in a folder, for the model of `spec`.

    Raises CheckpointError for a file that holds no heads, or heads of another shape than this model needs.
    """
    file = _file(path)
    source: TensorSource = SafetensorsSource([file]) if file.suffix == ".safetensors" else TorchSource([file])
    names = _canonical_heads(source.entries)
    named = _Named(source, names, file)
    found = _spec_of(set(names), file)
    d, n_vocab = spec.dims.n_text_state, spec.dims.n_vocab
    tokens = _tokens(named, n_vocab, file) if named.has(TOKENS) else None
    n_rows = n_vocab if tokens is None else len(tokens)
    for name, shape in head_shapes(found, d, spec.n_text_ffn, n_rows):
        check_tensor(named.entry(name), name, shape, str(file))
    return Heads(spec=found, weights=named, tokens=tokens)


def _file(path: Path) -> Path:
    if not path.is_dir():
        if not path.is_file():
            raise CheckpointNotFoundError(f"{path}: there is no such file; expected trained heads")
        return path
    file = next((path / name for name in _NAMES if (path / name).is_file()), None)
    if file is None:
        raise CheckpointError(f"{path}: holds no heads (looked for {', '.join(_NAMES)})")
    return file


def _canonical_heads(stored: Mapping[str, Stored]) -> dict[str, str]:
    """Canonical name -> stored name."""
    names = {}
    for name in stored:
        block = re.fullmatch(r"(\d+)\.(\d+)\.linear\.(weight|bias)", name)
        matrix = re.fullmatch(r"(\d+)\.\d+\.weight", name)
        if block is not None:
            names[f"medusa_heads.{name}"] = name
        elif matrix is not None:
            names[f"projection_heads.{matrix[1]}.weight"] = name
        else:
            names[name] = name
    return names


def _spec_of(names: set[str], file: Path) -> HeadsSpec:
    counts = {kind: _count(names, rf"{kind}_heads\.(\d+)\.") for kind in ("medusa", "latent", "projection")}
    if counts["medusa"]:
        has_block = any(name.startswith(f"{BLOCK}.") for name in names)
        found = HeadsSpec(
            kind="medusa-block" if has_block else "medusa-linear",
            n_heads=counts["medusa"],
            n_layers=_count(names, r"medusa_heads\.0\.(\d+)\."),
            own_vocabulary=bool(counts["projection"]),
        )
    elif counts["latent"]:
        found = HeadsSpec(kind="mtp-latent", n_heads=counts["latent"])
    elif counts["projection"]:
        found = HeadsSpec(kind="mtp-projection", n_heads=counts["projection"], own_vocabulary=True)
    else:
        raise CheckpointError(f"{file}: holds no heads: no tensor is called as one of a known layout")
    return found


def _count(names: set[str], pattern: str) -> int:
    """One more than the highest number that the pattern finds at the beginning of a name, 0 where it finds none."""
    return 1 + max((int(found[1]) for name in names if (found := re.match(pattern, name))), default=-1)


def _tokens(named: _Named, n_vocab: int, file: Path) -> NDArray[np.int64]:
    stored = named.entry(TOKENS)
    check_tensor(stored, TOKENS, () if stored is None else stored.shape, str(file))
    tokens = named.tensor(TOKENS).astype(np.int64)
    if tokens.ndim != 1 or not tokens.size or tokens[0] < 0 or tokens[-1] >= n_vocab or (np.diff(tokens) <= 0).any():
        raise CheckpointError(f"{file}: {TOKENS} must be rising token ids below {n_vocab}")
    return tokens
