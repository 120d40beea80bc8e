"""What users of such programs have reported, tried on real tiny.en: a new report is a row of a table here.

Beside the rows below, with tests of their own: forms of checkpoints (support/real_forms.py: HF whole, sharded, half,
bfloat16, pickled, bare, untied, padded; openai-whisper's, a trainer's, whisper.cpp's and CTranslate2's files) and of
adapters (tests/export/test_foreign.py); audio files (tests/runtime/audio: G.711, 8 to 64 bits, RF64, AIFF, AU, CAF, 8
to 192 kHz, ADPCM, GSM, 1 to 8 channels, antiphase, offsets, -60 and -100 dB, NaN, floats beyond 1, wrong headers, two
files in one, streams without a length, containers of video); clients (tests/serve); stops, full disks and little memory
(tests/runtime/cli, tests/kills); subtitles (tests/runtime/output).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real import golden

from specedge import BatchedInferencePipeline, WhisperModel, decode_audio
from specedge.errors import UsageError
from specedge.export.export import export_to
from specedge.runtime.bench.errors import word_errors
from support.paths import shared

pytestmark = pytest.mark.real

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "words": {"word_timestamps": True},
    "speech alone": {"vad_filter": True, "word_timestamps": True},
    "clips": {"clip_timestamps": [0.3, 1.0, 1.0, 30.0]},
    "short audio": {"audio_context": "auto"},
    "batched": {"batch_size": 4, "without_timestamps": False},
    "batched, words": {"batch_size": 4, "word_timestamps": True},
}
BEGINNINGS = ("And so", "And so my fellow Americans", "And so, my fellow Americans, ask not what your country")
REFUSED = {"beam_size": 2.5, "hotwords": ["a", "b"], "temperature": "hot", "suppress_tokens": -1, "drafter": 5}
LIVE = {"librispeech": (0, 14), "long-en": (1, 2)}  # files of a list, joined: how many points worse at most


@pytest.fixture(scope="module")
def model(real_models: Path, tmp_path_factory: pytest.TempPathFactory) -> WhisperModel:
    return WhisperModel(export_to(str(real_models / "tiny.en"), tmp_path_factory.mktemp("reports") / "tiny.en").path)


@pytest.fixture(scope="module")
def jfk() -> Any:
    return decode_audio(str(golden.ROOT / golden.OWN))


@pytest.mark.parametrize("seconds", [1.1, 2.34, 3.7, 7.0, 11.0, 40.0])
@pytest.mark.parametrize("way", WAYS)
def test_times_are_in_order_inside_the_audio_and_have_length(
    way: str, seconds: float, model: WhisperModel, jfk: Any
) -> None:
    samples = np.tile(jfk, 4)[: round(16_000 * seconds)]
    front = BatchedInferencePipeline(model) if "batch_size" in WAYS[way] else model
    at = 0.0
    for segment in front.transcribe(samples, **WAYS[way])[0]:
        assert at <= segment.start < segment.end <= seconds + 0.01
        at = segment.start
        for word in segment.words or ():
            assert at <= word.start < word.end <= segment.end
            at = word.end
        at = segment.end


@pytest.mark.parametrize("without_timestamps", [False, True])
@pytest.mark.parametrize("prefix", BEGINNINGS)
def test_a_prefix_loses_no_text(prefix: str, without_timestamps: bool, model: WhisperModel, jfk: Any) -> None:
    said = model.transcribe(jfk, prefix=prefix, without_timestamps=without_timestamps)[0]
    text = "".join(segment.text for segment in said)
    assert text.startswith(f" {prefix}") and text.rstrip(".").endswith("what you can do for your country")


def test_word_times_change_no_text_of_pieces(model: WhisperModel) -> None:
    """The silence behind a piece's last word was decoded by itself: "Thank you."."""
    row = json.loads(shared("speech", "librispeech.jsonl").read_text("utf-8").splitlines()[16])
    samples, pieces = decode_audio(str(golden.SPEECH / row["audio"])), BatchedInferencePipeline(model)
    made = [pieces.transcribe(samples, temperature=0.0, word_timestamps=words)[0] for words in (False, True)]
    plain, timed = ("".join(segment.text for segment in segments) for segments in made)
    assert plain == timed != ""


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_of_a_wrong_type_are_named(name: str, model: WhisperModel, jfk: Any) -> None:
    for call in (model.transcribe, model.stream):
        with pytest.raises(UsageError, match=f"^{name}: got "):
            call(**({"audio": jfk} if call == model.transcribe else {}), **{name: REFUSED[name]})


@pytest.mark.parametrize("name", LIVE)
def test_live_text_is_as_good_as_the_file_s(name: str, model: WhisperModel) -> None:
    rows = [json.loads(line) for line in shared("speech", f"{name}.jsonl").read_text("utf-8").splitlines()]
    rows = rows[slice(*LIVE[name])]
    samples = np.concatenate([decode_audio(str(golden.SPEECH / row["audio"])) for row in rows])
    reference = " ".join(row["text"] for row in rows)
    file = "".join(segment.text for segment in model.transcribe(samples)[0])
    live = "".join(update.confirmed for update in model.stream(np.array_split(samples, len(samples) // 1600)))
    rates = [word_errors([(reference, text)]).rate for text in (file, live)]
    assert rates[1] <= rates[0] + 0.02


@pytest.mark.parametrize("span_s", [(0.0, 2.0), (3.4, 7.4), (8.2, 10.4)])
def test_a_finished_utterance_has_the_text_of_one_pass(
    span_s: tuple[float, float], model: WhisperModel, jfk: Any
) -> None:
    said = jfk[slice(*(round(16_000 * s) for s in span_s))]
    live = "".join(update.confirmed for update in model.stream(np.array_split(said, 20)))
    assert live == "".join(segment.text for segment in model.transcribe(said, audio_context="auto")[0]) != ""
