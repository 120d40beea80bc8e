"""The worker function and the names of results, on the bundled model or a small one."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specedge
from specedge.fleet import transcribe, worker
from specedge.fleet.worker import Job, Task, new_job
from specedge.runtime.bundle.bundle import Bundle
from support import exported
from support.fleets import Serial
from support.paths import samples
from support.providers import CpuBackend, micro_with_plain, take_for_openvino
from support.sound import wav_bytes


def _job(out: Path, **more: Any) -> Job:
    return worker.answer(new_job(str(out), model=str(exported.bundle().path), language="en", **more))


def _sound(path: Path, seconds: float = 2.0, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    path.write_bytes(wav_bytes((0.2 * rng.standard_normal(round(seconds * 16_000))).astype(np.float32)))
    return path


def test_the_name_depends_on_audio_bundle_and_options_and_on_nothing_else(tmp_path: Path) -> None:
    job = _job(tmp_path)
    name = job.result_name("a")
    for same in (_job(tmp_path, batch_size=2), _job(tmp_path, drafter="none"), replace(job, threads=2, isa="arm")):
        assert same.result_name("a") == name
    others = [job.result_name("b"), *(replace(job, **{what: "x"}).result_name("a") for what in ("bundle", "encoder"))]
    others += [_job(tmp_path, **more).result_name("a") for more in ({"task": "translate"}, {"initial_prompt": "Hi."})]
    others.append(_job(tmp_path, vad_parameters={"threshold": 0.3}).result_name("a"))
    assert len({name, *others}) == 7


def test_a_model_s_folder_is_found_from_elsewhere_and_a_name_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    path = exported.bundle().path
    monkeypatch.chdir(path.parent)
    assert new_job("out", model=path.name).model == str(path)
    assert new_job("out", model="small").model == "small" and new_job("out").model is None


def test_a_result_is_written_once_under_its_name_and_found_by_others(tmp_path: Path) -> None:
    path, job = _sound(tmp_path / "a.wav"), _job(tmp_path / "out")
    first = worker.work(Task(job=job, path=str(path)))
    (result,) = (tmp_path / "out" / "results").iterdir()
    assert first.state == "done" and result.name == f"{first.name}.json"
    copy = tmp_path / "copy.wav"
    copy.write_bytes(path.read_bytes())
    assert worker.work(Task(job=job, path=str(copy))).state == "found"
    value = json.loads(result.read_text())
    assert value["bundle"] == job.bundle and value["isa"] == job.isa and value["threads"] == 1
    assert str(tmp_path) not in result.read_text()


def test_a_result_names_the_provider_that_its_features_are_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECEDGE_CACHE", str(tmp_path / "cache"))
    take_for_openvino(CpuBackend(), monkeypatch)
    model = str(micro_with_plain(tmp_path / "micro").path)
    path, out = _sound(tmp_path / "a.wav"), tmp_path / "out"
    asked = {"model": model, "language": "en", "encoder_provider": "openvino"}
    (record,) = transcribe([str(path)], out, cluster=Serial(), **asked)  # type: ignore[arg-type]
    assert record.state == "done"
    (result,) = (out / "results").iterdir()
    value = json.loads(result.read_text())
    assert value["encoder_provider"] == "openvino 1 (a CPU)" and value["bundle"] == Bundle.open(model).digest
    plain = worker.work(Task(job=new_job(str(out), **asked | {"encoder_provider": "cpu"}), path=str(path)))
    assert plain.state == "done" and plain.name != result.stem


@pytest.mark.slow
def test_the_text_is_that_of_batched_mode(tmp_path: Path) -> None:
    sample = str(samples()[0])
    (record,) = transcribe([sample], tmp_path / "out", cluster=Serial(), language="en")
    pipeline = specedge.BatchedInferencePipeline(specedge.WhisperModel("demo", cpu_threads=1))
    segments, _ = pipeline.transcribe(sample, language="en", without_timestamps=False)
    assert record.text == "".join(segment.text for segment in segments) and record.text


def test_errors_are_outcomes_that_say_who_is_to_blame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = _job(tmp_path / "out")
    broken = tmp_path / "broken.wav"
    broken.write_bytes(b"junk")
    assert worker.work(Task(job=job, path=str(broken))).state == "failed"
    gone = worker.work(Task(job=job, path=str(tmp_path / "gone.wav")))
    assert (gone.state, gone.error) == ("failed", f"{tmp_path / 'gone.wav'}: cannot be read: No such file or directory")
    sound = Task(job=job, path=str(_sound(tmp_path / "a.wav")))
    other = worker.work(replace(sound, job=replace(job, onnxruntime="1.0.0")))
    assert other.state == "unfit" and "expected 1.0.0 as on the other workers" in other.error
    assert worker.work(replace(sound, job=replace(job, isa="arm"))).state == "done"
    assert worker.work(replace(sound, job=replace(job, isa="arm", same_isa=True), path=str(broken))).state == "unfit"
    assert worker.work(replace(sound, job=replace(job, model="nowhere"))).state == "unfit"
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    full = worker.work(Task(job=job, path=str(_sound(tmp_path / "b.wav", seed=1))))
    assert full.state == "stuck" and "No space left on device" in full.error
    assert len(list((tmp_path / "out" / "results").iterdir())) == 1


def test_a_task_alone_blames_the_file_only_when_its_process_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(job=_job(tmp_path / "out"), path=str(tmp_path / "a.wav"), alone=True)

    def ends(code: int) -> Any:
        answer = pickle.dumps(worker.Outcome(state="done", name="n"))
        return lambda *_, **__: subprocess.CompletedProcess([], code, answer)

    for code, state, why in ((-9, "quarantined", "by SIGKILL"), (3, "quarantined", "with code 3"), (0, "done", "")):
        monkeypatch.setattr(subprocess, "run", ends(code))
        outcome = worker.work(task)
        assert outcome.state == state and outcome.error.endswith(why)


def test_a_folder_of_a_store_gives_the_results_of_a_disk(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    model = str(exported.bundle().path)
    (tmp_path / "in").mkdir()
    for number in range(2):
        data = _sound(tmp_path / "in" / f"{number}.wav", seed=number).read_bytes()
        fsspec.filesystem("memory").pipe_file(f"/talks/{number}.wav", data)
    fsspec.filesystem("memory").pipe_file("/talks/notes.txt", b"no audio")
    options: dict[str, Any] = {"model": model, "language": "en"}
    given = ["memory://talks", "memory://talks/none.wav"]
    in_store = list(transcribe(given, "memory://out", cluster=Serial(), **options))
    on_disk = list(transcribe([tmp_path / "in"], tmp_path / "out", cluster=Serial(), **options))
    assert [record.state for record in in_store] == ["failed", "done", "done"]
    assert {record.result for record in in_store[1:]} == {record.result for record in on_disk}
    for record in on_disk:
        assert (
            fsspec.filesystem("memory").cat_file(f"/out/{record.result}")
            == (tmp_path / "out" / str(record.result)).read_bytes()
        )
    assert not any(record.is_new for record in transcribe(given[:1], "memory://out", cluster=Serial(), **options))
