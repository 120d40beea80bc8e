"""`specedge bench --audio-context` on a scripted model: what is read, counted and printed. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from specedge.errors import UsageError
from specedge.runtime.bench.recordings import Recording, read_recordings
from specedge.runtime.cli import main
from support.fake_cli import SPECIAL, wav
from support.fake_engine import Script, SilentEngine, bundle, words


def test_a_folder_and_a_list_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The pump.\nIt is on.\n")
    a, b = wav(tmp_path / "a.wav"), wav(tmp_path / "b.wav")
    assert read_recordings([str(tmp_path)]) == [Recording(file=a, text="The pump. It is on."), Recording(file=b)]
    rows = [{"audio": "a.wav", "text": "Die Pumpe", "language": "German"}, {"audio": "b.wav"}]
    (tmp_path / "set.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_recordings([str(tmp_path / "set.jsonl"), a], "en")
    assert [(one.text, one.language) for one in found] == [
        ("Die Pumpe", "de"), ("", "en"), ("The pump. It is on.", "en"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "says"), [("[]", "expected audio"), ('{"audio": 1}', "expected audio"), ("x", "JSON")]
)
def test_a_line_that_names_no_audio_is_refused(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "set.jsonl").write_text(line)
    with pytest.raises(UsageError, match=f"set.jsonl, line 1: .*{says}"):
        read_recordings([str(tmp_path / "set.jsonl")])


def test_both_ways_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    end = SPECIAL.timestamp_begin + 50
    right = Script(tokens=[SPECIAL.timestamp_begin, *words(" the", " pump"), end])
    wrong = Script(tokens=[SPECIAL.timestamp_begin, *words(" the", " leak"), end])
    for name, seconds in (("a", 2.0), ("b", 5.0)):
        wav(tmp_path / f"{name}.wav", seconds)
    (tmp_path / "a.txt").write_text("The pump.")
    # The warm-up begins with auto for a and with full for b, the round the other way about; then both are fed live.
    engine, made = SilentEngine(SPECIAL, wrong, *[right] * 20), bundle(SPECIAL)
    made.manifest = SimpleNamespace(**{**vars(made.manifest), "name": "micro", "precision": "int8", "window_s": 30.0})
    made.manifest.source = SimpleNamespace(id="micro")
    made.path, made.digest, made.timed_digest = Path("x"), "5a" * 32, "5a" * 32
    made.manifest.files, made.manifest.graphs = {}, {}
    monkeypatch.setattr("specedge.runtime.model.load", lambda *given: (engine, made))
    assert main.main(["bench", "--audio-context", str(tmp_path), "-l", "en", "--rounds", "1"]) == 0
    out, err = capsys.readouterr()
    rows = json.loads(out)["drafters"]
    assert list(rows) == ["none, full", "none, auto"] and all(row["different"] == 0 for row in rows.values())
    assert engine.silent[:8] == [True, False, False, True, False, True, True, False]
    assert [(row["errors"], row["words"], row["same"]) for row in rows.values()] == [(0, 2, 2), (1, 2, 1)]
    assert "again" in err and "on this device use" not in err
