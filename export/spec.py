"""What a Whisper checkpoint says about itself, and its files of weights, read one tensor at a time.

The config follows transformers' `config.json` of `model_type: whisper` (configuration_whisper.py) and openai-whisper's
`ModelDimensions`; nothing is guessed from a model's name. Weights lie in safetensors files, or in PyTorch pickles,
which go through torch's weights-only loader. The safetensors library validates a file's header; the bytes of a tensor
are then read here: mapped pages would count as resident memory, and its NumPy reader has no bfloat16.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from specedge.errors import CheckpointError, CheckpointNotFoundError, SpecedgeError
from specedge.runtime.bundle.dims import Dims
from specedge.runtime.bundle.manifest import Source as Source
from specedge.runtime.console import GET_TORCH
from specedge.runtime.text.tokenizer import GPT2

from .heads import HeadsSpec, Shapes, head_shapes, heads_in_config, layer_shapes, pair_shapes
from .layers import ROWS_AT_ONCE, in_parts


def shard_names(index: Path) -> list[str]:
    """The files that a *.index.json names, each once. Raises CheckpointError for a name outside its folder."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{index}: has no weight_map; expected tensor names with the file of each")
    for name, file in places.items():
        if not isinstance(file, str) or not re.fullmatch(r"[\w][\w.\-]*", file):
            raise CheckpointError(f"{index}: places tensor {name} in {file!r}; expected the name of a file beside it")
    return sorted(set(places.values()))


MOST_JSON_BYTES = 64 << 20  # of a vocabulary; configs are smaller
_MAX_DIM = 1 << 20  # far above any Whisper; bounds loops over a hostile config
_RECIPE = {"sampling_rate": 16000, "n_fft": 400, "hop_length": 160}

# The config's name for each of openai-whisper's ModelDimensions.
CONFIG_KEYS = {
    "n_mels": "num_mel_bins", "n_audio_ctx": "max_source_positions", "n_audio_state": "d_model",
    "n_audio_head": "encoder_attention_heads", "n_audio_layer": "encoder_layers", "n_vocab": "vocab_size",
    "n_text_ctx": "max_target_positions", "n_text_state": "d_model", "n_text_head": "decoder_attention_heads",
    "n_text_layer": "decoder_layers",
}  # fmt: skip

