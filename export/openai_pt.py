"""openai-whisper's own checkpoints (`tiny.pt`): {"dims": ModelDimensions, "model_state_dict": tensors} in a pickle.

Names and dimensions are translated to those of transformers; the special-token layout follows openai-whisper
tokenizer.py, which derives it from n_vocab alone. A file that has a published name must be the published file. A `.pt`
carries no tokenizer and no alignment heads: like openai-whisper for a file of unknown name (model.py), all heads of the
upper half of the decoder stand in.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specedge.export.spec import Source, Spec
from specedge.export.tensors import F32, Stored, TorchSource, load_pickle
from specedge.models.catalogue import OPENAI_SHA256
from specedge.runtime.errors import CheckpointError

__all__ = ["OpenaiSource", "canonical_name", "derive_configs", "open_pt"]

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

# Text tokens that are not speech (openai-whisper tokenizer.py, non_speech_tokens), as ids of the two vocabularies; the
# published generation_config.json files list the same ids.
# fmt: off
_NON_SPEECH = (
    1, 2, 7, 8, 9, 10, 14, 25, 26, 27, 28, 29, 31, 58, 59, 60, 61, 62, 63, 90, 91, 92, 93, 359, 503, 522, 542, 873,
    893, 902, 918, 922, 931, 1350, 1853, 1982, 2460, 2627, 3246, 3253, 3268, 3536, 3846, 3961, 4183, 4667, 6585, 6647,
    7273, 9061, 9383, 10428, 10929, 11938, 12033, 12331, 12562, 13793, 14157, 14635, 15265, 15618, 16553, 16604,
    18362, 18956, 20075, 21675, 22520, 26130, 26161, 26435, 28279, 29464, 31650, 32302, 32470, 36865, 42863, 47425,
    49870, 50254)
_NON_SPEECH_EN = (
    1, 2, 7, 8, 9, 10, 14, 25, 26, 27, 28, 29, 31, 58, 59, 60, 61, 62, 63, 90, 91, 92, 93, 357, 366, 438, 532, 685,
    705, 796, 930, 1058, 1220, 1267, 1279, 1303, 1343, 1377, 1391, 1635, 1782, 1875, 2162, 2361, 2488, 3467, 4008,
    4211, 4600, 4808, 5299, 5855, 6329, 7203, 9609, 9959, 10563, 10786, 11420, 11709, 11907, 13163, 13697, 13700,
    14808, 15306, 16410, 16791, 17992, 19203, 19510, 20724, 22305, 22935, 27007, 30109, 30420, 33409, 34949, 40283,
    40493, 40549, 47282, 49146)
# fmt: on


class OpenaiSource:
    """A `.pt`'s tensors under canonical names."""

    def __init__(self, path: Path) -> None:
        self._inner = TorchSource([path], key="model_state_dict")
        self._names = {canonical_name(name): name for name in self._inner.entries}

    @property
    def entries(self) -> Mapping[str, Stored]:
        return {name: self._inner.entries[theirs] for name, theirs in self._names.items()}

    def read(self, name: str) -> F32:
        return self._inner.read(self._names[name])

    def close(self) -> None:
        self._inner.close()


def canonical_name(name: str) -> str:
    """transformers' name of an openai-whisper tensor; unknown names come back as they are."""
    for pattern, replacement in _RENAMES:
        name = re.sub(pattern, replacement, name)
    return name


def open_pt(path: Path) -> tuple[Spec, OpenaiSource]:
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
    weights = OpenaiSource(path)
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

    Layout: text tokens, <|endoftext|>, <|startoftranscript|>, languages, six tokens, 1501 timestamps (tokenizer.py,
    get_encoding). Raises CheckpointError for an n_vocab that leaves no known number of languages.
    """
    n_vocab = dims["n_vocab"]
    multilingual = n_vocab >= 51865
    n_languages = n_vocab - 51765 - int(multilingual)
    if n_languages not in (99, 100):
        raise CheckpointError(f"{where}: n_vocab {n_vocab} is none of openai-whisper's (51864, 51865, 51866)")
    eot = 50257 if multilingual else 50256
    sot, translate = eot + 1, eot + 2 + n_languages
    transcribe, sot_lm, sot_prev, no_speech, no_timestamps = range(translate + 1, translate + 6)
    suppressed = [*(_NON_SPEECH if multilingual else _NON_SPEECH_EN), sot, translate, transcribe, sot_lm, sot_prev]
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
        "eos_token_id": eot,
        "bos_token_id": eot,
        "pad_token_id": eot,
        "decoder_start_token_id": sot,
    }
    generation: dict[str, Any] = {
        "suppress_tokens": [*suppressed, no_speech],
        "begin_suppress_tokens": [220, eot],
        "eos_token_id": eot,
        "decoder_start_token_id": sot,
        "prev_sot_token_id": sot_prev,
        "no_timestamps_token_id": no_timestamps,
        "max_initial_timestamp_index": 50,
        "is_multilingual": multilingual,
        "alignment_heads": [[layer, head] for layer in range(n_layer // 2, n_layer) for head in range(n_head)],
    }
    if multilingual:
        from specedge.runtime.text.languages import LANGUAGE_NAMES

        codes = list(LANGUAGE_NAMES)[:n_languages]
        generation["lang_to_id"] = {f"<|{code}|>": sot + 1 + i for i, code in enumerate(codes)}
        generation["task_to_id"] = {"translate": translate, "transcribe": transcribe}
    return config, generation
