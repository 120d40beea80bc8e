"""What a drafter is: it guesses the next tokens, and nothing it does can change the text.

    begin(window)            a window starts: its prompt, its features
    propose(context, budget) guess what follows; a tree of at most `budget` nodes
    observe(verdict)         what the verifier made of the guess
    end(tokens)              the window is over; `tokens` is empty when its text was thrown away

A window may be decoded several times, at other temperatures or for several samples: each time is a window of its own
from `begin` to `end`. A drafter may be wrong, slow, or raise: only the verifier decides tokens (algorithms 2.1). Knows
token ids only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.decoding.choices import ChoiceRow

__all__ = ["DraftChain", "DraftContext", "DraftTree", "Drafter", "EmptyDrafter", "Verdict", "WindowContext"]

_TAIL_ROWS = 10  # of 20 ms each, behind the audio's end, in which its last letter may still be heard


@dataclass(frozen=True, kw_only=True, eq=False)
class DraftTree:
    """Guesses as a tree whose root is the last decided token.

    tokens i32[n_draft]; parents i32[n_draft], each smaller than its own index, -1 for a child of the root;
    logq, conf f32[n_draft] and source u8[n_draft] are optional. Siblings are listed best first. drawn: for each node
    without siblings the distribution that it was drawn from, ids and probabilities, None where it was not drawn.
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    logq: NDArray[np.float32] | None = None
    conf: NDArray[np.float32] | None = None
    source: NDArray[np.uint8] | None = None
    drawn: Sequence[tuple[NDArray[np.int64], NDArray[np.float64]] | None] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(cls, tokens: Any) -> DraftTree:
        """A single path: every node is the child of the one before."""
        ids = np.asarray(tokens, dtype=np.int32).reshape(-1)
        return cls(tokens=ids, parents=np.arange(-1, len(ids) - 1, dtype=np.int32))


class DraftChain(DraftTree):
    """A single path as lists of Python's own numbers: quicker to make and to check than the arrays of a tree.

    ids: each the child of the one before; sure: the confidence of each, or None; origins: the source of each, or None.
    The arrays are made for who asks.
    """

    ids: list[int]
    sure: list[float] | None
    origins: list[int] | None

    def __init__(self, ids: list[int], sure: list[float] | None = None, origins: list[int] | None = None) -> None:
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "sure", sure)
        object.__setattr__(self, "origins", origins)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The ids as a tree has them."""
        return np.array(self.ids, np.int32)

    @property
    def parents(self) -> NDArray[np.int32]:
        """The parents as a tree has them."""
        return np.arange(-1, len(self.ids) - 1, dtype=np.int32)

    @property
    def conf(self) -> NDArray[np.float32] | None:
        """The confidences as a tree has them."""
        return None if self.sure is None else np.array(self.sure, np.float32)

    @property
    def source(self) -> NDArray[np.uint8] | None:
        """The sources as a tree has them."""
        return None if self.origins is None else np.array(self.origins, np.uint8)


@dataclass(frozen=True, kw_only=True)
class WindowContext:
    """A window about to be decoded. `features` is the engine's own object; `n_sample` bounds the tokens to come.

    n_paths: how many paths of a tree one pass can verify; temperature: of the sampling, 0 for greedy decoding;
    history: text ids of the audio before this window, whether or not the prompt has them; mel: gives the window's
    log-mel with as many bands as asked for, float32 [n_mels, n_frames], None where nobody has kept the audio;
    content: the share of the window that holds audio, from its beginning, 1.0 where nobody says; the rest is padding;
    earlier: ids that audio which overlaps this window gave when it was decoded before, () where nobody knows of any.
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


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One pass: the first `n_accepted` of `drafted` were right, then the model said `token` (the bonus token).

    drafted: ids of the path that agreed longest; evaluated, nodes: indices into the drafter's own tree of the nodes
    that were rows of the pass, and of the accepted ones in order; rejected: index of the best node that stood where
    `token` came instead, None when none did. rows: for drafters with `wants_rows` the model's filtered rows,
    by which it decided the accepted tokens and then `token`, to read until the next call.

    A drafter that is one of several hears of the pass of them all: `drafted`, `n_accepted` and `token` are the pass's,
    `nodes` and `rejected` its own, `evaluated` those of its own about which the text decided, rows of the pass or not;
    n_rows, pass_s: the rows and the seconds of the pass, which it cannot see then, else 0.
    """

    drafted: tuple[int, ...]
    n_accepted: int
    token: int
    finished: bool
    evaluated: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    rejected: int | None = None
    rows: Sequence[ChoiceRow] = ()
    n_rows: int = 0
    pass_s: float = 0.0

    @property
    def accepted(self) -> tuple[int, ...]:
        """The ids of the accepted drafts."""
        return self.drafted[: self.n_accepted]


class Drafter(Protocol):
    """The calls of the module docstring. `name` appears in results.

    A drafter made of several has their names in an attribute `sources` (tuple[str, ...]) and says in `DraftTree.source`
    who guessed each node; results then count them apart. One that notices texts which go round in a circle counts the
    windows in an attribute `suspected_loops` (int, never falling). One that hears the audio itself has an attribute
    `listens` (bool): only then is the audio kept for `WindowContext.mel`. One that reads the decoder's hidden rows has
    an attribute `reads_hidden` (bool), looked at before `begin`: only then are they kept for `DraftContext.hidden`. One
    that learns from the model's own rows has `wants_rows` (bool), and says what it did in `learning`
    (statistics.Learning, never falling). One that was chosen from several says why in `choice` (str). One that has
    nothing more to give in a window may say so in `rests` (bool): then it is not asked, nor told of passes, until the
    next.

    In a cascade a drafter is not asked before every pass, nor told of every pass. There `has_drafts` (bool) says
    whether asking is of any use now, and `heard(tokens)`, where there is one, comes before `end` with all that was
    decided, kept or not.
    """

    @property
    def name(self) -> str: ...

    def begin(self, window: WindowContext) -> None: ...

    def propose(self, context: DraftContext, budget: int) -> DraftTree: ...

    def observe(self, verdict: Verdict) -> None: ...

    def end(self, tokens: tuple[int, ...]) -> None: ...


_NOTHING = DraftChain([])


class EmptyDrafter:
    """Proposes nothing: the decode loop with it is plain decoding."""

    name = "none"

    def begin(self, window: WindowContext) -> None:
        """Nothing to prepare."""

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """No guess."""
        return _NOTHING

    def observe(self, verdict: Verdict) -> None:
        """Nothing to learn."""

    def end(self, tokens: tuple[int, ...]) -> None:
        """Nothing to learn."""
