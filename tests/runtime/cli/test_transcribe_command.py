"""`specedge transcribe` on a scripted model: formats, folders, remarks, statistics, and the filter in front."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specedge.runtime import model as models
from specedge.runtime.cli import main, transcribe_files
from specedge.runtime.decoding.decode import Speculation
from specedge.runtime.longform import vad_filter
from specedge.runtime.longform.segments import Segment, Word
from specedge.runtime.longform.windows import AudioContext
from specedge.runtime.options import TRANSLATIONS
from support.demo import english_draft
from support.fake_cli import SENTENCE, wav
from support.fake_engine import bundle, special_tokens
from support.tree import ROOT

pytestmark = pytest.mark.usefixtures("here", "model")

SRT = "1\n00:00:00,000 --> 00:00:01,000\nthe pump is on\n\n2\n00:00:01,000 --> 00:00:02,000\nthe pump is on\n\n"


def heard(asked: str, n_content_frames: int) -> AudioContext:
    """What a window of 10 s leaves behind."""
    manifest = bundle(special_tokens(), n_frames=1000).manifest
    context = AudioContext(asked, manifest, knows_silence=True)
    context.sound(np.zeros((80, 1000), np.float32), n_content_frames)
    return context


@dataclasses.dataclass
class Said:
    """A transcription that is there already, in place of the one the engine would make."""

    segments: list[Segment]
    stops: BaseException | None = None
    language: str | None = None
    language_probabilities: dict[str, float] = dataclasses.field(default_factory=lambda: {"de": 0.75, "en": 0.25})
    duration_s: float = 4.0
    encoder_s: float = 0.25
    audio_context: AudioContext = dataclasses.field(default_factory=lambda: heard("full", 1000))
    encoder_provider: str = "cpu"
    drafter_error: str | None = None
    speculation: Speculation = Speculation(
        drafter="x", proposed=9, evaluated=8, accepted=6, bonus=1, passes=4, tokens=10, decoder_s=0.5, draft_s=0.125
    )

    def __post_init__(self) -> None:
        self._rest = iter(self.segments)

    def find_language(self) -> None:
        self.language = "de"

    def close(self) -> None:
        pass

    def __next__(self) -> Segment:
        for segment in self._rest:
            return segment
        raise StopIteration if self.stops is None else self.stops


def spoken(start: float, *texts: str) -> Segment:
    """A segment whose words last half a second each."""
    words = [Word(start=start + i / 2, end=start + i / 2 + 0.5, word=t, probability=0.5) for i, t in enumerate(texts)]
    return Segment(
        id=0, seek=0, start=start, end=words[-1].end, text="".join(texts), tokens=[], avg_logprob=-0.1,
        compression_ratio=1.0, no_speech_prob=0.1, words=words,
    )  # fmt: skip


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call it with what the model is to say."""

    def script(*segments: Segment, **changes: Any) -> None:
        monkeypatch.setattr(models, "Transcription", lambda *args, **kwargs: Said(list(segments), **changes))

    return script


def run(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> tuple[str, str]:
    assert main.main(["transcribe", "-m", "x", *args]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_subtitles_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, wav("a.wav"), "-f", "srt") == (SRT, "")
    out, _ = run(capsys, "a.wav", "-f", "vtt")
    assert out.startswith("WEBVTT\n\n00:00.000 --> 00:01.000\nthe pump is on\n\n")
    out, _ = run(capsys, "a.wav", "-f", "tsv")
    assert out == "start\tend\ttext\n0\t1000\tthe pump is on\n1000\t2000\tthe pump is on\n"
    out, _ = run(capsys, "a.wav", "-f", "lrc")
    assert out == "[00:00.00]the pump is on\n[00:01.00]the pump is on\n"


def test_several_inputs_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, wav("a.wav"), wav("b.wav", 1.0))
    assert out == SENTENCE * 3
    out, _ = run(capsys, "a.wav", "b.wav", "-f", "json")
    assert [json.loads(line)["duration"] for line in out.splitlines()] == [2.0, 1.0]


