"""A cluster of processes on this machine, end to end: equal to the serial run, through deaths, and the command."""

from __future__ import annotations

import contextlib
import filecmp
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from specedge.errors import ModelError, ResourceError
from specedge.fleet import transcribe
from specedge.fleet.cluster import local_cluster, remote_cluster
from specedge.fleet.worker import Job
from specedge.runtime.audio.audio import decode_audio
from support.fleets import Serial
from support.paths import samples
from support.sound import wav_bytes

pytestmark = pytest.mark.slow


def _archive(folder: Path, n_files: int) -> list[Path]:
    folder.mkdir()
    recordings = [decode_audio(str(path)) for path in samples()]
    paths = []
    for number in range(n_files):
        turns = [np.pad(recordings[(number + turn) % 2], (0, 4000 + 997 * number)) for turn in range(1 + number % 3)]
        paths.append(folder / f"{number}.wav")
        paths[-1].write_bytes(wav_bytes(np.concatenate(turns).astype(np.float32)))
    return paths


def _same(one: Path, other: Path) -> bool:
    names = sorted(path.name for path in one.iterdir())
    return names == sorted(path.name for path in other.iterdir()) and all(
        filecmp.cmp(one / name, other / name, shallow=False) for name in names
    )


def test_two_processes_give_the_bytes_of_the_serial_run(tmp_path: Path) -> None:
    _archive(tmp_path / "in", 5)
    (tmp_path / "in" / "broken.wav").write_bytes(b"junk")
    serial = list(transcribe([tmp_path / "in"], tmp_path / "serial", cluster=Serial(), language="en"))
    fleet = list(transcribe([tmp_path / "in"], tmp_path / "fleet", n_workers=2, language="en"))
    assert sorted(record.state for record in fleet) == ["done"] * 5 + ["failed"]
    assert _same(tmp_path / "serial" / "results", tmp_path / "fleet" / "results")
    records = (tmp_path / "serial" / "records.jsonl", tmp_path / "fleet" / "records.jsonl")
    assert records[0].read_bytes() == records[1].read_bytes()
    assert {record.path for record in fleet} == {record.path for record in serial}


def test_a_long_file_is_split_and_joined_without_a_change(tmp_path: Path) -> None:
    sample = decode_audio(str(samples()[0]))
    long = np.concatenate([np.pad(sample, (0, 3000 + 211 * turn)) for turn in range(40)]).astype(np.float32)
    (tmp_path / "long.wav").write_bytes(wav_bytes(long))
    given = [tmp_path / "long.wav"]
    (whole,) = transcribe(given, tmp_path / "whole", cluster=Serial(), language="en")
    cluster = Serial()
    (split,) = transcribe(given, tmp_path / "split", cluster=cluster, language="en", shard_s=30)
    assert len(cluster.submitted) > 3 and whole.text and len(whole.text) > 1000
    assert _same(tmp_path / "whole" / "results", tmp_path / "split" / "results")
    assert not list((tmp_path / "split" / "parts").iterdir())


def test_a_worker_that_is_killed_loses_nothing_and_a_file_that_kills_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = _archive(tmp_path / "in", 4)
    (tmp_path / "in" / "poison.wav").write_bytes(paths[0].read_bytes() + b"poison")
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "def hook(event, args):\n"
        "    if event == 'open' and str(args[0]).endswith('poison.wav'):\n"
        "        os.kill(os.getpid(), 9)\n"
        "sys.addaudithook(hook)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = transcribe([tmp_path / "in"], tmp_path / "out", n_workers=2, language="en")
    records = [next(run)]
    _kill_one_worker()
    records += list(run)
    assert {Path(record.path).name: record.state for record in records} == {
        **{path.name: "done" for path in paths},
        "poison.wav": "quarantined",
    }
    assert "by SIGKILL" in str(next(record.error for record in records if record.state == "quarantined"))
    serial = transcribe(list(map(str, paths)), tmp_path / "serial", cluster=Serial(), language="en")
    assert len(list(serial)) == 4 and _same(tmp_path / "serial" / "results", tmp_path / "out" / "results")
    assert not [path for path in (tmp_path / "out" / "results").iterdir() if path.name.startswith(".")]


def _kill_one_worker() -> None:
    """The newest process that multiprocessing started for this one."""
    psutil = pytest.importorskip("psutil")
    pids: list[int] = []
    while not pids:
        for one in psutil.Process().children():
            with contextlib.suppress(psutil.Error):  # the poison's worker has just died
                pids += [one.pid] * ("spawn_main" in " ".join(one.cmdline()))
    os.kill(max(pids), signal.SIGKILL)


def test_a_command_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    _archive(tmp_path / "in", 6)
    command = [sys.executable, "-m", "specedge", "fleet", "in", "-o", "out", "-l", "en", "--local", "2"]
    first = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    results = tmp_path / "out" / "results"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (results.is_dir() and list(results.glob("*.json"))):
        time.sleep(0.05)
    first.kill()
    first.communicate()
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    assert "there already" in again.stderr
    assert (
        len(list(results.glob("*.json"))) == 6 and len((tmp_path / "out/records.jsonl").read_text().splitlines()) == 6
    )


def test_ctrl_c_is_one_line_though_it_reaches_the_workers_too(tmp_path: Path) -> None:
    _archive(tmp_path / "in", 8)
    command = [sys.executable, "-m", "specedge", "fleet", "in", "-o", "out", "-l", "en", "--local", "2"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not list(tmp_path.glob("out/results/*.json")):
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert [line.startswith("specedge: ") for line in said.splitlines()] == [True, True], said
    assert said.endswith("the same command goes on\n")


def test_a_cluster_that_does_not_answer_is_one_line() -> None:
    with pytest.raises(ResourceError, match="cluster tcp://127.0.0.1:9: no scheduler answers"):
        remote_cluster("tcp://127.0.0.1:9")


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-OpenSSH_10.0\r\n"])
def test_another_server_than_a_scheduler_is_one_line(greeting: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specedge.fleet.cluster._CONNECT_S", 1)
    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connections.append(server.accept()[0])
                    connections[-1].sendall(greeting)

        threading.Thread(target=greet, daemon=True).start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ResourceError, match=f"cluster {address}: no scheduler answers"):
            remote_cluster(address)


def test_a_scheduler_that_dies_is_one_line_and_a_new_one_goes_on(tmp_path: Path) -> None:
    _archive(tmp_path / "in", 4)
    lines = []
    for port in ("0", "0"):
        command = [sys.executable, "-c", _CLUSTER, port]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as cluster:
            assert cluster.stdout is not None
            run = transcribe([tmp_path / "in"], tmp_path / "out", cluster=cluster.stdout.readline().strip())
            lines.append(next(run).state)
            if len(lines) == 1:
                cluster.kill()
                with pytest.raises(ResourceError, match="the scheduler is gone; the same command goes on"):
                    list(run)
            else:
                lines += [record.state for record in run]
                cluster.kill()
    assert lines == ["done"] * 5
    assert len(list((tmp_path / "out" / "results").glob("*.json"))) == 4


_CLUSTER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "protocol": "tcp://"}
    with LocalCluster(**options, host="127.0.0.1", dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


def test_a_local_cluster_says_what_its_workers_are(tmp_path: Path) -> None:
    cluster = local_cluster(1)
    try:
        (said,) = cluster.ask(Job(out=str(tmp_path))).values()
        assert isinstance(said, Job) and said.bundle
        (wrong,) = cluster.ask(Job(out=str(tmp_path), model="nowhere")).values()
        assert isinstance(wrong, ModelError) and "nowhere" in str(wrong)
    finally:
        cluster.close()
