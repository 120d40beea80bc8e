"""Forced alignment: a known text gets the times that a transcription of the same words has."""

from __future__ import annotations

import numpy as np
import pytest

from specedge import UsageError, WhisperModel, decode_audio
from specedge.runtime.longform.align import _places
from support.paths import samples


@pytest.fixture(scope="module")
def model() -> WhisperModel:
    return WhisperModel("demo")


@pytest.fixture(scope="module")
def recordings() -> list[np.ndarray]:
    return [decode_audio(str(path)) for path in samples()]


def test_one_window_has_the_times_of_its_transcription(model: WhisperModel, recordings: list[np.ndarray]) -> None:
    (said,) = model.transcribe(recordings[0], word_timestamps=True)[0]
    (found,), info = model.align(recordings[0], said.text)
    assert found.text == said.text and info.language == "en" and found.words is not None and said.words is not None
    assert [word.word for word in found.words] == [word.word for word in said.words]
    for ours, theirs in zip(found.words, said.words, strict=True):
        assert abs(ours.start - theirs.start) < 0.15 and abs(ours.end - theirs.end) < 0.15
        assert ours.probability > 0.9
    assert (found.start, found.end) == (found.words[0].start, found.words[-1].end)


@pytest.mark.slow
def test_long_audio_is_aligned_line_by_line(model: WhisperModel, recordings: list[np.ndarray]) -> None:
    """Four times the same recordings with a second between, which a word at its side may take as its own."""
    pause, at, parts, lines, spans = np.zeros(16_000, np.float32), 0, [], [], []
    # Without the silence at their ends, so that the pause is all there is.
    recordings = [one[: np.flatnonzero(np.abs(one) > 0.01)[-1]] for one in recordings]
    texts = ["".join(segment.text for segment in model.transcribe(one)[0]).strip() for one in recordings]
    for one, text in [*zip(recordings, texts, strict=True)] * 4:
        parts += [one, pause]
        lines.append(text)
        spans.append((at / 16_000, (at + len(one)) / 16_000))
        at += len(one) + len(pause)
    samples = np.concatenate(parts)
    assert len(samples) > 16_000 * model.bundle.manifest.window_s
    segments, _ = model.align(samples, "\n\n".join(lines), "en")
    assert [segment.text.strip() for segment in segments] == lines
    for segment, (start_s, end_s) in zip(segments, spans, strict=True):
        assert start_s - 1.1 <= segment.start < segment.end <= end_s + 1.1, segment


def test_words_without_a_match_go_between_their_neighbours() -> None:
    heard = [("a", 0), ("b", 0), ("c", 2), ("d", 3)]
    assert _places(["a", "b", "c", "d"], heard, 4) == [0, 0, 2, 3]
    assert _places(["x", "a", "y", "c"], heard, 4) == [0, 0, 1, 2]
    assert _places(["c", "x"], heard, 4) == [2, 2]
    assert _places(["x", "y"], [], 1) == [0, 0]
    found = _places([*"xxaxxxxxxdxx"], heard, 4)
    assert found == sorted(found) and found[2] == 0 and found[9] == 3


@pytest.mark.parametrize("text", ["", " \n\n"])
def test_a_text_without_words_is_refused(model: WhisperModel, recordings: list[np.ndarray], text: str) -> None:
    with pytest.raises(UsageError, match="holds no words"):
        model.align(recordings[0], text)


def test_more_text_than_a_window_holds_is_refused(model: WhisperModel, recordings: list[np.ndarray]) -> None:
    with pytest.raises(UsageError, match="more than the .* that the model takes"):
        model.align(recordings[0], "call the crew " * 400)
