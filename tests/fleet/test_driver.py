"""The driver: order, back-pressure, workers that die or have no room, files that kill, and going on after a stop."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specedge.errors import ModelError, ResourceError, UsageError
from specedge.fleet import Record, transcribe
from specedge.fleet.folder import Folder
from specedge.fleet.worker import Outcome, Speech, Task
from support.fleets import ANSWER, Serial

SEGMENT: dict[str, Any] = {"id": 0, "seek": 0, "start": 0.0, "end": 1.5, "tokens": [5], "temperature": 0.0}
SEGMENT |= {"avg_logprob": -0.1, "compression_ratio": 1.0, "no_speech_prob": 0.0}


def _made(task: Task) -> Outcome:
    """A worker without a model: the file's text is its result."""
    name = task.job.result_name(Path(task.path).read_text())
    folder = Folder(task.job.out)
    if folder.exists(f"results/{name}.json"):
        return Outcome(state="found", name=name)
    sha256 = Path(task.path).read_text()
    value = {"text": f"said {sha256}", "audio_sha256": sha256, "language": "en", "duration": 1.0}
    value["segments"] = [{**SEGMENT, "text": f" said {sha256}"}]
    folder.write(f"results/{name}.json", json.dumps(value).encode())
    return Outcome(state="done", name=name)


def _files(folder: Path, *sizes: int) -> list[str]:
    folder.mkdir(exist_ok=True)
    for number, size in enumerate(sizes):
        (folder / f"{number}.wav").write_text(f"{number}" * size)
    return [str(folder / f"{number}.wav") for number in range(len(sizes))]


def _run(paths: list[str], out: Path, does: Callable[[Task], Outcome | None] = _made, **more: Any) -> list[Record]:
    cluster = more.pop("cluster", None) or Serial(does, {"w": ANSWER})
    return list(transcribe(paths, out, cluster=cluster, **more))


def test_the_longest_files_come_first_and_few_are_in_flight(tmp_path: Path) -> None:
    paths = _files(tmp_path / "in", 3, 9, 1, 5, 7, 2)
    cluster = Serial(_made, {"w": ANSWER})
    records = _run(paths, tmp_path / "out", cluster=cluster)
    assert [task.size for task in cluster.submitted] == [9, 7, 5, 3, 2, 1]
    assert cluster.most_waiting == 2 and cluster.is_closed
    assert {record.state for record in records} == {"done"} and len(records) == 6


def test_records_are_one_line_a_path_whatever_the_order_and_the_stops(tmp_path: Path) -> None:
    paths = _files(tmp_path / "in", 1, 2, 3)
    _run(paths, tmp_path / "whole")
    out = tmp_path / "stopped"
    run = transcribe(list(reversed(paths)), out, cluster=Serial(_made, {"w": ANSWER}))
    assert next(run).path == paths[2]
    run.close()
    with open(out / "records.jsonl", "a") as file:
        file.write('{"path": "torn')
    again = _run(paths, out)
    assert [record.is_new for record in again] == [False, True, True]
    assert (out / "records.jsonl").read_bytes() == (tmp_path / "whole" / "records.jsonl").read_bytes()


def test_lost_records_are_made_again_from_the_results(tmp_path: Path) -> None:
    paths = _files(tmp_path / "in", 1, 2)
    _run(paths, tmp_path / "out")
    before = (tmp_path / "out" / "records.jsonl").read_bytes()
    (tmp_path / "out" / "records.jsonl").unlink()
    assert not any(record.is_new for record in _run(paths, tmp_path / "out"))
    assert (tmp_path / "out" / "records.jsonl").read_bytes() == before


def test_a_file_that_was_changed_is_done_again_and_one_that_was_not_is_not_read(tmp_path: Path) -> None:
    paths = _files(tmp_path / "in", 1, 2)
    _run(paths, tmp_path / "out")
    Path(paths[0]).write_text("changed")
    cluster = Serial(_made, {"w": ANSWER})
    assert {record.path: record.is_new for record in _run(paths, tmp_path / "out", cluster=cluster)} == {
        paths[0]: True,
        paths[1]: False,
    }
    assert len(cluster.submitted) == 1


