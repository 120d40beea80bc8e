"""Several drafters as one: the cheapest asked first, dearer ones only where they are expected to add to that.

Each source is a drafter of its own behind a `Guard` of its own: one that raises is dropped with a warning, and the
others go on. For a pass the draft with the largest expected gain wins, by T(k) and by what came of such drafts
(`Gate`). Each source then hears what the text says of its own draft, whether that was verified or not (`own_verdict`).

Each source also has an account (`Payoff`): the winner is credited with what its draft won by the clock, beyond what the
best draft of a cheaper source would have won, and every source is charged for its own time. A source that adds nothing
falls silent. An account in a source of its own would count twice: give it none.

`TailDrafter` is a source of every cascade: it offers the rest of a refused draft again (SpecASR, arXiv 2507.18181).
"""

from __future__ import annotations

import copy
import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any

from ..decoding.drafter import (
    NO_DRAFT,
    NO_GUESS,
    Draft,
    DraftContext,
    Drafter,
    DraftTree,
    Guard,
    Verdict,
    WindowContext,
)
from ..decoding.payoff import Gate, Guess, Guesses, Payoff, PlainPass, pass_gain
from ..decoding.statistics import Learning
from ..device import CostTable

__all__ = ["CascadeDrafter", "Source", "TailDrafter", "own_verdict", "shape_of", "tree_of"]

_FADE = 0.1
_FIRST_GAIN = 4.0  # plain passes that asking is expected to save before anything was seen: so much that all are asked
_N_TIMES = 9  # of asking: hearing a window takes longer than usual, so the median counts
_MAX_SCALE = 2.0
_UNSAID = 0.6  # first belief in a node of a drafter that gives no confidences
log = logging.getLogger(__name__)


class Source:
    """One drafter of a cascade.

    draft: what it offered for this pass; gain: what that is expected to save, in plain passes; shape: rows and paths of
    a pass over it; n_right: nodes of it that the text says too; payoff: its account.
    """

    def __init__(self, drafter: Drafter, index: int, costs: CostTable, payoff: Payoff) -> None:
        self.drafter, self.guard, self.index, self.payoff = drafter, Guard(drafter), index, payoff
        self._gate = Gate(costs, max_scale=_MAX_SCALE)
        self._usual_gain = [_FIRST_GAIN]  # of all texts
        self._asked_s = deque[float](maxlen=_N_TIMES)
        self.shape = (1, 1)
        self.rest()

    def another(self) -> Source | None:
        """The source of another text at the same time; None where its drafter can draft for one text alone."""
        guard = self.guard.another()
        if guard is None:
            return None
        twin = copy.copy(self)
        twin.guard, twin.drafter, twin.payoff = guard, guard.drafter, self.payoff.another()
        return twin

    def share(self, n_texts: int, n_rows: int) -> None:
        """See `Drafter.share`."""
        self._gate.share(n_texts, n_rows)
        self.guard.share(n_texts, n_rows)

    def begin(self, window: WindowContext) -> None:
        """A window starts."""
        self.payoff.begin()
        self.guard.begin(window)
        self.rest()

    def rest(self) -> None:
        """Another pass: nothing was asked yet."""
        self.draft, self.is_asked = NO_DRAFT, False
        self.gain, self.n_right, self._took_s = 0.0, 0, 0.0

    def pays(self, best: float, pass_s: float, n_pending: int) -> bool:
        """Whether to ask where a draft of an expected gain of `best` is there; pass_s: seconds of a plain pass."""
        if not self.payoff.wants(n_pending) or not self.drafter.has_drafts:
            return False
        if not best or not self.payoff.weighs or not self._asked_s:
            return True
        # Gains scatter about as much as they are large: of an exponential distribution this is what lies beyond `best`.
        (usual,) = self._usual_gain
        more = usual * math.exp(-best / usual)
        return more * pass_s > statistics.median(self._asked_s)

    def ask(self, context: DraftContext, budget: int, n_vocab: int, n_paths: int) -> None:
        """Have it draft; what the draft is worth is judged by its best path."""
        before = self.guard.seconds
        self.draft = draft = self.guard.propose(context, budget, n_vocab=n_vocab, useless=())
        self._took_s = self.guard.seconds - before
        self._asked_s.append(self._took_s)
        self.is_asked = True
        if draft:
            n_pending = len(context.prompt) + len(context.sampled) - context.position
            paths = draft.paths(n_paths, budget)
            believed = [self._gate.believed(*self._node(draft, node)) for node in paths[0]]
            self.gain = self._gate.best_chain(believed, n_pending)[1]
            self.shape = shape_of(draft, n_pending, n_paths, budget)
        (usual,) = self._usual_gain
        self._usual_gain[0] = max(usual + _FADE * (self.gain - usual), 1e-3)

    def tell(self, verdict: Verdict) -> None:
        """What a pass says of its own draft, or of the text where it had none; the time counts as its own."""
        self.n_right = len(verdict.nodes)
        if self.is_asked or self.drafter.follows_text:
            before = self.guard.seconds
            self.guard.observe(verdict)
            self._took_s += self.guard.seconds - before
        place = {node: at for at, node in enumerate(self.draft.nodes)}
        for node in verdict.nodes:
            self._gate.learn(*self._node(self.draft, place[node]), accepted=True)
        if verdict.rejected is not None:
            self._gate.learn(*self._node(self.draft, place[verdict.rejected]), accepted=False)

    def book(self, won: float) -> None:
        """A pass for which it was asked: what its draft won, its time aside, in plain passes."""
        if self.is_asked:
            self.payoff.took(self._took_s)
            self.payoff.won(won)

    def end(self, tokens: tuple[int, ...], said: Sequence[int]) -> None:
        """The window is over; `said` is all that was decided, kept or not."""
        self.guard.heard(said)
        self.guard.end(tokens)
        self.payoff.end(len(said))

    @staticmethod
    def _node(draft: Draft, node: int) -> tuple[float, Hashable]:
        conf = draft.conf
        sure = _UNSAID if conf is None or not 0 <= conf[node] <= 1 else conf[node]
        return sure, (draft.depths[node] > 0, int(4 * sure))


