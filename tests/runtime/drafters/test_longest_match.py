"""Drafts that follow the longest match in a map's corpus: over the ends of sentences, believed while it is right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from specedge.maps import token_map
from specedge.maps.build import BuildOptions, build
from specedge.maps.tmap_format import CORPUS_DEPTH
from specedge.maps.token_map import TokenMap
from specedge.runtime.decoding.drafter import DraftContext, Guard, Verdict, WindowContext
from specedge.runtime.device import CostTable
from specedge.runtime.drafters.tokenmap import TokenMapDrafter, TokenMapOptions, text_so_far
from support.fake_engine import special_tokens
from support.token_maps import sealed, sections_of

SPECIAL = special_tokens()
PLAIN = (SPECIAL.sot, SPECIAL.languages["en"], SPECIAL.transcribe or 0, SPECIAL.no_timestamps)
STOP = ord(".")
FREE = CostTable((1, 64), (1.0, 1.0))
# Letters of three sentences: the second begins as many do, and only the first says how it goes on.
LETTERS = [[100 + n, 120 + n, 140 + n, STOP, 50, 51, 60 + n, STOP, 50, 51, 80 + n, STOP] for n in range(8)]
CORPUS = BuildOptions(n_orders=2, corpus_bytes=4000)


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenMap]:
    path = tmp_path_factory.mktemp("maps") / "letters.tmap"
    build(LETTERS * 2, path, n_text=SPECIAL.eot, fingerprint=bytes(32), options=CORPUS)
    with TokenMap.open(path) as opened:
        yield opened


def _drafter(map_: TokenMap, options: TokenMapOptions | None = None, costs: CostTable = FREE) -> TokenMapDrafter:
    return TokenMapDrafter([map_], costs, ends=lambda token: token == STOP, options=options)


def _window(prompt: tuple[int, ...] = PLAIN, history: tuple[int, ...] = ()) -> WindowContext:
    return WindowContext(
        features=None,
        prompt=prompt,
        n_vocab=SPECIAL.n_vocab,
        n_sample=100,
        eot=SPECIAL.eot,
        timestamp_begin=SPECIAL.timestamp_begin,
        history=history,
    )


def _proposed(
    made: TokenMapDrafter, sampled: list[int], *, prompt: tuple[int, ...] = PLAIN, history: tuple[int, ...] = ()
) -> list[int]:
    made.begin(_window(prompt, history))
    position = len(prompt) + len(sampled) - 1 if sampled else 0
    return list(made.propose(DraftContext(prompt=prompt, sampled=tuple(sampled), position=position), 64).tokens)


def test_a_match_goes_back_over_the_end_of_a_sentence(letters: TokenMap) -> None:
    sampled = LETTERS[5][:6]
    assert _proposed(_drafter(letters), sampled) == LETTERS[5][6:]
    without = _proposed(_drafter(letters, TokenMapOptions(matches=False)), sampled)
    assert without[:1] != LETTERS[5][6:7], "keys see 50 51 alone, which all letters have twice"


def test_without_a_corpus_a_longer_key_sees_the_sentence_before_too(tmp_path: Path) -> None:
    build(LETTERS * 2, tmp_path / "x.tmap", n_text=SPECIAL.eot, fingerprint=bytes(32))
    with TokenMap.open(tmp_path / "x.tmap") as opened:
        assert _proposed(_drafter(opened), LETTERS[5][:4]) == LETTERS[5][4:]
        alone = _proposed(_drafter(opened, TokenMapOptions(gated=False)), LETTERS[5][:4])
        assert alone[:2] == LETTERS[0][:2], "the paper's drafter sees a sentence that begins"


def test_the_audio_before_the_window_is_part_of_the_text(letters: TokenMap) -> None:
    assert _proposed(_drafter(letters), [], history=tuple(LETTERS[3][:6])) == LETTERS[3][6:]


def test_with_timestamps_a_match_ends_with_its_sentence(letters: TokenMap) -> None:
    begin = SPECIAL.timestamp_begin
    assert _proposed(_drafter(letters), [begin, *LETTERS[5][:6]], prompt=PLAIN[:-1]) == LETTERS[5][6:8]
    # A timestamp has to come first, and is no part of the text that is looked for.
    sampled = [begin, *LETTERS[5][:8], begin + 40]
    assert _proposed(_drafter(letters), sampled, prompt=PLAIN[:-1]) == [begin + 40, *LETTERS[5][8:]]


def test_matches_that_were_refused_are_followed_no_more(letters: TokenMap) -> None:
    made = _drafter(letters, costs=CostTable((1, 2, 4, 64), (1.0, 1.0, 1.3, 40.0)))
    assert _proposed(made, LETTERS[5][:6])[:2] == LETTERS[5][6:8]
    for _ in range(60):
        tokens = _proposed(made, LETTERS[5][:6])
        nodes = tuple(range(len(tokens)))
        made.observe(
            Verdict(drafted=tuple(tokens), n_accepted=0, token=1, finished=False, evaluated=nodes, rejected=0)
            if tokens
            else Verdict(drafted=(), n_accepted=0, token=1, finished=False)
        )
    assert len(_proposed(made, LETTERS[5][:6])) <= 1


def test_the_text_so_far_is_text_and_no_longer_than_a_match() -> None:
    assert text_so_far((1, 2), (SPECIAL.timestamp_begin, 3, 4), SPECIAL.eot) == (1, 2, 3, 4)
    assert text_so_far(range(30), range(30, 40), SPECIAL.eot) == tuple(range(40))[-CORPUS_DEPTH:]
    assert text_so_far((), (), SPECIAL.eot) == ()


def test_a_lying_corpus_found_while_running_drops_the_drafter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.tmap"
    build(LETTERS, path, n_text=SPECIAL.eot, fingerprint=bytes(32), options=CORPUS)
    contents = sections_of(path.read_bytes())
    contents["suffix"] = contents["suffix"][4:] + contents["suffix"][:4]
    path.write_bytes(sealed(contents, n_text=SPECIAL.eot, fingerprint=bytes(32)))
    monkeypatch.setattr(token_map, "EAGER_BYTES", 10)  # as for a large map: checked before the first look-up
    with TokenMap.open(path) as opened:
        guard = Guard(_drafter(opened))
        guard.begin(_window())
        context = DraftContext(prompt=PLAIN, sampled=(), position=0)
        assert len(guard.propose(context, 9, n_vocab=SPECIAL.n_vocab, useless=())) == 0
    assert guard.error is not None and "'suffix' is wrong: its places are not sorted" in guard.error
