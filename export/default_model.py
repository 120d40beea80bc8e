"""The model of a run that names none.

In this order: the model that $SPECEDGE_MODEL names; the best Whisper in the store, which is the largest one that knows
the language and task and needs at most half of the machine's memory; and if the store has none, tiny is fetched into
it, tiny.en for English. Where tiny cannot be had, as from a package index that has base alone, the next larger is.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from specedge.errors import BundleError, CheckpointError, ModelNotFoundError
from specedge.models import catalogue, store
from specedge.runtime.bundle.bundle import read_manifest
from specedge.runtime.bundle.dims import Dims
from specedge.runtime.bundle.manifest import WHISPER
from specedge.runtime.console import notify
from specedge.runtime.device import total_memory_bytes
from specedge.runtime.text.special import find_language

from .export import pull_model

VARIABLE = "SPECEDGE_MODEL"
_ENGLISH, _ANY = ("whisper-tiny.en", "whisper-tiny", "whisper-base"), ("whisper-tiny", "whisper-base")
_BASE_BYTES = 200_000_000  # what a transcription takes beside the weights
_WAYS = (
    "get one with `specedge models pull tiny` where there is a network, `specedge export FOLDER` from a checkpoint, or "
    "`specedge models pull FILE.tar` from another machine; or name one with -m or $SPECEDGE_MODEL"
)


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """A Whisper of the store. languages: those that it was trained for; n_weights: of its layers, a measure of how few
    errors it makes."""

    path: Path
    size_bytes: int
    languages: frozenset[str]
    n_weights: int
    precision: str

    @property
    def is_english(self) -> bool:
        return self.languages == {"en"}

    def can(self, language: str | None, task: str) -> bool:
        """Whether it knows the language, None for any, and the task: models of few languages do not translate."""
        return (language is None or language in self.languages) and (task == "transcribe" or len(self.languages) > 2)


def default_model(
    language: str | None = None, task: str = "transcribe", *, download: bool = True, quiet: bool = False
) -> Path:
    """The bundle to use where none is named, fetched and exported first if nothing installed will do.

    language: a code or a name, None where it is to be detected. download: whether a model may be fetched; with
    HF_HUB_OFFLINE it comes from the hub's cache or not at all. quiet: say nothing of an installed one.

    Raises ModelNotFoundError, with the ways to get a model, where there is none; UsageError for an unknown language.
    """
    code = None if language is None else find_language(language)
    found = installed_default(code, task)
    if found is not None:
        if not quiet and not os.environ.get(VARIABLE):
            notify(f"model {found.name}; -m NAME takes another")
        return found
    wanted = "model" if code in (None, "en") else f"model that knows {code}"
    if not download:
        raise ModelNotFoundError(f"no {wanted} is installed: {_WAYS}")
    reasons = []
    for name in _ENGLISH if code == "en" and task == "transcribe" else _ANY:
        try:
            path, _ = pull_model(name)
        except CheckpointError as error:
            reasons.append(str(error).partition(";")[0])
            continue
        notify(f"{name} is installed now; `specedge models list --known` shows larger models, which make fewer errors")
        return path
    raise ModelNotFoundError(f"no {wanted} is installed, and none can be fetched ({reasons[0]}): {_WAYS}")


def installed_default(language: str | None = None, task: str = "transcribe") -> Path | None:
    """The bundle to use where none is named, None where nothing installed will do. language: a code, or None.

    Raises ModelNotFoundError where $SPECEDGE_MODEL names no model.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen:
        try:
            return store.find(chosen)
        except ModelNotFoundError as error:
            raise ModelNotFoundError(f"{VARIABLE}: {error}") from None
    able = [one for one in _candidates() if one.can(language, task)]
    memory_bytes = total_memory_bytes()
    fitting = [one for one in able if memory_bytes is None or _BASE_BYTES + one.size_bytes <= memory_bytes / 2]

    def merit(one: _Candidate) -> tuple[bool, int, bool, bool, str]:
        detects = language is not None or not one.is_english
        return detects, one.n_weights, one.is_english, one.precision == "int8", one.path.name

    if fitting:
        return max(fitting, key=merit).path
    return min(able, key=lambda one: one.size_bytes).path if able else None


def _candidates() -> list[_Candidate]:
    found = []
    for item in store.installed():
        try:
            manifest = read_manifest(item.path)[0]
        except BundleError:  # naming it says what is wrong with it
            continue
        if manifest.kind != WHISPER:
            continue
        known = catalogue.find(manifest.source.id)
        trained = frozenset(manifest.tokens.languages) or frozenset({"en"})
        found.append(
            _Candidate(
                path=item.path,
                size_bytes=item.size_bytes,
                languages=trained & frozenset(known.only) if known is not None and known.only else trained,
                n_weights=_n_weights(manifest.dims),
                precision=manifest.precision,
            )
        )
    return found


def _n_weights(dims: Dims) -> int:
    """Of the layers: attention and feed-forward of the encoder, and cross-attention too in the decoder."""
    return 12 * dims.n_audio_state**2 * dims.n_audio_layer + 16 * dims.n_text_state**2 * dims.n_text_layer