class CascadeDrafter(Drafter):
    """See the module.

    drafters: the cheapest first, of different names; costs: the target's T(k). Refused drafts are offered again before
    any other where `recycles`. weighs: False takes no account of time, as beside a model whose passes are dear.
    """

    name = "cascade"

    def __init__(
        self,
        drafters: Sequence[Drafter],
        costs: CostTable,
        *,
        recycles: bool = True,
        weighs: bool = True,
    ) -> None:
        self._tails = TailDrafter(costs) if recycles and drafters else None
        every: list[Drafter] = [*([] if self._tails is None else [self._tails]), *drafters]
        self._weighs, self._plain = weighs, PlainPass(costs)
        self._all = tuple(
            Source(drafter, index, costs, Payoff(costs, self._plain, weighs=weighs))
            for index, drafter in enumerate(every)
        )
        self._sources = list(self._all)
        self.sources = tuple(source.guard.name for source in self._all)
        self._window: WindowContext | None = None
        self._sampled: tuple[int, ...] = ()
        self._decided: tuple[int, ...] = ()
        self._winner: Source | None = None
        self._n_pending = 1
        self._proposed_at = 0.0

    @property
    def model(self) -> Any:
        """The draft model of the source that has one, else None. A reference to it keeps it loaded."""
        models = (source.drafter.model for source in self._all)
        return next((model for model in models if model is not None), None)

    @property
    def listens(self) -> bool:
        """Whether a source hears the audio itself."""
        return any(source.guard.listens for source in self._sources)

    @property
    def reads_hidden(self) -> bool:
        """Whether a source that will draft in the next window reads the decoder's hidden rows."""
        return any(source.payoff.is_due and source.guard.reads_hidden for source in self._sources)

    @property
    def wants_rows(self) -> bool:
        """Whether a source learns from the model's own rows."""
        return any(source.guard.wants_rows for source in self._sources)

    @property
    def suspected_loops(self) -> int:
        """Windows that a source took for a text that repeats itself without end."""
        return max((source.guard.suspected_loops for source in self._all), default=0)

    @property
    def learning(self) -> Learning | None:
        """Totals of the source that learns."""
        found = [learned for source in self._all if (learned := source.guard.learning) is not None]
        return found[0] if found else None

    def another(self) -> CascadeDrafter:
        """One of the sources that can draft for several texts at a time, which keeps the same accounts."""
        twin = copy.copy(self)
        twin._sources = [other for source in self._sources if (other := source.another()) is not None]
        twin._all, twin._winner = tuple(twin._sources), None
        if self._tails is not None:
            tails = (source.drafter for source in twin._sources if isinstance(source.drafter, TailDrafter))
            twin._tails = next(tails, None)
        return twin

    def share(self, n_texts: int, n_rows: int) -> None:
        """Price rows as they are beside others."""
        self._plain.share(n_texts, n_rows)
        for source in self._sources:
            source.share(n_texts, n_rows)

    def begin(self, window: WindowContext) -> None:
        """Start a window for all sources."""
        self._window, self._sampled, self._decided = window, (), ()
        for source in self._sources:
            source.begin(window)
        self._drop_failed()

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """Return the draft of the source that is expected to save most."""
        self._sampled, self._winner = context.sampled, None
        self._n_pending = len(context.prompt) + len(context.sampled) - context.position
        for source in self._sources:
            source.rest()
        if self._window is not None and not (self._weighs and self._plain.is_due(self._n_pending)):
            self._ask(self._window, context, budget)
        tree = NO_GUESS if self._winner is None else tree_of(self._winner.draft, self._winner.index)
        self._proposed_at = time.perf_counter()
        return tree

    def observe(self, verdict: Verdict) -> None:
        """Tell each source what became of its own draft, and keep account of all."""
        pass_s, winner = time.perf_counter() - self._proposed_at, self._winner
        shape = (self._n_pending, 1) if winner is None else winner.shape
        won = pass_gain(self._plain, pass_s, self._n_pending, shape, verdict.n_accepted, verdict.shared)
        self._decided = (*verdict.accepted, verdict.token)
        nothing = own_verdict(NO_DRAFT, verdict)
        for source in self._sources:
            source.tell(own_verdict(source.draft, verdict) if source.draft else nothing)
        if self._tails is not None:
            is_rest = winner is None or winner.drafter is self._tails
            path = () if winner is None or is_rest else winner.draft.tokens(winner.draft.paths(1, len(winner.draft))[0])
            self._tails.refused(self._decided, path, 0 if winner is None else winner.index)
        instead = 0.0  # won by the best draft of the cheaper sources, had it been run
        costs = self._plain.costs
        plain = costs.price(self._n_pending)
        for source in self._sources:
            source.book(won - instead if source is winner else 0.0)
            if source.draft:
                saved = min(source.n_right, verdict.n_accepted)
                instead = max(instead, saved + plain - costs.price(*source.shape))
        self._drop_failed()

    def end(self, tokens: tuple[int, ...]) -> None:
        """End the window for all sources."""
        said = (*self._sampled, *self._decided)
        for source in self._sources:
            source.end(tokens, said)
        self._drop_failed()

    def close(self) -> None:
        """Close the sources; from then on there are no drafts."""
        self._sources = []
        for source in self._all:
            source.drafter.close()

    def _ask(self, window: WindowContext, context: DraftContext, budget: int) -> None:
        """Ask the sources that are worth it, and find the winner."""
        n_paths = window.n_paths if self._n_pending == 1 else 1
        best = 0.0
        for source in self._sources:
            if not source.pays(best, self._plain.seconds, self._n_pending):
                continue
            source.ask(context, budget, window.n_vocab, n_paths)
            if source.draft and (self._winner is None or source.gain > best):
                self._winner, best = source, max(best, source.gain)

    def _drop_failed(self) -> None:
        """Go on without sources that failed."""
        failed = [source for source in self._sources if source.guard.error is not None]
        for source in failed:
            self._sources.remove(source)
            log.warning(
                "the drafter %s failed and is left out of %s: %s", source.guard.name, self.name, source.guard.error
            )


