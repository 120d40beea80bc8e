"""Hidden rows are those of the text that the target says, with timestamps and without, and a collection goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specedge.errors import UsageError
from specedge.export.training.features import Collection, Target, collect_rows, load_rows, whole_window
from support.exported import bundle
from support.sound import NOISE


def test_rows_are_those_of_the_targets_own_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "is_sure", lambda self, result: True)  # though the weights are random
    target = Target(bundle(), threads=1, language="en")
    windows = [np.resize(NOISE[at:], 32000).astype(np.float32) for at in (0, 500, 900)]
    told: list[float] = []

    def run(**identity: str) -> None:
        collect_rows(
            Collection(
                windows=iter(windows), target=target, folder=tmp_path, hours=1, identity=identity, report=told.append
            )
        )

    run(of="this")
    texts = load_rows(tmp_path)
    assert told == [2.0, 4.0, 6.0] and texts
    special = target.manifest.tokens
    for text in texts:
        has_timestamps = special.no_timestamps not in text.ids[: text.n_prompt]
        assert list(text.ids[: text.n_prompt]) == special.prompt("en", timestamps=has_timestamps)
        # All but those of the last pass, and of the two before where the limit of tokens leaves no room for a draft.
        assert text.ids[-1] == special.eot and len(text.ids) - 4 <= len(text.hidden) <= len(text.ids) - 2
        features = target.encode(windows[text.source])
        assert (text.features == whole_window(features).astype(np.float16)).all()
        state = target.engine.start(features, keeps_hidden=True)
        target.engine.forward(state, text.ids[:-2])
        target.engine.commit(state, len(text.hidden))
        assert (text.hidden == state.hidden[: len(text.hidden)].astype(np.float16)).all()
        target.engine.release(state)
    index, whole = tmp_path / "rows.index.jsonl", (tmp_path / "rows.f16").read_bytes()
    before = index.stat().st_mtime_ns
    run(of="this")
    assert index.stat().st_mtime_ns == before
    index.write_bytes(index.read_bytes()[:-9])  # killed while it wrote the last line
    run(of="this")
    assert [text.ids for text in load_rows(tmp_path)] == [text.ids for text in texts]
    assert (tmp_path / "rows.f16").read_bytes() == whole
    with pytest.raises(UsageError, match="another model"):
        run(of="that")


def test_rows_of_a_beams_text_are_those_of_its_best_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whisper-Medusa, section III-C: the labels of self-supervised training are the target's own, by a beam search."""
    monkeypatch.setattr(Target, "is_sure", lambda self, result: True)
    target = Target(bundle(), threads=1, language="en", beam_size=3)
    window = NOISE[:32000].astype(np.float32)
    collect_rows(
        Collection(
            windows=iter([window]), target=target, folder=tmp_path, hours=1, identity={}, report=lambda seconds: None
        )
    )
    (with_times, without) = load_rows(tmp_path)
    features = target.encode(window)
    for text, timestamps in ((with_times, True), (without, False)):
        prompt, best = target.say(features, "en", timestamps=timestamps)
        assert list(text.ids) == [*prompt, *best.tokens, target.manifest.tokens.eot]
        assert (text.hidden == target.rows(features, text.ids[:-2]).astype(np.float16)).all()
    greedy = Target(bundle(), threads=1, language="en")
    assert any(
        list(text.ids[text.n_prompt : -1]) != list(greedy.say(features, "en", timestamps=timestamps)[1].tokens)
        for text, timestamps in ((with_times, True), (without, False))
    ), "a beam finds a likelier text of random weights"
