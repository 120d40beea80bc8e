"""What one draft learns about one target in one domain, between windows and within a share of their time.

Every lesson is judged first: would the draft as it was have said the right token where the draft as it is did? What is
learned changes the last step alone, so what it was can be told from the same row, over the lesson's own tokens and
those that were wrongly said most often: what was learned away may be among no lesson's likeliest. When the learner
falls behind, it is rolled back to the draft as it was (algorithms 2.7: acceptance falls), and what is learned from then
on is served once it would have been clearly better. Drafters of one draft,
target and domain share a course; the same lessons and the same clock give the same factors. Memory is bounded: the
book's budget and two small matrices with their optimiser. Does not know: texts, files, what draws up lessons.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.decoding.statistics import Learning
from specedge.runtime.drafters.adapter import Adapter, AdapterOptions, Batch
from specedge.runtime.drafters.lessons import N_SLOTS, Lesson, LessonBook

__all__ = ["Course", "CourseOptions", "Vectors"]

Floats = NDArray[np.float32]
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
    """See the module. `lock` is held by whoever reads or changes it, and during the draft's passes with `factors`."""

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
        self._windows_s = self._step_s = 0.0
        self._n_updates = 0
        self._n_judged = self._came = self._would = 0.0
        self._serves = True
        self._neutral = (self.adapter.factors[0].copy(), np.zeros_like(self.adapter.factors[1]))
        self._wrong = Counter[int]()  # how often a token was said where it was not right

    @property
    def factors(self) -> tuple[Floats, Floats]:
        """What a draft that learns runs with in the next window."""
        return self.adapter.factors if self._serves else self._neutral

    @property
    def rates(self) -> tuple[float, float]:
        """How often the draft as it is was right lately, and how often it would have been as it was; behind a rollback,
        with what was learned since."""
        n = max(self._n_judged, _LEAST)
        return self._came / n, self._would / n

    @property
    def has_changed(self) -> bool:
        """Whether anything was learned or given up in this process."""
        return bool(self.counted.updates or self.counted.rollbacks)

    @property
    def has_time(self) -> bool:
        """Whether notes may be taken: they leave half of the time to learn from them."""
        return self.counted.seconds <= self.options.share / 2 * self._windows_s

    def spent(self, seconds: float) -> None:
        """Time was taken for learning elsewhere."""
        self.counted = self.counted.plus(Learning(seconds=seconds))

    def take(self, lessons: Sequence[Lesson]) -> None:
        """Judge lessons and write them down; back to the beginning where they show that learning does harm."""
        if not lessons:
            return
        ids = np.zeros((len(lessons), N_SLOTS), np.int64)
        used = np.zeros(ids.shape, np.bool_)
        for i, lesson in enumerate(lessons):
            slots = lesson.slots()
            ids[i, : len(slots)], used[i, : len(slots)] = slots, True
        vectors = self._vectors(ids.reshape(-1)).reshape(*ids.shape, -1)
        hidden: Floats = np.stack([lesson.hidden for lesson in lessons])
        a, b = self.adapter.factors
        learned: Floats = (hidden + (hidden @ a) @ b).astype(np.float32)
        said, other = (learned, hidden) if self._serves else (hidden, learned)
        served, would = _logits(vectors, said, used), _logits(vectors, other, used)
        for i, lesson in enumerate(lessons):
            # As the passes have it, no logit is above the whole; here rows are not rounded to int8.
            inside = float(np.exp(np.minimum(served[i] - lesson.whole, 0)).sum())
            rest = lesson.whole + float(np.log(max(1 - inside, _LEAST)))
            self.book.put(lesson, ids[i][used[i]], rest)
        self._wrong.update(lesson.said for lesson in lessons if lesson.said != lesson.label)
        if not self.adapter.is_neutral:
            came = np.array([lesson.said == lesson.label for lesson in lessons])
            self._judge(came, (would.argmax(axis=1) == 0) & self._beats_rivals(lessons, other, would[:, 0]))
        if len(self._wrong) > _N_WRONG:
            self._wrong = Counter(dict(self._wrong.most_common(_N_WRONG // 2)))

    def train(self, window_s: float, each: Callable[[], None] | None = None) -> int:
        """As many updates as the share of the time so far allows, after a window of `window_s`; how many that were.

        each: called after every update.
        """
        self._windows_s += window_s
        n_updates = 0
        while n_updates < self.options.most_updates and len(self.book) >= self.options.batch:
            if self.counted.seconds + self._step_s > self.options.share * self._windows_s:
                break
            if (self._n_updates + 1) * self.options.batch > self.options.reuse * self.book.n_taken:
                break
            started = self.clock()
            self.adapter.step(self._batch())
            if each is not None:
                each()
            seconds = self.clock() - started
            self._n_updates += 1
            self._step_s += (seconds - self._step_s) * (0.2 if self._step_s else 1.0)
            self.counted = self.counted.plus(Learning(updates=1, seconds=seconds))
            n_updates += 1
        return n_updates

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
        chosen = (book.n_taken - 1 - ages) % len(book.rest)
        ids = book.ids[chosen].astype(np.int64)
        return Batch(
            hidden=book.hidden[chosen],
            vectors=self._vectors(ids.reshape(-1)).reshape(*ids.shape, -1),
            used=book.used[chosen],
            rest=book.rest[chosen],
            logp=book.logp[chosen],
            logp_rest=book.logp_rest[chosen],
            label=np.zeros(len(chosen), np.int64),
            direct=book.direct[chosen],
        )

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
