"""`specedge doctor`: the table, the verdict and the exit code, on sound and on faulty machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.cli.main import main
from specedge.runtime.engine import doctor
from specedge.runtime.engine.doctor import GOLDEN_TOLERANCE, examine, render
from specedge.runtime.engine.engine import Engine, State
from specedge.runtime.engine.exactness import PATHS_PER_PASS, ROWS_PER_PASS
from support.exported import PRECISIONS, bundle


class Coupled(Engine):
    """An engine on a machine whose kernels sum wide passes in another order."""

    def forward(self, state: State, ids: Sequence[int], logit_rows: Sequence[int] | None = None) -> NDArray[np.float32]:
        logits = super().forward(state, ids, logit_rows)
        if len(ids) >= 8:
            logits[-1, 3] = np.nextafter(logits[-1, 3], np.float32(np.inf))
        return logits


class Saturating(Engine):
    """An engine on a machine whose 8-bit products overflow: exact, and wrong."""

    def forward(self, state: State, ids: Sequence[int], logit_rows: Sequence[int] | None = None) -> NDArray[np.float32]:
        return -super().forward(state, ids, logit_rows)

    def forward_paths(
        self, state: State, pending: int, paths: Sequence[Sequence[int]]
    ) -> list[list[NDArray[np.float32]]]:
        return [[-row for row in rows] for rows in super().forward_paths(state, pending, paths)]


class CoupledWindows(Engine):
    """An engine on a machine where a pass over several windows differs, and one over several paths does not."""

    def forward_many(self, texts: Sequence[Any]) -> list[NDArray[np.float32]]:
        found = super().forward_many(texts)
        if len({id(state.features) for state, _, _ in texts}) > 1 and self.is_exact:
            return [rows + np.arange(rows.shape[1], dtype=np.float32) % 7 for rows in found]
        return found


class Broken(Engine):
    """An engine that computes no numbers at all."""

    def forward(self, state: State, ids: Sequence[int], logit_rows: Sequence[int] | None = None) -> NDArray[np.float32]:
        return np.full_like(super().forward(state, ids, logit_rows), np.nan)


def without_selfcheck(opened: Bundle, golden: Any = None) -> Bundle:
    return replace(opened, manifest=replace(opened.manifest, selfcheck={"golden": golden}))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_machine_that_exported_keeps_every_promise(precision: str) -> None:
    report = examine(bundle(precision))
    assert report.healthy and report.invariance.exact
    assert report.golden_difference is not None and report.golden_difference < 1e-5
    rows = report.invariance.results
    assert report.shares_passes and {row.n_windows for row in rows} == {1, 4}
    rows = [row for row in rows if row.n_windows == 1]
    chains = [row for row in rows if row.n_paths == 1]
    assert {1, 2} <= {row.threads for row in rows} and {row.rows_per_pass for row in chains} == set(ROWS_PER_PASS)
    assert {(row.n_paths, row.rows_per_pass) for row in rows if row.n_paths > 1} == set(PATHS_PER_PASS)


def test_the_command_prints_the_table_and_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "-m", str(bundle("int8").path)]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    for text in ("micro (int8)", "kernel features", "rows each", "texts share passes: beams", "at most 0.5: ok"):
        assert text in said.out
    assert said.out.startswith("every promise holds\n"), "the table is long: the verdict comes first"
    table = [line.split() for line in said.out.splitlines() if line[:1] == " " and line.split()[0].isdigit()]
    assert len(table) >= 2 * 2 * len(ROWS_PER_PASS)
    assert all(len(row) == 8 and row[6] == "0" for row in table)


def test_json_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "-m", str(bundle("int8").path), "--json", "-t", "1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] is True and report["invariance"]["exact"] is True
    assert {row["threads"] for row in report["invariance"]["rows"]} == {1}
    assert report["precision"] == "int8" and report["isa"].keys() == {"machine", "features", "model"}
    assert report["shares_passes"] is True


@pytest.mark.parametrize("golden", [None, [[1.0, 2.0], [3.0]], [["a"]]])
def test_a_bundle_without_usable_numbers_is_judged_by_its_rows(golden: Any) -> None:
    report = examine(without_selfcheck(bundle("int8"), golden), threads=(1,))
    assert report.golden_difference is None and report.healthy
    assert "exporting machine" not in render(report)


def test_rows_that_notice_their_company_end_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "open_engine", Coupled)
    assert main(["doctor", "-m", str(bundle("int8").path), "-t", "1"]) == 1
    said = capsys.readouterr()
    assert said.err == "" and "A PROMISE DOES NOT HOLD: drafts could change the text here" in said.out
    assert "every promise holds" not in said.out and "computes something else" not in said.out
    differing = {}
    for line in said.out.splitlines():
        if line[:1] == " " and line.split()[0].isdigit():
            _, _, n_windows, n_paths, width, _, n_differing, _ = line.split()
            if (n_windows, n_paths) == ("1", "1"):
                differing[int(width)] = int(n_differing)
    assert [width for width, n in sorted(differing.items()) if n] == [8, 16]


@pytest.mark.parametrize(
    "about, reason", [({"kind": CoupledWindows}, "it would change bits here"), ({"graphs": ()}, "this needs a bundle")]
)
def test_texts_that_cannot_share_passes_are_no_fault(
    about: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = bundle("int8")
    if "graphs" in about:
        graphs = {name: graph for name, graph in opened.manifest.graphs.items() if name != "many"}
        opened = replace(opened, manifest=replace(opened.manifest, graphs=graphs))
    monkeypatch.setattr(doctor, "open_engine", about.get("kind", Engine))
    report = examine(opened, threads=(1,))
    assert report.healthy and not report.shares_passes and report.to_json()["shares_passes"] is False
    assert f"texts share no passes ({reason}" in render(report)


def test_other_numbers_than_the_exporting_machines_end_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "open_engine", Saturating)
    assert main(["doctor", "-m", str(bundle("int8").path), "-t", "1"]) == 1
    said = capsys.readouterr().out
    assert "NOT OK" in said and "this machine computes something else" in said
    assert "drafts could change" not in said


def test_no_numbers_at_all_end_with_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "open_engine", Broken)
    assert main(["doctor", "-m", str(bundle("int8").path), "-t", "1", "--json"]) == 1
    report = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert report["golden_difference"] is None and report["agrees"] is False


@pytest.mark.parametrize(
    ("precision", "sound", "faulty"), [("fp32", 2e-5, 0.1), ("int8", 0.31, 0.74), ("int4", 0.54, 1.1)]
)
def test_the_bound_lies_between_sound_cpus_and_a_layer_left_out(precision: str, sound: float, faulty: float) -> None:
    report = examine(bundle(precision), threads=(1,))
    assert replace(report, golden_difference=sound).healthy
    assert not replace(report, golden_difference=faulty).healthy
    assert replace(report, golden_difference=GOLDEN_TOLERANCE[precision]).healthy
    assert not replace(report, golden_difference=float("nan")).healthy


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-m", "nothing-of-the-kind"], 4, "nothing-of-the-kind"),
        (["-m", "{tmp}"], 4, "no specedge.json in it"),
        (["-t", "0"], 2, "-t"),
        (["-t", "257"], 2, "-t"),
        (["what"], 2, "unexpected extra argument"),
    ],
)
def test_bad_requests_are_one_line_and_a_code(
    arguments: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *(argument.format(tmp=tmp_path) for argument in arguments)]) == code
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and message in said.err
