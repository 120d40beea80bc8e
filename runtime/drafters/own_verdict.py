"""What a pass says of one drafter's own draft, whether that was verified, in part or not at all.

The text that was decided judges every draft: the tokens of a draft are right as long as the text says the same. With
an acceptance rule that may keep other tokens than the model's own, the text is what was kept.
Does not know: who the drafters are, how drafts are joined.
"""

from __future__ import annotations

from collections.abc import Sequence

from specedge.runtime.drafters import Verdict
from specedge.runtime.drafters.guard import Draft

__all__ = ["own_verdict"]


def own_verdict(draft: Draft, verdict: Verdict, *, n_rows: int, pass_s: float) -> Verdict:
    """`verdict` of the pass in terms of the tree that `draft` was checked from; n_rows, pass_s: what the pass took."""
    text = [*verdict.accepted, verdict.token]
    right, known, refused = _chain(draft, text) if draft.is_chain else _tree(draft, text)
    nodes = draft.nodes
    return Verdict(
        drafted=verdict.drafted,
        n_accepted=verdict.n_accepted,
        token=verdict.token,
        finished=verdict.finished,
        evaluated=tuple([nodes[node] for node in known]),
        nodes=tuple([nodes[node] for node in right]),
        rejected=None if refused is None else nodes[refused],
        rows=verdict.rows,
        n_rows=n_rows,
        pass_s=pass_s,
    )


def _chain(draft: Draft, text: Sequence[int]) -> tuple[Sequence[int], Sequence[int], int | None]:
    """Nodes that are right, nodes about which the text decided, and the first that is wrong."""
    n = 0
    for token, said in zip(draft.ids, text, strict=False):
        if token != said:
            return range(n), range(n + 1), n
        n += 1
    return range(n), range(n), None


def _tree(draft: Draft, text: Sequence[int]) -> tuple[Sequence[int], Sequence[int], int | None]:
    """The same; of several wrong siblings the best is the refused one."""
    right, known = list[int](), list[int]()
    here = -1
    for said in text:
        children = [node for node, parent in enumerate(draft.parents) if parent == here]
        known += children
        here = next((node for node in children if draft.ids[node] == said), -1)
        if here < 0:
            return right, known, children[0] if children else None
        right.append(here)
    return right, known, None