def tree_of(draft: Draft, source: int) -> DraftTree:
    """A checked draft of one of several drafters as a tree of theirs; `source` is its place among them."""
    origins = [source] * len(draft)
    if draft.is_chain:
        return DraftTree(draft.ids, conf=draft.conf, source=origins)
    return DraftTree(draft.ids, parents=draft.parents, conf=draft.conf, source=origins)


def shape_of(draft: Draft, n_pending: int, n_paths: int, budget: int) -> tuple[int, int]:
    """Rows and paths of the pass that verifies a draft of at most `budget` nodes behind `n_pending` rows."""
    if not draft:
        return n_pending, 1
    paths = draft.paths(n_paths if n_pending == 1 else 1, budget)
    return len(paths) * (n_pending + max(map(len, paths))), len(paths)


def own_verdict(draft: Draft, verdict: Verdict) -> Verdict:
    """Return `verdict` of a pass in terms of the tree that `draft` was checked from, whether that was verified or not.

    The decided text judges every draft: its tokens are right as long as the text says the same. With an acceptance rule
    that may keep other tokens than the model's own, the text is what was kept.
    """
    text = [*verdict.accepted, verdict.token]
    below: dict[int, list[int]] = {}
    for node, parent in enumerate(draft.parents):
        below.setdefault(parent, []).append(node)
    right, known = list[int](), list[int]()
    refused: int | None = None
    here = -1
    for said in text:
        children = below.get(here, [])
        known += children
        here = next((node for node in children if draft.ids[node] == said), -2)
        if here < 0:
            refused = children[0] if children else None
            break
        right.append(here)
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
    )


