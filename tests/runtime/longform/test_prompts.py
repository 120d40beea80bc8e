"""What stands before a window: openai-whisper's cutting, faster-whisper's hotwords and prefix."""

from __future__ import annotations

from typing import Any

import pytest

from specedge.runtime.longform.prompts import Prompts, _say_cut
from specedge.runtime.options import TranscribeOptions
from specedge.runtime.text.tokenizer import Tokenizer
from support.fake_engine import special_tokens, tokenizer, words

SPECIAL = special_tokens()
SOT = SPECIAL.prompt("en")
N_TEXT_CTX = 20  # at most 9 ids before SOT
THE, PUMP, IS, ON = words(" the", " pump", " is", " on")


def prompts(**options: Any) -> Prompts:
    return Prompts(TranscribeOptions(**options), tokenizer(SPECIAL), SPECIAL, n_text_ctx=N_TEXT_CTX)


def test_earlier_text_is_kept_until_a_hot_window() -> None:
    made = prompts(initial_prompt=(THE,))
    assert made.window("en", is_first=True) == [SPECIAL.sot_prev, THE, *SOT]
    made.add([[PUMP, IS]], 0.5)
    assert made.window("en", is_first=False) == [SPECIAL.sot_prev, THE, PUMP, IS, *SOT]
    made.add([[ON]], 0.6)
    assert made.window("en", is_first=False) == SOT, "sampled above prompt_reset_on_temperature"
    made.add([[PUMP]], 0.0)
    assert made.window("en", is_first=False) == [SPECIAL.sot_prev, PUMP, *SOT]
    assert made.history == (PUMP, IS, ON, PUMP), "a drafter may still learn from what the prompt forgot"


def test_a_carried_prompt_stays_in_front() -> None:
    made = prompts(initial_prompt=(THE, PUMP), carry_initial_prompt=True)
    for _ in range(5):
        made.add([[IS, ON, IS]], 0.0)
    assert made.window("en", is_first=False) == [SPECIAL.sot_prev, THE, PUMP, IS, *[IS, ON, IS] * 2, *SOT]
    made.add([[ON]], 1.0)
    assert made.window("en", is_first=False) == [SPECIAL.sot_prev, THE, PUMP, *SOT]


def test_without_conditioning_the_first_window_alone_has_the_prompt() -> None:
    made = prompts(initial_prompt=" the pump ", condition_on_previous_text=False)
    assert made.window("en", is_first=True) == [SPECIAL.sot_prev, THE, PUMP, *SOT]
    made.add([[IS]], 0.0)
    assert made.window("en", is_first=False) == SOT


@pytest.mark.parametrize("name", ["initial_prompt", "hotwords", "prefix"])
def test_what_cannot_fit_is_cut_from_the_left_unread_and_said_once(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _say_cut.cache_clear()
    lengths: list[int] = []
    encode = Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text: lengths.append(len(text)) or encode(self, text))
    for _ in range(3):
        given: dict[str, Any] = {name: "the pump " * 100_000 + "is on", "without_timestamps": True}
        ids = [id_ for id_ in prompts(**given).window("en", is_first=True) if id_ < SPECIAL.eot]
        assert ids == [PUMP, *[THE, PUMP] * 3, IS, ON]
    assert max(lengths) < 1000 and caplog.text.count(f"{name}: longer than the 9 tokens") == 1


def test_a_prefix_begins_the_first_window_alone_and_replaces_hotwords() -> None:
    made = prompts(prefix="the pump", hotwords="is", without_timestamps=True)
    sot = SPECIAL.prompt("en", timestamps=False)
    assert made.window("en", is_first=True) == [*sot, THE, PUMP]
    assert made.window("en", is_first=False) == sot
    timed = prompts(prefix="the pump")
    assert timed.window("en", is_first=True) == [*SOT, SPECIAL.timestamp_begin, THE, PUMP]
