"""Online distillation (OmniDraft, arXiv 2507.02659): a draft model learns one target in one domain, between windows.

While a window is drafted and verified, `Notes` are taken: the draft's rows beside the target's, wherever it had the
right text before it. When the window's text is known each becomes a `Lesson`, kept in a `LessonBook` of bounded size.
All drafters of one draft and target share a `Course`, which trains low-rank factors (`adapter`) on them within
a share of the windows' time. `Student` is one drafter's part in it.

Every lesson is judged first: would the unadapted draft have said the right token where the adapted one does? Training
changes the last step alone, so this can be told from the same row, over the lesson's own tokens and those that were
most often wrong. When the adapted draft falls behind, it is rolled back, and what is trained from then on is served
once it would have been clearly better. The same lessons and the same clock give the same factors.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specedge.errors import UsageError

from ..bundle.bundle import Bundle
from ..decoding.drafter import Verdict, WindowContext
from ..decoding.statistics import Learning
from ..drafters.draft.translate import Translation
from ..engine.draft_model import DraftModel
from .adapter import Adapter, AdapterOptions, Batch

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
N_SLOTS = 16
_N_DRAFT, _N_TARGET = 8, 7  # and the label
_FARTHEST = 10.0  # below the likeliest, in logits: what is further down counts as this
_MAX_LESSONS = 2048


@dataclass(frozen=True)
class Likeliest:
    """The likeliest tokens of a row: ids i64 [n] and their log-probabilities f32 [n]; rest: of all others together."""

    ids: Ids
    logp: Floats
    rest: float


def likeliest(row: Floats, n: int) -> Likeliest:
    """Return at most `n` likeliest tokens of a filtered row f32 [n_vocab]."""
    peak = float(row.max())
    near = np.flatnonzero(row > peak - _FARTHEST)
    logits = row[near]
    weights = np.exp(logits - np.float32(peak))
    whole = float(weights.sum(dtype=np.float64)) + math.exp(-_FARTHEST)
    if len(near) > n:
        best = np.argpartition(logits, len(near) - n)[len(near) - n :]
        near, logits, weights = near[best], logits[best], weights[best]
    rest = max(1 - float(weights.sum(dtype=np.float64)) / whole, math.exp(-_FARTHEST) / whole)
    logp = logits - np.float32(peak + math.log(whole))
    return Likeliest(near.astype(np.int64), logp, math.log(rest))


@dataclass(frozen=True, eq=False)
class Lesson:
    """One place of a text, in the draft's ids.

    hidden f32 [n_state]: the draft's row; label: the target's token, said: the draft's; mine i64 [n]: the draft's
    likeliest; whole: logsumexp of all its logits; target: the target's likeliest, None where they cannot be compared.
    """

    hidden: Floats
    label: int
    said: int
    mine: Ids
    whole: float
    target: Likeliest | None

    def slots(self) -> list[int]:
        """The tokens that are looked at, each once, the label first."""
        theirs = () if self.target is None else self.target.ids.tolist()
        return list(dict.fromkeys((self.label, *theirs[:_N_TARGET], *self.mine.tolist())))[:N_SLOTS]

    def write(self, row: np.void) -> None:
        """Write all but `rest` into an empty row of a `LessonBook`."""
        ids = self.slots()
        row["hidden"], row["direct"] = self.hidden, self.target is not None
        row["ids"][: len(ids)], row["used"][: len(ids)] = ids, True
        if self.target is not None:
            known = dict(zip(self.target.ids.tolist(), self.target.logp.tolist(), strict=True))
            floor = max(known.values(), default=0.0) - _FARTHEST
            row["logp"][: len(ids)] = [max(known.get(id_, floor), floor) for id_ in ids]
            row["logp_rest"] = max(self.target.rest, floor)


_Step = tuple[int, Floats, Ids, float]
"""What the draft said, its row, its likeliest tokens, and the logsumexp of all its logits."""


class Notes:
    """The notes of one window. Calls come in the order draft, step (any number), verdict, and again."""

    def __init__(self) -> None:
        self._drafts: list[tuple[Sequence[int], list[_Step]]] = []  # each behind a text in the draft's ids
        self._open: list[tuple[int, Floats, Floats]] = []  # steps of the last draft, until its verdict is known
        self._targets: dict[int, Likeliest] = {}
        self._is_ended = False

    def draft(self, before: Sequence[int]) -> None:
        """A draft begins behind a text, which is `before` in the draft's ids."""
        self._look(before)
        self._drafts.append((before, []))

    def step(self, token: int, logits: Floats, hidden: Floats) -> None:
        """The draft says `token`, by filtered logits f32 [n_vocab] and a hidden row f32 [n_state]; both are copied."""
        self._open.append((token, logits.copy(), hidden.copy()))

    def verdict(self, n_sampled: int, rows: Sequence[Floats], *, ended: bool) -> None:
        """The target decided its tokens from index `n_sampled` on by these filtered rows; `ended`: the last ends."""
        for i, row in enumerate(rows):
            self._targets[n_sampled + i] = likeliest(row, _N_TARGET)
        self._is_ended = ended

    def lessons(self, tokens: Sequence[int], eot: tuple[int, int], translation: Translation) -> list[Lesson]:
        """Return the lessons of a window whose text is `tokens`; `eot`: the target's end of text and the draft's.

        Whatever follows the first wrong token of a draft was said to another text, and teaches nothing.
        """
        ids, places = translation.spelt(tokens)
        if self._is_ended:
            ids, places = [*ids, eot[1]], [*places, len(tokens)]
        self._look(ids)
        found = []
        for before, steps in self._drafts:
            start = len(before)
            if ids[:start] != list(before):
                continue
            for step, label, place in zip(steps, ids[start:], places[start:], strict=False):
                said, hidden, mine, whole = step
                found.append(Lesson(hidden, label, said, mine, whole, self._comparable(place, translation)))
                if said != label:
                    break
        return found

    def _look(self, ids: Sequence[int]) -> None:
        """Look at the steps of the last draft up to its first wrong one, now that the text is `ids`."""
        if not self._open:
            return
        before, steps = self._drafts[-1]
        pairs = zip((token for token, _, _ in self._open), ids[len(before) :], strict=False)
        n_right = next((i for i, (said, right) in enumerate(pairs) if said != right), len(self._open))
        for token, logits, hidden in self._open[: n_right + 1]:
            near = likeliest(logits, _N_DRAFT)
            steps.append((token, hidden, near.ids, float(logits[token] - near.logp.max())))
        self._open.clear()

    def _comparable(self, place: int, translation: Translation) -> Likeliest | None:
        target = self._targets.get(place) if place >= 0 else None
        if target is None:
            return None
        ids = translation.counterparts(target.ids)
        known = ids >= 0
        lost = float(np.exp(target.logp[~known]).sum()) + math.exp(target.rest)
        order = np.argsort(-target.logp[known], kind="stable")
        return Likeliest(ids[known][order], target.logp[known][order], math.log(min(lost, 1.0)))


