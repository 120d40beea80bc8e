"""The model of a run that names none.

In this order: the model that $SPECEDGE_MODEL names; the best Whisper in the store, which is the largest one that knows
the language and task and needs at most half of the machine's memory; and if the store has none, tiny is fetched into
it, tiny.en for English. Where tiny cannot be had, as from a package index that has base alone, the next larger is.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from specedge.errors import BundleError, CheckpointError, ModelNotFoundError
from specedge.models import catalogue, store
from specedge.runtime.bundle.bundle import read_manifest
from specedge.runtime.bundle.manifest import WHISPER, Manifest
from specedge.runtime.console import notify
from specedge.runtime.device import total_memory_bytes
from specedge.runtime.text.special import find_language

from .export import pull_model

VARIABLE = "SPECEDGE_MODEL"
_ENGLISH, _ANY = ("whisper-tiny.en", "whisper-tiny", "whisper-base"), ("whisper-tiny", "whisper-base")
_BASE_BYTES = 200_000_000  # what a transcription takes beside the weights
_WAYS = (
    "get one with `specedge models pull tiny` where there is a network, `specedge export FOLDER` from a checkpoint, or "
    "`specedge models pull FOLDER` with a model of another machine; or name one with -m or $SPECEDGE_MODEL"
)


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
    reason = ""
    for name in _ENGLISH if code == "en" and task == "transcribe" else _ANY:
        try:
            path, _ = pull_model(name)
        except CheckpointError as error:
            reason = reason or str(error).partition(";")[0]
            continue
        notify(f"{name} is installed now; `specedge models list --known` shows larger models, which make fewer errors")
        return path
    raise ModelNotFoundError(f"no {wanted} is installed, and none can be fetched ({reason}): {_WAYS}")


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
    able = []
    for path in store.installed():
        with contextlib.suppress(BundleError):  # naming it says what is wrong with it
            manifest = read_manifest(path)[0]
            languages = _languages(manifest)
            can_do = task == "transcribe" or len(languages) > 2  # models of few languages do not translate
            if manifest.kind == WHISPER and can_do and (language is None or language in languages):
                able.append((path, manifest))
    memory_bytes = total_memory_bytes()
    fitting = [
        one for one in able if memory_bytes is None or _BASE_BYTES + store.size_bytes(one[0]) <= memory_bytes / 2
    ]

    def merit(one: tuple[Path, Manifest]) -> tuple[bool, int, bool, bool, str]:
        path, manifest = one
        is_english, dims = _languages(manifest) == {"en"}, manifest.dims
        detects = language is not None or not is_english
        # Of the layers, a measure of how few errors a model makes: attention and feed-forward of the encoder, and
        # cross-attention too in the decoder.
        n_weights = 12 * dims.n_audio_state**2 * dims.n_audio_layer + 16 * dims.n_text_state**2 * dims.n_text_layer
        return detects, n_weights, is_english, manifest.precision == "int8", path.name

    if fitting:
        return max(fitting, key=merit)[0]
    return min((path for path, _ in able), key=store.size_bytes, default=None)


def _languages(manifest: Manifest) -> frozenset[str]:
    """Those that it was trained for."""
    known = catalogue.find(manifest.source.id)
    trained = frozenset(manifest.tokens.languages) or frozenset({"en"})
    return trained & frozenset(known.only) if known is not None and known.only else trained
