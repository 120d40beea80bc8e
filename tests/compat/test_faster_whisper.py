"""`faster_whisper` over specedge: what programs import, ask and reach into."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specedge import UsageError
from specedge.compat import faster_whisper as front
from specedge.compat.faster_whisper import audio as front_audio
from specedge.compat.faster_whisper import transcribe, utils, vad
from specedge.compat.faster_whisper.feature_extractor import FeatureExtractor
from specedge.compat.faster_whisper.tokenizer import Tokenizer
from specedge.errors import BundleError, ModelNotFoundError
from specedge.models import store
from specedge.runtime.audio.mel import log_mel
from support.paths import samples

TEXT = " Call the maintenance crew to generator two."
SUBMODULES = ("audio", "feature_extractor", "tokenizer", "transcribe", "utils", "vad", "version")


@pytest.fixture(scope="module")
def recording() -> Path:
    return next(path for path in samples() if path.name == "maintenance.wav")


@pytest.fixture(scope="module")
def model() -> transcribe.WhisperModel:
    return front.WhisperModel("demo", compute_type="float32")  # the bundle is int8: a warning, no error


@pytest.fixture(scope="module")
def tokenizer(model: transcribe.WhisperModel) -> Tokenizer:
    return Tokenizer(model.hf_tokenizer, model.model.is_multilingual, task="transcribe", language="en")


def _texts(result: Any) -> list[str]:
    return [segment.text for segment in result[0]]


@pytest.mark.parametrize("name", SUBMODULES)
def test_every_public_name_and_signature_of_the_peer_is_here(name: str) -> None:
    peer = import_module(f"faster_whisper.{name}") if _peer() else pytest.skip("faster-whisper is not installed")
    ours = import_module(f"specedge.compat.faster_whisper.{name}")
    for key, value in vars(peer).items():
        if key.startswith("_") or getattr(value, "__module__", None) != peer.__name__:
            continue
        assert hasattr(ours, key), key
        if inspect.isfunction(value):
            _has_arguments_of(getattr(ours, key), value)
        elif inspect.isclass(value) and key != "disabled_tqdm":  # which is a class of tqdm
            _has_arguments_of(getattr(ours, key), value)
            for method in (one for one in vars(value) if not one.startswith("_")):
                if callable(getattr(value, method)):
                    _has_arguments_of(getattr(getattr(ours, key), method), getattr(value, method))


def _has_arguments_of(ours: Any, theirs: Any) -> None:
    """The peer's arguments come first, by their names and in their order; those that it lets out may be left out."""
    expected, found = (list(inspect.signature(one).parameters.values()) for one in (theirs, ours))
    assert [one.name for one in found[: len(expected)]] == [one.name for one in expected], theirs
    for one, other in zip(expected, found, strict=False):
        is_free = one.default is not one.empty
        assert not is_free or other.default is not other.empty, (theirs, one.name)
        if is_free and isinstance(one.default, (bool, int, float, str)):
            assert other.default == one.default, (theirs, one.name)
    assert all(
        one.default is not one.empty or one.kind in (one.VAR_KEYWORD, one.KEYWORD_ONLY)
        for one in found[len(expected) :]
    )


def test_the_arguments_are_in_the_code_where_the_peer_s_own_tests_look() -> None:
    of_model, of_batches = (
        set(inspect.getargs(one.transcribe.__code__).args)
        for one in (transcribe.WhisperModel, transcribe.BatchedInferencePipeline)
    )
    assert of_batches - of_model == {"batch_size"} and {"self", "audio", "beam_size", "hotwords"} <= of_model


def _peer() -> bool:
    try:
        import_module("faster_whisper")
    except ImportError:
        return False
    return True


@pytest.mark.slow
def test_transcribe_has_the_peer_s_beams_and_all_its_arguments(model: transcribe.WhisperModel, recording: Path) -> None:
    segments, info = model.transcribe(str(recording), word_timestamps=True)
    found = list(segments)
    assert [segment.text for segment in found] == [TEXT] and len(found[0].words) == 7
    assert info.transcription_options.beam_size == 5
    assert inspect.signature(model.transcribe).parameters["beam_size"].default == 5


def test_batched_takes_the_peer_s_vad_options_and_a_chunk_longer_than_the_window(
    model: transcribe.WhisperModel, recording: Path
) -> None:
    pipeline = front.BatchedInferencePipeline(model=model)
    options = vad.VadOptions(min_silence_duration_ms=100)
    options.threshold = 0.4
    assert _texts(pipeline.transcribe(str(recording), batch_size=4, chunk_length=30, vad_parameters=options)) == [TEXT]


