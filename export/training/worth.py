"""What drafts would save, estimated from held-out windows when a training ends, and said in a sentence.

The estimate replays the target's own text: a draft is right up to its first wrong token, each pass gives one token more
than that, and passes cost what `doctor --calibrate` measured here, else what they cost on a usual machine. Making the
drafts is not counted, so `specedge bench` has the last word.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from specedge.runtime.device import CostTable

LONGEST = 8  # tokens of a draft
_SAVES, _MAY_SAVE = 1.2, 1.05  # times plain decoding, with what the drafts themselves cost taken off in the mind


@dataclass(frozen=True, kw_only=True)
class Worth:
    """share: of the target's tokens that are right at the first guess; tokens_per_pass; speed_up: of the decoder, at
    the best length of drafts."""

    share: float
    tokens_per_pass: float
    speed_up: float

    def sentence(self, what: str, lacks: str) -> str:
        """The judgement about `what`, such as "head", which `lacks` something that would make it better."""
        if self.speed_up >= _SAVES:
            verdict = f"this {what} should save time"
        elif self.speed_up >= _MAY_SAVE:
            verdict = f"this {what} saves little time at best: a better one needs {lacks}"
        else:
            verdict = f"this {what} will not save time: it needs {lacks}"
        return (
            f"on held-out recordings {self.share:.0%} of the model's tokens are right, about "
            f"{self.tokens_per_pass:.2f} tokens a pass and {self.speed_up:.2f} times the decoder's speed; {verdict}"
        )


def right_tokens(tokens: Sequence[bytes], guess: bytes) -> list[bool]:
    """Of each token of a text whether `guess`, aligned with the text, spells all of it in one piece."""
    blocks = SequenceMatcher(None, b"".join(tokens), guess, autojunk=False).get_matching_blocks()
    ends = itertools.accumulate(map(len, tokens), initial=0)
    return [any(one.a <= at and end <= one.a + one.size for one in blocks) for at, end in itertools.pairwise(ends)]


def of_flags(texts: Sequence[Sequence[bool]], costs: CostTable) -> Worth:
    """Of drafts whose tokens are right where the flags of a text say so."""
    n_tokens = sum(map(len, texts))
    if not n_tokens:
        return Worth(share=0.0, tokens_per_pass=1.0, speed_up=1.0)
    n_passes = [sum(_passes(flags, length) for flags in texts) for length in range(LONGEST + 1)]
    return _best(sum(map(sum, texts)) / n_tokens, [n_tokens / n for n in n_passes], costs)


def _passes(flags: Sequence[bool], length: int) -> int:
    """Passes over a text with drafts of `length` tokens: each ends with a token of the model's own."""
    n_passes = at = 0
    while at < len(flags):
        end = at
        while end < min(at + length, len(flags)) and flags[end]:
            end += 1
        at, n_passes = end + 1, n_passes + 1
    return n_passes


def of_rates(rates: Sequence[float], costs: CostTable) -> Worth:
    """Of heads, each right so often whatever the one before it was."""
    chances = itertools.accumulate(rates, operator.mul)
    return _best(rates[0], list(itertools.accumulate(chances, initial=1.0)), costs)


def _best(share: float, tokens: Sequence[float], costs: CostTable) -> Worth:
    """At the best length; `tokens`: of a pass, by the length of drafts, from none on."""
    speed_up, n = max((n * costs.cost(1) / costs.cost(1 + length), n) for length, n in enumerate(tokens))
    return Worth(share=share, tokens_per_pass=n, speed_up=speed_up)
