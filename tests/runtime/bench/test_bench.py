"""`specedge bench` on a scripted model: its tables, JSON, picture and exit code. No time is asserted."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from specedge.runtime.bench import rounds
from specedge.runtime.bench.measure import Findings, bench, recommended
from specedge.runtime.bench.recommendation import Spread
from specedge.runtime.bench.recordings import Recording
from specedge.runtime.bench.report import remarks, speed_ups
from specedge.runtime.bench.rounds import Way
from specedge.runtime.cli import main
from specedge.runtime.console import warn
from specedge.runtime.decoding.statistics import Speculation
from specedge.runtime.device import Profile, save_profile
from specedge.runtime.options import DrafterOptions
from support.fake_cli import fake_model, wav

DIGEST = "5a" * 32
KEYS = {"wer", "errors", "words", "languages", "real_time_factor", "latency_s"}
OURS = KEYS | {"tokens", "passes", "tokens_per_pass", "acceptance_rate", "stages", "different", "joules"}
OURS |= {"decoder_speed_up", "end_to_end", "dropped", "same", "again"}
WAYS = [Way(drafter=DrafterOptions(name)) for name in ("none", "ngram")]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A scripted model with all that the bench asks of a bundle, wherever one is opened; no child processes."""
    engine, bundle = fake_model()
    bundle.digest = bundle.timed_digest = DIGEST
    bundle.path = Path("x")
    more = {"name": "micro <1>", "precision": "int8", "files": {}, "graphs": {}, "source": SimpleNamespace(id="micro")}
    bundle.manifest = SimpleNamespace(**{**vars(bundle.manifest), **more})
    monkeypatch.setattr("specedge.runtime.model.load", lambda *given: (engine, bundle))
    return engine, bundle


@pytest.fixture
def folder(model: Any, tmp_path: Path) -> Path:
    """Recordings of 2, 3 and 9 s, one with its text beside it and one with it in a list."""
    for name, seconds in (("a", 2.0), ("b", 3.0), ("c", 9.0)):
        wav(tmp_path / f"{name}.wav", seconds)
    (tmp_path / "b.txt").write_text("The pump is off. The pump is on. The pump is on.")
    (tmp_path / "set.jsonl").write_text(json.dumps({"audio": "a.wav", "text": "The pump is on, the pump is on!"}))
    return tmp_path


@pytest.fixture
def findings(model: Any, tmp_path: Path) -> Findings:
    return bench(*model, [Recording(file=wav(tmp_path / "a.wav", 3.0))], WAYS, n_rounds=2)


