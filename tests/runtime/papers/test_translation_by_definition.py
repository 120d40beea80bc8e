"""What a draft across vocabularies becomes, token by token, against its definition, for every short draft.

OmniDraft (arXiv 2507.02659), section 3: a token that both vocabularies have is itself; the longest run that spelt one
of the target's before becomes that one, with q'(t) = q(d1) q(d2), and its first token alone has q(d1) - q'(t). Ours: a
token waits until no run can take it any more, and what is not known of q' is told by classes of first tokens.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pytest

from specedge.maps.word_cache import WordCache
from specedge.runtime.decoding.accept import Drawn
from specedge.runtime.drafters.draft.translate import Reader, Remapped
from specedge.runtime.papers.across_words import AcrossWords
from specedge.runtime.text.special import SpecialTokens
from specedge.runtime.text.speech_tokens import SpeechTokens
from specedge.runtime.text.tokenizer import Tokenizer
from support.vocab import table, toy_special

BYTES = [b"a", b"b", b"c", *(bytes([byte]) for byte in range(256) if byte not in b"abc")]
A, B, C = range(3)
D = 256  # which the target lacks
AB, ABC, AAB = 256, 257, 258
Run = tuple[int, ...]
Q = dict[int, float]


@functools.cache
def toys() -> tuple[Tokenizer, Tokenizer]:
    """A draft of bytes and "dd", and a target of bytes and other runs of them."""
    return (
        Tokenizer([*BYTES, b"dd"], toy_special(257, languages=("en",))),
        Tokenizer([*BYTES, b"ab", b"abc", b"aab"], toy_special(259)),
    )


TIME, END = toys()[0].special.timestamp_begin + 3, toys()[0].special.eot
TIME_THERE = toys()[1].special.timestamp_begin + 3


@functools.cache
def q_at(said: Run) -> Q:
    """What the toy draft draws from behind `said`."""
    ids = (A, B, C, D, TIME, END)
    return dict(zip(ids, np.random.default_rng([5, *said]).dirichlet([2.0] * len(ids)).tolist(), strict=True))


class Token(NamedTuple):
    token: int
    confidence: float
    origin: int
    drawn: Q | None = None


def became(draft: Run, runs: Mapping[Run, int], *, is_over: bool) -> tuple[list[Token], bool]:
    """The tokens of a draft, of which its i-th token has the probability 1 / (i + 2), and whether it is over."""
    found: list[Token] = []
    at = n_seen = 0  # tokens of the draft that were there when it was decided what one of them becomes
    known: list[Q | None] = [q_at(draft[:n]) for n in range(len(draft))]
    while at < len(draft):
        if draft[at] >= END:
            if draft[at] == END:
                return found, True
            found.append(Token(TIME_THERE, 1 / (at + 2), at))
            at += 1
            continue
        n_text = next((n for n, token in enumerate(draft[at:]) if token >= END), len(draft) - at)
        mine = {run: token for run, token in runs.items() if run[0] == draft[at]}
        is_text_over = is_over or at + n_text < len(draft)
        longest = max(map(len, mine), default=1)
        if n_text < longest and not is_text_over:
            break
        n_seen = max(n_seen, at + min(n_text, longest))
        fitting = [run for run in mine if draft[at : at + len(run)] == run]
        run = max(fitting, key=len, default=draft[at : at + 1])
        token = mine.get(run, -1 if draft[at] == D else draft[at])
        if token < 0:
            return found, True
        product = math.prod(1 / (n + 2) for n in range(at, at + len(run)))
        pending = known[at:n_seen]
        found.append(Token(token, product, at, q_of(draft[at], token, mine, runs, pending)))
        at += len(run)
        if len(run) == 1 and mine:  # the next ones were drawn, but not from all that they might have been
            rest: Q | None = None
            if len(pending) == 2 and pending[1] is not None and all(len(other) == 2 for other in mine):
                rest = {id_: q for id_, q in pending[1].items() if id_ < END and (draft[at - 1], id_) not in mine}
            known[at:n_seen] = [rest] * (n_seen - at)
    return found, False


def q_of(first: int, token: int, mine: Mapping[Run, int], runs: Mapping[Run, int], pending: list[Q | None]) -> Q | None:
    """q' of the tokens that one first token may become, given that this has a token of its own."""
    q = pending[0]
    if q is None or first == D:
        return None
    whole = sum(p for id_, p in q.items() if id_ in (A, B, C))
    known = {first: 0.0, **dict.fromkeys(mine.values(), 0.0), token: q[first] / whole}
    second = pending[1] if len(pending) > 1 else None
    if len(mine) == 1 and second is not None:
        ((run, merged),) = mine.items()
        if len(run) == 2:
            share = second.get(run[1], 0.0) / sum(p for id_, p in second.items() if id_ < END)
            parts = {first: q[first] / whole * (1 - share), merged: q[first] / whole * share}
            known = parts if parts[token] else known
    for id_ in {A, B, C} & q.keys() - {first}:
        known |= dict.fromkeys((there for run, there in runs.items() if run[0] == id_), 0.0) | {id_: q[id_] / whole}
    return known


