"""What stands in front of a window's text in transformers' generate (`generation_whisper.py`).

Three things differ from openai-whisper. A window sampled at a high temperature leaves the next one alone without the
text before it, which comes back after that. Of two timestamps that end a segment, the second is left out. And an
initial prompt stands before every window that no earlier text stands before: also where each is decoded alone.
Not followed: with `carry_initial_prompt` (its `prompt_condition_type="all-segments"`) the earlier text gets the room
that the prompt leaves of half the positions, as in openai-whisper; generate gives it all of that half beside the
prompt, and fails where both together leave no room for text.
Does not know: what the ids mean, windows, whether a text is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specedge.runtime.longform.prompts import Prompts

__all__ = ["GeneratePrompts"]


class GeneratePrompts(Prompts):
    """As `Prompts`. All segments of a window are to be added, those without text too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._follows = self._options.condition_on_previous_text
        self._segments: list[int] = []

    def add(self, segments: Sequence[Sequence[int]], temperature: float) -> None:
        """See `Prompts.add`."""
        special = self._special
        for tokens in segments:
            ends_twice = len(tokens) > 2 and tokens[-2] >= special.timestamp_begin
            self._segments += tokens[:-1] if ends_twice else tokens
            self._text += [token for token in tokens if token < special.eot]
        del self._segments[: -self._limit], self._text[: -self._limit]
        self.pass_over(temperature)

    def pass_over(self, temperature: float) -> None:
        """See `Prompts.pass_over`."""
        options = self._options
        self._follows = options.condition_on_previous_text and temperature < options.prompt_reset_on_temperature

    def _before(self) -> list[int]:
        is_carried = self._options.carry_initial_prompt
        if not self._follows or (is_carried and not self._segments):
            return list(self._initial)  # whole, as there: `decode_window` refuses what leaves no room
        if is_carried:
            n_left = self._limit - len(self._initial)
            return [*self._initial, *(self._segments[-n_left:] if n_left > 0 else ())]
        return [*self._initial, *self._segments][-self._limit :]