_N_AHEAD = 4  # tokens among which the corrected one is looked for
_MOST_WRONG = 3  # in a row, before the rest is given up
_FIRST_BELIEFS = {"said": 0.8, "ahead": 0.5, "instead": 0.4, "besides": 0.2}
_BEHIND = 0.8  # first belief in a token behind the first one of a rest


class TailDrafter(Drafter):
    """Offers the rest of a refused draft again, behind its first wrong token (SpecASR, recycling of rejected suffixes).

    A drafter that hears or remembers the right sentence is often wrong in one token only. The rest is aligned by the
    token that the model said instead: that took the wrong one's place, or it comes up further on in the draft, which
    then had some tokens too many, or it was said besides. How far each alignment is believed is learned. The rest is
    kept, and aligned anew behind each correction, until several in a row were wrong or another draft is refused.
    """

    name = "recycled"

    def __init__(self, costs: CostTable) -> None:
        self._gate = Gate(costs)
        self._guesses = Guesses(self._gate)
        self._n_paths = 1
        self._path: list[int] = []
        self._places: list[tuple[str, int]] = []  # where in it the model may stand, and why; the first is the usual one
        self._n_wrong = self._source = 0

    @property
    def has_drafts(self) -> bool:
        """Whether there is anything to offer."""
        return bool(self._places)

    def another(self) -> TailDrafter:
        """One that shares what the alignments are worth."""
        twin = copy.copy(self)
        twin._guesses = self._guesses.another()
        return twin

    def share(self, n_texts: int, n_rows: int) -> None:
        """Price rows as they are beside others."""
        self._gate.share(n_texts, n_rows)

    def begin(self, window: WindowContext) -> None:
        """Start a window: nothing was refused."""
        self._n_paths = window.n_paths
        self._places = []

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """Return the rest, as far as it is expected to pay."""
        paths = [self._guess(rest, kind) for kind, at in self._places if (rest := self._path[at : at + budget])]
        if len(paths) > 1:
            paths.sort(key=lambda path: -self._guesses.believed(path)[0])
        n_pending = len(context.prompt) + len(context.sampled) - context.position
        return self._guesses.draft(self._guesses.worth_while(paths, n_pending, self._n_paths), budget)

    def observe(self, verdict: Verdict) -> None:
        """Calibrate the alignments by what came of them."""
        self._guesses.learn(verdict)

    def end(self, tokens: tuple[int, ...]) -> None:
        """Forget: nothing outlives a window."""
        self._places = []

    def refused(self, text: Sequence[int], path: Sequence[int], source: int = 0) -> None:
        """A pass decided `text`; `path` is the draft of the others that was verified, () for none, of `source`."""
        n = next((i for i, (token, said) in enumerate(zip(path, text, strict=False)) if token != said), -1)
        if n >= 0 and n + 1 < len(path):  # something was wrong, and something is left behind it
            self._path, self._places, self._n_wrong, self._source = list(path), [("said", n)], 0, source
            text = text[n:]
        for said in text:
            if self._places:
                self._follow(said)

    def _follow(self, said: int) -> None:
        """Move on by one token."""
        path = self._path
        agreeing = [at for _, at in self._places if at < len(path) and path[at] == said]
        if agreeing:
            self._places, self._n_wrong = [("said", agreeing[0] + 1)], 0
            return
        at = self._places[0][1]
        self._n_wrong += 1
        if self._n_wrong > _MOST_WRONG or at >= len(path):
            self._places = []
            return
        self._places = [("instead", at + 1), ("besides", at)]
        if said in path[at + 1 : at + 1 + _N_AHEAD]:
            self._places.append(("ahead", path.index(said, at + 1) + 1))

    def _guess(self, tokens: list[int], kind: str) -> Guess:
        """A path of a rest; rests of one source's drafts are calibrated apart from another's."""
        n, source = len(tokens) - 1, self._source
        behind = (source, kind in ("said", "ahead"), "behind")
        return Guess(tokens, [_FIRST_BELIEFS[kind], *[_BEHIND] * n], [(source, kind), *[behind] * n])