@pytest.mark.parametrize("vad_filter", [False, True])
def test_audio_without_samples_has_no_segments(
    model: transcribe.WhisperModel, tmp_path: Path, vad_filter: bool
) -> None:
    import soundfile

    empty = tmp_path / "empty.wav"
    soundfile.write(empty, np.zeros(0, np.float32), 16_000)
    for audio in (np.zeros(0, np.float32), str(empty)):
        assert _texts(model.transcribe(audio, vad_filter=vad_filter)) == []
    assert _texts(front.BatchedInferencePipeline(model).transcribe(np.zeros(0, np.float32))) == []


def test_the_environment_chooses_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECEDGE_COMPAT_MODEL", "demo")
    assert front.WhisperModel("Systran/faster-whisper-large-v3").path.samefile(store.find("demo"))


def test_the_environment_chooses_what_the_encoder_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECEDGE_COMPAT_ENCODER_PROVIDER", "openvino")
    with pytest.raises(BundleError, match="no encoder that other providers than cpu can run"):
        front.WhisperModel("demo")


@pytest.mark.parametrize(
    "given",
    [
        {"device": "cuda", "device_index": 1},
        {"device": "cuda", "compute_type": "float16"},
        {"compute_type": "int8_float16"},
    ],
)
def test_a_gpu_is_one_warning_and_the_cpu(given: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    made = front.WhisperModel("demo", **given)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert made.engine and len(warnings) == 1 and "specedge runs on the CPU" in warnings[0]


@pytest.mark.slow
def test_a_folder_of_another_format_is_converted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: transcribe.WhisperModel
) -> None:
    asked: list[Path] = []

    def pull(source: str, *, out: Path) -> tuple[Path, bool]:
        asked.append(out)
        if not out.exists():
            shutil.copytree(model.path, out)
        return out, True

    monkeypatch.setattr(utils, "pull_model", pull)
    monkeypatch.setattr(utils, "_download", lambda name, revision: str(model.path))
    monkeypatch.setenv("SPECEDGE_HOME", str(tmp_path / "home"))
    for name in ("a", "b"):
        (tmp_path / name / "model").mkdir(parents=True)
        (tmp_path / name / "model" / "model.bin").write_bytes(b"weights")
        made = [front.WhisperModel(str(tmp_path / name / "model")).path for _ in range(2)]
        assert made[0] == made[1] == asked[-1] and made[0].parent == tmp_path / "home" / "models"
    assert len(set(asked)) == 2, "folders of one name are two models"
    assert front.WhisperModel("Systran/faster-whisper-tiny.en").path == model.path
    with pytest.raises(ModelNotFoundError):
        front.WhisperModel("Systran/faster-whisper-tiny.en", local_files_only=True)