def tokens_of(reader: Reader) -> Iterator[Token]:
    for token, confidence, drawn, origin in zip(
        reader.tokens, reader.confidences, reader.drawn, reader.origins, strict=True
    ):
        q = None if drawn is None else dict(zip(drawn[0].tolist(), drawn[1].tolist(), strict=True))
        yield Token(token, confidence, origin, q)


def drawn_at(said: Run) -> Drawn:
    q = q_at(said)
    return np.array([*q], np.int64), np.array([*q.values()])


def same(found: Reader, expected: tuple[list[Token], bool]) -> None:
    tokens, is_ended = expected
    assert found.is_ended == is_ended and len(found.tokens) == len(tokens) and not found.differs
    for one, wanted in zip(tokens_of(found), tokens, strict=True):
        assert one[:3] == pytest.approx(wanted[:3])
        assert (one.drawn is None) == (wanted.drawn is None)
        assert one.drawn is None or one.drawn == pytest.approx(wanted.drawn)


@pytest.mark.parametrize(
    "runs",
    [{}, {(A, B): AB}, {(A, B): AB, (A, B, C): ABC}, {(A, A, B): AAB}, {(A, B): AB, (B, C): ABC, (C, C): AAB}],
    ids=["none", "ab", "ab and abc", "aab", "ab, bc and cc"],
)
def test_every_short_draft_becomes_what_its_runs_were_before(runs: dict[Run, int]) -> None:
    cache = WordCache()
    for run, token in runs.items():
        cache.put(run, (token,))
    between = AcrossWords(*toys(), mode="tokens", cache=cache)
    for draft in itertools.product((A, B, C, D, TIME, END), repeat=4):
        reader = between.reader()
        for n, token in enumerate(draft):
            reader.push(token, 1 / (n + 2), drawn_at(draft[:n]))
            assert reader.n_read == n + 1
            same(reader, became(draft[: n + 1], runs, is_over=False))
            if reader.is_ended:
                break
        else:
            reader.finish()
            same(reader, became(draft, runs, is_over=True))


def test_every_short_draft_directly_is_the_tokens_that_both_have() -> None:
    """And nothing of it is ever held back."""
    between = AcrossWords(*toys(), mode="direct")
    between.end([AB])
    for draft in itertools.product((A, C, D, TIME, END), repeat=3):
        reader = between.reader()
        for n, token in enumerate(draft):
            reader.push(token, 1 / (n + 2), drawn_at(draft[:n]))
            same(reader, became(draft[: n + 1], {}, is_over=True))
            if reader.is_ended:
                break


def test_classes_are_numbered_by_the_first_token_that_was_drawn() -> None:
    cache = WordCache()
    cache.put((A, B), (AB,))
    reader = AcrossWords(*toys(), mode="tokens", cache=cache).reader()
    reader.push(C, 0.5, drawn_at(()))
    assert reader.drawn[0] is not None
    ids, _, classes = reader.drawn[0]
    of_class = {number: {int(id_) for id_, of in zip(ids, classes, strict=True) if of == number} for number in range(3)}
    assert of_class == {0: {A, AB}, 1: {B}, 2: {C}}


