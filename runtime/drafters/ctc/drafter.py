"""Drafts of what the target's own encoder has heard, spelt by a CTC head and rescored with n-grams.

A window is heard once: the head's posteriors become one hypothesis in the target's tokens (`lattice`), in which n-grams
of token maps and of this run's text choose between spellings (`rescore`). It is drafted in chunks as long as they are
expected to pay (`Guesses`). Behind a correction the hypothesis is taken up again: at the same token if that comes up
near by, else at the row up to which the tokens said since account for what was heard, else behind as many words; the
next words are rescored then.
Timestamps are proposed where the head has sentences begin and end, near the letters heard; a draft ends before one
that the head does not tell.

Attempts at one window share the hearing. Posteriors that are no probabilities, or hold nothing, give no draft but the
timestamp that a window begins with. Behind a window without text hearing waits until a text has begun, so that silence
is not heard.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.maps.ngram_cache import NgramCache
from specedge.maps.token_map import TokenMap

from ...bundle.bundle import Bundle
from ...decoding.drafter import NO_GUESS, DraftContext, DraftTree, Verdict, WindowContext
from ...decoding.payoff import Guess, GuessDrafter
from ...device import CostTable
from ...engine.session import Canceller
from ...text.beginnings import Beginnings
from ...text.tokenizer import Tokenizer
from ...text.words import opens_word
from .head import CtcHead, Posteriors
from .lattice import HeardToken, Lattice, bare, heard_tokens, lattice_of, spelled
from .ngram_lm import LONGEST, Guide
from .rescore import Search

_MAX_DRAFT = 48
_N_AHEAD = 2  # tokens among which a corrected word is looked for
_UNLIKE = 4.0  # nats a byte by which a token that is put in another's place misses what was heard
_N_RESCORED = 2  # words behind a correction that are held to the n-grams anew
_REACH = 40  # rows that one token may take, and of those
_REACH_FIRST, _REACH_EACH = 8, 3  # before its first byte, and for each
_FRAME_S = 0.02
_ROUND = 40  # frames round the letters heard: the first of them may be half a second early
# Before anything was seen, by how surely a token was heard; and of one that ends an n-gram.
_FIRST_BELIEFS, _FIRST_BELIEFS_KNOWN = (0.4, 0.6, 0.8, 0.93), (0.8, 0.9, 0.95, 0.97)
_CONTEXT = 4
_MARKS = frozenset(string.punctuation.encode())


class CtcDrafter(GuessDrafter):
    """See the module.

    hear: the posteriors of an encoder output float32 [n_ctx, n_state]; guide: the n-grams, whose cache learns from kept
    texts.
    """

    name = "ctc"

    def __init__(
        self,
        hear: Callable[[Any], Posteriors],
        tokenizer: Tokenizer,
        costs: CostTable,
        guide: Guide,
    ) -> None:
        super().__init__(costs)
        self._hear: Callable[[Any], Posteriors] | None = hear
        self._tokenizer, self._guide = tokenizer, guide
        self._beginnings = Beginnings(tokenizer)
        self._search = Search(tokenizer, guide)
        self._features: Any = None
        self._lattice: Lattice | None = None
        self._heard: list[HeardToken] = []
        self._is_heard = self._is_over = False
        self._was_empty = False  # the last window
        self._last_hearing = list[Any]()  # by any of several: the features, and what came of them
        self._moments: NDArray[np.float32] | None = None  # see `Posteriors.times`
        self._n_frames = 0.0  # of the head, up to where the audio ends
        self._left: Sequence[HeardToken] = ()
        # What of the hypothesis other words took the place of, these, and how many they are; see `_replace`.
        self._skipped: Sequence[HeardToken] = ()
        self._said, self._n_words = b"", 0
        self._n_followed = 0
        self._row = 0  # where the text has come to, behind the last letter

    @property
    def rests(self) -> bool:
        return self._is_over or self._hear is None

    def begin(self, window: WindowContext) -> None:
        """Start an attempt at a window; another one at the same window keeps what was heard."""
        super().begin(window)
        self._is_over = False
        if window.features is not self._features:
            self._features, self._is_heard = window.features, False
            self._lattice, self._heard, self._moments = None, [], None
        self._left, self._n_followed, self._row = self._heard, 0, 0
        self._skipped, self._said, self._n_words = (), b"", 0

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """Return the hypothesis from where the target stands, as far as it is expected to pay."""
        window = self._window
        self._guesses.draft((), 0)
        if window is None or self.rests:
            return NO_GUESS
        if not self._is_heard and (not self._was_empty or window.has_text(context.sampled)):
            self._listen(window)
        limit = min(budget, _MAX_DRAFT)
        if self._lattice is not None:
            self._follow(window, self._lattice, context)
            path = self._chain(window, self._lattice, context, limit)
        else:  # in silence the first timestamp is all that is said
            path = Guess([], [], [])
            if not context.sampled and window.has_times(context.prompt):
                path.add(window.timestamp_begin, 0.5, "unheard")
        draft = self._guesses.draft(self._guesses.worth_while([path], context.n_pending, 1), limit)
        self._is_over = self._is_heard and self._lattice is None and not draft
        return draft

    def observe(self, verdict: Verdict) -> None:
        """Calibrate the guesses by what came of them."""
        super().observe(verdict)
        self._is_over = self._is_heard and self._lattice is None

    def end(self, tokens: tuple[int, ...]) -> None:
        """Teach the guide's cache the text of a window that was heard and whose text was kept."""
        window, learns = self._window, self._lattice is not None and not self.rests
        self._was_empty = window is not None and not window.has_text(tokens)
        if window is None or not tokens or not learns:
            return
        before = list(window.history[-_CONTEXT:])
        text = self._beginnings.spaced([token for token in tokens if token < window.eot])
        self._guide.learn([*before, *text], len(before))

    def close(self) -> None:
        self._hear = None
        self._features = self._lattice = None

    def _listen(self, window: WindowContext) -> None:
        """Hear the window; the hypothesis stays empty where there is nothing to hear."""
        self._is_heard = True
        hidden = getattr(window.features, "hidden", None)
        if hidden is None or self._hear is None:
            return
        encoded = np.asarray(hidden)
        if not self._last_hearing or self._last_hearing[0] is not window.features:
            posteriors = self._hear(encoded[: window.n_heard(len(encoded))])
            lattice = lattice_of(posteriors)
            heard = [] if lattice is None else self._rescored(lattice, spelled(lattice, self._tokenizer), ())
            heard = bare(heard, self._beginnings)
            moments = None if lattice is None else _usable(posteriors)
            self._last_hearing[:] = window.features, lattice, heard, moments, posteriors.n_parts
        _, self._lattice, self._heard, self._moments, n_parts = self._last_hearing
        self._n_frames = window.content * len(encoded) * n_parts
        self._left = self._heard

    def _rescored(
        self, lattice: Lattice, heard: Sequence[HeardToken], before: Sequence[int], n_words: int | None = None
    ) -> list[HeardToken]:
        """A hypothesis as the n-grams have it; see `Search.guided`."""
        return self._search.guided(lattice, heard, before, n_words) if self._guide.knows else list(heard)

    def _follow(self, window: WindowContext, lattice: Lattice, context: DraftContext) -> None:
        """Move on in the hypothesis by what the target has decided since."""
        sampled = context.sampled
        for at in range(self._n_followed, len(sampled)):
            token = sampled[at]
            if token < window.eot:
                if self._left and self._left[0].token == token:
                    self._match(self._left[0], self._left[1:])
                else:
                    self._resume(window, lattice, sampled[: at + 1])
        self._n_followed = len(sampled)

    def _resume(self, window: WindowContext, lattice: Lattice, sampled: Sequence[int]) -> None:
        """Take the hypothesis up again behind a token that it did not have."""
        token, left, skipped = sampled[-1], self._left, self._skipped
        text = self._beginnings.spaced([id_ for id_ in sampled if id_ < window.eot])
        ahead = range(1, min(_N_AHEAD, len(left) - 1) + 1)
        said = next((i for i in ahead if left[i].opens and left[i].token == token), 0)
        if said:  # the words that were heard before it are not said
            self._match(left[said], left[said + 1 :])
        elif skipped and skipped[0].token == token:  # one token more was said than was heard
            self._match(skipped[0], [*skipped[1:], *left])
        elif left or skipped:
            self._replace(lattice, [*skipped, *left], text[-1])
        else:
            return
        self._left = self._rescored(lattice, self._left, text, _N_RESCORED)

    def _match(self, heard: HeardToken, left: Sequence[HeardToken]) -> None:
        """A token was said as it was heard."""
        self._row = heard.start if self._ends_sentence(heard) else heard.stop
        self._left, self._skipped, self._said, self._n_words = left, (), b"", 0

    def _ends_sentence(self, heard: HeardToken) -> bool:
        return self._tokenizer.ranks[heard.token][-1:] in (b".", b"?", b"!")

    def _replace(self, lattice: Lattice, rest: Sequence[HeardToken], token: int) -> None:
        """Go on behind a token that, with those since the last one that was heard, took the place of some of `rest`.

        Where together they are much like what was heard, at the row up to which they account for it; else behind as
        many words as were begun. A mark is heard in no row.
        """
        spelling = self._tokenizer.ranks[token]
        is_mark = _MARKS.issuperset(spelling)
        self._said += spelling
        self._n_words += not is_mark and (opens_word(spelling) or not self._n_words)
        row = self._accounted(lattice, rest[0].start, self._said)
        if row is not None:
            self._row = row
            self._skipped = [heard for heard in rest if heard.stop <= row]
            self._left = self._from_row(lattice, rest, row)
            return
        openings = [0, *[i for i, heard in enumerate(rest) if i and heard.opens], len(rest)]
        behind = openings[min(self._n_words, len(openings) - 1)]
        if behind:
            self._row = rest[behind - 1].stop
        self._skipped, self._left = rest[:behind], rest[behind:]

    @staticmethod
    def _accounted(lattice: Lattice, start: int, said: bytes) -> int | None:
        """The row up to which some bytes account for what was heard from a row on, with a space before them or without;
        None where they are unlike that."""
        spellings = [one for one in dict.fromkeys((said, said.lstrip(b" "))) if one]
        stop = min(len(lattice), start + min(_REACH, _REACH_FIRST + _REACH_EACH * len(said)))
        if not spellings or stop <= start:
            return None
        odds = lattice.odds([start] * len(spellings), spellings, stop - start).max(0)
        row = int(odds.argmax())
        return start + row if float(odds[row]) > -_UNLIKE * len(said) else None

    def _from_row(self, lattice: Lattice, left: Sequence[HeardToken], row: int) -> Sequence[HeardToken]:
        """What is left of the hypothesis from a row on; the rest of a word that it lies in is spelt as it was heard."""
        for i, heard in enumerate(left):
            if heard.opens and i and heard.start >= row - 1:
                break
        else:
            i = len(left)
        stop = left[i].start if i < len(left) else len(lattice)
        if not any(heard.stop > row for heard in left[:i]):
            return left[i:]
        units = [unit for unit in lattice.spelling() if row <= unit.start < stop]
        return [*heard_tokens(units, lattice, stop, self._tokenizer, opens=False), *left[i:]]

    def _chain(self, window: WindowContext, lattice: Lattice, context: DraftContext, limit: int) -> Guess:
        """What is left of the hypothesis, with the timestamps that can be told, at most `limit` tokens."""
        left, path = self._left, Guess([], [], [])
        has_times = window.has_times(context.prompt)
        last_step = self._opening(window, lattice, context, path) if has_times else -1
        if last_step is None:
            return path
        for i, heard in enumerate(left):
            if len(path.tokens) >= limit:
                break
            path.add(heard.token, *_belief(heard))
            if not has_times:
                continue
            ends = self._ends_sentence(heard)
            is_last = i + 1 == len(left)
            if ends or is_last:
                letter = heard.start if ends else heard.stop
                until = self._until(lattice, left, i + 1)
                end = self._told(1, self._frame(lattice, letter) - _ROUND, until)
                if end is None:
                    break
                last_step = max(end[0], last_step + 1)
                path.add(window.timestamp_begin + last_step, *end[1:])
                if is_last:
                    break
                begin = self._told(0, self._frame(lattice, letter), until)
                if begin is None:
                    break
                last_step = max(begin[0], last_step)
                path.add(window.timestamp_begin + last_step, *begin[1:])
        return path

    def _opening(self, window: WindowContext, lattice: Lattice, context: DraftContext, path: Guess) -> int | None:
        """Propose the timestamp that a segment begins or ends with, if one must come. Returns the last one's step, -1
        for none so far, None where one must come that the head does not tell."""
        sampled, begin = context.sampled, window.timestamp_begin
        last = max((token - begin for token in sampled if token >= begin), default=-1)
        frame = self._frame(lattice, self._row) if sampled else 0
        if not self._left:
            if not sampled or sampled[-1] >= begin:
                return last
            told, least = self._told(1, frame - _ROUND, self._until(lattice, (), 0)), last + 1
        elif not sampled or (sampled[-1] >= begin and len(sampled) > 1 and sampled[-2] < begin):
            told, least = self._told(0, frame, self._until(lattice, self._left, 0)), max(last, 0)
        else:
            return last
        if told is None:
            return None
        step = max(told[0], least)
        path.add(begin + step, *told[1:])
        return step

    def _told(self, kind: int, low: int, high: int) -> tuple[int, float, Hashable] | None:
        """The step at which the head has a segment begin (kind 0) or end (1) within frames, how surely, and the class
        for the gate; None where it does not tell."""
        moments = self._moments
        low = max(low, 0)
        if moments is None or low >= min(high, len(moments)):
            return None
        logits = moments[low:high, kind]
        at = int(logits.argmax())
        sure = float(1 / np.exp(logits - logits[at]).sum())
        step = round((low + at) * _FRAME_S / self._tokenizer.special.time_precision_s)
        return step, sure, ("time", kind, int(5 * sure))

    def _frame(self, lattice: Lattice, row: int) -> int:
        """The frame of a row of the lattice."""
        return int(lattice.frames[min(max(row, 0), len(lattice) - 1)])

    def _until(self, lattice: Lattice, left: Sequence[HeardToken], at: int) -> int:
        """The frame behind which no timestamp is looked for: that of the next word, or the end of the audio."""
        return self._frame(lattice, left[at].start) + _ROUND if at < len(left) else int(self._n_frames) + _ROUND


