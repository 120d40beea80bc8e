"""The checkpoints that people know by a short name, and where they are on the Hugging Face hub.

Names: openai-whisper's ("tiny.en", "turbo"), the hub's ("whisper-tiny.en", "openai/whisper-tiny.en") and
distil-whisper's. "large" is large-v3, as in openai-whisper and faster-whisper; the first large model, whose hub id is
`openai/whisper-large`, is "large-v1". Parameter counts are those of the model cards, in millions. Everything a bundle
needs is read from the checkpoint itself: this list is for people, and a model need not be in it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["ALIASES", "CHECKPOINTS", "FILES", "Checkpoint", "KnownFile", "find", "suggest"]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One published checkpoint: `name` is its short name and its folder in the store, `languages` how many it knows."""

    name: str
    hub_id: str
    n_params_m: int
    languages: int
    note: str = ""


# (name, hub id, millions of parameters, languages, note)
_ROWS = (
    ("whisper-tiny", "openai/whisper-tiny", 39, 99, ""),
    ("whisper-tiny.en", "openai/whisper-tiny.en", 39, 1, ""),
    ("whisper-base", "openai/whisper-base", 74, 99, ""),
    ("whisper-base.en", "openai/whisper-base.en", 74, 1, ""),
    ("whisper-small", "openai/whisper-small", 244, 99, ""),
    ("whisper-small.en", "openai/whisper-small.en", 244, 1, ""),
    ("whisper-medium", "openai/whisper-medium", 769, 99, ""),
    ("whisper-medium.en", "openai/whisper-medium.en", 769, 1, ""),
    ("whisper-large-v1", "openai/whisper-large", 1550, 99, "superseded by large-v2 and large-v3"),
    ("whisper-large-v2", "openai/whisper-large-v2", 1550, 99, ""),
    ("whisper-large-v3", "openai/whisper-large-v3", 1550, 100, "128 mels"),
    ("whisper-large-v3-turbo", "openai/whisper-large-v3-turbo", 809, 100, "128 mels, 4 decoder layers, no translation"),
    ("distil-small.en", "distil-whisper/distil-small.en", 166, 1, "4 decoder layers"),
    ("distil-medium.en", "distil-whisper/distil-medium.en", 394, 1, "2 decoder layers"),
    ("distil-large-v2", "distil-whisper/distil-large-v2", 756, 1, "2 decoder layers, v2 vocabulary, English"),
    ("distil-large-v3", "distil-whisper/distil-large-v3", 756, 1, "2 decoder layers, v3 vocabulary, English"),
    ("distil-large-v3.5", "distil-whisper/distil-large-v3.5", 756, 1, "2 decoder layers, v3 vocabulary, English"),
)

CHECKPOINTS: Mapping[str, Checkpoint] = MappingProxyType(
    {
        name: Checkpoint(name=name, hub_id=hub_id, n_params_m=n_params_m, languages=languages, note=note)
        for name, hub_id, n_params_m, languages, note in _ROWS
    }
)

# Beside these, every name is accepted without "whisper-", and every hub id.
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "large": "whisper-large-v3",
        "whisper-large": "whisper-large-v3",
        "turbo": "whisper-large-v3-turbo",
        "whisper-turbo": "whisper-large-v3-turbo",
    }
)


@dataclass(frozen=True, kw_only=True)
class KnownFile:
    """A single published file that is no bundle: `name` is its folder in the store, the rest says what it must be."""

    name: str
    file_name: str
    url: str
    sha256: str
    size_bytes: int
    licence: str


# Silero's v6 model as faster-whisper ships it: its LSTM runs over many frames in one call, and its states are h and c.
# The file in snakers4/silero-vad has one state and one frame a call.
_FILES = (
    KnownFile(
        name="silero-vad",
        file_name="silero_vad_v6.onnx",
        url="https://raw.githubusercontent.com/SYSTRAN/faster-whisper/v1.2.1/faster_whisper/assets/silero_vad_v6.onnx",
        sha256="4cbf549b8326f60f80f2536d9eefeb450a9abe83365a098031c89719f1be17d2",
        size_bytes=1_245_151,
        licence="MIT",
    ),
)
FILES: Mapping[str, KnownFile] = MappingProxyType({file.name: file for file in _FILES})


def _spellings() -> dict[str, str]:
    spellings = dict(ALIASES)
    for name, checkpoint in CHECKPOINTS.items():
        spellings[name] = spellings[name.removeprefix("whisper-")] = spellings[checkpoint.hub_id] = name
    return spellings


_SPELLINGS = _spellings()


def find(name: str) -> Checkpoint | None:
    """The checkpoint called `name`: a short name, an alias or a hub id, in any case; None if it is not in the list."""
    short_name = _SPELLINGS.get(name.lower())
    return None if short_name is None else CHECKPOINTS[short_name]


def suggest(name: str, others: tuple[str, ...] = ()) -> list[str]:
    """Up to three names close to `name`, out of the list and `others`, best first, without two for one checkpoint."""
    spellings = {**_SPELLINGS, **{other: other for other in others}}
    close = difflib.get_close_matches(name.lower()[:100], spellings, n=8, cutoff=0.6)
    return list(dict.fromkeys(spellings[match] for match in close))[:3]
