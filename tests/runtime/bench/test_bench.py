"""`specedge bench` on a scripted model: its table, JSON, report and exit code. No time is asserted."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specedge.errors import UsageError
from specedge.runtime.bench import measure as bench
from specedge.runtime.bench.measure import Findings, Plan, read_references
from specedge.runtime.bench.recommendation import Spread
from specedge.runtime.bench.report import table, to_json
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.cli import main
from specedge.runtime.console import warn
from specedge.runtime.device import Profile, save_profile
from support.fake_cli import fake_model, wav

DIGEST = "5a" * 32


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A scripted model with all that the bench asks of a bundle, wherever one is opened; no child processes."""
    engine, bundle = fake_model()
    bundle.digest = bundle.timed_digest = DIGEST
    bundle.path = Path("x")
    bundle.manifest.name, bundle.manifest.precision = "micro <1>", "int8"
    bundle.manifest.files, bundle.manifest.graphs = {}, {}
    monkeypatch.setattr(Bundle, "open", lambda path, *, verify: bundle)
    monkeypatch.setattr("specedge.runtime.engine.speech.open_engine", lambda bundle, threads, encoder_provider: engine)
    return engine, bundle


@pytest.fixture
def findings(model: Any, tmp_path: Path) -> Findings:
    plan = Plan(files=(wav(tmp_path / "a.wav", 3.0),), drafters=("none", "ngram"), rounds=2)
    return bench.bench(*model, plan)