def test_a_file_that_dies_alone_too_is_quarantined_and_left_out_later(tmp_path: Path) -> None:
    paths = _files(tmp_path / "in", 1, 2)

    def does(task: Task) -> Outcome | None:
        if task.path != paths[1]:
            return _made(task)
        return Outcome(state="quarantined", error="ends its process") if task.alone else None

    states = {record.path: record.state for record in _run(paths, tmp_path / "out", does)}
    assert states == {paths[0]: "done", paths[1]: "quarantined"}
    later = Serial(_made, {"w": ANSWER})
    assert {r.path: r.state for r in _run(paths, tmp_path / "out", cluster=later)} == states and not later.submitted
    cured = _run(paths, tmp_path / "out", retry_quarantined=True)
    assert {record.state for record in cured} == {"done"}


def test_a_file_whose_workers_died_for_other_reasons_is_done(tmp_path: Path) -> None:
    paths = _files(tmp_path / "in", 1)
    deaths = iter([None, None, None])
    records = _run(paths, tmp_path / "out", lambda task: next(deaths, _made(task)))
    assert [record.state for record in records] == ["done"]


def test_a_file_that_loses_every_worker_is_failed_and_tried_again_by_the_next_run(tmp_path: Path) -> None:
    paths = _files(tmp_path / "in", 1)
    cluster = Serial(lambda task: None, {"w": ANSWER})
    assert [record.state for record in _run(paths, tmp_path / "out", cluster=cluster)] == ["failed"]
    assert len(cluster.submitted) == 4
    assert [record.state for record in _run(paths, tmp_path / "out")] == ["done"]


def test_a_worker_without_room_is_said_once_and_avoided(tmp_path: Path) -> None:
    paths = _files(tmp_path / "in", 1, 2, 3)
    full = iter(["full", "full"])
    lines: list[str] = []

    def does(task: Task) -> Outcome:
        return Outcome(state="stuck", error="no space", worker="w1") if next(full, None) else _made(task)

    cluster = Serial(does, {"w1": ANSWER, "w2": ANSWER})
    records = _run(paths, tmp_path / "out", cluster=cluster, say=lines.append)
    assert [record.state for record in records] == ["done"] * 3
    assert lines == ["warning: worker w1: no space; its files go to others"] and cluster.avoided[-1] == {"w1"}


def test_a_run_without_any_room_stops_with_one_line_and_goes_on_later(tmp_path: Path) -> None:
    paths = _files(tmp_path / "in", 1, 2)
    with pytest.raises(ResourceError, match="no space .on 3 tries.; the same command goes on"):
        _run(paths, tmp_path / "out", lambda task: Outcome(state="stuck", error="no space", worker="w"))
    assert len(_run(paths, tmp_path / "out")) == 2


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (ModelError("no model 'small' is installed"), "worker w2: no model 'small'"),
        (ImportError("no specedge"), "worker w2: ImportError: no specedge"),
        (ANSWER | {"bundle": "c" * 64}, "worker w2: has bundle cccccccccccc, expected bbbbbbbbbbbb as"),
        (ANSWER | {"onnxruntime": "1.31.0"}, "worker w2: has ONNX Runtime 1.31.0, expected 1.32.0 as on w1"),
        (ANSWER | {"encoder": "openvino 1"}, "worker w2: has encoder provider openvino 1, expected cpu as on w1"),
    ],
)
def test_a_worker_that_does_not_fit_stops_the_run_before_it_begins(tmp_path: Path, other: Any, message: str) -> None:
    cluster = Serial(_made, {"w1": ANSWER, "w2": other})
    with pytest.raises(ModelError, match=message):
        _run(_files(tmp_path / "in", 1), tmp_path / "out", cluster=cluster)
    assert not cluster.submitted and cluster.is_closed


def test_a_worker_that_comes_later_and_does_not_fit_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="worker late: ONNX Runtime is 1.0"):
        _run(
            _files(tmp_path / "in", 1),
            tmp_path / "out",
            lambda task: Outcome(state="unfit", error="ONNX Runtime is 1.0", worker="late"),
        )


def test_several_instruction_sets_are_refused_only_where_that_was_asked(tmp_path: Path) -> None:
    answers = {"w1": ANSWER, "w2": ANSWER | {"isa": "aarch64 asimddp"}}
    paths = _files(tmp_path / "in", 1)
    assert _run(paths, tmp_path / "out", cluster=Serial(_made, answers))[0].state == "done"
    with pytest.raises(
        ModelError, match="w2: has instruction set aarch64 asimddp, expected x86_64 avx2 as on w1; leave"
    ):
        _run(paths, tmp_path / "out", cluster=Serial(_made, answers), same_isa=True)


