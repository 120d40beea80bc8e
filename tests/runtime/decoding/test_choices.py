"""Deciding among choices is deciding among tokens: the same rules, the same winner, the same probability."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specedge.runtime.bundle.token_rows import TokenRows
from specedge.runtime.decoding.rules import Choices, RuleSet, build_rules
from specedge.runtime.decoding.sampling import log_softmax_at
from support.fake_engine import special_tokens

SPECIAL = special_tokens(n_timestamps=31, n_extra=3)
BLANK, SUPPRESSED = (32, SPECIAL.eot), (33, 40, 41, 250)


def compact(n_rows: int, seed: int) -> TokenRows:
    """Tokens of `n_rows` rows, which are numbered in the order of their first tokens; most have the same one."""
    rng = np.random.default_rng(seed)
    keys = np.where(rng.random(SPECIAL.n_vocab) < 0.7, 0, rng.integers(0, n_rows, SPECIAL.n_vocab))
    known: dict[int, int] = {}
    return TokenRows(SPECIAL.n_vocab, np.array([known.setdefault(key, len(known)) for key in keys.tolist()]))


def rule_set(*, timestamps: bool = True, limit: int | None = 20, **more: float) -> RuleSet:
    return build_rules(
        SPECIAL,
        space_ids=BLANK[:1],
        suppressed=SUPPRESSED,
        timestamps=timestamps,
        max_initial_timestamp_index=limit,
        **more,  # type: ignore[arg-type]
    )


tokens = st.one_of(
    st.integers(0, SPECIAL.eot - 1),
    st.integers(SPECIAL.timestamp_begin, SPECIAL.timestamp_end - 1),
    st.integers(0, SPECIAL.n_vocab - 1),
)


@given(
    seed=st.integers(0, 10**6),
    n_rows=st.sampled_from([1, 2, 9, 400]),
    sampled=st.lists(tokens, max_size=6),
    timestamps=st.booleans(),
    limit=st.sampled_from([None, 0, 20]),
    shift=st.sampled_from([-6.0, 0.0, 3.0]),
    ties=st.booleans(),
    penalties=st.sampled_from([{}, {}, {"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 1}]),
)
def test_what_is_decided_is_what_all_tokens_would_decide(
    seed: int,
    n_rows: int,
    sampled: list[int],
    timestamps: bool,
    limit: int | None,
    shift: float,
    ties: bool,
    penalties: dict[str, float],
) -> None:
    rows, rules = compact(n_rows, seed), rule_set(timestamps=timestamps, limit=limit, **penalties)
    row = np.random.default_rng(seed).standard_normal(rows.n_rows).astype(np.float32) * 3 + np.float32(shift)
    row = row.round() if ties else row
    expected = rows.of_tokens(row)
    rules.apply(expected, sampled)
    filter_ = rules.over(rows)
    choices, logits = filter_.choices, filter_.filtered(row, sampled)
    assert choices.of_tokens(logits).tobytes() == expected.tobytes()
    choice = int(logits.argmax())
    token = choices.token(choice)
    assert token == expected.argmax() and choices.of(token) == choice
    peak = float(logits[choice])
    if math.isfinite(peak):
        exactly = -math.log(np.exp(expected.astype(np.float64) - peak).sum())
        got = log_softmax_at(logits, choice, peak, np.empty_like(logits), choices.counts)
        assert got == pytest.approx(exactly, abs=2e-6)


@given(seed=st.integers(0, 10**6), n_rows=st.sampled_from([1, 9, 400]))
def test_a_choice_is_of_one_row_and_one_part_of_the_vocabulary(seed: int, n_rows: int) -> None:
    rows = compact(n_rows, seed)
    made = Choices(SPECIAL, rows, [BLANK, SUPPRESSED])
    of = np.array([made.of(token) for token in range(SPECIAL.n_vocab)])
    assert made.counts is not None and np.array_equal(made.counts, np.bincount(of))
    firsts = [made.token(choice) for choice in range(len(made.counts))]
    assert firsts == sorted(firsts) and [made.of(token) for token in firsts] == list(range(len(firsts)))
    parts: list[NDArray[np.int64]] = [np.asarray(rows.of(range(SPECIAL.n_vocab)))]
    for named in (BLANK, SUPPRESSED):
        parts.append(np.isin(np.arange(SPECIAL.n_vocab), named))
    bounds = (SPECIAL.eot, SPECIAL.eot + 1, SPECIAL.timestamp_begin, SPECIAL.timestamp_end)
    parts.append(np.searchsorted(bounds, np.arange(SPECIAL.n_vocab), side="right"))
    for part in parts:
        assert all(len(set(part[of == choice].tolist())) == 1 for choice in range(len(firsts)))
    stamps = range(SPECIAL.timestamp_begin, SPECIAL.timestamp_end)
    assert [made.of(token) for token in stamps] == list(range(made.timestamp_begin, made.timestamp_end))
    assert (made.of(SPECIAL.eot), made.of(SPECIAL.no_timestamps)) == (made.eot, made.no_timestamps)
    if n_rows == 9:
        assert len(firsts) < 9 * 8 + len(stamps)


def test_where_tokens_have_rows_of_their_own_nothing_is_copied() -> None:
    made = rule_set().over(TokenRows(SPECIAL.n_vocab)).choices
    row = np.zeros(SPECIAL.n_vocab, np.float32)
    assert made.logits(row) is row and made.of_tokens(row) is row and made.counts is None
    assert (made.of(7), made.token(7), made.eot) == (7, 7, SPECIAL.eot)


def test_a_rule_that_may_name_any_token_makes_each_a_choice() -> None:
    rows = compact(9, 0)
    row = np.arange(rows.n_rows, dtype=np.float32)
    for penalties in ({"repetition_penalty": 1.1}, {"no_repeat_ngram_size": 2}):
        made = rule_set(**penalties).over(rows).choices
        assert made.counts is None and made.logits(row).tobytes() == rows.of_tokens(row).tobytes()


def test_the_same_rules_over_the_same_model_are_grouped_once() -> None:
    rows = compact(9, 0)
    assert rule_set().over(rows).choices is rule_set(limit=None).over(rows).choices
    assert rule_set().over(rows).choices is not rule_set().over(compact(9, 1)).choices
