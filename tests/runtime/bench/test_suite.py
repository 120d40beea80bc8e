"""`specedge bench suite` on a scripted model: what is counted, written and drawn. No time is asserted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from specedge.runtime.bench import suite
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.cli import main
from support.fake_cli import fake_model, wav

KEYS = {"wer", "errors", "words", "languages", "real_time_factor", "latency_s"}
OURS = KEYS | {"tokens", "passes", "tokens_per_pass", "acceptance_rate", "stages", "different", "joules"}


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Recordings of 2, 3 and 9 s, one with its text beside it and one with it in a list; and a scripted model."""
    engine, bundle = fake_model()
    bundle.path = Path("x")
    more = {"name": "micro <1>", "precision": "int8", "files": {}, "graphs": {}, "source": SimpleNamespace(id="micro")}
    bundle.manifest = SimpleNamespace(**{**vars(bundle.manifest), **more})
    monkeypatch.setattr(Bundle, "open", lambda path, *, verify: bundle)
    monkeypatch.setattr("specedge.runtime.engine.speech.open_engine", lambda bundle, **options: engine)
    for name, seconds in (("a", 2.0), ("b", 3.0), ("c", 9.0)):
        wav(tmp_path / f"{name}.wav", seconds)
    (tmp_path / "b.txt").write_text("The pump is off. The pump is on. The pump is on.")
    (tmp_path / "set.jsonl").write_text(json.dumps({"audio": "a.wav", "text": "The pump is on, the pump is on!"}))
    return tmp_path


def measured(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert main.main(["bench", "suite", str(folder), "-l", "en", "-f", "json", *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_what_is_counted_is_the_same_each_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (measured(folder, capsys, "--rounds", rounds) for rounds in ("1", "2"))
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
    monkeypatch.setattr(suite, "_RAPL", folder)
    (folder / "p.svg").write_text("old")
    picture = str(folder / "p.svg")
    found = measured(
        folder, capsys, "--peer", "faster-whisper=ct2", "--peer", "openai-whisper=no.pt", "--picture", picture
    )
    assert set(found["peers"]) == {"faster-whisper"} and set(found["peers"]["faster-whisper"]) == KEYS
    assert found["peers"]["faster-whisper"]["errors"] == 4 and found["joules"] == 0.0
    texts = [each.text or "" for each in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert "micro <1>, int8, threads: 1" in texts and sum("%" in text for text in texts) == 5
    assert main.main(["bench", "suite", str(folder), "--peer", "other=1"]) == 2