def run(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> tuple[list[str], str]:
    assert main.main(["bench", *args]) == code
    out, err = capsys.readouterr()
    return out.splitlines(), err


def measured(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> dict[str, Any]:
    (line,) = run(capsys, *args, "--rounds", "1", code=code)[0]  # into a pipe the output is JSON alone
    found: dict[str, Any] = json.loads(line)
    return found


def test_what_is_counted_is_the_same_each_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (measured(capsys, *how, str(folder), "-l", "en", "-f", "json") for how in ([], ["suite"]))
    assert first["drafter"] == "auto" and list(first["drafters"]) == ["none", "ngram", "auto"]
    assert first["recordings"] == second["recordings"] and [Path(one["audio"]).name for one in first["recordings"]] == [
        "a.wav", "b.wav", "c.wav",
    ]  # fmt: skip
    assert first["recordings"][1]["wer"] == pytest.approx(1 / 12) and first["recordings"][2]["wer"] is None
    for name, row in first["drafters"].items():
        assert set(row) == OURS and (row["errors"], row["words"], row["different"]) == (1, 20, 0)
        assert row["latency_s"]["n"] == 2 and row["languages"] == {"en": row["wer"]}
        assert all(row[key] == second["drafters"][name][key] for key in ("wer", "tokens", "passes", "acceptance_rate"))
    assert (
        first["drafters"]["none"]["tokens"]
        == first["drafters"]["none"]["passes"]
        == sum(one["tokens"] for one in first["recordings"])
        > first["drafters"]["ngram"]["passes"]
    )
    assert {key: first[key] for key in OURS} == first["drafters"]["auto"] and first["live_latency_s"]["n"] == 2
    assert first["drafters"]["none"]["decoder_speed_up"] == [1.0, 1.0, 1.0] and first["lossless"] is True


def test_peers_energy_and_the_picture(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Theirs:
        def __init__(self, model: str, **options: Any) -> None:
            assert (model, options["compute_type"], options["local_files_only"]) == ("ct2", "int8", True)

        def transcribe(self, file: str, language: str, beam_size: int) -> Any:
            return [SimpleNamespace(text=" The pump is on." * (9 if file.endswith("c.wav") else 2))], None

    module = ModuleType("faster_whisper")
    monkeypatch.setattr(module, "WhisperModel", Theirs, raising=False)
    monkeypatch.setitem(sys.modules, "faster_whisper", module)
    zone = folder / "intel-rapl:0"
    zone.mkdir()
    (zone / "energy_uj").write_text("1000000")
    monkeypatch.setattr(rounds, "_RAPL", folder)
    (folder / "p.svg").write_text("old")
    picture = str(folder / "p.svg")
    peers = ("--peer", "faster-whisper=ct2", "--peer", "openai-whisper=no.pt")
    found = measured(capsys, str(folder), "-l", "en", *peers, "--picture", picture)
    assert set(found["peers"]) == {"faster-whisper"} and set(found["peers"]["faster-whisper"]) == KEYS
    assert found["peers"]["faster-whisper"]["errors"] == 4 and found["joules"] == 0.0
    texts = [each.text or "" for each in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert "micro <1>, int8, threads: 1" in texts and sum("%" in text for text in texts) == 5
    assert main.main(["bench", str(folder), "--peer", "other=1"]) == 2


def test_what_a_drafter_warns_of_is_said_once(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log, make = logging.getLogger("specedge"), rounds.make_drafter

    def warning(*given: Any) -> Any:
        warn(log, "expect no gain")
        return make(*given)

    monkeypatch.setattr(rounds, "make_drafter", warning)
    bench(*model, [Recording(file=wav(tmp_path / "a.wav", 9.0))], WAYS[:1], n_rounds=3)
    assert caplog.text.count("expect no gain") == 1


def test_what_is_said_beside_json(model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = [wav(tmp_path / "a.wav"), "--rounds", "1"]
    lines, err = run(capsys, *args)
    assert "micro <1>, int8, 1 thread: 1 recording, 2.0 s of audio" in err
    assert json.loads(lines[0])["recommendation"]["words"] == err.splitlines()[-1]
    assert "doctor --calibrate" in err and "\x1b" not in err
    save_profile(DIGEST, Profile(threads=1, pass_s={1: 0.01, 4: 0.012}, encode_s=0.1, rounds=3))
    lines, err = run(capsys, *args, "--drafters", "none")
    assert "doctor --calibrate" not in err and list(json.loads(lines[-1])["drafters"]) == ["none"]


def test_a_terminal_gets_tables_that_fit_and_no_json(
    model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specedge.runtime.cli.bench.is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "80")
    args = [wav(tmp_path / "a.wav"), "--rounds", "1"]
    lines, _ = run(capsys, *args)
    assert lines[-1].startswith("on this device use --drafter ") and not any(line.startswith("{") for line in lines)
    assert max(map(len, lines[:-1])) <= 80
    (head,) = [line for line in lines if line.startswith("drafter")]
    assert head.split() == ["drafter", "decoder", "end", "to", "end", "tok/pass", "accepted", "text"]
    assert {line.split()[0] for line in lines[3:6]} == {"none", "ngram", "auto"}
    lines, err = run(capsys, *args, "--json")
    assert json.loads(lines[-1])["recommendation"] and len(lines) == 1 and head.split()[0] in err


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_the_table_is_sorted_and_shows_what_drafted_nothing(findings: Findings, columns: int) -> None:
    plain, ngram = findings.rows["none"], findings.rows["ngram"]
    rows = {
        "none": plain,
        "mtp-projection": replace(ngram, decoder_speed_up=Spread(1.2, 0.9, 2.4)),
        "ngram": replace(ngram, decoder_speed_up=Spread(9.0, 8.0, 9.9), counted=Speculation(passes=1)),
        "ctc": replace(ngram, decoder_speed_up=Spread(2.0, 1.9, 2.1), different=1),
    }
    lines = speed_ups(replace(findings, rows=rows), columns)
    assert [line.split()[0] for line in lines] == ["drafter", "ctc", "mtp-projection", "none", "ngram"]
    assert max(map(len, lines)) <= max(columns, 74)
    assert "DIFFERS" in lines[1] and "nothing" in lines[4] and "█" not in lines[4] and "9.0" not in lines[4]
    longest = max(lines, key=lambda line: line.count("█") + line.count("░"))
    assert longest == lines[2] and longest.count("░") > longest.count("█")


def test_another_text_ends_with_code_1(
    model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hear = rounds.hear

    def hear_wrong(*args: Any) -> Any:
        heard = hear(*args)
        return replace(heard, segments=heard.segments[:-1]) if args[4].name == "ngram" else heard

    monkeypatch.setattr(rounds, "hear", hear_wrong)
    found = measured(capsys, wav(tmp_path / "a.wav"), code=1)
    assert found["lossless"] is False and found["drafters"]["ngram"]["different"] == 2
    assert found["recommendation"]["drafter"] == "none" and found["drafters"]["auto"]["different"] == 0


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["-"], "read several times"),
        (["--drafters", "oracle"], "--drafters oracle: micro <1> has none, ngram, auto; "),
        (["--drafters", "ctc"], "--drafters ctc: micro <1> has none, ngram, auto; "),
        (["--audio-context"], "lacks the encoder for short audio"),
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


def test_a_drafter_that_fails_or_saved_no_pass_is_not_chosen(findings: Findings) -> None:
    plain = findings.rows["none"]
    quick = replace(findings.rows["ngram"], decoder_speed_up=Spread(1.5, 1.4, 1.6))
    broken, idle = replace(quick, dropped="ValueError: no"), replace(quick, counted=plain.counted)
    for row, chosen in ((quick, "ngram"), (broken, "none"), (idle, "none")):
        assert recommended({"none": plain, "ngram": row}, WAYS, 5).drafter == chosen
    told = remarks(replace(findings, rows={"none": plain, "ngram": broken}))
    assert "the drafter ngram failed and was dropped: ValueError: no" in list(told)
