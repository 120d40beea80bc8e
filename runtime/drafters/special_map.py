"""Special tokens of one vocabulary in another, by meaning: control tokens by name, languages by code, times by time.

Ids say nothing: v3's <|transcribe|> is v2's <|startoflm|>, and v3's <|notimestamps|> is v2's <|0.00|> (algorithms 0.8,
1.3). What the other vocabulary lacks (<|yue|>, a time beyond its last) has no counterpart.
Does not know: text tokens, drafts.
"""

from __future__ import annotations

from specedge.runtime.text.special import SpecialTokens

__all__ = ["special_map"]

_NAMES = ("eot", "sot", "sot_prev", "sot_lm", "no_speech", "no_timestamps", "translate", "transcribe")


def special_map(source: SpecialTokens, target: SpecialTokens) -> dict[int, int]:
    """Id in `source` -> id in `target` of every special token that both have."""
    found: dict[int, int] = {}
    for name in _NAMES:
        here, there = getattr(source, name), getattr(target, name)
        if here is not None and there is not None:
            found[here] = there
    for code, here in source.languages.items():
        if code in target.languages:
            found[here] = target.languages[code]
    for step in range(source.n_timestamps):
        there = round(step * source.time_precision_s / target.time_precision_s)
        if there < target.n_timestamps:
            found[source.timestamp_begin + step] = target.timestamp_begin + there
    return found
