"""What a target said, as its draft would have to say it: the draft's ids, and whose probabilities stand where.

Prompts, times and text are translated as they are when the draft is asked (`drafters.translation`), so that it learns
what it will be asked. Where both cut text alike, each of the draft's ids stands for one of the target's, whose
distribution can be learned from besides. Texts that the draft cannot be asked for (languages) are left out.
Does not know: audio, losses, models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specedge.export.training.hidden_rows import F16, HiddenText
from specedge.runtime.drafters.translation import Translation

__all__ = ["DraftText", "draft_texts"]


@dataclass(frozen=True, kw_only=True)
class DraftText:
    """One text over one window, for a draft.

    ids: prompt, text and end in the draft's ids; n_prompt: of them the prompt; rows: int64 [len(ids)], the row of
    `hidden` that gives the target's distribution of the token behind each id, -1 for none; hidden, features, source: as
    in `HiddenText`.
    """

    ids: tuple[int, ...]
    n_prompt: int
    rows: NDArray[np.int64]
    hidden: F16
    features: F16
    source: int


def draft_texts(
    texts: Sequence[HiddenText], translation: Translation, n_text_ctx: int, *, is_alike: bool
) -> list[DraftText]:
    """The texts that the draft can be asked for, at most `n_text_ctx` ids of each; `is_alike`: both cut text alike."""
    found = []
    for text in texts:
        prompt = translation.prompt(text.ids[: text.n_prompt])
        if prompt is None:
            continue
        said, places = translation.spelt(text.ids[text.n_prompt :])
        ids = [*prompt, *said][:n_text_ctx]
        rows = np.full(len(ids), -1, np.int64)
        if is_alike:
            behind = text.n_prompt - 1 + np.array(places, np.int64)  # the row before a token is the one that says it
            behind = np.where(behind < len(text.hidden), behind, -1)
            rows[len(prompt) - 1 : -1] = behind[: len(ids) - len(prompt)]
        found.append(
            DraftText(
                ids=tuple(ids),
                n_prompt=len(prompt),
                rows=rows,
                hidden=text.hidden,
                features=text.features,
                source=text.source,
            )
        )
    return found
