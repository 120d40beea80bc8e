"""The server as a process: settings, keys, signals, and what a kill leaves."""

from __future__ import annotations

import errno
import io
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from specedge.errors import UsageError
from specedge.serve.failures import failure_of, without_paths
from specedge.serve.settings import Settings, parse_bytes, parse_seconds
from support.serving import MAINTENANCE, NOTES, SAID, Served, served
from support.sound import wav_bytes


def folders(parent: Path) -> list[Path]:
    return list(parent.glob("specedge-serve-*"))


def begin_upload(server: Served) -> socket.socket:
    """A client that sends the beginning of a file and no more."""
    host, port = server.url.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)))
    client.sendall(
        b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n"
        b"Content-Type: multipart/form-data; boundary=b\r\nAuthorization: Bearer k\r\n\r\n"
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + bytes(500_000)
    )
    return client


def until(condition: object, within_s: float = 5.0) -> None:
    until_s = time.monotonic() + within_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until_s
        time.sleep(0.02)


@pytest.mark.slow
def test_keys_limits_and_an_end_in_order(tmp_path: Path) -> None:
    """Options from a file, the environment and a secret; slow senders; 503 while it ends; 143 at last."""
    (tmp_path / "key").write_text("k\n")
    (tmp_path / "options.toml").write_text(
        'model = ["demo"]\nupload-timeout = "1s"\ncors = ["https://example.org"]\nport = 1\n'
    )
    environment = {
        "SPECEDGE_SERVE_API_KEY_FILE": str(tmp_path / "key"),
        "SPECEDGE_SERVE_CONFIG": str(tmp_path / "options.toml"),
        "SPECEDGE_SERVE_QUEUE": "0",
        "SPECEDGE_SERVE_PARALLEL": "1",
    }
    temporary = tmp_path / "t"
    temporary.mkdir()
    with served(environment=environment, temporary=temporary) as server:
        url = f"{server.url}/v1/audio/transcriptions"
        assert httpx.get(f"{server.url}/health").status_code == 200
        for headers in ({}, {"Authorization": "Bearer x"}):
            answer = httpx.post(url, headers=headers, files={"file": b"x"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        keyed = httpx.Client(headers={"Authorization": "Bearer k"}, timeout=60)
        assert keyed.post(url, files={"file": MAINTENANCE.read_bytes()}).json()["text"] == SAID
        # As a browser, which can send a WebSocket no other header.
        protocols = [Subprotocol("realtime"), Subprotocol("openai-insecure-api-key.k")]
        with connect(server.url.replace("http", "ws") + "/v1/realtime", subprotocols=protocols) as line:
            assert '"session.created"' in str(line.recv(timeout=30))
        answer = keyed.get(f"{server.url}/v1/models", headers={"Origin": "https://example.org"})
        assert answer.headers["access-control-allow-origin"] == "https://example.org"
        silent = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=10)
        silent.sendall(b"GET /health HT")
        slow = begin_upload(server)
        slow.settimeout(5)
        assert b"408" in slow.recv(4096).split(b"\r\n")[0]
        slow.close()
        assert silent.recv(1) == b"", "a head that does not come"
        silent.close()
        until(lambda: not any(path for folder in folders(temporary) for path in folder.iterdir()))
        noise = np.random.default_rng(0).standard_normal(16_000 * 100).astype(np.float32) * 0.1
        long = wav_bytes(noise, subtype="PCM_16")
        found: list[int] = []

        def ask() -> None:
            found.append(keyed.post(url, data={"drafter": "none"}, files={"file": io.BytesIO(long)}).status_code)

        asking = threading.Thread(target=ask)
        asking.start()
        text = ""
        while "specedge_requests_running 1" not in text:
            text = keyed.get(f"{server.url}/metrics").text
        answer = keyed.post(url, files={"file": MAINTENANCE.read_bytes()})
        assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
        server.process.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
        assert keyed.post(url, files={"file": b"x"}).json()["error"]["code"] == "shutting_down"
        asking.join()
        assert found == [200], "what was begun is finished"
        assert server.process.wait(10) == 143 and not folders(temporary)
        keyed.close()


@pytest.mark.parametrize("n", [pytest.param(5, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.stress)])
def test_a_second_signal_ends_at_once_and_a_kill_is_swept_up(tmp_path: Path, n: int) -> None:
    with served("-m", "demo", temporary=tmp_path) as server:
        thread = _ask_and_lose(server)
        uploads = [begin_upload(server) for _ in range(n)]
        assert any(folder.iterdir() for folder in folders(tmp_path))
        server.process.kill()
        server.process.wait()
        thread.join()
        for upload in uploads:
            upload.close()
    assert folders(tmp_path)
    with served("-m", "demo", temporary=tmp_path) as server:
        assert len(folders(tmp_path)) == 1, "the next start sweeps"
        thread = _ask_and_lose(server)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(2) == 143 and not folders(tmp_path)
        thread.join()


def _ask_and_lose(server: Served) -> threading.Thread:
    """A client whose request is in work and has no answer."""
    files = {"file": wav_bytes(np.random.default_rng(0).standard_normal(16_000 * 200).astype(np.float32))}

    def ask() -> None:
        with pytest.raises(httpx.HTTPError):
            httpx.post(f"{server.url}/v1/audio/transcriptions", files=files, data={"drafter": "none"}, timeout=60)

    thread = threading.Thread(target=ask)
    thread.start()
    until(lambda: server.figure("specedge_requests_running") == 1)
    return thread


@pytest.mark.slow
def test_an_idle_model_is_unloaded_and_loaded_again() -> None:
    with served("-m", "demo", "--unload-after", "1s") as server:
        url, files = f"{server.url}/v1/audio/transcriptions", {"file": NOTES.read_bytes()}
        text = httpx.post(url, files=files, timeout=60).json()["text"]
        assert server.figure("specedge_models_loaded") == 1
        until(lambda: not server.figure("specedge_models_loaded"))
        assert httpx.post(url, files=files, timeout=60).json()["text"] == text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--port", "99999"), "--port: got 99999, expected 0 to 65535"),
        pytest.param(
            ("--max-upload", "much"), "--max-upload: got 'much', expected a size such as 200MB", marks=pytest.mark.slow
        ),
        pytest.param(
            ("--wyoming", "ftp://x"), "--wyoming: got 'ftp://x', expected tcp://HOST:PORT", marks=pytest.mark.slow
        ),
        (("-m", "nope-nope"), "nope-nope"),
        (("--config", "/nowhere.toml"), "/nowhere.toml cannot be read"),
    ],
)
def test_wrong_settings_are_one_line(arguments: tuple[str, ...], said: str) -> None:
    command = [sys.executable, "-m", "specedge", "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode in (2, 4) and said in done.stderr and done.stderr.count("\n") == 1


def test_values() -> None:
    assert parse_bytes("200MB") == 200_000_000 and parse_bytes("1.5 GiB") == 1_500_000_000
    assert parse_seconds("4h") == 14_400 and parse_seconds("90s") == 90
    for wrong in ("", "-1", "1e9", "nan", "0", "9" * 40):
        with pytest.raises(UsageError):
            parse_seconds(wrong)
    with pytest.raises(UsageError, match="api_key"):
        Settings(api_keys=("a b",))
    full = failure_of(OSError(errno.ENOSPC, "No space left on device", "a"), "a test")
    assert (full.status, full.code) == (507, "insufficient_storage")
    assert without_paths("/here/a/b.wav: x; https://a.b/c d/e") == "b.wav: x; https://a.b/c d/e"