@functools.cache
def pair() -> tuple[Tokenizer, Tokenizer]:
    return (
        Tokenizer(table("gpt2")[:3000], toy_special(3000, languages=())),
        Tokenizer(table("multilingual")[:2000], toy_special(2000)),
    )


def spoken(seed: int) -> list[int]:
    """Text of the target in any encoding, which may break off within a character, and special tokens in between."""
    rng, (_, target) = random.Random(seed), pair()
    found: list[int] = []
    for _ in range(4):
        found += target.encode(rng.choice((" the pump", "naïve ", "温度", "it's 40°C", "")))
        found += [rng.randrange(target.special.eot) for _ in range(rng.randrange(3))]
        special = rng.choice((target.special.timestamp_begin + 2, target.special.sot_prev, target.special.transcribe))
        found += [special] * rng.randrange(3)
    return found


def ends(pieces: list[bytes]) -> list[tuple[int, int]]:
    return list(itertools.pairwise([0, *itertools.accumulate(map(len, pieces))]))


def test_the_targets_text_in_the_drafts_ids_is_the_same_bytes_and_names_tokens_that_are_alike() -> None:
    """And where several tokens are several others, the nearest places around them where both end."""
    draft, target = pair()
    between, n_alike = AcrossWords(draft, target), 0
    there = {target.special.timestamp_begin + 2: draft.special.timestamp_begin + 2,
             target.special.sot_prev: draft.special.sot_prev,
             target.special.transcribe: draft.special.transcribe}  # fmt: skip
    for seed in range(60):
        said = spoken(seed)
        made, places = between.spelt(said)
        assert made == between.text(said)
        expected: list[int] = []
        parts: list[range] = []
        at = 0
        for is_text, group in itertools.groupby(enumerate(said), lambda one: one[1] < target.special.eot):
            run = list(group)
            if not is_text:
                assert made[at : at + len(run)] == [there[token] for _, token in run]
                expected += [place for place, _ in run]
                parts += [range(place, place + 1) for place, _ in run]
                at += len(run)
                continue
            data = target.decode_bytes(token for _, token in run)
            n = next(n for n in range(len(made) + 1) if draft.decode_bytes(made[at : at + n]) == data)
            theirs = ends([target.ranks[token] for _, token in run])
            mine = ends([draft.ranks[id_] for id_ in made[at : at + n]])
            place_of = {span: place for span, (place, _) in zip(theirs, run, strict=True)}
            begins = {span[0]: place for span, place in place_of.items()}
            stops = {span[1]: place + 1 for span, place in place_of.items()}
            expected += [place_of.get(span, -1) for span in mine]
            for begin, stop in mine:
                first = max(place for place in begins if place <= begin and place in {one for one, _ in mine})
                last = min(place for place in stops if place >= stop and place in {one for _, one in mine})
                parts.append(range(begins[first], stops[last]))
            at += n
        assert at == len(made) and places == expected and between.parts(said) == parts
        n_alike += sum(place >= 0 for place in places)
    assert n_alike > 200


def test_the_drafts_words_are_cut_where_the_targets_words_end() -> None:
    """At every such place that is between two of its tokens, and nowhere else; a character is never cut."""
    draft, target = pair()
    between = AcrossWords(draft, target)
    texts = {" the pump": (" the", " pump"), "it's 温度!": ("it", "'s", " 温度", "!"), "a  b\n": ("a", " ", " b", "\n")}
    for text, pieces in texts.items():
        found = between.words(draft.encode(text))
        assert [draft.decode_bytes(word).decode() for word in found] == [*pieces]
    broken = [*draft.encode(" the"), *(token for token in draft.encode("温")[:-1])]
    assert between.words(broken) == [tuple(broken)], "bytes that are no text go with the word before them"
    for byte in (0x80, 0xBF, 0xC3, 0xFF):
        lone = draft.ranks.index(bytes([byte]))
        assert between.words([*draft.encode(" the"), lone]) == [(*draft.encode(" the"), lone)]
    assert between.words([]) == []


