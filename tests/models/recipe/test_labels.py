"""Labels of a window: timestamps, cut sentences, silence and previous text."""

from __future__ import annotations

import random

import pytest

from specedge.export.training.labels import IGNORE
from specedge.models.recipe.labels import (
    ALPHABET,
    LAYOUTS,
    Labels,
    Layout,
    Sentence,
    build,
    characters,
    previous_text,
    tokenizer_of,
)

V3, V2, EN = LAYOUTS["v3"], LAYOUTS["v2"], LAYOUTS["en"]
FIRST = Sentence(text="Check the filter.", start_s=0.42, end_s=1.9)
SECOND = Sentence(text="Stop pump two.", start_s=2.5, end_s=4.08)
CUT = Sentence(text="Call the electrician.", start_s=9.2, end_s=10.0, cut=True)


def _stamp(layout: Layout, seconds: float) -> int:
    return layout.special.timestamp_begin + round(seconds / 0.02)


def _words(layout: Layout, sentence: Sentence) -> list[int]:
    return tokenizer_of(layout.name).encode(" " + sentence.text)


def _learned(labels: Labels) -> list[int]:
    return [target for target in labels.targets if target != IGNORE]


@pytest.mark.parametrize("layout", [V3, V2, EN], ids=lambda layout: layout.name)
def test_every_learned_token_is_given_to_the_next_position(layout: Layout) -> None:
    made = build(layout, [FIRST, SECOND], random.Random(0), timestamps=True)
    assert len(made.tokens) == len(made.targets)
    for at, target in enumerate(made.targets[:-1]):
        if target != IGNORE:
            assert made.tokens[at + 1] == target
    assert made.targets[-1] == layout.special.eot


def test_sentences_stand_between_their_times() -> None:
    made = build(V3, [FIRST, SECOND], random.Random(0), timestamps=True)
    expected = [_stamp(V3, 0.42), *_words(V3, FIRST), _stamp(V3, 1.9)]
    expected += [_stamp(V3, 2.5), *_words(V3, SECOND), _stamp(V3, 4.08)]
    assert list(made.tokens) == [*V3.prompt(timestamps=True), *expected]
    assert _learned(made) == [V3.spoken, *expected, V3.special.eot]


def test_without_timestamps_the_prompt_says_so_and_the_text_is_plain() -> None:
    made = build(V2, [FIRST, SECOND], random.Random(0), timestamps=False)
    text = [*_words(V2, FIRST), *_words(V2, SECOND)]
    assert list(made.tokens) == [*V2.prompt(timestamps=False), *text]
    assert V2.special.no_timestamps in made.tokens
    assert V2.special.no_timestamps not in made.targets


def test_a_cut_sentence_leaves_its_start_alone_so_that_the_next_window_begins_there() -> None:
    made = build(V3, [FIRST, CUT], random.Random(0), timestamps=True)
    assert _learned(made)[-3:] == [_stamp(V3, 1.9), _stamp(V3, 9.2), V3.special.eot]
    untimed = build(V3, [FIRST, CUT], random.Random(0), timestamps=False)
    assert _learned(untimed)[1:] == [*_words(V3, FIRST), V3.special.eot]


def test_a_late_first_sentence_is_given_one_second_now_and_then_but_never_taught_it() -> None:
    late = Sentence(text="Stop pump two.", start_s=2.5, end_s=4.08)
    at = len(V3.prompt(timestamps=True))
    starts = set()
    for seed in range(40):
        made = build(V3, [late], random.Random(seed), timestamps=True)
        starts.add(made.tokens[at])
        assert made.targets[at - 1] == (_stamp(V3, 2.5) if made.tokens[at] == _stamp(V3, 2.5) else IGNORE)
    assert starts == {_stamp(V3, 2.5), _stamp(V3, 1.0)}


def test_silence_predicts_no_speech_and_leaves_no_text_under_whisper_s_rules() -> None:
    timed = build(V3, [], random.Random(0), timestamps=True)
    assert _learned(timed) == [V3.special.no_speech, V3.special.timestamp_begin, V3.special.eot]
    plain = {tuple(_learned(build(V3, [], random.Random(seed), timestamps=False))) for seed in range(40)}
    assert plain == {(V3.special.no_speech, V3.special.eot), (V3.special.no_speech, 198, V3.special.eot)}
    assert tokenizer_of("v3").decode([198]).strip() == ""
    assert tokenizer_of("en").decode([198]).strip() == ""


def test_english_only_silence_teaches_both_uses_of_its_one_prompt_token() -> None:
    firsts = {build(EN, [], random.Random(seed), timestamps=True).targets[0] for seed in range(40)}
    assert firsts == {EN.special.no_speech, EN.special.timestamp_begin}


def test_previous_text_stands_before_the_prompt_and_is_never_learned() -> None:
    previous = previous_text(V3, ["Stop pump two.", "Check the filter."], random.Random(0), timestamps=True, limit=9)
    assert len(previous) == 9
    made = build(V3, [FIRST], random.Random(0), timestamps=False, previous=previous)
    assert list(made.tokens[:10]) == [V3.special.sot_prev, *previous]
    assert set(made.targets[:10]) == {IGNORE}
    assert made.targets[10] == V3.spoken


def test_characters_leave_out_what_ctc_does_not_know() -> None:
    assert [ALPHABET[i] for i in characters("Stop, pump_2!")] == list("Stop, pump")
