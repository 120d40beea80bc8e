"""What `auto` is made of: what bench found, else what rows cost here, and the reason in a line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specedge.runtime.device import DEFAULT_COSTS, Profile
from specedge.runtime.drafters.auto import choose, quickest_threads
from specedge.runtime.verdict import BenchVerdict

ABLE = ("ngram", "tokenmap", "ctc", "mtp-latent")
FLAT = {1: 1.0, 2: 1.0, 8: 1.2, 32: 1.6}
STEEP = {1: 1.0, 2: 1.9, 8: 8.0, 32: 32.0}


def profile(one_s: float, relative: dict[int, float], encode_s: float, threads: int = 2) -> Profile:
    pass_s = {n_rows: one_s * cost for n_rows, cost in relative.items()}
    return Profile(threads=threads, pass_s=pass_s, encode_s=encode_s, rounds=5)


def test_it_is_all_that_the_model_has() -> None:
    slow = profile(0.03, FLAT, 0.9)
    choice = choose(ABLE, slow.costs(), threads=2, profiles={2: slow})
    assert choice.sources == ABLE
    assert choice.reason == "ngram, tokenmap, ctc, mtp-latent: all that this model has; 2 threads"


def test_a_draft_model_is_taken_by_a_verdict_alone() -> None:
    """An encoder of its own takes more than a short window's passes."""
    choice = choose((*ABLE, "draft"), DEFAULT_COSTS, threads=2, profiles={})
    assert choice.sources == ABLE and "but draft, which takes an encoder of its own" in choice.reason
    verdict = BenchVerdict(threads=2, drafter="draft", decoder_speed_up=1.4)
    assert choose((*ABLE, "draft"), DEFAULT_COSTS, threads=2, profiles={}, verdict=verdict).sources == ("draft",)


def test_where_rows_are_dear_nobody_drafts() -> None:
    steep = profile(0.01, STEEP, 0.1)
    choice = choose(ABLE, steep.costs(), threads=2, profiles={2: steep})
    assert choice.sources == () and choice.reason.startswith("no drafter, since rows cost so much here")


def test_without_a_profile_the_reason_says_so() -> None:
    choice = choose(ABLE, DEFAULT_COSTS, threads=2, profiles={})
    assert "tokenmap" in choice.sources and "(not calibrated; run `specedge calibrate`)" in choice.reason
    assert "\n" not in choice.reason


@pytest.mark.parametrize(
    ("found", "sources", "said"),
    [
        ("tokenmap", ("tokenmap",), "tokenmap, which `specedge bench` found 1.40 times plain decoding here"),
        ("cascade", ABLE, "cascade, which `specedge bench`"),
        ("none", (), "no drafter, since `specedge bench` found none quicker"),
        ("draft", ABLE, "ngram, tokenmap, ctc, mtp-latent: "),  # a draft model that is not given now
    ],
)
def test_what_was_measured_counts_more(found: str, sources: tuple[str, ...], said: str) -> None:
    slow = profile(0.03, FLAT, 0.9)
    verdict = BenchVerdict(threads=2, drafter=found, decoder_speed_up=1.4, rounds=5, audio_s=10.0)
    choice = choose(ABLE, slow.costs(), threads=2, profiles={2: slow}, verdict=verdict)
    assert choice.sources == sources and choice.reason.startswith(said)


def test_a_verdict_over_other_maps_is_none() -> None:
    slow = profile(0.03, FLAT, 0.9)
    verdict = BenchVerdict(threads=2, drafter="tokenmap", decoder_speed_up=1.4, token_maps=("/a.tmap",))
    with_maps = replace(verdict, token_maps=("/b.tmap",))
    for one, maps, is_followed in ((verdict, ["/a.tmap"], True), (with_maps, ["/a.tmap"], False)):
        choice = choose(ABLE, slow.costs(), threads=2, profiles={2: slow}, verdict=one, token_maps=maps)
        assert (choice.sources == ("tokenmap",)) is is_followed


def test_the_quickest_of_the_calibrated_threads() -> None:
    one, four = profile(0.02, FLAT, 0.5, threads=1), profile(0.01, FLAT, 0.2, threads=4)
    assert quickest_threads({}) is None and quickest_threads({1: one}) is None
    assert quickest_threads({1: one, 4: four}) == 4
    choice = choose(ABLE, four.costs(), threads=4, profiles={1: one, 4: four})
    assert choice.reason.endswith("4 threads, the quickest of 1, 4")
