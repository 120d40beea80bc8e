"""Drafts that are drawn: with the rule `residual` the text has the target's distribution, across vocabularies too.

Toy models over toy vocabularies, every branch of what a draft may become, by chi-square (arXiv 2507.02659, section 3).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.runtime.decoding.accept import Candidate, Classed, Drawn
from specedge.runtime.decoding.drafter import DraftContext, DraftTree, Guard
from specedge.runtime.decoding.sampling import Draw, Noise
from specedge.runtime.drafters.draft.translate import Translation
from specedge.runtime.papers.accept import Residual
from specedge.runtime.papers.across_words import AcrossWords
from specedge.runtime.text.tokenizer import Tokenizer
from support.drafting import Scripted
from support.vocab import toy_special

BYTES = [bytes([byte]) for byte in range(256)]
A, B, C = (ord(letter) for letter in "abc")
N_DRAWS = 3000


@functools.cache
def tokenizers() -> tuple[Tokenizer, Tokenizer]:
    """A draft that has "b" and "bc", and a target that has "ab" and "abc" instead."""
    draft = Tokenizer([*BYTES, b"bc"], toy_special(257))
    target = Tokenizer([*BYTES, b"ab", b"abc"], toy_special(258))
    return draft, target


AB, ABC = 256, 257


@functools.cache
def q_after(prefix: tuple[int, ...]) -> Drawn:
    """What the toy draft draws from behind `prefix`: a, b, c and the end of the text."""
    rng = np.random.default_rng([7, *prefix])
    known = {(): [0.7, 0.15, 0.1, 0.05], (A,): [0.2, 0.45, 0.3, 0.05]}
    q = np.array(known.get(prefix, rng.dirichlet([2.0, 3.0, 1.0, 0.5])))
    return np.array([A, B, C, tokenizers()[0].special.eot], np.int64), q


@functools.cache
def p_after(prefix: tuple[int, ...], n_vocab: int) -> NDArray[np.float64]:
    """What the toy target says behind `prefix`: a, b, c, ab, abc."""
    rng = np.random.default_rng([8, *prefix])
    known = {(): [0.5, 0.1, 0.05, 0.3, 0.05], (A,): [0.1, 0.5, 0.2, 0.1, 0.1]}
    p = np.zeros(n_vocab)
    p[[A, B, C, AB, ABC]] = known.get(prefix, rng.dirichlet([2.0, 1.0, 1.0, 3.0, 1.0]))
    return p


def first_two(between: Translation, seed: int) -> tuple[int, int | None, list[Drawn | Classed | None]]:
    """The first token of a text, and the second where the first was an accepted draft; drafts are of three draws."""
    n_vocab = tokenizers()[1].special.n_vocab
    reader, said, rng = between.reader(), list[int](), np.random.default_rng([9, seed])
    while len(said) < 3 and not reader.is_ended:
        ids, q = q_after(tuple(said))
        token = int(rng.choice(ids, p=q))
        reader.push(token, 0.5, (ids, q))
        said.append(token)
    reader.finish()
    text: list[int] = []
    for depth in range(2):
        with np.errstate(divide="ignore"):
            row = np.log(p_after(tuple(text), n_vocab)).astype(np.float32)
        drafts = (
            [Candidate(token=reader.tokens[depth], drawn=reader.drawn[depth])] if depth < len(reader.tokens) else []
        )
        noise = Noise(seed=seed, window_key=0, temperature=1.0, sample=0)
        text.append(Residual().choose(row, drafts, Draw(1.0, noise, depth)))
        if not drafts or text[-1] != drafts[0].token:
            break
    return text[0], text[1] if len(text) == 2 else None, reader.drawn


def chi_square(tokens: list[int], p: NDArray[np.float64]) -> float:
    counts = np.bincount(tokens, minlength=len(p))
    expected = p * len(tokens)
    assert not counts[p == 0].any()
    return float(((counts - expected)[p > 0] ** 2 / expected[p > 0]).sum())


CHI_SQUARE_0_001 = 18.47  # four degrees of freedom


def learned(mode: str, *said: int) -> AcrossWords:
    """A translation that has heard the target say `said`."""
    between = AcrossWords(*tokenizers(), mode=mode)
    between.end(said)
    return between


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: learned("direct"), marks=pytest.mark.slow),
        pytest.param(lambda: learned("tokens"), marks=pytest.mark.slow),
        lambda: learned("tokens", AB),
        pytest.param(lambda: learned("tokens", ABC), marks=pytest.mark.slow),
        lambda: learned("tokens", AB, ABC),
        pytest.param(lambda: learned("words"), marks=pytest.mark.slow),
    ],
    ids=["direct", "nothing learned", "a run of two", "another run", "both runs", "words"],
)
def test_texts_have_the_targets_distribution(make: Any) -> None:
    between = make()
    n_vocab = tokenizers()[1].special.n_vocab
    found = [first_two(between, seed) for seed in range(N_DRAWS)]
    assert chi_square([first for first, _, _ in found], p_after((), n_vocab)) < CHI_SQUARE_0_001
    for first in (A, AB):
        seconds = [second for one, second, _ in found if one == first and second is not None]
        if len(seconds) > 300:
            assert chi_square(seconds, p_after((first,), n_vocab)) < CHI_SQUARE_0_001


def test_a_run_has_the_product_and_its_first_token_what_is_left() -> None:
    """OmniDraft, section 3, q'(t) = q(d1) q(d2) and q'(d1) = q(d1) - q'(t), by hand, of a draft that is text.

    q(a) = 0.7 / 0.95 of a, b and c, and b follows it with 0.45 / 0.95: q'(ab) = 0.34903, q'(a) = 0.73684 - 0.34903.
    """
    draft, _ = tokenizers()
    between = learned("tokens", AB)
    for second, token in ((B, AB), (C, A)):
        reader = between.reader()
        reader.push(A, 0.5, q_after(()))
        assert reader.tokens == []
        reader.push(second, 0.5, q_after((A,)))
        assert reader.tokens[0] == token
        assert reader.drawn[0] is not None
        ids, q, *classes = reader.drawn[0]
        assert dict(zip(ids.tolist(), q.tolist(), strict=True)) == pytest.approx(
            {AB: 0.34903, A: 0.38781, B: 0.15789, C: 0.10526}, abs=1e-5
        )
        assert classes[0].tolist() == [0, 0, 1, 2] and set(ids[:2].tolist()) == {A, AB}
    # What follows a first token alone is known not to complete the run.
    assert reader.drawn[1] is not None and B not in reader.drawn[1][0].tolist()
    assert draft.special.eot not in reader.drawn[1][0].tolist()


def test_a_class_that_was_not_drawn_counts_as_a_whole() -> None:
    """Whatever stands for the parts of another class, the token is the same, and so is its chance."""
    row = np.log(np.array([0.2, 0.1, 0.3, 0.4])).astype(np.float32)
    ids, classes = np.array([0, 1, 2]), np.array([0, 0, 1])
    for seed in range(200):
        draws = [Draw(1.0, Noise(seed=seed, window_key=0, temperature=1.0, sample=0), 0) for _ in range(2)]
        said = [
            Residual().choose(row, [Candidate(token=2, drawn=(ids, np.array(q), classes))], one)
            for one, q in zip(draws, ([0.5, 0.0, 0.5], [0.1, 0.4, 0.5]), strict=True)
        ]
        assert said[0] == said[1]


@pytest.mark.slow
def test_runs_are_accepted_nearly_as_often_as_published() -> None:
    """With all of q' the chance is the sum of min(p, q'): 0.3 + 0.38781 + 0.1 + 0.05 = 0.838 of the first token.

    By classes it is min(0.8, 0.73684) of a and ab, in which min(0.375, 0.47368) + min(0.625, 0.52632) are kept, and
    0.1 + 0.05: 0.814. Only a draw of the text is a draft, so ends (0.05 of the draws) do not count.
    """
    between, n_drafts, n_kept = learned("tokens", AB), 0, 0
    n_vocab = tokenizers()[1].special.n_vocab
    with np.errstate(divide="ignore"):
        row = np.log(p_after((), n_vocab)).astype(np.float32)
    rng = np.random.default_rng(11)
    for seed in range(20_000):
        reader, said = between.reader(), list[int]()
        while not reader.tokens and not reader.is_ended:
            ids, q = q_after(tuple(said))
            said.append(int(rng.choice(ids, p=q)))
            reader.push(said[-1], 0.5, (ids, q))
        if reader.tokens:
            noise = Noise(seed=seed, window_key=0, temperature=1.0, sample=0)
            draft = Candidate(token=reader.tokens[0], drawn=reader.drawn[0])
            n_drafts, n_kept = (
                n_drafts + 1,
                n_kept + (Residual().choose(row, [draft], Draw(1.0, noise, 0)) == draft.token),
            )
    assert n_kept / n_drafts == pytest.approx(0.814, abs=0.015)


@pytest.mark.parametrize(
    "drawn",
    [
        [(np.array([7]), np.array([0.5]))],
        [(np.array([7, 7]), np.array([0.5, 0.5]))],
        [(np.array([7, 100]), np.array([0.5, 0.5]))],
        [(np.array([7, 8]), np.array([1.5, -0.5]))],
        [(np.array([7, 8]), np.array([1.0]))],
        [(np.array([]), np.array([]))],
        [(np.array([7]), np.array([np.nan]))],
        [None, None],
        [3],
        [(np.array([7, 8]), np.array([0.5, 0.5]), np.array([0]))],
        [(np.array([7, 8]), np.array([0.5, 0.5]), np.array([0, 2]))],
        [(np.array([7, 8]), np.array([0.5, 0.5]), np.array([0.0, 1.0]))],
        [(np.array([7, 8]), np.array([0.0, 1.0]), np.array([0, 1]))],
        [(np.array([8, 9]), np.array([0.5, 0.5]))],
    ],
)
def test_what_is_no_distribution_drops_the_drafter(drawn: Any) -> None:
    tree = DraftTree(tokens=np.array([7], np.int32), parents=np.array([-1], np.int32), drawn=drawn)
    guard = Guard(Scripted(lambda context, budget: tree))
    context = DraftContext(prompt=(), sampled=(), position=0)
    assert len(guard.propose(context, 5, n_vocab=100, useless=frozenset())) == 0
    assert guard.error is not None
