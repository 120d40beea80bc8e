"""Every rule against an oracle written from openai-whisper's definitions, and against transformers and whisper."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedge.runtime.decoding import rules
from specedge.runtime.decoding.rules import RuleSet
from specedge.runtime.text.phrases import Tree
from specedge.runtime.text.special import SpecialTokens
from support.fake_engine import special_tokens

SPECIAL = special_tokens(n_timestamps=61)
SPACE = [32]
NON_SPEECH = [33, 40, 41]


def rule_set(*, timestamps: bool = True, limit: int | None = 50, special: SpecialTokens = SPECIAL) -> rules.RuleSet:
    return RuleSet(
        special, space_ids=SPACE, suppressed=NON_SPEECH, timestamps=timestamps, max_initial_timestamp_index=limit
    )


def allowed(row: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.isfinite(row)).tolist())


def flat(special: SpecialTokens = SPECIAL) -> np.ndarray:
    return np.zeros(special.n_vocab, np.float32)


def logsumexp(values: Sequence[float]) -> float:
    peak = max(values, default=-math.inf)
    return peak if peak == -math.inf else peak + math.log(sum(math.exp(v - peak) for v in values))


def oracle(row: np.ndarray, sampled: list[int], *, timestamps: bool, limit: int | None) -> list[float]:
    """The definitions of whisper/decoding.py, token by token, on log-probabilities in double precision."""
    s, logits = SPECIAL, [float(x) for x in row]
    first = s.timestamp_begin

    def forbid(tokens: range | list[int]) -> None:
        for token in tokens:
            logits[token] = -math.inf

    if not sampled:
        forbid([*SPACE, s.eot])
    forbid([*NON_SPEECH, s.transcribe, s.translate, s.sot, s.sot_prev, s.sot_lm, s.no_speech])
    if not timestamps:
        return logits
    forbid([s.no_timestamps])
    last_was = len(sampled) >= 1 and sampled[-1] >= first
    one_before_was = len(sampled) < 2 or sampled[-2] >= first
    if last_was and one_before_was:
        forbid(range(first, s.n_vocab))
    elif last_was:
        forbid(range(0, s.eot))
    seen = [t for t in sampled if t >= first]
    if seen:
        forbid(range(first, seen[-1] if last_was and not one_before_was else seen[-1] + 1))
    if not sampled:
        forbid(range(0, first))
        if limit is not None:
            forbid(range(first + limit + 1, s.n_vocab))
    total = logsumexp(logits)
    log_probs = [value - total for value in logits]
    if logsumexp(log_probs[first:]) > max(log_probs[:first]):
        forbid(range(0, first))
    return logits


tokens = st.one_of(
    st.integers(0, SPECIAL.eot - 1),
    st.integers(SPECIAL.timestamp_begin, SPECIAL.n_vocab - 1),
    st.sampled_from(sorted(SPECIAL.languages.values())),
)


@given(
    seed=st.integers(0, 2**32 - 1),
    sampled=st.lists(tokens, max_size=8),
    timestamps=st.booleans(),
    limit=st.sampled_from([None, 0, 5, 50]),
    shift=st.sampled_from([-30.0, -9.0, -6.0, -3.0, 0.0, 3.0, 30.0]),
)
def test_equal_to_the_oracle(seed: int, sampled: list[int], timestamps: bool, limit: int | None, shift: float) -> None:
    row = np.random.default_rng(seed).standard_normal(SPECIAL.n_vocab).astype(np.float32) * 3
    row[SPECIAL.timestamp_begin :] += np.float32(shift)
    expected = oracle(row, sampled, timestamps=timestamps, limit=limit)
    rule_set(timestamps=timestamps, limit=limit).apply(row, sampled)
    np.testing.assert_array_equal(row, np.array(expected, np.float32))


def test_ids_after_the_timestamps_are_no_timestamps() -> None:
    special = special_tokens(n_timestamps=61, n_extra=3)
    extra = special.n_vocab - 1
    rules.timestamps_in_pairs(row := flat(special), [special.timestamp_begin], special)
    assert extra in allowed(row)
    rule_set(special=special).apply(row := flat(special), [])
    assert extra not in allowed(row), "the first token is a timestamp"
    rules.timestamps_never_decrease(row := flat(special), [extra], special)
    assert special.timestamp_begin in allowed(row)


@pytest.mark.slow
@given(seed=st.integers(0, 2**32 - 1), sampled=st.lists(tokens, max_size=6))
def test_equal_to_transformers(seed: int, sampled: list[int]) -> None:
    torch = pytest.importorskip("torch")
    logits_process = pytest.importorskip("transformers.generation.logits_process")
    config = type("Config", (), {})()
    config.no_timestamps_token_id = SPECIAL.no_timestamps
    config.eos_token_id = config.bos_token_id = SPECIAL.eot
    config.max_initial_timestamp_index = 50
    # transformers takes every id from no_timestamps + 1 on for a timestamp, as this layout has it.
    processor = logits_process.WhisperTimeStampLogitsProcessor(config, begin_index=3)
    row = np.random.default_rng(seed).standard_normal(SPECIAL.n_vocab).astype(np.float32) * 3
    prompt = [SPECIAL.sot, SPECIAL.languages["en"], SPECIAL.transcribe]
    theirs = processor(torch.tensor([prompt + sampled]), torch.from_numpy(row.copy())[None])[0].numpy()
    ours = row.copy()
    ours[SPECIAL.no_timestamps] = -np.inf
    rules.timestamps_in_pairs(ours, sampled, SPECIAL)
    rules.timestamps_never_decrease(ours, sampled, SPECIAL)
    rules.initial_timestamp(ours, sampled, SPECIAL, 50)
    rules.prefer_timestamps(ours, sampled, SPECIAL)
    np.testing.assert_array_equal(ours, theirs)


def ctranslate2s_penalty(row: np.ndarray, sampled: list[int], penalty: float) -> np.ndarray:
    expected = row.copy()
    for token in set(sampled):
        value = row[token]
        expected[token] = value * np.float32(penalty) if value < 0 else value / np.float32(penalty)
    return expected


@given(
    seed=st.integers(0, 2**32 - 1),
    sampled=st.lists(st.integers(0, 20), max_size=12),
    penalty=st.sampled_from([0.5, 1.0, 1.2, 3.0]),
)
def test_repeated_tokens_are_penalised_once(seed: int, sampled: list[int], penalty: float) -> None:
    row = np.random.default_rng(seed).standard_normal(SPECIAL.n_vocab).astype(np.float32)
    expected = ctranslate2s_penalty(row, sampled, penalty)
    rules.penalise_repetition(row, sampled, penalty)
    np.testing.assert_array_equal(row, expected)


@given(sampled=st.lists(st.integers(0, 3), max_size=12), size=st.integers(1, 4))
def test_what_would_repeat_a_run_is_forbidden(sampled: list[int], size: int) -> None:
    runs = {tuple(sampled[i : i + size]) for i in range(len(sampled) - size + 1)}
    expected = {token for token in range(4) if tuple([*sampled, token][-size:]) in runs and len(sampled) + 1 >= size}
    rules.no_repeated_ngram(row := flat(), sampled, size)
    assert set(range(SPECIAL.n_vocab)) - allowed(row) == expected


def test_penalties_are_off_unless_asked_for_and_come_before_whispers_rules() -> None:
    def apply(**more: float) -> np.ndarray:
        chosen = RuleSet(
            SPECIAL,
            space_ids=SPACE,
            suppressed=NON_SPEECH,
            timestamps=True,
            max_initial_timestamp_index=50,
            **more,  # type: ignore[arg-type]
        )
        row = flat()
        row[65], row[66] = 9.0, 8.0
        chosen.apply(row, [SPECIAL.timestamp_begin, 65, 66])
        return row

    assert apply()[65] == 9.0
    assert apply(repetition_penalty=2.0)[65] == 4.5
    assert np.isinf(apply(no_repeat_ngram_size=1)[[65, 66]]).all()
    # With the words made unlikely, all timestamps together are likelier than any text.
    assert min(allowed(apply(repetition_penalty=9.0))) >= SPECIAL.timestamp_begin


@pytest.mark.parametrize("end", [-3.5, 2.0, 0.0])
def test_the_end_grows_likelier_as_in_transformers(end: float) -> None:
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers").generation.logits_process
    theirs = process.ExponentialDecayLengthPenalty((2, 1.5), SPECIAL.eot, input_ids_seq_length=3)
    for n_sampled in range(6):
        row = flat()
        row[SPECIAL.eot] = end
        expected = theirs(torch.zeros((1, 3 + n_sampled), dtype=torch.long), torch.from_numpy(row.copy())[None])[0]
        rules.hasten_end(row, [65] * n_sampled, SPECIAL, (2, 1.5))
        assert (
            row[SPECIAL.eot] == pytest.approx(float(expected[SPECIAL.eot]), rel=1e-6)
            and (row[: SPECIAL.eot] == 0).all()
        )
    row = flat()
    row[SPECIAL.eot] = -np.inf
    rules.hasten_end(row, [65] * 9, SPECIAL, (2, 1.5))
    assert row[SPECIAL.eot] == -np.inf, "what is forbidden stays so"


END = SPECIAL.eot
SENTENCES = Tree([(5, 9, END), (12, END)], lambda word: ())
TIMES = set(range(SPECIAL.timestamp_begin, SPECIAL.timestamp_begin + SPECIAL.n_timestamps))
FIRST = SPECIAL.timestamp_begin


@pytest.mark.parametrize(
    ("sampled", "expected", "is_between"),
    [
        ([], {5, 12, END}, True),
        ([5], {9}, False),
        ([5, 9], {END}, True),
        ([5, 12], {END}, True),  # no sentence begins so
        ([FIRST], {5, 12, END}, True),
        ([FIRST, 5, 9], {END}, True),
        ([FIRST, 5, 9, FIRST + 20], {5, 12, END}, True),
        ([FIRST, 5, 9, FIRST + 20, FIRST + 20, 5], {9}, False),
    ],
)
def test_only_sentences_go_on_and_times_stand_between_them(
    sampled: list[int], expected: set[int], is_between: bool
) -> None:
    row = np.sin(np.arange(SPECIAL.n_vocab, dtype=np.float32)) + np.float32(2)
    before = row.copy()
    left = rules.allow_only(row, sampled, SPECIAL, SENTENCES, timestamps=True)
    assert allowed(row) == expected | (TIMES if is_between else set())
    kept = sorted(allowed(row))
    assert row[kept].tolist() == before[kept].tolist()
    assert left == pytest.approx(logsumexp(before[kept].tolist()) - logsumexp(before.tolist()), abs=1e-5)


@pytest.mark.parametrize(
    ("sampled", "expected"),
    [([], {5, 12, END}), ([5], {9}), ([5, 9], {5, 12, END}), ([12, 5], {9}), ([5, 9, 12], {5, 12, END}), ([9], {END})],
)
def test_without_times_a_sentence_follows_another_at_once(sampled: list[int], expected: set[int]) -> None:
    row = flat()
    rules.allow_only(row, sampled, SPECIAL, SENTENCES, timestamps=False)
    assert allowed(row) == expected


def test_suppressed_tokens_are_those_asked_for_and_the_model_s_for_minus_one() -> None:
    asked = [None, (), (0, 7), (-1,), (0, -1, 7)]
    assert [rules.suppressed_tokens(one, [3]) for one in asked] == [[], [], [0, 7], [3], [0, 7, 3]]


def test_a_sentence_that_other_rules_forbid_ends() -> None:
    row = flat()
    row[9] = -math.inf
    rules.allow_only(row, [5], SPECIAL, SENTENCES, timestamps=False)
    assert allowed(row) == {SPECIAL.eot}


@pytest.mark.parametrize(
    ("sampled", "favoured"), [([], set()), ([7], set()), ([7, 5], {9, 10}), ([5, 9], {3}), ([5, 3], set())]
)
def test_phrases_are_favoured_from_their_second_token_on(sampled: list[int], favoured: set[int]) -> None:
    row = flat()
    rules.favour(row, sampled, Tree([(5, 9), (5, 10, 7), (9, 3)], lambda word: ()), 4.0)
    assert set(np.flatnonzero(row).tolist()) == favoured and set(row[list(favoured)].tolist()) <= {4.0}


def test_an_end_that_is_hastened_beyond_all_numbers_is_certain() -> None:
    row = flat()
    row[SPECIAL.eot] = 2.0
    rules.hasten_end(row, [1] * 400, SPECIAL, (0, 1e10))
    assert row[SPECIAL.eot] == np.float32(1e30)
