"""Words and their times from scripted attention: what is clipped, what moves, what a full context or silence gives."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specedge.errors import UsageError
from specedge.runtime.engine.engine import Alignment
from specedge.runtime.longform.windows import Piece
from specedge.runtime.longform.words import time_words
from specedge.runtime.options import TranscribeOptions
from support import fake_engine

SPECIAL = fake_engine.special_tokens()
TOKENIZER = fake_engine.tokenizer(SPECIAL)
N_CTX = 200


class Attentive:
    """An engine whose heads look at `steps[i]` and on while token i is said, at `steps[-1]` for the end of the text."""

    def __init__(self, steps: Sequence[int], *, n_text_ctx: int = 448, n_prompt: int = 4) -> None:
        self.dims: Any = SimpleNamespace(n_text_ctx=n_text_ctx)
        self.steps, self.n_prompt = list(steps), n_prompt
        self.ids: list[int] = []

    def align(self, features: Any, ids: Sequence[int]) -> Alignment:
        self.ids = list(ids)
        scores = np.zeros((2, len(ids), N_CTX), np.float32)
        first = self.n_prompt - 1  # this row says where the first token is
        for row in range(first, len(ids)):
            token = row - first
            if token < len(self.steps):
                end = self.steps[token + 1] if token + 1 < len(self.steps) else N_CTX
                scores[:, row, self.steps[token] : end] = 20
        return Alignment(scores=scores, token_probs=np.linspace(0.1, 0.9, len(ids) - 1).astype(np.float32))


def timed(steps: Sequence[int], *pieces: Piece, engine: Attentive | None = None, **changes: Any) -> list[Piece]:
    given: dict[str, Any] = {
        "tokenizer": TOKENIZER,
        "options": TranscribeOptions(),
        "language": "en",
        "n_content_frames": 2 * N_CTX,
        "last_speech_s": 0.0,
        "time_offset_s": 0.0,
    }
    return time_words(engine or Attentive(steps), SimpleNamespace(), pieces, **(given | changes))


def piece(start_s: float, end_s: float, *tokens: int) -> Piece:
    return Piece(start_s=start_s, end_s=end_s, tokens=tokens)


def times(found: Piece) -> list[tuple[str, float, float]]:
    return [(word.word, word.start, word.end) for word in found.words]


THE, PUMP, IS, ON = fake_engine.words(" the", " pump", " is", " on")
FOUR = (0, 20, 40, 60, 80)


def test_words_lie_where_the_heads_look() -> None:
    begin = SPECIAL.timestamp_begin
    (found,) = timed(FOUR, piece(0.0, 2.0, begin, THE, PUMP, IS, ON, begin + 80))
    assert times(found) == [(" the", 0.0, 0.4), (" pump", 0.4, 0.8), (" is", 0.8, 1.2), (" on", 1.2, 1.6)]
    assert (found.start_s, found.end_s) == (0.0, 1.6)
    assert found.tokens == (begin, THE, PUMP, IS, ON, begin + 80)


def test_words_go_to_their_pieces_and_the_pieces_take_their_times() -> None:
    found = timed(FOUR, piece(0.0, 0.7, THE, PUMP), piece(0.7, 2.0), piece(0.7, 2.0, IS, ON))
    assert [len(one.words) for one in found] == [2, 0, 2]
    assert [(one.start_s, one.end_s) for one in found] == [(0.0, 0.8), (0.7, 2.0), (0.8, 1.6)]


@pytest.mark.parametrize("n_content_frames", [0, 1, 2, 7])
def test_next_to_no_audio_is_no_error(n_content_frames: int) -> None:
    (found,) = timed(FOUR, piece(0.0, 1.0, THE, PUMP), n_content_frames=n_content_frames)
    assert [word.word for word in found.words] == [" the", " pump"]
    assert all(0 <= word.start <= word.end <= 0.06 for word in found.words)


def test_heads_that_see_nothing_give_words_all_the_same() -> None:
    """Equal attention everywhere has no spread, which openai-whisper divides by."""
    (found,) = timed([], piece(0.0, 1.0, THE, PUMP))
    assert all(np.isfinite([word.start, word.end]).all() for word in found.words) and len(found.words) == 2


@pytest.mark.parametrize("n_text_ctx", [8, 7, 6])
def test_a_text_that_fills_the_context_is_timed_as_far_as_it_fits(n_text_ctx: int) -> None:
    """Four rows of prompt and four of text: the end of text does not fit, or not even all of the text."""
    engine = Attentive(FOUR, n_text_ctx=n_text_ctx)
    (found,) = timed([], piece(0.0, 4.0, THE, PUMP, IS, ON), engine=engine)
    assert len(engine.ids) == n_text_ctx
    assert [word.word for word in found.words] == [" the", " pump", " is", " on"]
    assert times(found)[:2] == [(" the", 0.0, 0.4), (" pump", 0.4, 0.8)]
    assert all(word.start <= word.end for word in found.words)


def test_no_text_has_no_words_and_needs_no_pass() -> None:
    begin = SPECIAL.timestamp_begin
    engine = Attentive([])
    (found,) = timed([], piece(0.0, 1.0, begin, begin + 50), engine=engine)
    assert found == piece(0.0, 1.0, begin, begin + 50) and engine.ids == []
    assert timed([]) == []


def test_an_unknown_language_is_named() -> None:
    with pytest.raises(UsageError, match="unknown language 'xx'"):
        timed(FOUR, piece(0.0, 1.0, THE), language="xx")


@pytest.mark.parametrize("name", ["prepend_punctuations", "append_punctuations"])
def test_punctuation_must_be_a_text(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name}: got None, expected a text"):
        TranscribeOptions(**{name: None})  # type: ignore[arg-type]
    assert getattr(TranscribeOptions(**{name: ""}), name) == ""  # type: ignore[arg-type]
