"""Who drafted each token: kept when asked for, right token by token, and shown without changing a letter."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from specedge.runtime.audio.audio import open_audio
from specedge.runtime.cli import main, transcribe_files
from specedge.runtime.decoding.decode import DecodeOptions, decode_window
from specedge.runtime.decoding.drafter import DraftContext, DraftTree
from specedge.runtime.decoding.rules import RuleSet
from specedge.runtime.drafters import registry
from specedge.runtime.longform.segments import DraftedSegment
from specedge.runtime.longform.transcribe import Transcription
from specedge.runtime.options import TranscribeOptions
from specedge.runtime.output.formats import SubtitleOptions
from specedge.runtime.output.report import coloured_text
from support.drafting import Scripted
from support.fake_cli import SENTENCE, SPECIAL, fake_model, wav
from support.fake_engine import HashEngine, special_tokens, tokenizer, words

COLOURS = re.compile("\x1b\\[[0-9]+m")


class TwoSources(Scripted):
    """A drafter made of two."""

    sources = ("first", "second")


def says(context: DraftContext, budget: int) -> DraftTree:
    """One right guess of " pump" by the second source, wrong ones by the first."""
    is_right = context.sampled[-1:] == tuple(words(" the"))
    token = words(" pump")[0] if is_right else words("ing")[0]
    source = np.array([1 if is_right else 0], np.uint8)
    return DraftTree(tokens=np.array([token], np.int32), parents=np.array([-1], np.int32), source=source)


def test_a_window_says_who_drafted_each_token_when_asked() -> None:
    special = special_tokens(n_timestamps=31)
    rules = RuleSet(special, space_ids=[32], suppressed=[], timestamps=False, max_initial_timestamp_index=None)
    prompt = [special.sot, special.languages["en"], special.transcribe]
    engine = HashEngine(special, seed=5, eot_bias=-50)

    def decoded(keeps_sources: bool, name: str | None) -> tuple[tuple[int, ...], tuple[str, ...], int, tuple[int, ...]]:
        chosen = DecodeOptions(rules=rules, n_text_ctx=48, keeps_sources=keeps_sources)
        true = decode_window(engine, b"", prompt, DecodeOptions(rules=rules, n_text_ctx=48)).tokens

        def guess(context: DraftContext, budget: int) -> DraftTree:
            at = len(context.sampled)
            return DraftTree([*true[at : at + 2], 99][:budget])

        result = decode_window(engine, b"", prompt, chosen, None if name is None else Scripted(guess, name))
        return result.tokens, result.sources, result.speculation.accepted, result.n_drafted

    tokens, sources, n_accepted, n_drafted = decoded(True, "oracle")
    assert len(sources) == len(tokens) > 6 and sources[:6] == ("oracle", "oracle", "") * 2
    assert sources.count("oracle") == n_accepted
    assert len(n_drafted) == len(tokens) and n_drafted[:6] == (3,) * 6, "the refused 99 is a row of the pass too"
    assert decoded(True, None)[1] == ("",) * len(tokens)
    assert decoded(False, "oracle")[1] == ()


def test_segments_have_the_sources_of_their_own_tokens(tmp_path: Path) -> None:
    engine, bundle = fake_model()
    drafter = TwoSources(says)
    with open_audio(wav(tmp_path / "a.wav")) as stream:
        found = list(Transcription(engine, bundle, stream, TranscribeOptions(draft_sources=True), drafter=drafter))
    assert len(found) == 2
    for segment in found:
        assert isinstance(segment, DraftedSegment)
        drafted = {t for t, source in zip(segment.tokens, segment.sources, strict=True) if source}
        assert drafted == set(words(" pump")) and set(segment.sources) == {"", "second"}


def test_colours_surround_drafts_and_nothing_else() -> None:
    segment = DraftedSegment(
        id=0, seek=0, start=0, end=1, text=" the pump is", tokens=words(" the", " pump", " is"), avg_logprob=0,
        compression_ratio=1, no_speech_prob=0, sources=("a", "b", ""),
    )  # fmt: skip
    write = coloured_text(tokenizer(SPECIAL), ("a", "b"), has_colours=True)
    assert list(write([segment], SubtitleOptions())) == ["\x1b[32mthe\x1b[0m\x1b[33m pump\x1b[0m is\n"]
    write = coloured_text(tokenizer(SPECIAL), ("a", "b"), has_colours=False)
    assert list(write([segment], SubtitleOptions())) == ["the pump is\n"]


@pytest.mark.usefixtures("model")
def test_print_drafts_colours_the_text_of_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(registry._MAKERS, "none", lambda target, options: TwoSources(says))
    command = ["transcribe", wav(tmp_path / "a.wav"), "-m", "x", "--print-drafts", "--drafter", "none"]
    assert main.main(command) == 0
    assert capsys.readouterr() == (SENTENCE * 2, "specedge: --print-drafts: no colours, because standard output is no "
                                   "terminal\n")  # fmt: skip
    monkeypatch.setattr(transcribe_files.sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main.main(command) == 0
    out, err = capsys.readouterr()
    assert "\x1b[33m pump\x1b[0m" in out and COLOURS.sub("", out) == SENTENCE * 2
    assert "second yellow" in err
    monkeypatch.setenv("NO_COLOR", "1")
    assert main.main(command) == 0
    out, err = capsys.readouterr()
    assert out == SENTENCE * 2 and "NO_COLOR is set" in err


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("args", [["-f", "srt"], ["-o", "out"], ["-f", "txt,json", "-o", "out"]])
def test_print_drafts_is_for_text_on_standard_output(
    tmp_path: Path, args: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(["transcribe", wav("a.wav"), "-m", "x", "--print-drafts", *args]) == 2
    assert "--print-drafts colours text on standard output" in capsys.readouterr().err
