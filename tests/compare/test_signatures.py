"""Every parameter of faster-whisper is here too: same name, same place, same default, but for a few with reasons."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import specedge

faster_whisper = pytest.importorskip("faster_whisper", reason="faster-whisper is not installed")

pytestmark = pytest.mark.slow  # it imports PyAV, CTranslate2 and tokenizers

# (call, parameter): why its default is another one.
OTHER_DEFAULTS = {
    ("WhisperModel.transcribe", "beam_size"): "1: speculation is exact against greedy decoding",
    ("BatchedInferencePipeline.transcribe", "beam_size"): "1: speculation is exact against greedy decoding",
}
NOT_HERE = {("WhisperModel", "model_kwargs"): "arguments of CTranslate2's own model"}
CALLS = (
    "WhisperModel",
    "WhisperModel.transcribe",
    "WhisperModel.detect_language",
    "BatchedInferencePipeline",
    "BatchedInferencePipeline.transcribe",
    "decode_audio",
    "available_models",
    "download_model",
    "format_timestamp",
)


def parameters(module: Any, call: str) -> list[inspect.Parameter]:
    target: Callable[..., Any] = module
    for name in call.split("."):
        target = getattr(target, name)
    found = list(inspect.signature(target).parameters.values())
    return [p for p in found if p.name != "self"]


def plain(value: Any) -> Any:
    """Defaults that mean the same: faster-whisper's lists are tuples here, which nobody can change by accident."""
    return tuple(value) if isinstance(value, list) else value


@pytest.mark.parametrize("call", CALLS)
def test_a_call_written_for_faster_whisper_means_the_same_here(call: str) -> None:
    theirs = [p for p in parameters(faster_whisper, call) if (call, p.name) not in NOT_HERE]
    ours = parameters(specedge, call)
    assert [p.name for p in ours[: len(theirs)]] == [p.name for p in theirs]
    for their, our in zip(theirs, ours, strict=False):
        assert our.kind == their.kind, our.name
        if (call, our.name) not in OTHER_DEFAULTS:
            assert plain(our.default) == plain(their.default), our.name
    for added in ours[len(theirs) :]:
        assert added.kind is inspect.Parameter.KEYWORD_ONLY, f"{added.name} would take a positional argument's place"


def test_results_have_faster_whisper_s_fields() -> None:
    import dataclasses

    from faster_whisper.transcribe import Segment, TranscriptionInfo, VadOptions, Word

    for theirs, ours in (
        (Segment, specedge.Segment),
        (Word, specedge.Word),
        (TranscriptionInfo, specedge.TranscriptionInfo),
        (VadOptions, specedge.VadOptions),
    ):
        names = [field.name for field in dataclasses.fields(theirs)]
        assert [f.name for f in dataclasses.fields(ours) if f.name in names] == names
    own = {field.name: field.default for field in dataclasses.fields(specedge.VadOptions)}
    assert {field.name: own[field.name] for field in dataclasses.fields(VadOptions)} == {
        field.name: field.default for field in dataclasses.fields(VadOptions)
    }


def test_every_name_of_the_package_is_here() -> None:
    assert set(faster_whisper.__all__) <= set(specedge.__all__)


def test_every_model_name_is_here() -> None:
    assert set(faster_whisper.available_models()) <= set(specedge.available_models())
