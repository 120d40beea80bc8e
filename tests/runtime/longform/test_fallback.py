"""Which texts are decoded again, which windows are silence, and which tokens are never written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specedge.runtime.decoding.decode import DecodeOptions, Speculation, WindowResult, decode_window
from specedge.runtime.decoding.drafter import DraftTree
from specedge.runtime.decoding.passes import Decoding, alone
from specedge.runtime.decoding.rules import RuleSet, non_speech_tokens
from specedge.runtime.longform.transcribe import (
    Attempt,
    compression_ratio,
    decode_with_fallback,
    is_no_sentence,
    is_silence,
    loops,
    vote,
)
from specedge.runtime.options import TranscribeOptions
from specedge.runtime.text.phrases import sentences
from specedge.runtime.text.tokenizer import Tokenizer
from support.drafting import Scripted, plain_fields
from support.fake_engine import HashEngine, special_tokens, tokenizer, words
from support.vocab import table, toy_special

SPECIAL = special_tokens()
NO_ENGINE: Any = None  # nothing here wants a pass
GOOD = WindowResult(
    tokens=tuple(words(" the", " pump")),
    token_logprobs=(),
    sum_logprob=0.0,
    avg_logprob=-0.2,
    no_speech_prob=0.01,
    temperature=0.0,
    finished=True,
    speculation=Speculation(tokens=3, passes=3),
)
UNSURE = replace(GOOD, avg_logprob=-1.5)
SILENT = replace(UNSURE, no_speech_prob=0.9)
LOOP = replace(GOOD, tokens=tuple(words(" the") * 60))
LOOP_RATIO = compression_ratio(("the " * 60).strip())


@pytest.mark.parametrize(
    ("answers", "options", "expected"),
    [
        ([GOOD], {}, [0.0]),
        ([UNSURE, LOOP, GOOD, GOOD], {}, [0.0, 0.2, 0.4]),
        ([SILENT], {}, [0.0]),
        ([SILENT, GOOD], {"no_speech_threshold": None}, [0.0, 0.2]),
        ([replace(LOOP, avg_logprob=-1.5, no_speech_prob=0.9)], {}, [0.0]),
        ([replace(LOOP, no_speech_prob=0.9), GOOD], {}, [0.0, 0.2]),
        ([UNSURE] * 5 + [GOOD], {}, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        ([UNSURE], {"log_prob_threshold": None}, [0.0]),
        ([LOOP], {"compression_ratio_threshold": None}, [0.0]),
        ([UNSURE], {"temperature": (0.6,)}, [0.6]),
        ([replace(GOOD, avg_logprob=-1.0)], {}, [0.0]),  # on the threshold, as in openai-whisper
        ([LOOP], {"compression_ratio_threshold": LOOP_RATIO}, [0.0]),
        ([replace(UNSURE, no_speech_prob=0.6), GOOD], {}, [0.0, 0.2]),
    ],
)
def test_temperatures_rise_until_a_text_passes(
    answers: list[WindowResult], options: dict[str, Any], expected: list[float]
) -> None:
    asked: list[float] = []
    n_thrown_away = 0

    def decode(temperature: float, stops: bool) -> Decoding[WindowResult]:
        asked.append(temperature)
        return replace(answers[len(asked) - 1], temperature=temperature)
        yield ()  # it wants no passes

    def thrown_away() -> None:
        nonlocal n_thrown_away
        n_thrown_away += 1

    asking = decode_with_fallback(decode, TranscribeOptions(**options), tokenizer(SPECIAL), thrown_away=thrown_away)
    attempt = alone(NO_ENGINE, asking)
    assert asked == expected and n_thrown_away == len(expected) - 1
    assert attempt.result.temperature == expected[-1]


@pytest.mark.parametrize(
    ("tokens", "avg_logprobs", "kept"),
    [
        ([(" the", " pump")] * 3, [-1.5, -1.2, -3.0], 1),  # the likeliest
        ([(" the", " pump"), (" the",) * 60, (" the",) * 60], [-1.5, -0.1, -0.2], 0),  # of those that repeat nothing
        ([(" the",) * 90, (" the",) * 60, (" the",) * 70], [-0.1, -0.9, -0.2], 1),  # or that repeat least
    ],
)
def test_the_best_counts_when_all_fail(tokens: list[tuple[str, ...]], avg_logprobs: list[float], kept: int) -> None:
    answers = [replace(GOOD, tokens=tuple(words(*t)), avg_logprob=p) for t, p in zip(tokens, avg_logprobs, strict=True)]

    def decode(temperature: float, stops: bool) -> Decoding[WindowResult]:
        return replace(answers[int(temperature)], temperature=temperature)
        yield ()

    options = TranscribeOptions(temperature=(0.0, 1.0, 2.0))
    attempt = alone(NO_ENGINE, decode_with_fallback(decode, options, tokenizer(SPECIAL), thrown_away=lambda: None))
    assert attempt.result == replace(answers[kept], temperature=float(kept))
    assert (attempt.last_temperature, attempt.is_last) == (2.0, False)


def test_a_loop_is_told_before_it_reaches_the_limit() -> None:
    def is_told(*said: str, **more: Any) -> bool:
        return loops(words(*said), TranscribeOptions(**more), tokenizer(SPECIAL))

    lively = (" the", " pump", " is", " on", " zero", " one", " is", " pump", " on", " the")
    assert is_told(*[" the"] * 24) and is_told(*[" the", " pump", " is"] * 8) and not is_told(*[" the"] * 23)
    assert not is_told(*lively * 2) and not is_told(*[" the"] * 24, " pump"), "or it has ended"
    longest = (*lively, " zero", " the", " one", " on", " is", " pump")  # 16 tokens
    assert is_told(*longest * 4) and not is_told(*longest * 3) and not is_told(*(*longest, " is") * 4)
    assert not is_told(*[" the"] * 24, compression_ratio_threshold=None)
    assert not is_told(*[" the"] * 24, compression_ratio_threshold=30.0), "it would pass"


def test_a_loop_that_counts_is_decoded_to_its_end() -> None:
    """One that a later temperature makes good never is."""
    asked: list[tuple[float, bool]] = []

    def decode(temperature: float, stops: bool) -> Decoding[WindowResult]:
        asked.append((temperature, stops))
        said = LOOP if temperature < later else GOOD
        return replace(said, tokens=said.tokens[: 24 if stops else None], hopeless=stops and said is LOOP)
        yield ()

    def fall_back(options: TranscribeOptions, *, counts: bool = True) -> Attempt:
        asked.clear()
        told = tokenizer(SPECIAL)
        return alone(NO_ENGINE, decode_with_fallback(decode, options, told, thrown_away=lambda: None, counts=counts))

    for later, expected in ((0.5, [(0.0, True), (0.5, True)]), (1.0, [(0.0, True), (0.5, True), (0.0, False)])):
        attempt = fall_back(TranscribeOptions(temperature=(0.0, 0.5)))
        assert asked == expected and attempt.result.tokens == (GOOD if later == 0.5 else LOOP).tokens
    fall_back(TranscribeOptions(temperature=(0.0,)))
    assert asked == [(0.0, False)], "a text that counts, whatever it is, is decoded once"
    assert fall_back(TranscribeOptions(temperature=(0.0,)), counts=False).result.hopeless
    assert asked == [(0.0, True)], "behind it the whole window is still to come"


def test_a_hopeless_text_ends_at_the_same_token_with_any_draft() -> None:
    rules = RuleSet(SPECIAL, space_ids=[32], suppressed=[], timestamps=False, max_initial_timestamp_index=None)
    prompt = [SPECIAL.sot, SPECIAL.languages["en"], SPECIAL.transcribe]

    def run(n_told: int, **more: Any) -> WindowResult:
        options = DecodeOptions(rules=rules, n_text_ctx=48, is_hopeless=lambda tokens: len(tokens) >= n_told)
        return decode_window(HashEngine(SPECIAL), b"x", prompt, options, **more)

    whole = run(99).tokens
    for n in range(1, 8):
        drafter = Scripted(lambda context, budget: DraftTree(whole[len(context.sampled) :][:3]))
        assert plain_fields(run(n, drafter=drafter)) == plain_fields(run(n)) and run(n).tokens == whole[:n]
        assert run(n).hopeless and not run(n).finished


def test_silence_is_unlikely_text_where_nobody_speaks() -> None:
    options = TranscribeOptions()
    assert is_silence(SILENT, options)
    assert not is_silence(replace(SILENT, avg_logprob=-0.5), options)
    assert not is_silence(UNSURE, options)
    assert is_silence(replace(GOOD, no_speech_prob=0.9), TranscribeOptions(log_prob_threshold=None))
    assert not is_silence(SILENT, TranscribeOptions(no_speech_threshold=None))
    assert not is_silence(replace(SILENT, no_speech_prob=0.6), options)
    assert is_silence(replace(SILENT, avg_logprob=-1.0), options)


@pytest.mark.parametrize(
    ("result", "options", "expected"),
    [
        (GOOD, {}, False),
        (replace(GOOD, avg_logprob=-1.9), {}, False),
        (replace(GOOD, avg_logprob=-2.1), {}, True),
        (replace(GOOD, avg_logprob=-2.1), {"log_prob_threshold": -1.1}, False),
        (replace(GOOD, avg_logprob=-9.0), {"log_prob_threshold": None}, False),
        (LOOP, {}, True),
        (LOOP, {"compression_ratio_threshold": None}, False),
        (replace(LOOP, avg_logprob=-9.0), {"only": None}, False),
    ],
)
def test_what_is_none_of_the_sentences(result: WindowResult, options: dict[str, Any], expected: bool) -> None:
    ratio = LOOP_RATIO if result.tokens == LOOP.tokens else 1.0
    attempt = Attempt(result=result, compression_ratio=ratio, last_temperature=0.0, is_last=True)
    assert is_no_sentence(attempt, TranscribeOptions(**{"only": sentences(["stop"]), **options})) is expected


def test_a_loop_of_sentences_is_not_decoded_to_its_end() -> None:
    asked: list[tuple[float, bool]] = []

    def decode(temperature: float, stops: bool) -> Decoding[WindowResult]:
        asked.append((temperature, stops))
        return replace(LOOP, hopeless=stops)
        yield ()

    options = TranscribeOptions(temperature=(0.0,), only=sentences(["stop"]))
    alone(NO_ENGINE, decode_with_fallback(decode, options, tokenizer(SPECIAL), thrown_away=lambda: None))
    assert asked == [(0.0, True)]


def test_languages_are_voted_for_until_one_is_sure() -> None:
    windows = [{"en": 0.4, "de": 0.3}, {"de": 0.5, "en": 0.3}, {"de": 0.6, "en": 0.2}, {"fr": 0.9, "en": 0.1}]
    assert vote(windows, None)[0] == "de" and vote(windows, 0.5) == ("de", windows[2])
    assert vote(windows, 0.8) == ("fr", windows[3]) and vote(windows[:1], 0.5) == ("en", windows[0])


@pytest.mark.filterwarnings("ignore")  # openai-whisper leaves its file open
@pytest.mark.parametrize("name", ["multilingual", "gpt2"])
def test_non_speech_tokens_are_openai_whispers(name: str) -> None:
    get_tokenizer = pytest.importorskip("whisper.tokenizer", reason="openai-whisper is not installed").get_tokenizer
    ranks = table(name)
    ours = Tokenizer(ranks, toy_special(len(ranks)))
    assert tuple(non_speech_tokens(ours)) == get_tokenizer(name == "multilingual").non_speech_tokens
