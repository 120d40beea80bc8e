"""Every flag of openai-whisper's command means here what it means there, and every option has a flag."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specedge.runtime.cli.request import Request
from specedge.runtime.cli.transcribe import transcribe as command
from specedge.runtime.options import TranscribeOptions
from specedge.runtime.output.formats import SubtitleOptions
from support import openai_whisper

Parse = Callable[..., Request]

# openai-whisper's default is 5 beams; speculation is exact against greedy decoding.
SAME = ["--beam_size", "1"]


def theirs(args: list[str]) -> tuple[argparse.Namespace, TranscribeOptions]:
    """What openai-whisper's command makes of its arguments, in our words."""
    np = pytest.importorskip("numpy")
    given = openai_whisper.parser().parse_args(["a.wav", *args])
    increment = given.temperature_increment_on_fallback
    steps = [given.temperature] if increment is None else np.arange(given.temperature, 1.0 + 1e-6, increment).tolist()
    shared = {f.name for f in dataclasses.fields(TranscribeOptions)} & vars(given).keys()
    options = {name: getattr(given, name) for name in shared}
    ids = given.suppress_tokens
    return given, TranscribeOptions(
        **options
        | {
            "language": None if given.language is None else given.language.lower()[:2],
            "temperature": tuple(round(step, 9) for step in steps),
            "beam_size": given.beam_size or 1,
            "best_of": given.best_of or 1,
            "patience": given.patience or 1.0,
            "log_prob_threshold": given.logprob_threshold,
            "suppress_tokens": tuple(int(i) for i in ids.split(",") if i),
            "clip_timestamps": tuple(float(t) for t in given.clip_timestamps.split(",") if t),
        }
    )


FLAGS = """

--word_timestamps True --highlight_words True --max_line_width 42 --max_line_count 2
--word_timestamps True --max_words_per_line 3 --max_line_width None
--word_timestamps False --highlight_words False
--condition_on_previous_text False
--condition_on_previous_text True --carry_initial_prompt True --initial_prompt Pump-house.
--temperature 0
--temperature 0.5
--temperature 1
--temperature 0 --temperature_increment_on_fallback None
--temperature 0.1 --temperature_increment_on_fallback 0.3
--temperature_increment_on_fallback 0.25
--temperature_increment_on_fallback 0.1
--compression_ratio_threshold None --logprob_threshold None --no_speech_threshold None
--compression_ratio_threshold 1.5 --logprob_threshold -0.5 --no_speech_threshold 0.3
--suppress_tokens -1
--suppress_tokens ''
--suppress_tokens 11,13
--clip_timestamps 0
--clip_timestamps 1.5,2,3
--clip_timestamps ''
--hallucination_silence_threshold 2 --word_timestamps True
--hallucination_silence_threshold None
--best_of None --patience 2 --length_penalty 0.6
--best_of 3
--language de --task translate
--language English
--prepend_punctuations ( --append_punctuations ).
--fp16 False --device cpu --threads 3 --model tiny.en --model_dir models
--output_format json --output_dir out --verbose False
-o out -f srt --verbose True"""


@pytest.mark.parametrize("line", FLAGS.split("\n")[1:])
def test_openai_whispers_flags_mean_the_same(requested: Parse, line: str) -> None:
    args = [word.strip("'") for word in line.split()]
    given, options = theirs([*args, *SAME])
    request = requested("a.wav", *args, *SAME)
    assert request.options == dataclasses.replace(options, clip_timestamps=options.clip_timestamps or (0.0,))
    assert request.files == ("a.wav",)
    limits = {name: getattr(given, name) for name in SubtitleOptions.__dataclass_fields__}
    assert request.subtitles == SubtitleOptions(**limits)
    assert request.model.threads == (given.threads or 0)
    assert request.model.model == (given.model if "--model" in args else None)
    assert request.model_folder == (None if given.model_dir is None else Path(given.model_dir))
    if given.output_format != "all":
        assert request.formats == (given.output_format,) and request.output.folder == given.output_dir


def test_every_flag_of_openai_whisper_is_known() -> None:
    known = {name.replace("-", "_") for param in command.params for name in param.opts}
    flags = {name.replace("-", "_") for action in openai_whisper.parser()._actions for name in action.option_strings}
    assert flags - known == {"_h", "__help"}, "click adds help by itself"


@pytest.mark.parametrize(
    ("args", "field", "value"),
    [
        (["--length-decay", "140,1.01"], "length_decay", (140.0, 1.01)),
        (["--no-condition-on-previous-text"], "condition_on_previous_text", False),
        (["--initial-prompt", "True"], "initial_prompt", "True"),
        (["--no-suppress-blank"], "suppress_blank", False),
        (["--suppress-tokens", "None"], "suppress_tokens", None),
        (["--max-initial-timestamp", "None"], "max_initial_timestamp", None),
        (["--audio-context", "2.5"], "audio_context", 2.5),
        (["--window-end", "pause"], "window_end", "pause"),
        (["--print-drafts"], "draft_sources", True),
    ],
)
def test_values_of_options(requested: Parse, args: list[str], field: str, value: Any) -> None:
    options = requested(*args, "a.wav").options
    assert options == dataclasses.replace(TranscribeOptions(), **{field: value})


def test_whisper_ctranslate2s_additions(requested: Parse, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--compute_type", "auto", "--local_files_only", "True", "--batched", "True", "--batch_size", "8"]
    args += ["--vad_filter", "True", "--vad_threshold", "0.6", "--vad_min_speech_duration_ms", "100"]
    args += ["--vad_max_speech_duration_s", "30", "--vad_min_silence_duration_ms", "500", "--device_index", "0"]
    request = requested("a.wav", "--model_directory", "x", *args)
    assert request.model.model == "x" and request.vad == {
        "threshold": 0.6,
        "min_speech_duration_ms": 100,
        "max_speech_duration_s": 30.0,
        "min_silence_duration_ms": 500,
    }
    assert request.batch_size == 8
    says = "specedge: warning: --vad-max-speech-duration-s has no effect in batched mode\n"
    assert capsys.readouterr().err == says


@pytest.mark.parametrize(
    ("args", "size"),
    [
        ((), None),
        (("--batched", "True"), 8),
        (("--batched",), 8),
        (("--batch_size", "3"), 3),
        (("--batch_size", "None"), None),
    ],
)
def test_a_batch_size_asks_for_batched_mode(requested: Parse, args: tuple[str, ...], size: int | None) -> None:
    assert requested("a.wav", *args).batch_size == size