def test_counterparts_are_tokens_of_the_same_bytes_and_specials_of_the_same_meaning() -> None:
    draft, target = pair()
    between = AcrossWords(draft, target)
    id_of = {data: id_ for id_, data in enumerate(draft.ranks[:3000]) if data}
    asked = np.arange(2000)
    expected = [id_of.get(target.ranks[id_], -1) for id_ in range(2000)]
    assert between.counterparts(asked).tolist() == expected and between.counterparts(asked).dtype == np.int64
    special = np.array([target.special.eot, target.special.timestamp_begin + 7, target.special.sot_lm])
    there = [draft.special.eot, draft.special.timestamp_begin + 7, draft.special.sot_lm]
    assert between.counterparts(special).tolist() == there
    assert between.counterparts(np.array([target.special.transcribe])).tolist() == [draft.special.transcribe]
    assert between.text([target.special.eot]) == [draft.special.eot]


def test_runs_are_learned_of_what_the_draft_has_no_token_for() -> None:
    """The target's "ab" and "aab"; not "a", which both have, nor a special token."""
    between = AcrossWords(*toys(), mode="tokens")
    between.end([A, AB, AAB, TIME_THERE, toys()[1].special.eot])
    assert sorted(between.cache.items()) == [((A, A, B), (AAB,)), ((A, B), (AB,))]
    assert dict(between.runs(A)) == {(A, B): AB, (A, A, B): AAB} and not between.runs(B)
    words = AcrossWords(*toys(), mode="words")
    words.end([AB])
    assert not words.cache.items(), "words are remembered as they are drafted"


def test_a_word_that_the_target_would_spell_with_nothing_is_none() -> None:
    draft, target = pair()
    between = AcrossWords(draft, target)
    assert between.word(tuple(draft.encode(" pump"))) == tuple(target.encode(" pump"))
    assert between.word(tuple(draft.encode(" pump")), drops_space=True) == tuple(target.encode("pump"))
    assert between.word(tuple(draft.encode(" ")), drops_space=True) is None
    assert between.cache.items() == [(tuple(draft.encode(" pump")), tuple(target.encode(" pump")))]


WHISPER = toy_special(300)
ENGLISH = toy_special(300, languages=())
SPEECH = SpeechTokens(n_vocab=420, eot=400, before=(401,), behind=(402,), languages={"en": (405,), "ru": (406,)})


def speech() -> Tokenizer:
    return Tokenizer(table("multilingual")[:400], SPEECH)


def test_a_space_is_dropped_where_a_text_begins_and_nowhere_else() -> None:
    draft, target = pair()[0], speech()
    for told, expected in (({}, " pump"), ({"is_start": False}, " pump"), ({"is_start": True}, "pump")):
        reader = AcrossWords(draft, target).reader(**told)
        for token in draft.encode(" pump it"):
            reader.push(token, 0.5)
        assert reader.tokens == target.encode(expected)


def test_a_whisper_beside_a_speech_llm_is_asked_in_the_same_language_without_times() -> None:
    for special, asked, expected in (
        (WHISPER, "en", WHISPER.prompt("en", "transcribe", timestamps=False)),
        (WHISPER, None, WHISPER.prompt("en", "transcribe", timestamps=False)),
        (WHISPER, "ru", None),
        (ENGLISH, "en", ENGLISH.prompt(None, "transcribe", timestamps=False)),
        (ENGLISH, "ru", None),
    ):
        between = AcrossWords(Tokenizer(table("multilingual")[:300], special), speech())
        assert between.prompt(SPEECH.prompt(3, asked)) == expected


def test_a_speech_llm_is_no_draft_of_a_whisper() -> None:
    target = Tokenizer(table("multilingual")[:300], WHISPER)
    assert AcrossWords(speech(), target).prompt(WHISPER.prompt("en", "transcribe")) is None


def test_a_draft_is_asked_for_the_same_task() -> None:
    more = toy_special(300, languages=("en", "de", "fr"))
    between = Remapped(more, WHISPER)
    for language, task, times in itertools.product(("en", "de"), ("transcribe", "translate"), (False, True)):
        asked = WHISPER.prompt(language, task, timestamps=times)
        assert between.prompt([WHISPER.sot_prev, 5, 6, *asked]) == [
            more.sot_prev, 5, 6, *more.prompt(language, task, timestamps=times)
        ]  # fmt: skip
    only_german = Remapped(toy_special(300, languages=("de",)), ENGLISH)
    assert only_german.prompt(ENGLISH.prompt(None, "transcribe")) is None, "a draft without English"