def test_the_language_auto_is_detected_and_errors_end_a_program_in_one_line(
    model: transcribe.WhisperModel, recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for one in (model, front.BatchedInferencePipeline(model)):
        segments, info = one.transcribe(str(recording), language="auto")
        assert [segment.text for segment in segments] == [TEXT] and info.language == "en"
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    utils.end_in_one_line()
    sys.excepthook(UsageError, UsageError("beam_size: got 0"), None)
    assert capsys.readouterr().err == "specedge: error: beam_size: got 0\n"


def test_programs_may_drive_the_decoder_themselves(
    model: transcribe.WhisperModel, tokenizer: Tokenizer, recording: Path
) -> None:
    samples = front.decode_audio(str(recording))
    features = model.feature_extractor(samples)
    defaults = {name: None for name in transcribe.TranscriptionOptions.__dataclass_fields__}
    defaults |= {"beam_size": 1, "best_of": 1, "patience": 1, "length_penalty": 1, "repetition_penalty": 1}
    defaults |= {"no_repeat_ngram_size": 0, "temperatures": [0.0, 0.4], "suppress_tokens": [-1], "suppress_blank": True}
    defaults |= {"max_initial_timestamp": 1.0, "word_timestamps": True, "condition_on_previous_text": True}
    defaults |= {"prepend_punctuations": "", "append_punctuations": ".", "prompt_reset_on_temperature": 0.5}
    options = transcribe.TranscriptionOptions(**defaults)  # type: ignore[arg-type]
    (segment,) = model.generate_segments(features, tokenizer, options, False)
    assert segment.text == TEXT and "".join(word.word for word in segment.words or []) == TEXT
    chunk = {"offset": 30.0, "duration": len(samples) / 16_000}
    ((item,),) = front.BatchedInferencePipeline(model).forward(features[None], tokenizer, [chunk], options)
    assert item["text"] == TEXT and 30 <= item["start"] < item["words"][-1]["end"] < 33
    encoded = model.encode(features)
    ids = [token for token in segment.tokens if token < tokenizer.eot]
    (words,) = model.find_alignment(tokenizer, [ids], encoded, features.shape[1])
    assert "".join(word["word"] for word in words) == TEXT and words[-1]["end"] <= 3
    loops = replace(options, log_prob_threshold=9.0, compression_ratio_threshold=0.0)
    result, average, temperature, ratio = model.generate_with_fallback(
        encoded, model.get_prompt(tokenizer, []), tokenizer, loops
    )
    assert temperature == 0.4 and average < 0 < ratio and result.sequences_ids


@pytest.mark.parametrize("words", [[" (", "one", ",", " two", ' "', "three", '"', "."], [], [" one"]])
def test_punctuation_is_merged_as_the_peer_does(words: list[str]) -> None:
    peer = import_module("faster_whisper.transcribe") if _peer() else pytest.skip("faster-whisper is not installed")
    theirs, ours = ([{"word": word, "tokens": [i]} for i, word in enumerate(words)] for _ in range(2))
    peer.merge_punctuations(theirs, '"(', '",.')
    transcribe.merge_punctuations(ours, '"(', '",.')
    assert ours == theirs


def test_spectra_are_the_peer_s() -> None:
    peer = (
        import_module("faster_whisper.feature_extractor") if _peer() else pytest.skip("faster-whisper is not installed")
    )
    samples, window = np.random.default_rng(0).normal(size=4000), np.hanning(401)[:-1]
    for given in ({"window": window}, {"normalized": True, "hop_length": 160}, {"center": False}):
        for is_complex in (True, False):
            about = {**given, "return_complex": is_complex}
            theirs, ours = (one.stft(samples, 400, **about) for one in (peer.FeatureExtractor, FeatureExtractor))
            assert theirs.dtype.kind == ours.dtype.kind and np.allclose(theirs, ours, atol=1e-9), about


def test_the_decoder_s_own_calls_give_the_text_and_its_words(
    model: transcribe.WhisperModel, tokenizer: Tokenizer, recording: Path
) -> None:
    samples = front.decode_audio(str(recording))
    encoded = model.encode(model.feature_extractor(samples))
    prompt = model.get_prompt(tokenizer, [], without_timestamps=True)
    (found,) = model.model.generate(encoded, [prompt], return_scores=True)
    ids = found.sequences_ids[0]
    assert tokenizer.decode(ids) == TEXT
    n_frames = len(samples) // 160
    segment = {"seek": 0, "start": 0.0, "end": len(samples) / 16_000, "tokens": ids}
    model.add_word_timestamps([[segment]], tokenizer, encoded, n_frames, "", ".", 0.0)
    times = [time for word in segment["words"] for time in (word["start"], word["end"])]
    assert "".join(word["word"] for word in segment["words"]) == TEXT and times == sorted(times)
    (aligned,) = model.model.align(encoded, tokenizer.sot_sequence, [ids], n_frames, median_filter_width=1)
    assert len(aligned.text_token_probs) == len(ids) and min(aligned.text_token_probs) > 0.9
    assert {token for token, _ in aligned.alignments} == set(range(len(ids) + 1))
    assert model.model.detect_language(encoded)[0][0][0] == "<|en|>"


def test_the_call_of_whisperx_gives_the_text(
    model: transcribe.WhisperModel, tokenizer: Tokenizer, recording: Path
) -> None:
    mel = log_mel(front.decode_audio(str(recording)), model.feat_kwargs["feature_size"], 3000)
    options = SimpleNamespace(
        initial_prompt="Maintenance.",
        without_timestamps=True,
        prefix=None,
        hotwords=None,
        beam_size=5,
        patience=1,
        length_penalty=1,
        repetition_penalty=1,
        no_repeat_ngram_size=0,
        suppress_blank=True,
        suppress_tokens=[-1],
    )
    found = model.generate_segment_batched(np.stack([mel, mel]), tokenizer, options)
    assert found["text"] == [TEXT, TEXT] and all(-0.5 < value < 0 for value in found["avg_logprob"])


def test_features_longer_than_a_window_are_refused_where_they_sound(model: transcribe.WhisperModel) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 12 * 16_000).astype(np.float32)
    with pytest.raises(ValueError, match="windows are 10 s long"):
        model.encode(model.feature_extractor(noise))


