"""The language of a window, as probabilities of those that the model can say.

A Whisper says it in one token behind the start token, as in `whisper/decoding.py: detect_language`. A speech LLM as
Qwen3-ASR writes `language English<asr_text>` and then the text. Here the beginning is not sampled but asked for: the
ids that tell each language are a tree, in which the model chooses where it branches. The likeliest goes into the prompt
of the window, so texts have no such beginning, whatever samples or drafts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from ..text.special import SpecialTokens, TokenLayout
from ..text.speech_tokens import SpeechTokens
from .sampling import softmax

if TYPE_CHECKING:
    from ..engine.engine import Engine, Features, State

UNKNOWN_LANGUAGE = "und"  # in ISO 639
_Told = Mapping[str, Sequence[int]]


def detect_language(
    engine: Engine, features: Features, tokens: TokenLayout, context: Sequence[int] = ()
) -> dict[str, float]:
    """The probability of each language code, likeliest first; they add up to 1. Ties go to the lowest id.

    context: ids of the prompt's context, for a speech LLM, which may say `UNKNOWN_LANGUAGE` too. The model has a
    language at least.
    """
    told: _Told
    if isinstance(tokens, SpeechTokens):
        question = tokens.question(features.n_audio, context)
        told = {**tokens.languages, UNKNOWN_LANGUAGE: tokens.unknown}
    else:
        whisper = cast(SpecialTokens, tokens)
        ids = whisper.languages
        question, told = [whisper.sot], {code: [ids[code]] for code in sorted(ids, key=ids.__getitem__)}
    state = engine.start(features)
    try:
        rows = question[:-1]
        if rows:
            engine.forward(state, rows, [len(rows) - 1])
            engine.commit(state, len(rows))
        found = dict(_shares(engine, state, [question[-1]], told, 0, 1.0))
    finally:
        engine.release(state)
    return {code: found[code] for code in sorted(found, key=lambda code: -found[code])}


def _shares(
    engine: Engine, state: State, rows: list[int], told: _Told, depth: int, share: float
) -> Iterator[tuple[str, float]]:
    """Each code with its part of `share`. rows: the ids behind `state`; `told` have the first `depth` ids in common."""
    if len(told) == 1:
        yield next(iter(told)), share
        return
    branches: dict[int, dict[str, Sequence[int]]] = {}
    for code, ids in told.items():
        branches.setdefault(ids[depth], {})[code] = ids
    parts = [1.0]
    if len(branches) > 1:
        logits = engine.forward(state, rows, [len(rows) - 1])[0]
        parts = softmax(logits[list(branches)]).tolist()
    for (id_, below), part in zip(branches.items(), parts, strict=True):
        yield from _shares(engine, state, [*rows, id_], below, depth + 1, share * part)