class LessonBook:
    """The latest lessons within `budget_bytes`: `rows`, with the columns of an `adapter.Batch` but its vectors."""

    def __init__(self, n_state: int, budget_bytes: int) -> None:
        slots = [("ids", "i4", N_SLOTS), ("logp", "f4", N_SLOTS), ("used", "?", N_SLOTS)]
        one = np.dtype([("hidden", "f4", n_state), *slots, ("rest", "f4"), ("logp_rest", "f4"), ("direct", "?")])
        self.rows = np.zeros(max(1, min(budget_bytes // one.itemsize, _MAX_LESSONS)), one)
        self.n_taken = 0

    def __len__(self) -> int:
        return min(self.n_taken, len(self.rows))

    def put(self, rows: NDArray[np.void]) -> None:
        """Put rows in the places of the oldest."""
        self.rows[(self.n_taken + np.arange(len(rows))) % len(self.rows)] = rows
        self.n_taken += len(rows)


Vectors = Callable[[NDArray[np.int64]], Floats]
"""The vectors f32 [n, n_state] of a draft's tokens i64 [n]."""
_FADE = 0.99
_N_JUDGED = 40.0  # places, older ones counting less, before a judgement
_BEHIND = 0.02
_AHEAD = 0.05  # by which what is not served must be better: it is judged among the tokens that the draft as it was says
_LEAST = 1e-4
_N_RIVALS, _N_WRONG = 64, 512  # tokens most often said wrongly: of judgements, and counted at most


@dataclass(frozen=True, kw_only=True)
class CourseOptions:
    """share: of the windows' time, at most; batch: lessons of an update; recent: their mean age, in lessons; reuse: how
    often a lesson is learned from, at most; most_updates: after one window."""

    adapter: AdapterOptions = AdapterOptions()
    share: float = 0.05
    batch: int = 32
    recent: float = 200.0
    reuse: float = 3.0
    most_updates: int = 64
    budget_bytes: int = 4 << 20


class Course:
    """See the module. `lock` is held while it is read or changed, and during the draft's passes with `factors`."""

    def __init__(
        self,
        n_state: int,
        vectors: Vectors,
        options: CourseOptions | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.options = options or CourseOptions()
        self.adapter = Adapter(n_state, self.options.adapter)
        self.book = LessonBook(n_state, self.options.budget_bytes)
        self.lock = threading.RLock()
        self.clock = clock
        self.counted = Learning()
        self._vectors = vectors
        self._rng = np.random.default_rng(self.options.adapter.seed)
        self._windows_s = 0.0
        self._n_judged = self._came = self._would = 0.0
        self._serves = True
        self._neutral = (self.adapter.factors[0].copy(), np.zeros_like(self.adapter.factors[1]))
        self._wrong = Counter[int]()  # how often a token was said where it was not right

    @property
    def factors(self) -> tuple[Floats, Floats]:
        """The factors A, B to serve in the next window."""
        return self.adapter.factors if self._serves else self._neutral

    @property
    def rates(self) -> tuple[float, float]:
        """Recent accuracy of the draft that is served, and of the other one: the unadapted draft, or behind a rollback
        the adapted one."""
        n = max(self._n_judged, _LEAST)
        return self._came / n, self._would / n

    @property
    def has_time(self) -> bool:
        """Whether notes may be taken: half of the time is left to learn from them."""
        return self.counted.seconds <= self.options.share / 2 * self._windows_s

    def spent(self, seconds: float) -> None:
        """Time was taken for learning elsewhere."""
        self.counted = self.counted.plus(Learning(seconds=seconds))

    def take(self, lessons: Sequence[Lesson]) -> None:
        """Judge lessons and keep them; roll back where they show that learning does harm."""
        if not lessons:
            return
        rows = np.zeros(len(lessons), self.book.rows.dtype)
        for row, lesson in zip(rows, lessons, strict=True):
            lesson.write(row)
        vectors, used = self._vectors_of(rows["ids"]), rows["used"]
        hidden: Floats = np.ascontiguousarray(rows["hidden"])
        a, b = self.adapter.factors
        learned: Floats = (hidden + (hidden @ a) @ b).astype(np.float32)
        said, other = (learned, hidden) if self._serves else (hidden, learned)
        served, would = _logits(vectors, said, used), _logits(vectors, other, used)
        # As the passes have it, no logit is above the whole; here rows are not rounded to int8.
        whole = np.array([lesson.whole for lesson in lessons], np.float32)
        inside = np.exp(np.minimum(served - whole[:, None], 0)).sum(axis=1)
        rows["rest"] = whole + np.log(np.maximum(1 - inside, _LEAST))
        self.book.put(rows)
        self._wrong.update(lesson.said for lesson in lessons if lesson.said != lesson.label)
        if not self.adapter.is_neutral:
            came = np.array([lesson.said == lesson.label for lesson in lessons])
            self._judge(came, (would.argmax(axis=1) == 0) & self._beats_rivals(lessons, other, would[:, 0]))
        if len(self._wrong) > _N_WRONG:
            self._wrong = Counter(dict(self._wrong.most_common(_N_WRONG // 2)))

    def train(self, window_s: float) -> int:
        """Train until the share of the time so far is used up, after a window of `window_s`. Returns the number of
        updates."""
        self._windows_s += window_s
        options, before = self.options, self.counted.updates
        while self.counted.updates < before + options.most_updates and len(self.book) >= options.batch:
            is_learned = (self.counted.updates + 1) * options.batch > options.reuse * self.book.n_taken
            if is_learned or self.counted.seconds >= options.share * self._windows_s:
                break
            started = self.clock()
            self.adapter.step(self._batch())
            self.counted = self.counted.plus(Learning(updates=1, seconds=self.clock() - started))
        return self.counted.updates - before

    def _beats_rivals(self, lessons: Sequence[Lesson], hidden: Floats, right: Floats) -> NDArray[np.bool_]:
        """Whether rows prefer each lesson's label, of logit f32 [n], to all that is said wrongly."""
        ids = np.array([token for token, _ in self._wrong.most_common(_N_RIVALS)], np.int64)
        if not len(ids):
            return np.ones(len(lessons), np.bool_)
        rivals = hidden @ self._vectors(ids).T
        rivals[ids == np.array([[lesson.label] for lesson in lessons])] = -np.inf
        is_right: NDArray[np.bool_] = right >= rivals.max(axis=1)
        return is_right

    def _batch(self) -> Batch:
        book = self.book
        ages = self._rng.exponential(self.options.recent, self.options.batch).astype(np.int64) % len(book)
        rows = book.rows[(book.n_taken - 1 - ages) % len(book.rows)]
        return {"vectors": self._vectors_of(rows["ids"]), **{name: rows[name] for name in rows.dtype.names or ()}}

    def _vectors_of(self, ids: NDArray[np.int32]) -> Floats:
        """Of tokens [n, N_SLOTS]: f32 [n, N_SLOTS, n_state]."""
        return self._vectors(ids.astype(np.int64).reshape(-1)).reshape(*ids.shape, -1)

    def _judge(self, came: NDArray[np.bool_], would: NDArray[np.bool_]) -> None:
        for is_right, was_right in zip(came.tolist(), would.tolist(), strict=True):
            self._n_judged = self._n_judged * _FADE + 1
            self._came = self._came * _FADE + is_right
            self._would = self._would * _FADE + was_right
        here, there = self.rates
        if self._n_judged < _N_JUDGED or here + (_BEHIND if self._serves else _AHEAD) >= there:
            return
        if self._serves:
            self.adapter.reset()
            self.counted = self.counted.plus(Learning(rollbacks=1))
        self._serves = not self._serves
        self._n_judged = self._came = self._would = 0.0


def _logits(vectors: Floats, rows: Floats, used: NDArray[np.bool_]) -> Floats:
    found = np.matmul(vectors, rows[:, :, None])[:, :, 0]
    return np.where(used, found, np.float32(-np.inf))


class Student:
    """One drafter's part in a course. Texts that were sampled or thrown away teach nothing.

    A window's time is that of its decoding. Time that notes take counts as time of learning; where there is too little
    of it, windows go by without notes.

    eot: ids of the target's end of text and the draft's.
    """

    def __init__(self, course: Course, translation: Translation, *, eot: tuple[int, int]) -> None:
        self.course = course
        self._translation, self._eot = translation, eot
        self._notes: Notes | None = None
        self._began_at: float | None = None
        self._noting_s = 0.0

    def another(self) -> Student:
        """One of another text at the same time, in the same course."""
        twin = copy.copy(self)
        twin._notes, twin._began_at = None, None
        return twin

    def begin(self, window: WindowContext) -> None:
        self._notes = Notes() if window.temperature == 0 and self.course.has_time else None
        self._began_at = self.course.clock()

    def draft(self, before: Sequence[int]) -> None:
        self._note(lambda notes: notes.draft(before))

    def step(self, token: int, logits: Floats, hidden: Floats) -> None:
        self._note(lambda notes: notes.step(token, logits, hidden))

    def observe(self, verdict: Verdict, n_sampled: int) -> None:
        """What the target said behind `n_sampled` tokens."""
        ended = verdict.finished and verdict.token == self._eot[0]
        self._note(lambda notes: notes.verdict(n_sampled, verdict.rows, ended=ended))

    def _note(self, take: Callable[[Notes], None]) -> None:
        if self._notes is not None:
            started = self.course.clock()
            take(self._notes)
            self._noting_s += self.course.clock() - started

    def end(self, tokens: Sequence[int]) -> int:
        """The window's text is `tokens`, () if it was thrown away. Returns the number of updates."""
        if self._began_at is None:
            return 0
        course, notes, began_at = self.course, self._notes, self._began_at
        self._notes = self._began_at = None
        started = course.clock()
        with course.lock:
            if notes is not None and tokens:
                course.take(notes.lessons(tokens, self._eot, self._translation))
            course.spent(self._noting_s + course.clock() - started)
            self._noting_s = 0.0
            return course.train(started - began_at)


def student(model: DraftModel, target: Bundle, translation: Translation) -> Student:
    """Make the draft's student; its course is shared by all drafters of this draft and target in the process.

    Raises UsageError for a draft that was not loaded to learn.
    """
    course = model.courses.get(target.digest)
    if course is None:
        if model.vectors is None:
            raise UsageError(f"learn: the draft {model.bundle.manifest.name} was not loaded to learn")
        course = model.courses[target.digest] = Course(model.vectors.n_state, model.vectors.of)
    return Student(course, translation, eot=(target.manifest.tokens.eot, model.bundle.manifest.tokens.eot))