def test_the_tokenizer_cuts_words_and_times(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(" Add oil, now")
    words, parts = tokenizer.split_to_word_tokens([*ids, tokenizer.eot])
    assert words == [" Add", " oil", ",", " now", ""] and parts[-1] == [tokenizer.eot]
    half = tokenizer.timestamp_begin + 25
    assert tokenizer.decode_with_timestamps([half, *ids, half]) == "<|0.50|> Add oil, now<|0.50|>"
    assert tokenizer.sot_sequence == [tokenizer.sot, tokenizer.language, tokenizer.transcribe]
    assert tokenizer.tokenizer.token_to_id("<|en|>") == tokenizer.language
    with pytest.raises(ValueError, match="not a valid language"):
        Tokenizer(tokenizer.tokenizer, True, task="transcribe", language="klingon")


def _chunks(*spans: tuple[int, int]) -> list[dict[str, int]]:
    return [{"start": start, "end": end} for start, end in spans]


@pytest.mark.parametrize("max_s", [1.0, 2.5, float("inf")])
def test_chunks_are_the_peer_s_where_none_is_too_long(max_s: float) -> None:
    """The peer loses the chunk that begins a new piece from its list; the samples are the same."""
    peer = import_module("faster_whisper.vad") if _peer() else pytest.skip("faster-whisper is not installed")
    samples = np.arange(160_000, dtype=np.float32)
    spans = _chunks((0, 9000), (12_000, 20_000), (40_000, 50_000), (70_000, 80_000))
    theirs, ours = (
        peer.collect_chunks(samples, spans, max_duration=max_s),
        vad.collect_chunks(samples, spans, max_duration=max_s),
    )
    kept = [piece for piece in theirs[0] if len(piece)]
    assert [piece.tolist() for piece in ours[0]] == [piece.tolist() for piece in kept]
    assert sum((item["segments"] for item in ours[1]), []) == spans


def test_times_of_speech_come_back_as_the_peer_s() -> None:
    peer = import_module("faster_whisper.vad") if _peer() else pytest.skip("faster-whisper is not installed")
    spans = _chunks((8000, 24_000), (40_000, 41_000), (100_000, 160_000))
    theirs, ours = peer.SpeechTimestampsMap(spans, 16_000), vad.SpeechTimestampsMap(spans, 16_000)
    for time in np.arange(0, 5, 0.0625):
        for is_end in (False, True):
            assert ours.get_original_time(time, is_end=is_end) == theirs.get_original_time(time, is_end=is_end)


def test_small_helpers() -> None:
    assert front.format_timestamp(3661.5) == "01:01:01.500"
    assert front_audio.pad_or_trim(np.ones((2, 3)), 5).tolist() == [[1, 1, 1, 0, 0]] * 2
    assert front_audio.pad_or_trim(np.ones((2, 3)), 2).shape == (2, 2)
    assert utils.get_end([{"words": [{"end": 1.0}], "end": 9.0}]) == 1.0
    assert utils.get_end([{"words": [], "end": 9.0}]) == 9.0 and utils.get_end([]) is None
    assert "demo" in front.available_models() and "small" in utils._MODELS
    assert asdict(vad.VadOptions())["speech_pad_ms"] == 400
    assert vad.get_speech_timestamps(np.zeros(0, np.float32)) == []
    assert FeatureExtractor(chunk_length=10).nb_max_frames == 1000
    with pytest.raises(ValueError, match="expected 16000"):
        FeatureExtractor(sampling_rate=8000)
    with pytest.raises(UsageError, match="speech_pad_ms"):
        vad.get_speech_timestamps(np.zeros(16_000, np.float32), vad.VadOptions(speech_pad_ms=-1))


def _printed(code: str, *options: str, path: Sequence[str | Path] = ()) -> str:
    setup = "".join(f"sys.path.{where!s}\n" for where in path)
    done = subprocess.run(
        [sys.executable, *options, "-c", f"import sys\n{setup}{code}"], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_behind_an_installed_one_the_installed_one_comes_first(tmp_path: Path) -> None:
    """What the distribution's .pth file does: the folder goes to the end of the path."""
    (tmp_path / "faster_whisper").mkdir()
    (tmp_path / "faster_whisper" / "__init__.py").write_text("__version__ = 'real'\n")
    folder = str(Path(front.__file__).parents[1])
    code = "import faster_whisper; print(faster_whisper.__version__)"
    assert _printed(code, path=[f"insert(0, {str(tmp_path)!r})", f"append({folder!r})"]) == "real\n"
    in_front = "from faster_whisper.transcribe import WhisperModel as m; print(m.__module__)"
    assert _printed(in_front, path=[f"insert(0, {folder!r})"]) == "faster_whisper.transcribe\n"