def test_two_drivers_do_not_share_a_folder(tmp_path: Path) -> None:
    paths = _files(tmp_path / "in", 1, 2)
    run = transcribe(paths, tmp_path / "out", cluster=Serial(_made, {"w": ANSWER}))
    next(run)
    with pytest.raises(UsageError, match="out: another driver is at work on this folder"):
        _run(paths, tmp_path / "out")
    run.close()
    assert len(_run(paths, tmp_path / "out")) == 2


def _texts(out: Path) -> dict[str, str]:
    return {path.relative_to(out / "texts").as_posix(): path.read_text() for path in out.rglob("texts/**/*.*")}


def test_texts_lie_in_a_tree_like_the_recordings_and_are_made_again_where_they_are_not_there(tmp_path: Path) -> None:
    for name in ("one/talk.wav", "two/talk.wav", "two/talk.mp3"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(name.replace("/", " "))
    out = tmp_path / "out"
    _run([str(tmp_path / "in")], out, formats=("txt",))
    first = {
        f"{name}.txt": f"said {file}\n" for name, file in (("one/talk", "one talk.wav"), ("two/talk", "two talk.mp3"))
    }
    assert _texts(out) == {**first, "two/talk.wav.txt": "said two talk.wav\n"}
    (out / "texts" / "one" / "talk.txt").unlink()
    cluster = Serial(_made, {"w": ANSWER})
    _run([str(tmp_path / "in")], out, cluster=cluster, formats=("srt", "txt"))
    again = _texts(out)
    assert not cluster.submitted and len(again) == 6 and again["one/talk.txt"] == "said one talk.wav\n"
    assert again["two/talk.srt"] == "1\n00:00:00,000 --> 00:00:01,500\nsaid two talk.mp3\n\n"
    (tmp_path / "in" / "two" / "talk.mp3").unlink()
    _run([str(tmp_path / "in")], out, formats=("txt",))
    assert _texts(out)["two/talk.txt"] == "said two talk.wav\n", "not the text of another recording"


def test_a_copy_is_a_duplicate_in_the_run_that_makes_its_result_and_no_other(tmp_path: Path) -> None:
    paths = _files(tmp_path / "in", 1)
    (tmp_path / "in" / "copy.wav").write_text("0")
    first = _run([str(tmp_path / "in")], tmp_path / "out")
    assert sorted((one.is_new, one.is_duplicate) for one in first) == [(False, True), (True, False)]
    assert not any(one.is_new or one.is_duplicate for one in _run([*paths, str(tmp_path / "in")], tmp_path / "out"))


def test_names_that_are_not_there_are_records_and_the_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    given = [*_files(tmp_path / "in", 1), str(tmp_path / "none.wav"), str(tmp_path / "empty")]
    records = _run(given, tmp_path / "out")
    assert [record.state for record in records] == ["failed", "failed", "done"]
    assert "no such file" in str(records[0].error) and "no audio file" in str(records[1].error)


def test_a_split_file_is_joined_once_its_parts_are_done(tmp_path: Path) -> None:
    paths = _files(tmp_path / "in", 1)
    about: dict[str, Any] = {"audio_sha256": "a", "language": "en", "language_probability": 1.0, "duration_s": 2.0}
    speech = Speech(**about, spans=((0, 9),), parts=((4,), (5,)))

    def does(task: Task) -> Outcome:
        name = task.job.result_name("a")
        if task.speech is None:
            return Outcome(state="split", name=name, speech=speech)
        made = {"segments": [{"id": 0, "text": f" {task.shard}"}], "lossless": True, "isa": "x"}
        Folder(task.job.out).write(task.speech.part_files(name)[task.shard], json.dumps(made).encode())
        return Outcome(state="part", name=name)

    (record,) = _run(paths, tmp_path / "out", does)
    assert record.text == " 0 1" and not list((tmp_path / "out" / "parts").iterdir())
    result = json.loads((tmp_path / "out" / str(record.result)).read_text())
    assert [segment["id"] for segment in result["segments"]] == [0, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accept": "top-3"}, "accept: got 'top-3', expected exact"),
        ({"clip_timestamps": (1.0,)}, "clip_timestamps: got .1.0,., expected all"),
        ({"formats": ("pdf",)}, "formats: got 'pdf', expected some of txt"),
        ({"threads": 0}, "threads: got 0, expected 1 or more"),
        ({"bean_size": 5}, "'bean_size' is no option"),
        ({"drafter": "magic"}, "drafter: got 'magic'"),
        ({"vad_parameters": {"treshold": 1}}, "'treshold'"),
    ],
)
def test_options_that_cannot_be_are_refused_at_the_call(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        transcribe(["a.wav"], tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