def run(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> tuple[list[str], str]:
    assert main.main(["bench", *args]) == code
    out, err = capsys.readouterr()
    return out.splitlines(), err


def test_what_a_drafter_warns_of_is_said_once(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log, make = logging.getLogger("specedge"), bench.make_drafter

    def warning(*given: Any) -> Any:
        warn(log, "expect no gain")
        return make(*given)

    monkeypatch.setattr(bench, "make_drafter", warning)
    plan = Plan(files=(wav(tmp_path / "a.wav", 3.0),), drafters=("none",), rounds=3)
    bench.bench(*model, plan)
    assert caplog.text.count("expect no gain") == 1


def test_the_command_ends_with_json(model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("The pump is off.\nThe pump is on.\n")
    args = [wav(tmp_path / "a.wav"), *"--rounds 1 --budget 99 --reference".split(), str(tmp_path / "a.txt")]
    lines, err = run(capsys, *args)
    (line,) = lines  # into a pipe the output is JSON alone
    found = json.loads(line)
    assert found["benchmark"] == "specedge bench" and list(found["drafters"]) == ["none", "ngram"]
    assert found["drafters"]["ngram"]["word_error_rate"] == pytest.approx(1 / 8) and found["lossless"] is True
    assert 0 < found["drafters"]["ngram"]["character_error_rate"] < 1
    assert found["drafters"]["none"]["decoder_speed_up"] == [1.0, 1.0, 1.0] and found["budget_s"] == 99
    assert "less was measured" not in err and found["measured_less"] == {}
    assert "micro <1>, int8, 1 thread: 1 file, 2.0 s of audio" in err
    assert found["recommendation"]["words"] == err.splitlines()[-1]
    assert "doctor --calibrate" in err and "\x1b" not in err
    save_profile(DIGEST, Profile(threads=1, pass_s={1: 0.01, 4: 0.012}, encode_s=0.1, rounds=3))
    lines, err = run(capsys, *args, "--drafters", "none")
    assert "doctor --calibrate" not in err and list(json.loads(lines[-1])["drafters"]) == ["none"]


def test_a_terminal_gets_a_table_that_fits_and_no_json(
    model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specedge.runtime.cli.bench.is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "80")
    args = [wav(tmp_path / "a.wav"), "--rounds", "1"]
    lines, _ = run(capsys, *args)
    assert lines[-1].startswith("on this device use --drafter ") and not any(line.startswith("{") for line in lines)
    (head,) = [line for line in lines if line.startswith("drafter")]
    assert head.split() == ["drafter", "decoder", "end", "to", "end", "tok/pass", "accepted", "text"]
    assert {line.split()[0] for line in lines[3:5]} == {"none", "ngram"}
    lines, err = run(capsys, *args, "--json")
    assert json.loads(lines[-1])["recommendation"] and len(lines) == 1 and head.split()[0] in err


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_the_table_is_sorted_and_shows_what_drafted_nothing(findings: Findings, columns: int) -> None:
    plain, ngram = findings.rows["none"], findings.rows["ngram"]
    rows = {
        "none": plain,
        "mtp-projection": replace(ngram, drafter="mtp-projection", decoder_speed_up=Spread(1.2, 0.9, 2.4)),
        "ngram": replace(ngram, decoder_speed_up=Spread(9.0, 8.0, 9.9), acceptance=None),
        "ctc": replace(ngram, drafter="ctc", decoder_speed_up=Spread(2.0, 1.9, 2.1), different=1),
    }
    lines = table(replace(findings, rows=rows), columns)
    assert [line.split()[0] for line in lines] == ["drafter", "ctc", "mtp-projection", "none", "ngram"]
    assert max(map(len, lines)) <= max(columns, 74)
    assert "DIFFERS" in lines[1] and "nothing" in lines[4] and "█" not in lines[4] and "9.0" not in lines[4]
    longest = max(lines, key=lambda line: line.count("█") + line.count("░"))
    assert longest == lines[2] and longest.count("░") > longest.count("█")
    assert table(replace(findings, rows=rows), columns, blocks=False)[2].isascii()


def test_another_text_ends_with_code_1(
    model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hear = bench.hear

    def hear_wrong(*args: Any, **named: Any) -> Any:
        heard = hear(*args, **named)
        return heard if args[4].name == "none" else replace(heard, segments=heard.segments[:-1])

    monkeypatch.setattr(bench, "hear", hear_wrong)
    lines, err = run(capsys, wav(tmp_path / "a.wav"), "--rounds", "1", code=1)
    found = json.loads(lines[-1])
    assert found["lossless"] is False and found["drafters"]["ngram"]["different"] == 2
    assert found["recommendation"]["drafter"] == "none" and "the text of ngram differs" in err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["-"], "read several times"),
        (["--drafters", "oracle"], "--drafters oracle: expected some of none, "),
        (["--drafters", "ctc"], "--drafters ctc: micro <1> has none, ngram; "),
        (["--reference", "a.wav", "--reference", "a.wav"], "got 2 for 1 inputs"),
        (
            ["--drafters", "ngram", "--draft-model", "tiny"],
            "--draft-model has no effect without draft or auto",
        ),
        (
            ["--drafters", "ngram", "--token-map", "x.tmap"],
            "--token-map has no effect without tokenmap or ctc or draft or auto",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(
    model: Any, tmp_path: Path, args: list[str], says: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    files = [] if args == ["-"] else [wav("a.wav")]
    assert says in run(capsys, *files, *args, code=2)[1]


def test_a_drafter_that_fails_is_told_and_not_chosen(findings: Findings) -> None:
    rows = {"none": findings.rows["none"], "ngram": replace(findings.rows["ngram"], dropped="ValueError: no")}
    broken = replace(findings, rows=rows)
    assert not rows["ngram"].is_sound and to_json(broken)["drafters"]["ngram"]["dropped"] == "ValueError: no"


def test_one_that_saved_no_pass_is_not_chosen(findings: Findings) -> None:
    quick = replace(findings.rows["ngram"], decoder_speed_up=Spread(1.5, 1.4, 1.6))
    for passes, chosen in ((quick.passes, "ngram"), (findings.rows["none"].passes, "none")):
        rows = {"none": findings.rows["none"], "ngram": replace(quick, passes=passes)}
        assert bench._recommended(rows, findings.plan).drafter == chosen


def test_references_are_read_as_one_text_each(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One two.\nThree.\n")
    assert read_references([tmp_path / "a.txt"], 1) == ("One two. Three.",)
    assert read_references([], 5) == ()
    with pytest.raises(UsageError, match=r"got 1 for 2 inputs"):
        read_references([tmp_path / "a.txt"], 2)
