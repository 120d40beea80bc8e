"""The interface of drafters, and the guard that keeps them from changing the text.

`Drafter` is the base class: before each pass the decode loop asks it for a `DraftTree` (`propose`) and afterwards tells
it what the verifier decided (`observe`). Only the verifier decides tokens, so a drafter may be wrong, slow or raise.
`Guard` stands between the two: it checks every proposal, cuts useless nodes (unknown ids, ids that no rule allows, the
end of the text, twins of a sibling, too many nodes) with all below them, and drops a drafter that raises or returns
something else than a tree; `Guard.error` says why. A node with the distribution that it was drawn from stands whatever
its id is, without what is below it: the acceptance rule weighs all that could have been drawn, or the text is biased.

A window may be decoded several times, at other temperatures or for several samples: each time is a window of its own
from `begin` to `end`.
"""

from __future__ import annotations

import copy
import math
import time
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from specedge.errors import Interrupted

from ..device import CostTable
from .accept import Candidate, Classed, Drawn
from .rules import Logits
from .statistics import Learning

if TYPE_CHECKING:
    from ..bundle.bundle import Bundle
    from ..engine.engine import Engine
    from ..engine.session import Canceller

_TAIL_ROWS = 10  # of 20 ms each, behind the audio's end, in which its last letter may still be heard


@dataclass(frozen=True, eq=False)
class DraftTree:
    """Guessed tokens as a tree whose root is the last decided token; `DraftTree([5, 9])` is a single path.

    Each column has one value for each of the `n_draft` nodes, as a list or as an array.

    tokens
        ids, int.
    parents
        index of each node's parent, int, smaller than the node's own; -1 for a child of the root. None: a single path,
        each node the child of the one before. Siblings are listed best first.
    conf
        the drafter's confidence in each node, 0 to 1.
    source
        index into `Drafter.sources` of the drafter that guessed each node.
    drawn
        for each node without siblings the distribution that it was drawn from, as ids int64 and probabilities float64;
        None for a node that was not drawn. With a third array, the class of each id int64, only sums over classes
        count, and what is in the node's class (`Residual`).
    """

    tokens: Sequence[int] | NDArray[Any]
    parents: Sequence[int] | NDArray[Any] | None = None
    conf: Sequence[float] | NDArray[Any] | None = None
    source: Sequence[int] | NDArray[Any] | None = None
    drawn: Sequence[Drawn | Classed | None] | None = None

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, kw_only=True)
class WindowContext:
    """A window about to be decoded. `features` is the engine's own object; `n_sample` bounds the tokens to come.

    n_paths: how many paths of a tree one pass can verify; temperature: of the sampling, 0 for greedy decoding;
    history: text ids of the audio before this window, whether or not the prompt has them; mel: gives the window's
    log-mel with as many bands as asked for, float32 [n_mels, n_frames], None where nobody has kept the audio;
    content: the share of the window that holds audio, from its beginning, 1.0 where nobody says; the rest is padding;
    earlier: ids that audio which overlaps this window gave when it was decoded before, () where nobody knows of any;
    key: of the sample's noise (`sampling.Noise`), for a drafter that draws its drafts; b"" at temperature 0;
    plain_s: the time of a pass of one row here and now, seconds, infinite where nobody has measured it.
    """

    features: Any
    prompt: tuple[int, ...]
    n_vocab: int
    n_sample: int
    eot: int
    timestamp_begin: int
    n_paths: int = 1
    temperature: float = 0.0
    history: tuple[int, ...] = ()
    mel: Callable[[int], NDArray[np.float32]] | None = None
    content: float = 1.0
    earlier: tuple[int, ...] = ()
    key: bytes = b""
    plain_s: float = math.inf

    def has_times(self, prompt: Sequence[int]) -> bool:
        """Whether a text behind this prompt has timestamps: not behind <|notimestamps|>, which comes right before them,
        nor in a vocabulary without."""
        return self.timestamp_begin < self.n_vocab and prompt[-1] + 1 != self.timestamp_begin

    def has_text(self, tokens: Sequence[int]) -> bool:
        """Whether anything is said in these ids, timestamps aside."""
        return any(token < self.eot for token in tokens)

    def n_heard(self, n_rows: int) -> int:
        """How many of the encoder's `n_rows` rows are worth hearing: those with audio, and the last letter's."""
        return min(n_rows, math.ceil(n_rows * self.content) + _TAIL_ROWS)


