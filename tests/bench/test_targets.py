"""The targets of the grown shapes are held to the figures that a run has, and can be missed."""

from __future__ import annotations

from typing import Any

from bench.targets import MIX, OTHERS_MAP, table, verdicts


def _row(speed_up: float, tokens_per_pass: float = 2.0) -> dict[str, float]:
    return {"decoder_speed_up": speed_up, "tokens_per_pass": tokens_per_pass}


def _figures(**changes: Any) -> dict[str, Any]:
    every = {
        "tokenmap": _row(1.5), "ctc": _row(3.2, 5.0), "ctc alone": _row(2.2), "mtp-latent": _row(2.0),
        "draft": _row(1.8), "cascade": _row(3.0), "auto": _row(3.1),
    }  # fmt: skip
    return {
        "pass": {"pass_over_read": 1.4, "t8": 1.3, "t16": 1.9, "paths_passes": 0.05, "python_share": 0.2},
        "domains": {"maintenance-dev": every, "notes-dev": every, OTHERS_MAP: {"ctc": _row(0.98), "auto": _row(0.9)}},
        "different": 0,
        **changes,
    }


def _words(shape: str, figures: dict[str, Any]) -> dict[tuple[str, str], str]:
    return {(one.what, one.domain): one.word for one in verdicts(shape, figures)}


def test_each_target_is_met_or_not_by_its_own_figure() -> None:
    words = _words("small", _figures())
    assert words["a pass over reading its weights", ""] == words["T(8) over T(1)", ""] == "met"
    assert words["T(16) over T(1)", ""] == "not met"
    assert ("Python in a plain pass", "") not in words, "that is base's alone"
    assert words["best drafter, right map", "maintenance-dev"] == words["best drafter, no map", "notes-dev"] == "met"
    assert words["auto over the best", "notes-dev"] == "met"
    assert words["slowest drafter", OTHERS_MAP] == "not met"
    assert words["texts that differ", ""] == "met"
    assert _words("small", _figures(different=1))["texts that differ", ""] == "not met"


def test_commands_and_notes_have_targets_of_their_own_and_other_recordings_those_of_notes() -> None:
    row = {"ctc": _row(2.7, 4.4)}
    words = _words("small", _figures(domains={"maintenance-dev": row, "notes-dev": row, "mine": row}))
    what = "best drafter, right map"
    assert [words[what, domain] for domain in ("maintenance-dev", "notes-dev", "mine")] == ["not met", "met", "met"]
    assert words["tokens a pass of ctc, right map", "maintenance-dev"] == "not met"
    assert words["best heads", "mine"] == "not measured"


def test_a_cascade_is_held_to_the_best_of_its_sources() -> None:
    mix = {"tokenmap": _row(1.5), "ctc": _row(2.0), "cascade": _row(2.3)}
    found = next(one for one in verdicts("base", _figures(domains={MIX: mix})) if one.domain == MIX)
    assert (found.got, found.by, found.word) == (1.15, "ctc", "met")


def test_beside_faster_whisper() -> None:
    rows = {
        "faster-whisper": {"times_base": 1.0, "peak_mb": 1000.0},
        "specedge none, full": {"times_base": 2.5, "peak_mb": 500.0},
        "specedge ctc, full": {"times_base": 3.3, "peak_mb": 650.0},
        "specedge ctc, auto": {"times_base": 4.9, "peak_mb": 500.0},
    }
    words = _words("small", _figures(beside={"domains": {"notes-dev": rows}}))
    assert words["whole windows, times faster-whisper", "notes-dev"] == "met"
    assert words["over the audio that is there, times faster-whisper", "notes-dev"] == "not met"
    assert words["peak memory over faster-whisper's", "notes-dev"] == "not met"


def test_a_shape_without_targets_has_a_table_all_the_same() -> None:
    assert [row[-1] for row in table(verdicts("medium", _figures(domains={})))] == ["verdict", "met"]
