"""From the ids of one byte-pair vocabulary to those of another: tokens that are the same bytes.

By bytes and never by text: over a thousand tokens are no valid UTF-8 alone, and a round trip through text loses them.
Tokens that only one of them has need more than one of the other's, which `word_cache` remembers. Does not know:
special tokens, how text is cut into tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["direct_map"]


def direct_map(source: Sequence[bytes], target: Sequence[bytes]) -> NDArray[np.int32]:
    """The id in `target` of every token of `source`, -1 where it has none; the empty token has none.

    Both are byte tables of text tokens, by id. int32 [len(source)].
    """
    id_of = {token: id_ for id_, token in enumerate(target) if token}
    return np.array([id_of.get(token, -1) if token else -1 for token in source], np.int32)
