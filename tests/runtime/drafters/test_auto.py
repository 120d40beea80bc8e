"""What `auto` is made of: what bench found, else what rows cost here, and the reason in a line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specedge.runtime.device import DEFAULT_COSTS, Profile
from specedge.runtime.drafters.auto import choose, promise, quickest_threads
from specedge.runtime.verdict import BenchVerdict

ABLE = ("ngram", "tokenmap", "ctc", "mtp-latent")
FLAT = {1: 1.0, 2: 1.0, 8: 1.2, 32: 1.6}
STEEP = {1: 1.0, 2: 1.9, 8: 8.0, 32: 32.0}


def profile(one_s: float, relative: dict[int, float], encode_s: float, threads: int = 2) -> Profile:
    pass_s = {n_rows: one_s * cost for n_rows, cost in relative.items()}
    return Profile(threads=threads, pass_s=pass_s, encode_s=encode_s, rounds=5)


def test_slow_passes_are_worth_all_that_thinks() -> None:
    slow = profile(0.03, FLAT, 0.9)
    choice = choose(ABLE, slow.costs(), threads=2, profiles={2: slow})
    assert choice.sources == ABLE
    assert choice.reason.startswith("ngram, tokenmap, ctc, mtp-latent by what rows cost here (ngram 1.")
    assert choice.reason.endswith("tokens); 2 threads") and "\n" not in choice.reason


def test_quick_passes_leave_no_time_to_hear_the_window_twice_nor_for_several() -> None:
    quick = profile(0.0006, FLAT, 0.12)
    choice = choose(ABLE, quick.costs(), threads=2, profiles={2: quick})
    assert choice.sources == ("mtp-latent",) and not choice.is_cascade
    assert "not ctc 0." in choice.reason
    assert choose(ABLE[:3], quick.costs(), threads=2, profiles={2: quick}).sources == ("tokenmap",)
    assert choose(ABLE, DEFAULT_COSTS, threads=2, profiles={}, usual_pass_s=0.0006).sources == ("mtp-latent",)
    assert choose(ABLE, DEFAULT_COSTS, threads=2, profiles={}, usual_pass_s=0.03).is_cascade


def test_a_calibration_that_was_held_up_changes_nothing() -> None:
    """A device on which passes take twice as long takes twice as long over drafts too."""
    quick, slow = profile(0.0006, FLAT, 0.012), profile(0.0012, FLAT, 0.024)
    choices = [choose(ABLE, one.costs(), threads=2, profiles={2: one}, usual_pass_s=0.0006) for one in (quick, slow)]
    assert choices[0] == choices[1]


def test_a_draft_that_hears_for_itself_is_not_believed_without_a_profile() -> None:
    """An encoder of its own takes more than a short window's passes, whether or not anybody has measured one."""
    assert promise("draft", DEFAULT_COSTS, 0.0, 0.0).speed < 1.2 < promise("ctc", DEFAULT_COSTS, 0.0, 0.0).speed


def test_where_rows_are_dear_nobody_drafts() -> None:
    steep = profile(0.01, STEEP, 0.1)
    choice = choose(ABLE, steep.costs(), threads=2, profiles={2: steep})
    assert choice.sources == () and choice.reason.startswith("no drafter by what rows cost here (not ngram 1.00x")


def test_without_a_profile_costs_are_a_usual_devices() -> None:
    choice = choose(ABLE, DEFAULT_COSTS, threads=2, profiles={})
    assert "tokenmap" in choice.sources and "for want of `specedge calibrate`" in choice.reason


@pytest.mark.parametrize(
    ("found", "sources", "said"),
    [
        ("tokenmap", ("tokenmap",), "tokenmap, which `specedge bench` found 1.40 times plain decoding here"),
        ("cascade", ABLE, "cascade, which `specedge bench`"),
        ("none", (), "no drafter, since `specedge bench` found none quicker"),
        ("draft", ABLE, "ngram, tokenmap, ctc, mtp-latent by "),  # a draft model that is not given now
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


def test_a_promise_has_the_length_that_costs_make_best() -> None:
    flat = profile(0.01, FLAT, 0.1)
    long, short = (
        promise("ctc", flat.costs(), flat.pass_s[1], 10),
        promise("tokenmap", flat.costs(), flat.pass_s[1], 10),
    )
    assert long.n_draft > short.n_draft > 1 and long.speed > short.speed > 1
    assert promise("draft", flat.costs(), flat.pass_s[1], 10).n_draft < long.n_draft, "each token of it costs"


def test_the_quickest_of_the_calibrated_threads() -> None:
    one, four = profile(0.02, FLAT, 0.5, threads=1), profile(0.01, FLAT, 0.2, threads=4)
    assert quickest_threads({}) is None and quickest_threads({1: one}) is None
    assert quickest_threads({1: one, 4: four}) == 4
    choice = choose(ABLE, four.costs(), threads=4, profiles={1: one, 4: four})
    assert choice.reason.endswith("4 threads, the quickest of 1, 4")