# Where generation_config.json is silent (old checkpoints), transformers takes these from config.json.
_INHERITED = (
    "bos_token_id eos_token_id pad_token_id decoder_start_token_id suppress_tokens begin_suppress_tokens "
    "forced_decoder_ids"
).split()


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Everything about a checkpoint except its weights.

    config, generation, preprocessor: the JSON files, {} where one is absent; `generation` inherits token ids and
    suppress lists from `config`. tied: logits use the token embedding. heads: that the checkpoint holds besides
    (whisper-medusa's layout). low_rank: of each encoder layer, the linear maps that are stored as two factors, and
    their rank (lite-whisper's layout). warning: what its user should know of it.
    """

    dims: Dims
    n_audio_ffn: int
    n_text_ffn: int
    tied: bool
    config: dict[str, Any]
    generation: dict[str, Any]
    preprocessor: dict[str, Any]
    source: Source
    heads: HeadsSpec | None = None
    pattern: ClassVar[str] = GPT2  # what text is split by before bytes are merged, of PATTERNS
    low_rank: tuple[Mapping[str, int], ...] = ()
    warning: str = ""

    def shapes(self) -> Shapes:
        """Canonical (transformers) name and shape of every weight an export reads, in the order it reads them."""
        dims, encoder, root = self.dims, "model.encoder", "model.decoder"
        d_audio, width = dims.n_audio_state, dims.n_text_state
        found = pair_shapes(f"{encoder}.conv1", (d_audio, dims.n_mels, 3))
        found += pair_shapes(f"{encoder}.conv2", (d_audio, d_audio, 3))
        found.append((f"{encoder}.embed_positions.weight", (dims.n_audio_ctx, d_audio)))
        for i in range(dims.n_audio_layer):
            shapes = layer_shapes(f"{encoder}.layers.{i}", ("self_attn",), d_audio, self.n_audio_ffn)
            found += _with_factors(shapes, self.low_rank[i]) if self.low_rank else shapes
        found += pair_shapes(f"{encoder}.layer_norm", (d_audio,))
        found.append((f"{root}.embed_tokens.weight", (dims.n_vocab, width)))
        found.append((f"{root}.embed_positions.weight", (dims.n_text_ctx, width)))
        for i in range(dims.n_text_layer):
            both = ("self_attn", "encoder_attn")
            found += layer_shapes(f"{root}.layers.{i}", both, width, self.n_text_ffn, d_audio)
        found += pair_shapes(f"{root}.layer_norm", (width,))
        if not self.tied:
            found.append(("proj_out.weight", (dims.n_vocab, width)))
        return found if self.heads is None else [*found, *head_shapes(self.heads, width, self.n_text_ffn, dims.n_vocab)]

    @classmethod
    def from_config(
        cls,
        config: dict[str, Any],
        *,
        generation: dict[str, Any] | None = None,
        preprocessor: dict[str, Any] | None = None,
        source: Source,
        where: str,
        warning: str = "",
    ) -> Spec:
        """Validate a transformers config; `where` names it in errors. Raises CheckpointError."""
        kind, preprocessor = config.get("model_type"), preprocessor or {}
        if kind not in ("whisper", "lite-whisper"):
            raise CheckpointError(f"{where}: model_type {kind!r} cannot be exported; expected 'whisper' or 'qwen3_asr'")
        check_not_quantised(config, where)
        check_gelu(config, "activation_function", where)
        if flag(config, "scale_embedding", False, where):
            raise CheckpointError(f"{where}: scale_embedding true is not supported; expected false, as Whisper has it")
        for key, wanted in _RECIPE.items():
            if preprocessor.get(key) not in (None, wanted):
                raise CheckpointError(
                    f"{where}: the preprocessor has {key} {preprocessor[key]!r}; Whisper's log-mel needs {wanted}"
                )
        dims = Dims(**{name: dimension(config, key, where) for name, key in CONFIG_KEYS.items()})
        for key, n_head in (("encoder", dims.n_audio_head), ("decoder", dims.n_text_head)):
            if dims.n_text_state % n_head:
                raise CheckpointError(
                    f"{where}: {key}_attention_heads {n_head} does not divide d_model {dims.n_text_state}"
                )
        inherited = {key: config[key] for key in _INHERITED if config.get(key) is not None}
        return cls(
            dims=dims,
            n_audio_ffn=dimension(config, "encoder_ffn_dim", where),
            n_text_ffn=dimension(config, "decoder_ffn_dim", where),
            tied=flag(config, "tie_word_embeddings", True, where),
            config=config,
            generation=inherited | {key: value for key, value in (generation or {}).items() if value is not None},
            preprocessor=preprocessor,
            source=source,
            heads=heads_in_config(config, dims.n_text_state, where),
            low_rank=_low_rank(config, where),
            warning=warning,
        )


def check_not_quantised(config: Mapping[str, Any], where: str) -> None:
    """Raises CheckpointError for a config of quantised weights."""
    method = config.get("quantization_config")
    if method is not None:
        method = method.get("quant_method", "?") if isinstance(method, dict) else method
        raise CheckpointError(f"{where}: the weights are quantised ({method}); give the float checkpoint instead")


def check_gelu(config: Mapping[str, Any], key: str, where: str) -> None:
    """Raises CheckpointError where the activation `key` is not GELU."""
    activation = config.get(key)
    if activation not in (None, "gelu"):
        raise CheckpointError(f"{where}: {key} {activation!r} is not supported; expected 'gelu'")


_LINEARS = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")


def _low_rank(config: Mapping[str, Any], where: str) -> tuple[Mapping[str, int], ...]:
    """lite-whisper's `low_rank_config`: a table of map and rank for each encoder layer (Kamahori et al. 2025)."""
    found = config.get("low_rank_config") if config.get("model_type") == "lite-whisper" else []
    if not isinstance(found, list) or len(found) not in (0, config.get("encoder_layers")):
        raise CheckpointError(f"{where}: low_rank_config must be a list with a table for each encoder layer")
    for layer in found:
        ranks = layer if isinstance(layer, dict) else {"": 0}
        if any(
            name not in _LINEARS or type(rank) is not int or not 1 <= rank <= _MAX_DIM for name, rank in ranks.items()
        ):
            raise CheckpointError(f"{where}: low_rank_config has {layer!r}; expected ranks of {', '.join(_LINEARS)}")
    return tuple(found)


def dimension(config: Mapping[str, Any], key: str, where: str) -> int:
    """A dimension of a config. Raises CheckpointError unless it is a whole number in range."""
    value = config.get(key)
    if value is None:
        raise CheckpointError(f"{where}: {key} is missing; export the checkpoint that this one was made from")
    if type(value) is not int or not 1 <= value <= _MAX_DIM:
        raise CheckpointError(f"{where}: {key} is {value!r}; expected a whole number from 1 to {_MAX_DIM}")
    return value


def flag(config: Mapping[str, Any], key: str, default: bool, where: str) -> bool:
    """A switch of a config; `default` where it is missing or null. Raises CheckpointError for anything but a switch."""
    value = default if config.get(key) is None else config[key]
    if not isinstance(value, bool):
        raise CheckpointError(f"{where}: {key} is {value!r}; expected true or false")
    return value


def _with_factors(shapes: Shapes, ranks: Mapping[str, int]) -> Shapes:
    """The weights of a layer, some as `weight1` [n_in, rank] and `weight2` [rank, n_out], which have a bias always."""
    found: Shapes = []
    for name, shape in shapes:
        at, _, part = name.rpartition(".")
        linear = at.rpartition(".")[2]
        if part != "weight" or linear not in ranks:
            found.append((name, shape))
            continue
        n_out, n_in = shape
        found += [(f"{at}.weight1", (n_in, ranks[linear])), (f"{at}.weight2", (ranks[linear], n_out))]
        if linear == "k_proj":
            found.append((f"{at}.bias", (n_out,)))
    return found


def read_text(path: Path, *, max_bytes: int = MOST_JSON_BYTES) -> str:
    """A text file of at most `max_bytes`. Raises CheckpointError naming the file."""
    try:
        with open(path, "rb") as file:
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise CheckpointError(f"{path}: larger than {max_bytes >> 20} MB; expected a small text file")
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def read_json(path: Path, kind: type = dict) -> Any:
    """What a JSON file holds, of this kind: an object unless told. Raises CheckpointError naming the file."""
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(value, kind):
        raise CheckpointError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def read_optional(path: Path) -> dict[str, Any]:
    """As `read_json`; {} where there is no such file."""
    found: dict[str, Any] = read_json(path) if path.is_file() else {}
    return found


F32 = npt.NDArray[np.float32]
_CHUNK_BYTES = 8 << 20
_RELOAD_BYTES = 512 << 20
_STATES = ("model_state_dict", "state_dict", "model")  # under which a trainer's file has its tensors

# Stored type -> how its bytes are read. bfloat16 is the upper half of a float32.
FLOATS: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


@dataclass(frozen=True)
class Stored:
    """One tensor as a file declares it: shape, type as safetensors spells it ("F16"), the file.

    Its values lie in the file from `offset` on, unless `read` gives them.
    """

    shape: tuple[int, ...]
    dtype: str
    path: Path
    offset: int = 0
    read: Callable[[], F32] | None = None

    def tensor(self) -> F32:
        """The values: float32, C-contiguous. Raises CheckpointError."""
        try:  # not by `readable`, for there are hundreds
            return self._from_file() if self.read is None else self.read()
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be read: {error.strerror or error}") from error

    def parts(self) -> Iterator[F32]:
        """As `tensor`, some rows after another: of those that lie in the file no more are in memory."""
        if self.read is not None:
            yield from in_parts(self.tensor())
            return
        row_bytes = math.prod(self.shape[1:]) * FLOATS[self.dtype].itemsize
        for start in range(0, self.shape[0], ROWS_AT_ONCE):
            shape = (min(ROWS_AT_ONCE, self.shape[0] - start), *self.shape[1:])
            yield replace(self, shape=shape, offset=self.offset + start * row_bytes).tensor()

    def _from_file(self) -> F32:
        """Peak memory is the result plus one block. Raises CheckpointError where the file ends early."""
        out = np.empty(self.shape, dtype=np.float32)
        flat = out.reshape(-1)
        kind = FLOATS[self.dtype]
        step = _CHUNK_BYTES // kind.itemsize
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.offset)
            for start in range(0, flat.size, step):
                part = flat[start : start + step]
                raw = np.fromfile(file, kind, part.size)
                if raw.size < part.size:
                    raise CheckpointError(
                        f"{self.path}: ends in the middle of a tensor; copy or download the file again"
                    )
                if self.dtype == "BF16":
                    np.left_shift(raw, 16, out=part.view(np.uint32), dtype=np.uint32, casting="unsafe")
                    continue
                with np.errstate(over="ignore"):  # a float64 beyond float32 becomes inf, which is refused by name
                    part[...] = raw
        return out


class Tensors:
    """Weights by canonical name (`layers.Weights`), each read when it is asked for."""

    def __init__(self, entries: Mapping[str, Stored], where: str) -> None:
        """`where` names the file or folder in errors."""
        self.entries, self._where = dict(entries), where
        self.on_read: Callable[[], None] = lambda: None  # whenever a weight is asked for

    def has(self, name: str) -> bool:
        return name in self.entries

    def tensor(self, name: str) -> F32:
        """One weight: float32, C-contiguous, freshly read and owned by the caller.

        Raises CheckpointError naming the tensor if it is missing, if its file ends early, or if it holds NaN or
        infinity (also after conversion from float64).
        """
        value = self._stored(name).tensor()
        if not np.isfinite(value).all():
            raise self._damaged(name)
        return value

    def parts(self, name: str) -> Iterator[F32]:
        """As `tensor`, some rows after another, see `Stored.parts`."""
        for value in self._stored(name).parts():
            if not np.isfinite(value).all():
                raise self._damaged(name)
            yield value

    def _stored(self, name: str) -> Stored:
        if name not in self.entries:
            raise CheckpointError(f"{self._where}: tensor {name} is missing")
        self.on_read()
        return self.entries[name]

    def _damaged(self, name: str) -> CheckpointError:
        return CheckpointError(f"{self._where}: tensor {name} holds NaN or infinity; the checkpoint is damaged")


def check_tensor(stored: Stored | None, name: str, shape: tuple[int, ...], where: str) -> None:
    """Raises CheckpointError, which says `where`, unless the tensor `name` is there, of floats and of this shape."""
    if stored is None:
        raise CheckpointError(f"{where}: tensor {name} is missing; expected shape {list(shape)}")
    if stored.shape != shape:
        raise CheckpointError(
            f"{where}: tensor {name} has shape {list(stored.shape)}; the config asks for {list(shape)}"
        )
    if stored.dtype not in FLOATS:
        raise CheckpointError(
            f"{where}: tensor {name} is stored as {stored.dtype}; expected one of {', '.join(FLOATS)} "
            "(quantised checkpoints cannot be exported, give the float one)"
        )


def plain_name(name: str) -> str:
    """A tensor's name without what torch.compile (`_orig_mod.`) and data parallelism (`module.`) put before it."""
    return re.sub(r"^(module\.)+", "", name.replace("_orig_mod.", ""))


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what the system refuses inside into CheckpointError."""
    try:
        yield
    except SpecedgeError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_weights(
    paths: Sequence[Path], *, is_pickle: bool = False, rename: Callable[[str], str] = plain_name
) -> dict[str, Stored]:
    """The tensors of .safetensors files, or of PyTorch's pickles, by the names that `rename` gives them.

    Raises CheckpointError.
    """
    found, entries = dict[str, Stored](), _Pickles().entries if is_pickle else _safetensors_entries
    for path in paths:  # of which no file stays open
        if not path.is_file():
            raise CheckpointNotFoundError(f"{path}: there is no such file; the checkpoint is incomplete")
        stored = dict(entries(path))
        renamed = {rename(name): tensor for name, tensor in stored.items()}
        if len(renamed) < len(stored):
            raise CheckpointError(f"{path}: holds several models, such as a teacher and its student; save one alone")
        found |= renamed
    return found


def _safetensors_entries(path: Path) -> Iterator[tuple[str, Stored]]:
    from safetensors import SafetensorError, safe_open

    with readable(path):
        try:
            with safe_open(str(path), framework="numpy"):  # validates lengths, offsets, overlaps and holes
                pass
        except SafetensorError as error:
            reason = f"is not a valid safetensors file ({error}); copy or download it again"
            raise CheckpointError(f"{path}: {reason}") from error
        with path.open("rb") as file:
            n_header = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(n_header))
    for name, entry in header.items():
        if name != "__metadata__":
            offset = 8 + n_header + entry["data_offsets"][0]
            yield name, Stored(tuple(entry["shape"]), entry["dtype"], path, offset)


class _Pickles:
    """Pickles of {name: tensor}, mapped rather than read.

    Mapped pages count as resident memory, so the mapping is renewed after every half gigabyte read.
    """

    def __init__(self) -> None:
        self._states: dict[Path, dict[str, Any]] = {}
        self._read_bytes = 0

    def entries(self, path: Path) -> Iterator[tuple[str, Stored]]:
        for name, tensor in self._state(path).items():
            yield name, Stored(tuple(tensor.shape), _torch_dtype(tensor), path, read=partial(self._read, path, name))

    def _read(self, path: Path, name: str) -> F32:
        import torch

        tensor = self._state(path)[name].detach()
        out = np.empty(tuple(tensor.shape), dtype=np.float32)
        torch.from_numpy(out).copy_(tensor)
        self._read_bytes += tensor.numel() * tensor.element_size()
        if self._read_bytes > _RELOAD_BYTES:
            self._states.clear()
            self._read_bytes = 0
        return out

    def _state(self, path: Path) -> dict[str, Any]:
        if path not in self._states:
            value = load_pickle(path)
            import torch

            if isinstance(value, dict):
                value = next((value[key] for key in _STATES if isinstance(value.get(key), dict)), value)
            tensors = value.items() if isinstance(value, dict) else ()
            found = {name: item for name, item in tensors if isinstance(item, torch.Tensor)}
            if not found:
                raise CheckpointError(f"{path}: holds no tensors by name; expected a model's state_dict")
            self._states[path] = found
        return self._states[path]


def load_pickle(path: Path) -> Any:
    """A pickle through torch's weights-only loader, mapped where its format allows.

    Raises CheckpointError if torch is absent, if the file holds anything but tensors and plain containers (nothing in
    it is executed), or if it is damaged.
    """
    try:
        import torch
    except ImportError as error:
        raise CheckpointError(
            f"{path}: is a PyTorch pickle, and reading it needs torch: give a checkpoint saved as model.safetensors, "
            f"or {GET_TORCH}"
        ) from error
    try:
        with path.open("rb") as file:
            is_zip = file.read(4) == b"PK\x03\x04"  # the format of torch since 1.6, which alone can be mapped
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:  # the loader raises half a dozen unrelated classes for damaged files
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{path}: torch's weights-only loader refuses it ({reason})") from error


def _torch_dtype(tensor: Any) -> str:
    names = {"torch.float64": "F64", "torch.float32": "F32", "torch.float16": "F16", "torch.bfloat16": "BF16"}
    dtype = str(tensor.dtype)
    strided = str(tensor.layout) == "torch.strided" and not tensor.is_quantized
    return names.get(dtype, dtype) if strided and math.prod(tensor.shape) == tensor.numel() else str(tensor.layout)