def test_words_shape_the_subtitles(capsys: pytest.CaptureFixture[str], says: Any) -> None:
    says(spoken(0.0, " the", " pump", " is"), spoken(2.0, " on"))
    args = ["-f", "srt", "--word_timestamps", "True", "--max_line_width", "8", "--max_line_count", "1"]
    out, err = run(capsys, wav("a.wav"), *args)
    assert [block.split("\n")[2] for block in out.strip().split("\n\n")] == ["the pump", "is on"] and err == ""
    out, _ = run(capsys, "a.wav", "-f", "vtt", "--word-timestamps", "--highlight-words")
    assert "<u>the</u> pump is" in out
    out, _ = run(capsys, "a.wav", "-f", "json", "--word-timestamps")
    assert json.loads(out)["segments"][1]["words"] == [{"word": " on", "start": 2.0, "end": 2.5, "probability": 0.5}]


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), transcribe_files.Interrupted("stopped")], ids=repr)
def test_an_interrupt_gives_the_cue_that_was_being_made(
    capsys: pytest.CaptureFixture[str], says: Any, stop: BaseException
) -> None:
    says(spoken(0.0, " the", " pump"), stops=stop)
    args = ["-f", "srt", "--word-timestamps", "--max-line-width", "40", "--max-line-count", "2"]
    out, err = run(capsys, wav("a.wav"), *args, code=130)
    assert out == "1\n00:00:00,000 --> 00:00:01,000\nthe pump\n\n"
    assert err == "specedge: interrupted: a.wav at 0:01 of 0:02\n"


def test_an_interrupt_ends_the_others_too(capsys: pytest.CaptureFixture[str], says: Any) -> None:
    says(spoken(0.0, " the"), stops=KeyboardInterrupt())
    _, err = run(capsys, wav("a.wav"), wav("b.wav"), "-o", "out", code=130)
    assert os.listdir("out") == ["a.partial.txt"] and "interrupted: a.wav" in err


def test_a_file_that_fails_half_way_leaves_no_output(capsys: pytest.CaptureFixture[str], says: Any) -> None:
    says(spoken(0.0, " the"), stops=transcribe_files.AudioError("a.wav: broke off"))
    _, err = run(capsys, wav("a.wav"), "-o", "out", code=3)
    assert os.listdir("out") == [] and err == "specedge: error: a.wav: broke off\n"


def test_a_folder_of_files(capsys: pytest.CaptureFixture[str]) -> None:
    os.makedirs("talks/.hidden")
    for name in ("b.wav", "a.wav", ".hidden/c.wav"):
        wav(f"talks/{name}")
    Path("talks/bad.wav").write_bytes(b"RIFF")
    out, err = run(capsys, "talks", "-o", "out", code=1)
    assert out == "" and sorted(os.listdir("out")) == ["a.txt", "b.txt"]
    lines = err.splitlines()
    assert lines[0] == "specedge: talks: 3 audio files" and len(lines) == 5 and "bad.wav" in lines[3]


def test_recordings_of_one_name_keep_their_folders(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a/talk.wav", "b/talk.wav", "talks/mon/1.wav"):
        os.makedirs(os.path.dirname(name))
        wav(name)
    run(capsys, "a/talk.wav", "b/talk.wav", "talks", "-o", "out")
    written = sorted(path.as_posix() for path in Path("out").rglob("*.txt"))
    assert written == ["out/a/talk.txt", "out/b/talk.txt", "out/mon/1.txt"]
    _, err = run(capsys, "a/talk.wav", "b/talk.wav", "talks", "-o", "out", "--skip-existing")
    assert err.splitlines()[-1] == "specedge: 0 done, 3 left out"


def test_a_stopped_run_goes_on(capsys: pytest.CaptureFixture[str], model: list[Any], says: Any) -> None:
    says(spoken(0.0, " the"), stops=KeyboardInterrupt())
    names = [wav("a.wav"), wav("b.wav")]
    _, err = run(capsys, *names, "-o", "out", "--skip-existing", code=130)
    assert os.listdir("out") == ["a.partial.txt"], "a part is never taken for the whole"
    assert "older transcript" not in err and "the same command with --skip-existing goes on" in err
    says(spoken(0.0, " the"))
    run(capsys, "a.wav", "-o", "out", "--skip-existing")
    _, err = run(capsys, *names, "-o", "out", "--skip-existing")
    assert "wrote out/b.txt" in err and "1 done, 1 left out: " in err
    n_loaded = len(model)
    _, err = run(capsys, *names, "-o", "out", "--skip-existing")
    assert err == "specedge: 0 done, 2 left out\n" and len(model) == n_loaded
    assert "add -o DIR" in run(capsys, "a.wav", "--skip-existing", code=2)[1]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, out: io.StringIO, *args: str) -> tuple[str, str]:
    """What goes to `out`, and to a terminal behind standard error."""
    err = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    assert main.main(["transcribe", "-m", "x", *args]) == 0
    return out.getvalue(), err.getvalue()


