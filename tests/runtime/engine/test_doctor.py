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

from specedge.runtime import device
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.cli.main import main
from specedge.runtime.device import Isa
from specedge.runtime.engine import doctor, kernels
from specedge.runtime.engine.doctor import GOLDEN_TOLERANCE, Report, examine, known_problems, render
from specedge.runtime.engine.engine import Engine, State
from specedge.runtime.engine.exactness import PATHS_PER_PASS, ROWS_PER_PASS
from specedge.runtime.engine.kernels import check_kernels
from specedge.runtime.engine.session import RUNTIME_VERSION, Canceller
from support.exported import PRECISIONS, bundle
from support.kernels import clipping, wrong
from support.speech_checkpoints import speech_bundle

VNNI = Isa(machine="x86_64", features=("avx2", "avx512_vnni"), model="some")
PLAIN = Isa(machine="x86_64", features=("avx2",), model="some")


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


# --------------------------------------------------------------------------------------------------- sound machines
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
    for text in (
        "micro (int8)",
        "kernel features",
        "rows each",
        "texts share passes: beams",
        "at most 0.5: ok",
        "known problem",
        "13 of 13 compute what they should",
    ):
        assert text in said.out
    assert said.out.startswith("every promise holds\n"), "the table is long: the verdict comes first"
    table = [line.split() for line in said.out.splitlines() if line[:1] == " " and line.split()[0].isdigit()]
    assert len(table) >= 2 * 2 * len(ROWS_PER_PASS)
    assert all(len(row) == 8 and row[6] == "0" for row in table)


def test_json_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "-m", str(bundle("int8").path), "--json", "-t", "1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] is True and report["invariance"]["exact"] is True and report["problems"] == []
    assert {row["threads"] for row in report["invariance"]["rows"]} == {1}
    assert report["precision"] == "int8" and report["isa"].keys() == {"machine", "features", "model"}
    assert report["shares_passes"] is True
    assert report["weight_bits"] == 7 and report["clipped"] is False and report["wrong_kernels"] == []
    assert {kernel["op"] for kernel in report["kernels"]["results"]} >= {"MatMulIntegerToFloat", "QGemm", "MatMulNBits"}


def test_one_cpu_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    monkeypatch.setattr(device, "threads_allowed", lambda: 1)
    monkeypatch.setattr(doctor, "threads_allowed", lambda: 1)
    if cpus:
        os.sched_setaffinity(0, {min(cpus)})
    try:
        report = examine(bundle("int8"))
    finally:
        if cpus:
            os.sched_setaffinity(0, cpus)
    assert report.healthy and report.threads_allowed == 1
    assert {row.threads for row in report.invariance.results} == {1, 2}


def test_nothing_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECEDGE_CACHE", str(tmp_path / "cache"))
    examine(bundle("int8"), threads=(1,))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("golden", [None, [], {}, "what", [[1.0, 2.0], [3.0]], [[1.0]], [1.0], [["a"]]])
def test_a_bundle_without_usable_numbers_is_judged_by_its_rows(golden: Any) -> None:
    report = examine(without_selfcheck(bundle("int8"), golden), threads=(1,))
    assert report.golden_difference is None and report.healthy
    assert "exporting machine" not in render(report)


# -------------------------------------------------------------------------------------------------- faulty machines
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


