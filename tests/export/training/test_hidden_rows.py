"""Hidden rows are those of the text that the target says, with timestamps and without, and a collection goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specedge.export.training import features as features_module
from specedge.export.training.features import HiddenText, Target, heard_texts, whole_window
from support.courses import course
from support.exported import bundle
from support.sound import NOISE


@pytest.fixture(autouse=True)
def _sure_of_clean_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "is_sure", lambda self, result: True)  # though the weights are random
    monkeypatch.setattr(features_module, "acoustics", lambda rng, samples: samples)


def test_rows_are_those_of_the_targets_own_texts(tmp_path: Path) -> None:
    target = Target(bundle(), threads=1, language="en")
    windows = [np.resize(NOISE[at:], 32000).astype(np.float32) for at in (0, 500, 900)]

    def run(seed: int = 1) -> list[HiddenText]:
        return heard_texts(course(tmp_path, iter(windows), target), bundle(), seed)

    texts = run()
    assert {text.source for text in texts} == {0, 1, 2}
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
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.pt")}
    last = next(path for path in files if path.name == "2.pt")
    last.unlink()  # killed before it was written
    assert [text.ids for text in run()] == [text.ids for text in texts]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.pt")} == files
    run(seed=2)
    assert len(list(tmp_path.rglob("*.pt"))) == 2 * len(files), "of another seed"


def test_rows_of_a_beams_text_are_those_of_its_best_text(tmp_path: Path) -> None:
    """Whisper-Medusa, section III-C: the labels of self-supervised training are the target's own, by a beam search."""
    target = Target(bundle(), threads=1, language="en", beam_size=3)
    window = NOISE[:32000].astype(np.float32)
    with_times, without = heard_texts(course(tmp_path, iter([window]), target), bundle(), 1)
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
