"""Guesses from the corpus in a token map: how it goes on where the longest piece of the text so far stands.

Keys of a few tokens within one sentence say what is usual; a long match, which may begin sentences ago, says which text
this is. How far that can be trusted is learned from what came true, for matches of about the same length.
Does not know: keys, which of the two to follow.
"""

from __future__ import annotations

from collections.abc import Sequence

from specedge.maps.corpus_index import CorpusIndex, Match
from specedge.maps.tmap_format import CORPUS_DEPTH, MAX_ORDER
from specedge.runtime.drafters.guesses import Guess

__all__ = ["guess_of", "longest_match", "text_so_far"]


def text_so_far(history: Sequence[int], sampled: Sequence[int], eot: int) -> tuple[int, ...]:
    """The last text ids of the audio before and of this window, as many as a match can have, without timestamps."""
    recent = sampled if len(sampled) >= 2 * CORPUS_DEPTH else (*history[-CORPUS_DEPTH:], *sampled)
    return tuple([token for token in recent[-3 * CORPUS_DEPTH :] if token < eot][-CORPUS_DEPTH:])


def longest_match(corpus: CorpusIndex | None, text: Sequence[int], n_known: int, limit: int = 32) -> Match | None:
    """What the corpus says next, where it has more of the text than any key and than the `n_known` ids of one; or None.

    Shorter matches, of texts too rare for a key, promised more than they kept (docs/experiments.md, the longest match).
    """
    above = max(n_known, MAX_ORDER)
    if corpus is None or len(text) <= above or limit < 1:
        return None
    return corpus.longest(text, above=above, max_length=limit)


def guess_of(match: Match) -> Guess:
    """The tokens of a match as a path; no tokens where the corpus says that the sentence ends."""
    n = len(match.tokens)
    confidences = list(match.confidences[:n])
    kind = ("match", match.length.bit_length(), match.n_seen == 1)
    if n:
        confidences[0] *= match.n_seen / (match.n_seen + 1)  # what was seen once is no law
    return Guess(list(match.tokens), confidences, [(*kind, depth > 0) for depth in range(n)])