def test_a_terminal_shows_times_unless_a_format_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    names = [wav("a.wav", 1.0), wav("b.wav", 1.0)]
    line = "[00:00.000 --> 00:01.000] the pump is on\n"
    assert shown(monkeypatch, Terminal(), *names)[0] == f"==> a.wav <==\n{line}==> b.wav <==\n{line}"
    assert shown(monkeypatch, Terminal(), "a.wav", "-f", "txt")[0] == SENTENCE
    assert shown(monkeypatch, Terminal(), "a.wav", "-q")[0] == SENTENCE
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b[2m[00:00" in shown(monkeypatch, Terminal(), "a.wav")[0]


def test_quiet_and_verbose(capsys: pytest.CaptureFixture[str], says: Any) -> None:
    says(spoken(0.0, " the"))
    assert main.main(["transcribe", wav("a.wav"), "-q"]) == 0
    assert capsys.readouterr().err == "", "not even which model"
    _, err = run(capsys, "a.wav", "--verbose", "True")
    assert err.splitlines() == ["specedge: model x: x", "specedge: a.wav: 0:02 of audio, language de (0.75), 1 segment"]
    assert run(capsys, "a.wav", "--verbose", "False")[1] == ""
    says()
    assert run(capsys, "a.wav") == ("", "specedge: a.wav: no speech\n")
    Path("stop.txt").write_text("stop\n", encoding="utf-8")
    assert run(capsys, "a.wav", "--only", "stop.txt")[1] == "specedge: a.wav: no speech, or no sentence of --only\n"


def test_a_doubt_is_said(capsys: pytest.CaptureFixture[str], says: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(transcribe_files, "_print", events.append)
    monkeypatch.setattr(transcribe_files, "notify", events.append)
    sure = dataclasses.replace(spoken(0.0, " fine"), avg_logprob=-0.2, tokens=[5] * 3)
    unsure = dataclasses.replace(spoken(1.0, " odd"), avg_logprob=-1.5, tokens=[5] * 20)
    says(sure, unsure, unsure)
    run(capsys, wav("a.wav"))
    assert events[:3] == ["fine\n", "odd\n", "odd\n"]
    assert events[3] == (
        "warning: a.wav: the model is very unsure of this text (average log-probability -1.4), which may be nonsense: "
        "check the language (-l), or use a larger model (-m)"
    )
    events.clear()
    says(unsure)
    run(capsys, "a.wav", "-q")
    assert events == ["odd\n"]


def test_quiet_hides_warnings_of_the_library_and_only_for_this_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, says: Any
) -> None:
    import logging

    says(spoken(0.0, " the"))
    logger = logging.getLogger("specedge")
    opened = transcribe_files.open_audio

    def warns(*args: Any, **kwargs: Any) -> Any:
        logger.warning("odd")
        return opened(*args, **kwargs)

    monkeypatch.setattr(transcribe_files, "open_audio", warns)
    level = logger.level
    assert run(capsys, wav("a.wav"), "-q")[1] == "" and logger.level == level
    assert run(capsys, "a.wav")[1] == "specedge: warning: odd\n"


def test_missing_audio_is_said_even_quietly_and_its_text_is_kept(
    capsys: pytest.CaptureFixture[str], says: Any, tmp_path: Path
) -> None:
    says(spoken(0.0, " the"))
    whole = Path(wav("a.wav"))
    cut = tmp_path / "cut.wav"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    out, err = run(capsys, str(cut), "-q")
    assert "the" in out
    assert err.count("\n") == 1 and err.startswith(f"specedge: warning: {cut}: cut short: the last ")


def test_stats(capsys: pytest.CaptureFixture[str], says: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([9.0, 9.0, 10.0, 10.5, 11.0, 11.5])  # around the language, the one segment, and the end
    monkeypatch.setattr(models.time, "perf_counter", lambda: next(now))
    says(spoken(0.0, " the"))
    out, err = run(capsys, wav("a.wav"), "--stats", "--quiet")
    assert out == "the\n"
    assert err.splitlines() == [
        "specedge: a.wav: 2.0 s of audio in 1.00 s (2.0x): encoder 0.25 s (25%), decoder 0.50 s (50%), "
        "draft 0.12 s (12%), other 0.12 s (12%)",
        "specedge: a.wav: 10 tokens in 4 passes of the decoder, 2.50 a pass; drafter x: 9 tokens drafted, 6 accepted",
    ]


CUT = "audio context auto: {} s encoded of windows of 10.0 s"
INSTEAD = ", silence standing in for the rest"


@pytest.mark.parametrize(
    ("asked", "line", "seconds"), [("full", None, 10.0), ("auto", CUT.format(3.2) + INSTEAD, 3.22)]
)
def test_a_cut_audio_context_is_told(
    capsys: pytest.CaptureFixture[str], says: Any, asked: str, line: str | None, seconds: float
) -> None:
    says(audio_context=heard(asked, 200))
    out, err = run(capsys, wav("a.wav"), "--stats", "--quiet", "-f", "json")
    told = [line.removeprefix("specedge: a.wav: ") for line in err.splitlines() if "audio context" in line]
    assert told == ([] if line is None else [line])
    expected = {"asked": asked, "heard_s": seconds, "window_s": 10.0, "approximate": seconds == 3.22}
    assert json.loads(out)["audio_context"] == {**expected, "encoded_again": 0}


NO_EFFECT = {
    "--max_line_count 2 --word-timestamps": "--max-line-count has no effect without --max-line-width",
    "--max-words-per-line 2 --max-line-width 9 --max-line-count 2 --word-timestamps": "--max-words-per-line has no "
    "effect with --max-line-width and --max-line-count",
    "--hallucination_silence_threshold 2": "--hallucination-silence-threshold has no effect without --word-timestamps",
    "--vad True --clip-timestamps 1,3": "--vad has no effect with --clip-timestamps",
    "--vad-threshold 0.4 --clip-timestamps 1": "--vad has no effect with --clip-timestamps",
    "--compute_type float16": "--compute-type float16 has no effect",
}


@pytest.mark.parametrize("line", NO_EFFECT)
def test_what_has_no_effect_is_said(capsys: pytest.CaptureFixture[str], says: Any, line: str) -> None:
    says(spoken(0.0, " the"))
    _, err = run(capsys, wav("a.wav"), *line.split())
    assert err.startswith(f"specedge: warning: {NO_EFFECT[line]}") and err.count("\n") == 1
    assert run(capsys, "a.wav", *line.split(), "-q")[1] == ""


def test_times_after_the_filter_are_those_of_the_audio(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, says: Any
) -> None:
    made: list[Any] = []

    class Speech:
        n_samples = 16_000

        def __init__(self, stream: Any, options: Any) -> None:
            made.append((stream.name, options.threshold))

        def restored(self, segment: Segment) -> Segment:
            return dataclasses.replace(segment, start=segment.start + 10, end=segment.end + 10, words=None)

    monkeypatch.setattr(vad_filter, "SpeechAudio", Speech)
    says(spoken(0.0, " the", " pump"))
    out, _ = run(capsys, wav("a.wav", 20.0), "--vad-filter", "--vad-threshold", "0.4", "-f", "json")
    value = json.loads(out)
    assert made == [("a.wav", 0.4)]
    assert (value["segments"][0]["start"], value["segments"][0]["end"], value["duration"]) == (10.0, 11.0, 20.0)


def test_a_folder_of_models(capsys: pytest.CaptureFixture[str], model: list[Any]) -> None:
    os.makedirs("models/small")
    for name in ("small", "other"):
        assert main.main(["transcribe", wav("a.wav"), "--model", name, "--model_dir", "models"]) == 0
    assert [path for path, _ in model] == [Path("models/small"), Path("other")]
    assert [threads for _, threads in model] == [None, None]


@pytest.fixture
def bundled(model: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The real models again, in place of the scripted one."""
    monkeypatch.undo()


def as_json(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    sample = str(ROOT / "tests" / "assets" / "samples" / "notes.wav")
    assert main.main(["transcribe", sample, "-q", "-l", "en", "-f", "json", *args]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.usefixtures("bundled")
def test_residual_acceptance_is_marked_and_can_be_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--draft-model", str(english_draft().path), "--lookahead", "3", "--temperature", "0.9", "--best-of", "1"]
    found = [as_json(capsys, *args, "--accept", "residual") for _ in range(2)]
    assert found[0]["segments"] == found[1]["segments"]
    assert found[0]["speculation"]["lossless"] is False and found[0]["speculation"]["accepted"] > 0
    assert as_json(capsys, *args)["speculation"]["lossless"] is True


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--draft-model", "demo"], "--accept: residual draws tokens, so temperatures must be above 0"),
        (["--drafter", "ngram", "--temperature", "1"], "--accept: residual needs --drafter draft"),
        (["--temperature", "1"], "--accept: residual needs --drafter draft"),
    ],
)
def test_residual_acceptance_needs_draws(capsys: pytest.CaptureFixture[str], args: list[str], said: str) -> None:
    _, err = run(capsys, wav("a.wav"), "--accept", "residual", *args, code=2)
    assert said in err


@pytest.mark.slow
@pytest.mark.usefixtures("bundled")
@pytest.mark.parametrize("mode", TRANSLATIONS)
def test_a_draft_of_another_vocabulary_is_translated_as_asked(capsys: pytest.CaptureFixture[str], mode: str) -> None:
    drafted = as_json(capsys, "--draft-model", str(english_draft().path), "--lookahead", "4", "--translation", mode)
    plain = as_json(capsys)
    assert drafted["segments"] == plain["segments"] and drafted["speculation"]["accepted"] > 0
