"""What is found by name and imported when it is first asked for: the papers' room, which nothing else imports.

A kind is what is looked for, a name what a user writes. Each entry is a module and an attribute of it:

drafter      makes the drafter of a name from a target, the name, and the lookahead
accept       makes an acceptance rule (`decoding.accept.AcceptanceRule`)
lookahead    makes a policy from the target's T(k) and what drafting a token takes (`drafters.draft.lookahead`)
translation  makes the translation between two vocabularies that cut text differently
learning     makes a draft model's student
drawing      draws a draft's token, and says from what
tokenmap     the drafter of token maps of a preset
beams        searches beams that believe heads
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {
    "drafter": {kind: "heads:make" for kind in ("medusa-linear", "medusa-block", "mtp-projection", "mtp-latent")},
    "accept": {
        "residual": "accept:Residual",
        "typical": "accept:Typical",
        "top": "accept:TopM",
        "threshold": "accept:Threshold",
    },
    "lookahead": {"rule": "lookahead:Rule", "adaptive": "lookahead:Adaptive", "joint": "lookahead:joint"},
    "translation": {"words": "across_words:translation"},
    "learning": {"student": "distill:student"},
    "drawing": {"draw": "accept:draw_draft"},
    "tokenmap": {"paper": "tokenmap:PaperTokenMapDrafter"},
    "beams": {"heads": "grouped_beam:beams_of_heads"},
}


def names(kind: str) -> tuple[str, ...]:
    """The names that are known of a kind."""
    return tuple(_PLACES[kind])


def find(kind: str, name: str) -> Any:
    """What is registered under a name of `names(kind)`."""
    module, _, attribute = _PLACES[kind][name].partition(":")
    return getattr(import_module(f"specedge.runtime.papers.{module}"), attribute)
