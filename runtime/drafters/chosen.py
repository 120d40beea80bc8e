"""One drafter under another name, with why it was chosen: `auto` where a cascade would take more than it brings.

Does not know: who chose, what it drafts.
"""

from __future__ import annotations

from typing import Any

from specedge.runtime.drafters import DraftContext, Drafter, DraftTree, EmptyDrafter, Verdict, WindowContext

__all__ = ["ChosenDrafter"]


class ChosenDrafter:
    """`drafter`, called `name`; choice: why it is that one, in a line. What only some drafters have is passed on."""

    def __init__(self, drafter: Drafter, *, name: str, choice: str) -> None:
        self._drafter = drafter
        self.name, self.choice = name, choice
        self.is_empty = isinstance(drafter, EmptyDrafter)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._drafter, attribute)

    def begin(self, window: WindowContext) -> None:
        """As the drafter."""
        self._drafter.begin(window)

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """As the drafter."""
        return self._drafter.propose(context, budget)

    def observe(self, verdict: Verdict) -> None:
        """As the drafter."""
        self._drafter.observe(verdict)

    def end(self, tokens: tuple[int, ...]) -> None:
        """As the drafter."""
        self._drafter.end(tokens)