def _usable(posteriors: Posteriors) -> NDArray[np.float32] | None:
    """The logits of times, if they are numbers, two for each frame."""
    times = posteriors.times
    if times is None or times.shape != (posteriors.n_ctx, 2) or not np.isfinite(times).all():
        return None
    return times


def _belief(heard: HeardToken) -> tuple[float, Hashable]:
    """How sure a token is at first, and its class for what came of such."""
    surely = 3 if heard.sure > 0.9 else 2 if heard.sure > 0.6 else 1 if heard.sure > 0.3 else 0
    first = _FIRST_BELIEFS_KNOWN if heard.order > 1 else _FIRST_BELIEFS
    return first[surely], ("text", heard.order, surely)


def open_ctc(
    bundle: Bundle, maps: Sequence[TokenMap], costs: CostTable, *, threads: int = 1, canceller: Canceller | None = None
) -> CtcDrafter:
    """Make the drafter over `bundle`'s head; texts of this run guide it too. The maps may be closed afterwards.

    Raises BundleError for a head that is missing, broken, or of another encoder or other units.
    """
    head = CtcHead(bundle, canceller or Canceller(), threads=threads)
    tokenizer = bundle.tokenizer
    tokenizer.encode(" ")  # its tables are made now, not in the first window
    return CtcDrafter(head.hear, tokenizer, costs, Guide(maps, NgramCache(longest=LONGEST - 1), tokenizer))
