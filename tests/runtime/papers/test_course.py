"""A course over a made-up draft: it learns a domain, is rolled back where it does harm, keeps to time and memory."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.runtime.papers.distill import Course, CourseOptions, Lesson, LessonBook, Likeliest

N_STATE, N_VOCAB = 24, 60
RNG = np.random.default_rng(0)
E = RNG.standard_normal((N_VOCAB, N_STATE)).astype(np.float32)
WORDS = RNG.standard_normal((12, N_STATE)).astype(np.float32)


def vectors(ids: NDArray[np.int64]) -> NDArray[np.float32]:
    return E[ids]


def clock(step_s: float = 0.001) -> Callable[[], float]:
    """Each look takes `step_s`."""
    now = [0.0]

    def look() -> float:
        now[0] += step_s
        return now[0]

    return look


class Draft:
    """A row for each of twelve words, and some noise; it says the likeliest token of h + (h A) B."""

    def __init__(self, course: Course, seed: int = 1) -> None:
        self._course, self._rng = course, np.random.default_rng(seed)

    def lesson(self, word: int, label: int, *, direct: bool = True) -> Lesson:
        hidden = WORDS[word] + 0.1 * self._rng.standard_normal(N_STATE).astype(np.float32)
        a, b = self._course.factors
        logits = E @ (hidden + (hidden @ a) @ b)
        mine = np.argsort(-logits)[:16]
        whole = float(np.log(np.exp(logits.astype(np.float64)).sum()))
        target = Likeliest(np.array([label], np.int64), np.array([-0.01], np.float32), math.log(0.01))
        return Lesson(hidden, label, int(logits.argmax()), mine, whole, target if direct else None)


def stream(course: Course, says: Callable[[int], int], n_windows: int, *, direct: bool = True, seed: int = 1) -> float:
    """Windows of ten places; the share of right tokens in the last ten of them."""
    draft = Draft(course, seed)
    rng = np.random.default_rng(seed)
    right: list[bool] = []
    for window in range(n_windows):
        lessons = [draft.lesson(int(word), says(int(word)), direct=direct) for word in rng.integers(0, 12, 10)]
        if window >= n_windows - 10:
            right += [lesson.said == lesson.label for lesson in lessons]
        course.take(lessons)
        course.train(1.0)
    return float(np.mean(right))


def first(word: int) -> int:
    return word + 10


def second(word: int) -> int:
    return 50 - word


def made(**options: object) -> Course:
    """A course that may learn these few lessons by heart."""
    given = CourseOptions(reuse=math.inf, **options)  # type: ignore[arg-type]
    return Course(N_STATE, vectors, given, clock=clock(0.005))


@pytest.mark.parametrize("direct", [True, False])
def test_a_draft_that_is_wrong_in_a_domain_learns_it(direct: bool) -> None:
    assert stream(made(share=0.0), first, 20, direct=direct) < 0.2
    assert stream(made(), first, 50, direct=direct) > 0.8


def test_acceptance_rises_falls_with_the_domain_and_recovers() -> None:
    course = made()
    rates = [stream(course, first, 50), stream(course, second, 10, seed=2), stream(course, second, 50, seed=3)]
    assert rates[0] > 0.8 and rates[1] < 0.6 and rates[2] > 0.8
    here, before = course.rates
    assert here > before + 0.5


def test_it_is_rolled_back_where_the_draft_as_it_was_is_better() -> None:
    course = made()
    bad = np.random.default_rng(3)
    for served in course.factors:
        served[...] = bad.standard_normal(served.shape)
    draft = Draft(course)
    own = [int((E @ WORDS[word]).argmax()) for word in range(12)]
    n = 0
    while not course.counted.rollbacks and n < 12:
        course.take([draft.lesson(word, own[word]) for word in range(6)])
        n += 1
    assert course.counted.rollbacks == 1 and 5 < n < 12, "not on the first few, and soon"
    assert course.adapter.is_neutral and not course.factors[1].any()
    course.take([draft.lesson(word, own[word]) for word in range(12)])
    assert course.counted.rollbacks == 1 and course.rates == (0.0, 0.0), "nothing to judge while nothing is served"


def test_it_keeps_to_its_share_of_the_time() -> None:
    for share in (0.05, 0.2):
        course = Course(
            N_STATE, vectors, CourseOptions(share=share, most_updates=10**6, reuse=math.inf), clock=clock(0.01)
        )
        draft = Draft(course)
        for _ in range(30):
            if course.has_time:
                course.spent(0.004)
                course.take([draft.lesson(word, first(word)) for word in range(12)])
            course.train(1.0)
        assert 0.5 * share * 30 < course.counted.seconds <= share * 30 + 0.01
        assert course.counted.updates > 10
    idle = Course(N_STATE, vectors, CourseOptions(share=0.05), clock=clock())
    idle.spent(1.0)
    assert not idle.has_time and idle.train(10.0) == 0


@pytest.mark.parametrize(("n_state", "budget"), [(24, 50_000), (1280, 4 << 20), (64, 100), (64, 1 << 30)])
def test_a_book_keeps_to_its_budget(n_state: int, budget: int) -> None:
    book = LessonBook(n_state, budget)
    assert book.rows.nbytes <= max(budget, 4 * n_state + 400)
    assert book.rows.nbytes < 16 << 20
    n = len(book.rows)
    for i in range(n + 3):
        row = np.zeros(1, book.rows.dtype)
        row["hidden"] = i
        book.put(row)
    assert len(book) == n and book.rows["hidden"][2 % n, 0] == n + 2
