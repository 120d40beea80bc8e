"""docs/results.md is filled from kept runs alone, each table in its place, and holds the tables that there are."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from bench import papers, results
from bench.targets import BASE_DRAFT, MIX, OTHERS_MAP

PAGE = results.ROOT / "docs" / "results.md"
CALLERS = {
    "speedup": 2.7355, "speedup_range": [2.685, 2.761], "texts_per_pass": 6.97, "longest_wait_windows": 0.683,
    "longest_encoder_wait_windows": 0.0, "differing": 0,
}  # fmt: skip


def _kept(folder: Path, part: str, **figures: Any) -> None:
    machine = {"load_average": 0.5, "commit": "abc123"}
    found = {"benchmark": results.PARTS[part].program, "machine": machine, **figures}
    (folder / f"{part}.txt").write_text(f"a table\n{json.dumps(found)}\n", encoding="utf-8")


def _row(speed_up: float) -> dict[str, float]:
    return {
        "decoder_speed_up": speed_up, "least": speed_up - 0.1, "greatest": speed_up + 0.1,
        "tokens_per_pass": 2.04, "acceptance": 0.5, "end_to_end": 1.2,
    }  # fmt: skip


def _shape(speed_up: float) -> dict[str, Any]:
    theirs = {"times_base": 1.0, "least": 1.0, "greatest": 1.0, "ms_a_file": 266.4, "peak_mb": 217.0}
    ours = {"times_base": 1.68, "least": 1.6, "greatest": 1.7, "ms_a_file": 150.0, "peak_mb": 232.0}
    names = [f"specedge {name}, {context}" for name in ("none", "ctc", "auto") for context in ("full", "auto")]
    row = {"faster-whisper": theirs, **dict.fromkeys(names, ours)}
    drafters = {"tokenmap": _row(speed_up), "ctc alone": _row(1.5)}
    domains = {"maintenance-dev": drafters, "notes-dev": drafters, OTHERS_MAP: {"ctc": _row(0.98)}, MIX: drafters}
    beside = {"domains": {"maintenance-dev": row, "notes-dev": row}}
    return {"domains": domains, "beside": beside, "others": {"pass": 0.003, "floor": None}, "different": 0}


def _page(tmp_path: Path) -> Path:
    page = tmp_path / "results.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    return page


def _written(page: Path, keep: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    results.main(["--keep", str(keep), "--page", str(page)])
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def _table(page: Path, name: str) -> str:
    begin, end = results.marks_of(name)
    return page.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0]


def test_the_page_has_a_place_for_every_table_and_no_other() -> None:
    begun = re.findall(r"^<!-- table: (.+) -->$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    ended = re.findall(r"^<!-- end of table: (.+) -->$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert begun == ended and sorted(begun) == sorted(results.TABLES)
    assert all(set(table.needs) <= set(results.PARTS) for table in results.TABLES.values())


def test_what_was_not_run_stays_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = _page(tmp_path)
    found = _written(page, tmp_path, capsys)
    assert page.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")
    assert found["written"] == [] and list(found["kept"]) == list(results.TABLES)


def test_a_table_has_its_figures_and_how_they_were_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = _page(tmp_path)
    _kept(tmp_path, "callers", model="demo", drafter="none", decoder=CALLERS, whole={**CALLERS, "differing": 1})
    found = _written(page, tmp_path, capsys)
    assert found["written"] == ["callers"]
    table = _table(page, "callers")
    assert "| decoder | 2.74 (2.69-2.76) | 7.0 | 0.68 | 0.00 | 0 |" in table
    assert "| from samples to text | 2.74 (2.69-2.76) | 7.0 | 0.68 | 0.00 | 1 |" in table
    command = "`python tests/bench/callers.py --speech DEV --limit 32 --rounds 5`"
    assert f"{command}, commit abc123, load 0.5." in table
    once = page.read_text(encoding="utf-8")
    assert _written(page, tmp_path, capsys) == found and page.read_text(encoding="utf-8") == once


def test_shapes_fill_three_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, small = _page(tmp_path), _shape(1.54)
    small["domains"]["maintenance-dev"] = {**small["domains"]["maintenance-dev"], BASE_DRAFT: _row(0.8)}
    _kept(tmp_path, "shapes", shapes={"base": _shape(1.45), "small": small}, different=0)
    assert _written(page, tmp_path, capsys)["written"] == ["beside faster-whisper", "speed-ups", "floor"]
    table = _table(page, "speed-ups")
    cells = "1.45 (1.35-1.55) | 1.45 (1.35-1.55) | 2.0, 2.0 | 1.20, 1.20"
    assert f"| tokenmap | {cells} | {cells.replace('1.45 (1.35-1.55)', '1.54 (1.44-1.64)')} |" in table
    assert "| ctc, no map |" in table and "0 texts differ, other processes had at most 0.3% of the CPUs." in table
    assert f"| {BASE_DRAFT} |  |  |  |  | 0.80 (0.70-0.90) |  | 2.0 | 1.20 |" in table
    assert "| maintenance with the map of notes |  | 0.98 (0.88-1.08) |  |  |" in _table(page, "floor")
    beside = _table(page, "beside faster-whisper")
    assert "| small, whole windows | 266, 266 | 1.68, 1.68 | 1.68 (1.60-1.70), 1.68 (1.60-1.70) |" in beside
    assert "| 217, 232 |" in beside


def test_memory_wants_all_of_its_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = _page(tmp_path)
    steps = {name: {"peak_mb": peak} for name, peak in (("export", 1320.0), ("transcribe", 1200.0))}
    _kept(tmp_path, "export_memory", steps={**steps, "transcribe, first start": {"peak_mb": 2460.0}})
    hours = {"growth_mb": -1.7, "points": 886, "peak_mb": 145.0}
    _kept(tmp_path, "soak", steps={"hours": hours, "minute": {"peak_mb": 119.0}})
    _kept(tmp_path, "load", median={"load s": 0.41})
    assert _written(page, tmp_path, capsys)["kept"]["memory"] == ["map_lookup"]
    _kept(tmp_path, "map_lookup", keys=1_000_000, find_hit_us=1.8, find_miss_us=0.7)
    assert _written(page, tmp_path, capsys)["written"] == ["memory"]
    table = _table(page, "memory")
    assert "peak 2.46 GB at the first start, 1.20 GB later" in table and "-1.7 MB over 886 windows" in table
    assert "in 1,000,000 keys | 1.8 us if found, 0.7 us if not" in table


def test_batches_and_equal_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, name = _page(tmp_path), "specedge, batch 8, auto"
    alike = {"over_their_best": {name: 3.674}, "same_words_as_ours": {name: True}}
    _kept(tmp_path, "batched", shape="small", s={name: 4.2}, **alike)
    _kept(tmp_path, "lossless", tokens_by_part={"random": 66928}, different=0, dropped=0)
    assert _written(page, tmp_path, capsys)["written"] == ["batches", "same text"]
    assert f"| {name} | 4.20 | 3.67 | yes |" in _table(page, "batches")
    assert "| random | 66,928 |" in _table(page, "same text")


def test_the_papers_tables_come_from_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(papers, "main", lambda arguments: asked.append(list(arguments)))
    (tmp_path / "papers").mkdir()
    arguments = ["--keep", str(tmp_path), "--page", str(_page(tmp_path)), "--papers", "p.md"]
    kept = ["--keep", str(tmp_path / "papers"), "--page", "p.md"]
    results.main(arguments)
    results.main([*arguments, "--run", "papers", "--speech", "DEV"])
    assert asked == [[*kept, "--only-results"], [*kept, "--timed", "--shapes", "--speech", "DEV"]]


def test_what_is_missing_is_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import json, sys\nprint(json.dumps({'benchmark': 'map_lookup', 'arguments': sys.argv[1:]}))\nsys.exit(1)\n"
    )
    monkeypatch.setattr(results, "command_of", lambda part, places: [sys.executable, str(program)])
    arguments = ["--keep", str(tmp_path), "--page", str(_page(tmp_path)), "--run", "map_lookup"]
    results.main(arguments)
    kept = (tmp_path / "map_lookup.txt").read_text(encoding="utf-8")
    program.write_text("raise SystemExit(3)")
    results.main(arguments)
    assert (tmp_path / "map_lookup.txt").read_text(encoding="utf-8") == kept
    (tmp_path / "map_lookup.txt").unlink()
    with pytest.raises(SystemExit, match="map_lookup ended with code 3"):
        results.main(arguments)
    assert not (tmp_path / "map_lookup.txt").exists()


def test_a_command_has_the_paths_in_the_places_of_the_words(tmp_path: Path) -> None:
    places = {"DEV": Path("a"), "SMALL": Path("b"), "LARGE": None, "KEEP": Path("k")}
    assert results.command_of("callers-small", places)[2:6] == ["-m", "b", "--speech", "a"]
    assert results.command_of("shapes", places)[-1] == str(Path("k") / "shapes")
    assert all(Path(results.command_of(part, {**places, "LARGE": Path("c")})[1]).is_file() for part in results.PARTS)
    with pytest.raises(results.BenchError, match="export_memory needs --large"):
        results.command_of("export_memory", places)


@pytest.mark.parametrize("text", ["", "half a table\n", '{"benchmark": "soak"}\n'])
def test_a_kept_run_that_is_none_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "callers.txt").write_text(text, encoding="utf-8")
    page = _page(tmp_path)
    with pytest.raises(SystemExit, match=r"callers\.txt: its last line is not the JSON of callers"):
        results.main(["--keep", str(tmp_path), "--page", str(page)])
    with pytest.raises(SystemExit, match="'none' is none of shapes"):
        results.main(["--keep", str(tmp_path), "--page", str(page), "--run", "none"])
    assert page.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")