@dataclass(frozen=True, kw_only=True)
class DraftContext:
    """The prefix to continue: `prompt` then `sampled`; `position` is the number of rows already committed.

    hidden: the decoder's last hidden rows of those, float32 [position, n_text_state], for a drafter that reads them.
    """

    prompt: tuple[int, ...]
    sampled: tuple[int, ...]
    position: int
    hidden: NDArray[np.float32] | None = None

    @property
    def n_pending(self) -> int:
        """Rows that the next pass runs whatever is drafted: 1, or more of a prompt."""
        return len(self.prompt) + len(self.sampled) - self.position


@dataclass(frozen=True, kw_only=True)
class SharedPass:
    """A pass that several texts shared: how many, their rows in all, and its seconds."""

    n_texts: int
    n_rows: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One pass: the first `n_accepted` of `drafted` were right, then the model said `token` (the bonus token).

    drafted: ids of the path that agreed longest; evaluated, nodes: indices into the drafter's own tree of the nodes
    that were rows of the pass, and of the accepted ones in order; rejected: index of the best node that stood where
    `token` came instead, None when none did. rows: for drafters with `wants_rows` the model's filtered rows,
    by which it decided the accepted tokens and then `token`, to read until the next call; shared: the pass, where other
    texts had a part in it.

    A drafter that is told of another's pass has no `evaluated`, `nodes` and `rejected`.
    """

    drafted: tuple[int, ...]
    n_accepted: int
    token: int
    finished: bool
    evaluated: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    rejected: int | None = None
    rows: Sequence[Logits] = ()
    shared: SharedPass | None = None

    @property
    def accepted(self) -> tuple[int, ...]:
        """The ids of the accepted drafts."""
        return self.drafted[: self.n_accepted]


NO_GUESS = DraftTree([])


class Drafter:
    """The base class of drafters: subclass it, set `name` and write `propose`.

    A drafter cannot change the text: only the verifier decides tokens. A drafter that raises is dropped with one line,
    and decoding goes on without it. Everything but `propose` has a default. The properties tell the decode loop what a
    drafter needs; a subclass overrides one with a class attribute (`listens = True`) or with a property.
    """

    name: str = ""
    """The drafter's name in results; the class's own where it is empty."""
    sources: tuple[str, ...] = ()
    """Names of the drafters that this one combines; `DraftTree.source` refers to them."""

    @property
    def choice(self) -> str:
        """What was measured of the drafter and those it combines, as one line for the user; "" for nothing."""
        return ""

    @property
    def rests(self) -> bool:
        """Whether the drafter wants to be neither asked nor told anything more until the next window."""
        return False

    @property
    def listens(self) -> bool:
        """Whether the drafter hears the audio by itself. Only then is the audio kept for `WindowContext.mel`."""
        return False

    @property
    def reads_hidden(self) -> bool:
        """Whether `DraftContext.hidden` is wanted in the next window. It is read before `begin`."""
        return False

    @property
    def wants_rows(self) -> bool:
        """Whether the model's logits are wanted in `Verdict.rows`."""
        return False

    @property
    def has_heads(self) -> bool:
        """Whether `guess` can be called: the drafter's heads draft for a beam that does not verify them."""
        return False

    @property
    def follows_text(self) -> bool:
        """Whether the drafter is told of every pass, also where another one of `auto` drafted."""
        return False

    @property
    def learning(self) -> Learning | None:
        """Totals of what the drafter learned so far; they never fall. None for a drafter that does not learn."""
        return None

    @property
    def model(self) -> Any:
        """The drafter's own model, which stays loaded for the next call; None where it has none."""
        return None

    def another(self) -> Drafter | None:
        """Return a drafter for one more text at the same time, None where there can be none.

        Texts that share passes (a batch, the samples of a window, beams) each have a drafter of their own. The new one
        stands where this one stands in the window, until it begins another. It shares what is heavy and what is
        learned, and its `close` gives back only what is its own. A drafter without this method drafts for one of such
        texts at a time; the others go on without drafts.
        """
        return None

    def share(self, n_texts: int, n_rows: int) -> None:
        """The next passes are shared by so many texts with so many rows in all; told when that changes.

        So a row of a draft costs what it adds to such a pass, and a pass saved is this text's share of one.
        """

    def begin(self, window: WindowContext) -> None:
        """Start a window. The same window may begin several times: once for each temperature or sample."""

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """Return guesses of what follows `context`: a tree of at most `budget` nodes, empty for no guess."""
        raise NotImplementedError(f"{type(self).__name__}.propose: a drafter returns a DraftTree here")

    def observe(self, verdict: Verdict) -> None:
        """Learn what the verifier decided about the last draft."""

    def end(self, tokens: tuple[int, ...]) -> None:
        """End a window. `tokens` is the text that was kept, () when it was thrown away."""

    def guess(self, hidden: NDArray[np.float32], n_choices: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return ids int64 and probabilities float32 `[n_heads, n_choices]` behind the last hidden row; here none."""
        return np.empty((0, n_choices), np.int64), np.empty((0, n_choices), np.float32)

    def close(self) -> None:
        """Release files and models. Nothing is proposed afterwards."""


class EmptyDrafter(Drafter):
    """Proposes nothing: decoding with it is plain decoding. A subclass may propose something."""

    name = "none"

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """Return no guess."""
        return NO_GUESS


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A checked proposal: nodes in an order in which parents come first, siblings best first and with different ids.

    ids: of each node; parents: -1 below the root; depths: from 0; nodes: indices into the drafter's own tree; names:
    who guessed each node; n_proposed: what was given, by who gave it; conf, drawn: what the drafter says of each node.
    """

    ids: Sequence[int] = ()
    parents: Sequence[int] = ()
    depths: Sequence[int] = ()
    nodes: Sequence[int] = ()
    names: Sequence[str] = ()
    n_proposed: Mapping[str, int] = field(default_factory=dict)
    conf: Sequence[float] | None = None
    drawn: Sequence[Drawn | Classed | None] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_chain(self) -> bool:
        """Whether every node is known to be the child of the one before; not of an empty draft."""
        return bool(self.ids) and isinstance(self.parents, range)

    def tokens(self, path: Sequence[int]) -> tuple[int, ...]:
        """The ids of a path of nodes."""
        return tuple([self.ids[node] for node in path])

    def siblings(self, nodes: Sequence[int]) -> list[Candidate]:
        """What is known of some siblings."""
        return [
            Candidate(
                token=self.ids[node],
                conf=None if self.conf is None else self.conf[node],
                drawn=None if self.drawn is None else self.drawn[node],
            )
            for node in nodes
        ]

    def paths(self, n_paths: int, n_rows: int) -> list[tuple[int, ...]]:
        """Up to `n_paths` paths from the root to a leaf, best first; none at all for an empty draft.

        As batch rows all of them are as long as the longest: together at most `n_rows`, but for the first, which is
        always there.
        """
        if self.is_chain:
            return [tuple(range(len(self.ids)))]
        below: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            below.setdefault(parent, []).append(node)
        found: list[tuple[int, ...]] = []
        waiting: list[tuple[int, ...]] = [(node,) for node in reversed(below.get(-1, ()))]
        while waiting and len(found) < n_paths:
            path = waiting.pop()
            children = below.get(path[-1], ())
            waiting += [(*path, node) for node in reversed(children)]
            longest = max([len(path), *map(len, found)])
            if not children and (not found or longest * (len(found) + 1) <= n_rows):
                found.append(path)
        return found


NO_DRAFT = Draft()
ALONE = (1, 1)  # texts and rows of a plain pass of one text
Need = Literal["has_heads", "listens", "reads_hidden", "wants_rows"]


class Guard:
    """Stands between one drafter and the decode loop, for as long as the drafter lives (usually a file).

    error: None, or one line saying why the drafter was dropped; is_empty: whether it is the one that proposes nothing.
    """

    def __init__(self, drafter: Drafter | None = None) -> None:
        self.drafter: Drafter = EmptyDrafter() if drafter is None else drafter
        self.error: str | None = None
        self._spent_s = [0.0]  # of this guard and all that come of it
        self._company = ALONE
        self._draft = NO_DRAFT  # the last one, until the drafter is told what became of it
        kind = type(self.drafter)
        self.name: str = self._call(lambda: str(self.drafter.name) or kind.__name__, kind.__name__)
        self.is_empty = kind is EmptyDrafter
        self._learned_before = self._call(lambda: self.drafter.learning, None)

    @property
    def seconds(self) -> float:
        """The time spent in the drafter's calls, and in those of the others that `another` made."""
        return self._spent_s[0]

    @property
    def learning(self) -> Learning | None:
        """What the drafter learned since this guard was made; None for one that does not learn, or was dropped."""
        return self._call(self._learned, None)

    @property
    def choice(self) -> str:
        """Why this drafter was chosen, as one line; "" where there was no choice."""
        return self._call(lambda: str(self.drafter.choice), "")

    @property
    def is_idle(self) -> bool:
        """Whether there is no drafter to ask or tell, or it rests until the next window."""
        return self.error is not None or self.is_empty or self._call(lambda: self.drafter.rests is True, True)

    def needs(self, what: Need) -> bool:
        """What the drafter says of itself; no for one that was dropped."""
        return self._call(lambda: bool(getattr(self.drafter, what)), False)

    def guess(self, hidden: NDArray[np.float32], n_choices: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Tokens and probabilities [n_heads, n_choices] behind the last row; of no head once the drafter is dropped."""
        nothing = np.empty((0, n_choices), np.int64), np.empty((0, n_choices), np.float32)
        return self._call(lambda: _guesses(*self.drafter.guess(hidden, n_choices)), nothing)

    def begin(self, window: WindowContext) -> None:
        """Tell the drafter that a window starts."""
        self._draft = NO_DRAFT
        self._call(lambda: self.drafter.begin(window), None)

    def propose(self, context: DraftContext, budget: int, *, n_vocab: int, useless: Container[int]) -> Draft:
        """The tree to verify: at most `budget` nodes, with ids of [0, n_vocab) that are not among the `useless`."""
        self._draft = NO_DRAFT
        if budget > 0:
            self._draft = self._call(
                lambda: self._checked(self.drafter.propose(context, budget), budget, n_vocab, useless), NO_DRAFT
            )
        return self._draft

    def observe(self, verdict: Verdict) -> None:
        """Tell the drafter what the verifier decided, and who shared the pass, if that has changed.

        `verdict` is about the last `Draft`, if this drafter gave one, else about another's; the drafter is told of the
        nodes of its own tree.
        """
        nodes, self._draft = self._draft.nodes, NO_DRAFT
        if verdict.evaluated and not (nodes and isinstance(nodes, range)):  # those of a single path are its own
            verdict = _own(verdict, nodes)
        self._call(lambda: self.drafter.observe(verdict), None)
        company = ALONE if verdict.shared is None else (verdict.shared.n_texts, verdict.shared.n_rows)
        if company != self._company:
            self._company = company
            self.share(*company)

    def share(self, n_texts: int, n_rows: int) -> None:
        """Tell the drafter who shares the next passes."""
        self._call(lambda: self.drafter.share(n_texts, n_rows), None)

    def another(self) -> Guard:
        """A guard round a drafter for one more text at the same time, or the empty one where there can be none."""
        twin = None if self.is_empty else self._call(lambda: self.drafter.another(), None)
        if not isinstance(twin, Drafter):
            return Guard()
        guard = copy.copy(self)
        guard.drafter = twin
        return guard

    def close(self) -> None:
        """Give back what is the drafter's own."""
        self._call(lambda: self.drafter.close(), None)

    def end(self, tokens: tuple[int, ...]) -> None:
        """Tell the drafter the window's final tokens, or () when they were thrown away."""
        self._call(lambda: self.drafter.end(tokens), None)

    def _learned(self) -> Learning | None:
        now, before = self.drafter.learning, self._learned_before
        return None if now is None or before is None else now.plus(before, -1)

    def _call(self, call: Callable[[], T], otherwise: T) -> T:
        if self.error is not None:
            return otherwise
        started = time.perf_counter()
        try:
            return call()
        except Interrupted:
            raise
        except Exception as error:  # whatever it is, the text must not depend on it
            self.error = _one_line(error)
            return otherwise
        finally:
            self._spent_s[0] += time.perf_counter() - started

    def _checked(self, tree: DraftTree, budget: int, n_vocab: int, useless: Container[int]) -> Draft:
        """What of a tree can be verified. Raises TypeError or ValueError for what is no tree."""
        if not isinstance(tree, DraftTree):
            raise TypeError(f"a drafter returned {type(tree).__name__}, not a DraftTree")
        ids = _column("tokens", tree.tokens, _INTEGERS)
        n_given = len(ids)
        conf = None if tree.conf is None else _column("conf", tree.conf, _NUMBERS, n_given)
        names, drawn = self._names(tree, n_given), None
        nodes: Sequence[int]
        parents: Sequence[int]
        depths: Sequence[int]
        if tree.parents is None and tree.drawn is None:  # a single path, as most drafts are
            n = 0
            while n < min(n_given, budget) and 0 <= ids[n] < n_vocab and ids[n] not in useless:
                n += 1
            nodes, parents, depths = range(n), range(-1, n - 1), range(n)
        else:
            given = range(-1, n_given - 1) if tree.parents is None else tree.parents
            above = _column("parents", given, _INTEGERS, n_given)
            drawn = _drawn(tree.drawn, ids, above, n_vocab)
            nodes, parents, depths = _kept(ids, above, drawn, budget, n_vocab, useless)
        return Draft(
            ids=[ids[node] for node in nodes],
            parents=parents,
            depths=depths,
            nodes=nodes,
            names=[names[node] for node in nodes],
            n_proposed=Counter(names),
            conf=None if conf is None else [float(conf[node]) for node in nodes],
            drawn=None if drawn is None else [drawn[node] for node in nodes],
        )

    def _names(self, tree: DraftTree, n: int) -> list[str]:
        """Who guessed each node: the drafter's `sources` where it has them, else the drafter."""
        known = self.drafter.sources
        if tree.source is None or not known:
            return [self.name] * n
        return [str(known[index]) for index in _column("source", tree.source, _INTEGERS, n)]


def _own(verdict: Verdict, nodes: Sequence[int]) -> Verdict:
    """A verdict on checked nodes as one on the drafter's own `nodes`, () for a drafter that gave none."""
    return replace(
        verdict,
        evaluated=tuple([nodes[node] for node in verdict.evaluated]) if nodes else (),
        nodes=tuple([nodes[node] for node in verdict.nodes]) if nodes else (),
        rejected=None if verdict.rejected is None or not nodes else nodes[verdict.rejected],
    )


def _guesses(ids: object, probs: object) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """What heads gave, if it is that. ValueError."""
    tokens, sure = np.asarray(ids), np.asarray(probs, np.float32)
    if tokens.ndim != 2 or tokens.shape != sure.shape or tokens.dtype.kind not in _INTEGERS or (tokens < 0).any():
        raise ValueError(f"guesses of shapes {tokens.shape} and {sure.shape}: expected ids and as many probabilities")
    return tokens.astype(np.int64), sure


def _one_line(error: Exception) -> str:
    try:
        return " ".join(f"{type(error).__name__}: {error}".split())
    except Exception:  # an exception whose own text cannot be made
        return type(error).__name__


_INTEGERS, _NUMBERS = "iu", "iuf"  # NumPy's kinds
_PLAIN: dict[str, set[type]] = {_INTEGERS: {int}, _NUMBERS: {int, float}}


def _column(name: str, values: Any, kinds: str, n: int | None = None) -> list[Any]:
    """A column of a tree as a list. Raises TypeError for what is no row of numbers of these kinds, `n` of them."""
    found = values
    if type(values) is not list or not _PLAIN[kinds].issuperset(map(type, values)):
        array = np.asarray(values)
        if array.ndim != 1 or (array.size and array.dtype.kind not in kinds):
            raise TypeError(f"a draft tree whose {name} are {array.dtype} of shape {array.shape}: expected numbers")
        found = array.tolist()
    if n is not None and len(found) != n:
        raise TypeError(f"a draft tree of {n} tokens and {len(found)} {name}")
    return list(found)


def _kept(
    ids: Sequence[int],
    above: Sequence[int],
    drawn: Sequence[object] | None,
    budget: int,
    n_vocab: int,
    useless: Container[int],
) -> tuple[list[int], list[int], list[int]]:
    """The nodes of a tree that can be verified, the place of each one's parent among these, and its depth. ValueError
    for parents that make no tree."""
    nodes: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    place = {-1: -1}
    taken: set[tuple[int, int]] = set()
    for node, (token, parent) in enumerate(zip(ids, above, strict=True)):
        if not -1 <= parent < node:
            raise ValueError(f"a draft tree whose node {node} has parent {parent}: expected -1 to {node - 1}")
        if len(nodes) == budget:
            break
        is_useless = token in useless
        if parent not in place or (parent, token) in taken or not 0 <= token < n_vocab:
            continue
        if is_useless and (drawn is None or drawn[node] is None):
            continue
        taken.add((parent, token))
        depths.append(depths[place[parent]] + 1 if parent >= 0 else 0)
        parents.append(place[parent])
        if not is_useless:
            place[node] = len(nodes)
        nodes.append(node)
    return nodes, parents, depths


def _drawn(
    given: Sequence[Drawn | Classed | None] | None, ids: Sequence[int], above: Sequence[int], n_vocab: int
) -> list[Drawn | Classed | None] | None:
    """The distributions that nodes below `above` were drawn from. ValueError for what is none over ids of [0, n_vocab).

    None for siblings: only one of them can have been drawn from a distribution, and what is left of several was not.
    """
    if given is None:
        return None
    n_children = Counter(above)
    return [
        None if one is None or n_children[parent] > 1 else _distribution(one, token, n_vocab)
        for token, parent, one in zip(ids, above, given, strict=True)
    ]


def _distribution(drawn: Drawn | Classed, token: int, n_vocab: int) -> Drawn | Classed:
    """A distribution that a token was drawn from, with the classes of its ids where it has them. ValueError."""
    at, q, *classes = [np.asarray(column, float if n == 1 else None) for n, column in enumerate(drawn)]
    is_one = at.ndim == 1 and at.shape == q.shape and at.size and at.dtype.kind in _INTEGERS
    if not is_one or at.min() < 0 or at.max() >= n_vocab or np.unique(at).size < at.size:
        raise ValueError(f"a distribution of ids {at}: expected each once, 0 to {n_vocab - 1}, and its probability")
    if not (q.min() >= 0 and abs(float(q.sum()) - 1) < 1e-6):
        raise ValueError(f"a distribution that sums to {q.sum()}: expected 1")
    if not q[at == token].sum() > 0:
        raise ValueError(f"a distribution that gives {token}, which was drawn from it, no probability")
    if not classes:
        return at, q
    (of,) = classes
    if of.shape != at.shape or of.dtype.kind not in _INTEGERS or not 0 <= of.min() <= of.max() < at.size:
        raise ValueError(f"classes of shape {of.shape}: expected a number from 0 to {at.size - 1} for each id")
    return at, q, of.astype(np.int64)


@dataclass(frozen=True)
class TargetModel:
    """The model that a drafter drafts for, and what is known of it here.

    threads: the engine's, by which costs are found; engine: whose rows are probed before anything drafts for it, None
    for those who compare texts themselves; canceller: stops the drafter with its target; costs: what rows cost, None
    for what was measured here; weighs: False for a drafter whose own work is not to be counted, as on another device;
    draws: whether a draft model samples its drafts above temperature 0, for the acceptance rule `residual`.
    """

    bundle: Bundle
    _: KW_ONLY
    threads: int
    engine: Engine | None = None
    canceller: Canceller | None = None
    costs: CostTable | None = None
    weighs: bool = True
    draws: bool = False
