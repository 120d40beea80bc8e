"""What is found by name and imported when it is first asked for: the papers' room, which nothing else imports."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {
    "heads": "train_heads:train_heads",  # trainings
    "mwer": "mwer:fine_tune_heads",
    "learn graphs": "learn_graphs:write_learn_graphs",  # of a draft that learns while it drafts
    "projection": "projection:own_logits",  # the logits of heads with a vocabulary matrix each
}


def find(name: str) -> Any:
    """What is registered under `name`."""
    module, _, attribute = _PLACES[name].partition(":")
    return getattr(import_module(f"specedge.export.papers.{module}"), attribute)