def test_json_of_a_faulty_machine_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "open_engine", Coupled)
    assert main(["doctor", "-m", str(bundle("int8").path), "-t", "1", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] is False and report["invariance"]["exact"] is False and report["agrees"] is True


@pytest.mark.parametrize(
    "about, reason",
    [({"kind": CoupledWindows}, "it would change bits here"), ({"graphs": ()}, "this needs a bundle")],
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


def test_the_bound_is_inclusive() -> None:
    report = examine(bundle("int8"), threads=(1,))
    bound = GOLDEN_TOLERANCE["int8"]
    assert replace(report, golden_difference=bound).healthy
    assert not replace(report, golden_difference=bound * 1.01).healthy
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


# ----------------------------------------------------------------------------------------------------------- kernels
def told(opened: Bundle) -> tuple[list[str], dict[str, Any]]:
    """The lines and the JSON of doctor."""
    report = examine(opened, threads=(1,))
    return render(report).splitlines(), json.loads(json.dumps(report.to_json(), allow_nan=False))


def with_bits(precision: str, bits: Any) -> Bundle:
    """A bundle whose manifest gives its weights so many bits; None: exported before it gave any."""
    opened = bundle(precision)
    quantisation = {**opened.manifest.quantisation, "weight_bits": bits}
    if bits is None:
        del quantisation["weight_bits"]
    return replace(opened, manifest=replace(opened.manifest, quantisation=quantisation))


@pytest.mark.parametrize(("precision", "bits"), [("int8", None), ("int4", None), ("int8", 8), ("int8", "what")])
def test_8_bit_weights_where_products_clip_break_a_promise(
    precision: str, bits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "GRAPH", clipping(tmp_path))
    lines, report = told(with_bits(precision, bits))
    assert report["healthy"] is False and report["clipped"] is True and report["wrong_kernels"] == []
    assert report["weight_bits"] == 8 and report["kernels"]["clips"] is True
    assert lines[0].startswith("A PROMISE DOES NOT HOLD: 8-bit products clip on this CPU")
    assert "words change: export the model again with this specedge, or with --precision fp32" in lines[0]


@pytest.mark.parametrize(
    ("precision", "bits", "end"),
    [
        ("int8", 7, "this bundle's 7-bit weights never reach that"),
        ("int4", 7, "this bundle's 7-bit weights never reach that"),
        ("fp32", 32, "does not touch this bundle"),
        ("fp32", None, "does not touch this bundle"),
    ],
)
def test_other_weights_where_products_clip_are_healthy(
    precision: str, bits: int | None, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "GRAPH", clipping(tmp_path))
    lines, report = told(with_bits(precision, bits))
    assert report["healthy"] is True and lines[0] == "every promise holds"
    assert report["clipped"] is False and report["kernels"]["clips"] is True
    assert any(line.startswith("8-bit products clip on this CPU") and line.endswith(end) for line in lines)


def test_8_bit_weights_where_nothing_clips_are_healthy() -> None:
    if check_kernels(Canceller()).clips:
        pytest.skip("8-bit products clip on this CPU")
    lines, report = told(with_bits("int8", None))
    assert report["healthy"] is True and report["clipped"] is False and report["weight_bits"] == 8
    assert "this bundle's 8-bit weights clip on x86 CPUs without VNNI, not on this one" in lines


@pytest.mark.parametrize(
    ("precision", "name", "op", "remedy"),
    [
        ("int8", "vocabulary8", "QGemm", "or export with --precision fp32"),
        ("int4", "block4", "MatMulNBits", "or export with --precision fp32"),
        ("int8", "self_attention", "GroupQueryAttention", "is here)"),
        ("fp32", "gelu", "Gelu", "is here)"),
    ],
)
def test_a_wrong_kernel_breaks_a_promise(
    precision: str, name: str, op: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "GRAPH", wrong(tmp_path, name))
    lines, report = told(bundle(precision))
    assert report["healthy"] is False and report["wrong_kernels"] == [name] and report["clipped"] is False
    assert lines[0].startswith(f"A PROMISE DOES NOT HOLD: {op} ({name}) computes something else here (off by 0.1 of")
    assert f"install another onnxruntime ({RUNTIME_VERSION} is here)" in lines[0] and lines[0].endswith(remedy)
    assert any(line.startswith("kernels: 12 of 13") for line in lines)


def test_a_wrong_kernel_ends_the_command_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernels, "GRAPH", wrong(tmp_path, "norm", float("nan")))
    assert main(["doctor", "-m", str(bundle("int8").path), "-t", "1", "--json"]) == 1
    report = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert report["wrong_kernels"] == ["norm"] and report["agrees"] is True


def test_a_wrong_kernel_of_another_precision_is_told_and_does_not_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "GRAPH", wrong(tmp_path, "block4"))
    lines, report = told(bundle("int8"))
    assert report["healthy"] is True and report["wrong_kernels"] == [] and lines[0] == "every promise holds"
    assert any("not used by this bundle: MatMulNBits (block4)" in line for line in lines)


def test_a_cause_that_is_known_is_not_told_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "GRAPH", clipping(tmp_path))
    monkeypatch.setattr(doctor, "open_engine", Saturating)
    lines, report = told(with_bits("int8", None))
    assert report["agrees"] is False and report["clipped"] is True
    assert sum(line.startswith("A PROMISE") for line in lines) == 1 and "clip" in lines[0]


def test_a_missing_kernel_graph_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernels, "GRAPH", tmp_path / "kernels.onnx")
    assert main(["doctor", "-m", str(bundle("int8").path)]) == 4
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "install specedge again" in said.err


# ---------------------------------------------------------------------------------------------------- known problems
@pytest.mark.parametrize(
    ("version", "machine", "expected"),
    [
        ("1.31.1", VNNI, []),
        ("1.26.0", VNNI, ["fails on quantised Whisper decoders"]),
        ("1.25.1", VNNI, ["fails on quantised Whisper decoders"]),
        ("1.24.1", VNNI, ["symbolic links"]),
        ("1.27.0.dev1", VNNI, []),
        ("what", VNNI, []),
        ("1.31.1", PLAIN, []),  # whether products clip is measured, not guessed
        ("1.31.1", Isa(machine="aarch64", features=("asimd",), model=""), []),
        ("1.31.1", Isa(machine="armv7l", features=("neon",), model=""), ["32-bit Arm"]),
    ],
)
def test_known_problems(version: str, machine: Isa, expected: list[str]) -> None:
    found = known_problems(version, machine)
    assert len(found) == len(expected)
    assert all(part in line for part, line in zip(expected, found, strict=True))


def test_a_speech_llm_is_not_told_to_get_what_it_cannot_have() -> None:
    page = render(examine(speech_bundle(), threads=(1,)))
    (line,) = [line for line in page.splitlines() if line.startswith("texts share no passes")]
    assert "speech LLM" in line and "needs" not in line


def test_problems_are_shown_and_do_not_decide() -> None:
    report: Report = replace(examine(bundle("int8"), threads=(1,)), problems=("the moon is full",))
    assert report.healthy and "known problem: the moon is full" in render(report)
