"""openai-whisper's own names, dimensions and `.pt` files, which ggml's files follow, and other single files.

A `.pt` is {"dims": ModelDimensions, "model_state_dict": tensors} in a pickle. A file with a published name must be the
published file. Without dims, as trainers save models (Lightning's `state_dict`, a lone .safetensors), they are read off
the tensors: a Whisper's heads are 64 wide. Names may be openai-whisper's or transformers', with anything before them.
It carries no tokenizer and no alignment heads: those of a published model come from the catalogue, for
another one all heads of the upper half of the decoder stand in, as in openai-whisper (model.py).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specedge.errors import CheckpointError
from specedge.models.catalogue import OPENAI_SHA256, alignment_heads

from .spec import CONFIG_KEYS, Source, Spec, Stored, load_pickle, read_weights
from .vocabulary import standard_layout, suppressed_tokens

_HEAD_WIDTH = 64  # of every published Whisper
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


def bare_name(name: str) -> str:
    """The canonical name of a tensor in openai-whisper's or transformers' names, whatever a trainer put before them."""
    core = re.sub(r"^.*?(?=(?:encoder|decoder|proj_out)\.)", "", name)
    found = canonical_name(core)
    return f"model.{found}" if found.startswith(("encoder.", "decoder.")) else found


def open_single(path: Path, *, is_pickle: bool) -> tuple[Spec, dict[str, Stored]]:
    """Spec and weights of a pickle or a .safetensors.

    Raises CheckpointError if it is no Whisper, or has the name of a published file and is another.
    """
    sha256 = _check_published(path)
    entries = read_weights([path], is_pickle=is_pickle, rename=bare_name)
    value = load_pickle(path) if is_pickle else None
    given = value.get("dims") if isinstance(value, dict) else None
    dims = read_dims(dims_of(entries, path) if given is None else given, str(path))
    del value
    source = Source(kind="openai-pt", id=path.name, revision=sha256)
    published = None if sha256 is None else "large-v1" if path.name == "large.pt" else path.stem
    return derive_spec(dims, entries, source=source, where=str(path), published=published), entries


def dims_of(entries: Mapping[str, Stored], path: Path) -> dict[str, int]:
    """openai-whisper's dimensions of a model whose file does not say them. Raises CheckpointError."""
    names = {"conv1": "model.encoder.conv1.weight", "vocab": "model.decoder.embed_tokens.weight"}
    names |= {side: f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")}
    shapes = {key: entries[name].shape for key, name in names.items() if name in entries}
    if [len(shapes.get(key, ())) for key in names] != [3, 2, 2, 2]:
        raise CheckpointError(
            f"{path}: holds no Whisper's tensors, in openai-whisper's or transformers' names (looked for conv1, "
            "positions and the embedding of tokens); give the folder it came with"
        )
    dims = {"n_mels": shapes["conv1"][1], "n_vocab": shapes["vocab"][0]}
    for side, key in (("encoder", "audio"), ("decoder", "text")):
        found = [re.match(rf"model\.{side}\.layers\.(\d+)\.", name) for name in entries]
        dims[f"n_{key}_ctx"], dims[f"n_{key}_state"] = shapes[side]
        dims[f"n_{key}_head"] = dims[f"n_{key}_state"] // _HEAD_WIDTH
        dims[f"n_{key}_layer"] = max([int(one[1]) + 1 for one in found if one], default=0)
    return dims


def config_of(dims: Mapping[str, int], entries: Mapping[str, Stored]) -> dict[str, Any]:
    """transformers' config of a model of openai-whisper's dimensions."""
    config: dict[str, Any] = {"model_type": "whisper", **{key: dims[name] for name, key in CONFIG_KEYS.items()}}
    for side in ("encoder", "decoder"):
        stored = entries.get(f"model.{side}.layers.0.fc1.weight")
        config[f"{side}_ffn_dim"] = stored.shape[0] if stored is not None and stored.shape else 4 * dims["n_text_state"]
    return config


def derive_spec(
    dims: Mapping[str, int],
    entries: Mapping[str, Stored],
    *,
    source: Source,
    where: str,
    published: str | None = None,
    warning: str = "",
) -> Spec:
    """The spec of a file in openai-whisper's terms: its dims, and its tensors by canonical name.

    published: the name of the published model that it is, whose heads the catalogue knows. Raises CheckpointError.
    """
    n_vocab = dims["n_vocab"]
    if n_vocab not in (51864, 51865, 51866):
        raise CheckpointError(f"{where}: n_vocab {n_vocab} is none of openai-whisper's (51864, 51865, 51866)")
    special = standard_layout(n_vocab)
    generation: dict[str, Any] = {
        "suppress_tokens": suppressed_tokens(n_vocab),
        "begin_suppress_tokens": [220, special.eot],
        "max_initial_timestamp_index": 50,
        "is_multilingual": special.is_multilingual,
        **{key: special.eot for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
        "decoder_start_token_id": special.sot,
        "prev_sot_token_id": special.sot_prev,
        "no_timestamps_token_id": special.no_timestamps,
    }
    if special.is_multilingual:
        generation["lang_to_id"] = {f"<|{code}|>": id_ for code, id_ in special.languages.items()}
        generation["task_to_id"] = {"translate": special.translate, "transcribe": special.transcribe}
    if published is not None and (heads := alignment_heads(published)):
        generation["alignment_heads"] = heads
    return Spec.from_config(
        config_of(dims, entries), generation=generation, source=source, where=where, warning=warning
    )


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


def read_dims(value: Any, where: str) -> dict[str, int]:
    """openai-whisper's ModelDimensions out of a dictionary. Raises CheckpointError."""
    dims: dict[str, int] = {}
    for name in CONFIG_KEYS:
        number = value.get(name) if isinstance(value, dict) else None
        if type(number) is not int or number < 1:
            raise CheckpointError(f"{where}: dims.{name} is {number!r}; expected a positive whole number")
        dims[name] = number
    if dims["n_audio_state"] != dims["n_text_state"]:
        raise CheckpointError(
            f"{where}: n_audio_state {dims['n_audio_state']} and n_text_state {dims['n_text_state']} differ; "
            "a Whisper's encoder and decoder have one width"
        )
    return dims