def test_ids_of_another_layout_come_with_their_places_and_without_what_has_none() -> None:
    more = toy_special(300, languages=("en", "de", "fr"))
    between = Remapped(WHISPER, more, empty=[7])
    said = [5, more.languages["fr"], more.timestamp_begin + 4, 299]
    here = [5, WHISPER.timestamp_begin + 4, 299]
    assert between.text(said) == here and between.spelt(said) == (here, [0, 2, 3])
    assert between.parts(said) == [range(0, 1), range(2, 3), range(3, 4)]
    assert between.counterparts(np.array(said)).tolist() == [5, -1, *here[1:]]
    reader = between.reader()
    for token in here:
        reader.push(token, 0.25)
    assert (reader.tokens, reader.origins, reader.n_read) == ([5, more.timestamp_begin + 4, 299], [0, 1, 2], 3)
    assert reader.confidences == [0.25] * 3 and reader.drawn == [None] * 3
    reader.push(7, 0.5)
    assert reader.is_ended and reader.n_read == 3 and not reader.differs, "an id without text"


def test_only_those_that_cut_text_alike_are_mapped_id_by_id() -> None:
    ranks = [*table("multilingual")[:400], b""]
    others = [*table("multilingual")[:399], table("multilingual")[400], b""]
    whisper, speech_llm = toy_special(401), SpeechTokens(n_vocab=410, eot=401, before=(402,), behind=())
    between = Remapped.between(Tokenizer(ranks, whisper), Tokenizer(ranks, toy_special(401, languages=())))
    assert between is not None
    reader = between.reader()
    for token, is_ended in ((0, False), (399, False), (400, True)):
        reader.push(token, 0.5, (np.array([0, 1, 400]), np.array([0.5, 0.25, 0.25])))
        assert reader.is_ended == is_ended, "an id without text ends a draft"
    assert reader.tokens == [0, 399] and reader.drawn[0] is not None
    assert [array.tolist() for array in reader.drawn[0]] == [[0, 1], pytest.approx([2 / 3, 1 / 3])]
    for draft, target in (
        (Tokenizer(others, whisper), Tokenizer(ranks, whisper)),
        (Tokenizer(ranks, speech_llm), Tokenizer(ranks, whisper)),
        (Tokenizer(ranks, whisper), Tokenizer(ranks, speech_llm)),
        (Tokenizer(ranks[:400], toy_special(400)), Tokenizer(ranks, whisper)),
    ):
        assert Remapped.between(draft, target) is None


def test_a_word_is_held_apart_only_where_it_may_go_on() -> None:
    """That is for words, of a target whose texts begin without a space, and behind text."""
    draft, whisper = pair()
    said = whisper.encode(" the pum")
    assert AcrossWords(draft, whisper).before_word(said) == (draft.encode(" the pum"), ())
    target = speech()
    said = target.encode("the pum")
    whole = draft.encode(" the pum")
    for mode, ids in (("tokens", said), ("direct", said), ("words", [*said, target.special.eot]), ("words", [])):
        before, word = AcrossWords(draft, target, mode=mode).before_word(ids)
        assert word == () and before[: len(whole)] == (whole if ids else [])
    before, word = AcrossWords(draft, target).before_word(said)
    assert before == draft.encode(" the") and target.decode_bytes(word) == b" pum"


def test_special_tokens_of_different_times_are_the_nearest_step() -> None:
    """Steps of 0.02 s by steps of 0.05 s: 1 is 0.4 of one, 2 is 0.8, 5 is 2."""
    coarse = SpecialTokens(**{**WHISPER.to_json(), "n_vocab": 400, "time_precision_s": 0.05, "n_timestamps": 3})
    between = Remapped(coarse, WHISPER)
    first = WHISPER.timestamp_begin
    assert between.text([first + step for step in (0, 1, 2, 5, 7, 50)]) == [
        coarse.timestamp_begin + step for step in (0, 0, 1, 2)
    ]
