"""The drafter that one call of a model asks for, checked against the call's other arguments.

Does not know: what drafters do, how calls are decoded.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from specedge.runtime.bundles.bundle import Bundle
from specedge.runtime.drafters import Drafter
from specedge.runtime.drafters.by_name import DrafterOptions, make_drafter
from specedge.runtime.longform.options import TranscribeOptions
from specedge.runtime.passes.shared_engine import SharedEngine

__all__ = ["checked_drafter"]


class _Model(Protocol):
    """The part of `WhisperModel` that is needed; `draft` is the draft model used last."""

    bundle: Bundle
    engine: SharedEngine
    threads: int
    draft: Any


def checked_drafter(
    model: _Model,
    drafter: str | Drafter,
    token_map: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    options: TranscribeOptions,
    *,
    draft_model: str | os.PathLike[str] | None = None,
    lookahead: str = "cost",
    learn: bool | str = False,
    allow_inexact: bool = False,
) -> Drafter:
    """The drafter of one call; `learn` may be the name of a domain.

    Raises UsageError for an unknown drafter, ExactnessError where drafts could change the text.
    """
    if token_map is None:
        token_map = ()
    elif isinstance(token_map, (str, os.PathLike)):
        token_map = (token_map,)
    if drafter == "none" and draft_model is not None:
        drafter = "draft"
    made = make_drafter(
        drafter,
        model.bundle,
        DrafterOptions(
            threads=model.threads,
            token_maps=[Path(path) for path in token_map],
            draft_model=draft_model,
            lookahead=lookahead,
            learn=learn is not False,
            learn_domain=learn if isinstance(learn, str) else DrafterOptions.learn_domain,
            canceller=getattr(model.engine, "canceller", None),
            engine=model.engine,
            allow_inexact=allow_inexact,
        ),
    )
    if made is not drafter:  # what a program makes by itself need not have such an attribute, or one that can be read
        model.draft = getattr(made, "model", None) or model.draft
    return made
