"""Requests that no client sends: never an internal error, never a path, and nothing is left behind."""

from __future__ import annotations

import concurrent.futures
import contextlib
import random
import socket

import httpx
import pytest

from support.serving import MAINTENANCE, PATHS, SAID, Served

_AUDIO = MAINTENANCE.read_bytes()[:3000]
_NAMES = ("file", "model", "language", "temperature", "stream", "include[]", "beam_size", "prompt", "response_format")
_NAMES += ("timestamp_granularities[]", "seed", "drafter", "audio_context", "hotwords", "chunking_strategy", "x\0y", "")
_NAMES += ("bias[]", "bias_weight", "only")
_VALUES = (b"", b"1e999", b"-1", b"nan", b"true", b"\xff\xfe", b"../../etc/passwd", b"a" * 5000, b"\0", b"{}", b"demo")
_VALUES += (
    b"verbose_json",
    b"xx",
    "\u202e\U0001f600".encode(),
    b"%s%n",
    b"ctc",
    b"none",
    b"word",
    b"0.5",
    b"(a|[b",
    b"a = <a>",
)
_PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations", "/inference", "/asr")


def malformed(rng: random.Random) -> bytes:
    """A request: a form with fields drawn at random, then damaged."""
    boundary = rng.choice([b"b", b"b" * 70, b"", b"--", b"\xff"])
    file = b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + _AUDIO
    body = rng.choice([b"", b"--" + boundary + b"\r\n" + file + b"\r\n"])
    for _ in range(rng.randrange(5)):
        name = rng.choice(_NAMES).encode()
        head = b'Content-Disposition: form-data; name="' + name + b'"'
        if name == b"file" or rng.random() < 0.1:
            head += b'; filename="' + rng.choice([b"a.wav", b"../../x", b"", b"\xff"]) + b'"'
            body += (
                b"--" + boundary + b"\r\n" + head + b"\r\n\r\n" + rng.choice([_AUDIO, b"", b"RIFF", b"text"]) + b"\r\n"
            )
        else:
            body += b"--" + boundary + b"\r\n" + head + b"\r\n\r\n" + rng.choice(_VALUES) + b"\r\n"
    body += rng.choice([b"--" + boundary + b"--\r\n", b""])
    damaged = bytearray(body)
    for _ in range(rng.choice([0, 0, 1, 5])):
        if damaged:
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    body = bytes(damaged[: rng.choice([len(damaged), rng.randrange(len(damaged) + 1)])])
    kind = rng.choice(
        [b"multipart/form-data; boundary=" + boundary] * 6 + [b"text/plain", b"multipart/form-data", b"\xff"]
    )
    length = rng.choice([len(body)] * 8 + [len(body) + 9, 10**12])
    head = f"POST {rng.choice(_PATHS)} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n"
    return head.encode() + b"Content-Type: " + kind + b"\r\n\r\n" + body


def _is_whole(request: bytes) -> bool:
    head, _, body = request.partition(b"\r\n\r\n")
    return len(body) >= int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0])


def send(server: Served, request: bytes) -> bytes:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(request)
            if not _is_whole(request):
                client.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while block := client.recv(1 << 16):
                answer += block
        return answer


def _survives(server: Served, n: int, seed: int) -> None:
    rng = random.Random(seed)
    seen = set()
    for _ in range(n):
        request = malformed(rng)
        answer = send(server, request)
        status = answer.split(b" ")[1] if answer else b""
        seen.add(status)
        assert not status.startswith(b"5"), (request, answer)
        text = answer.decode("utf-8", "replace").replace("../../etc/passwd", "")
        assert not PATHS.search(text), (request, answer)
    assert {b"200", b"400", b"413"} <= seen, seen
    with MAINTENANCE.open("rb") as file:
        good = httpx.post(f"{server.url}/v1/audio/transcriptions", files={"file": file}, timeout=30)
    assert good.json()["text"] == SAID
    assert not server.figure("specedge_requests_running") and "Traceback" not in "".join(server.lines)


def test_malformed_forms(server: Served) -> None:
    _survives(server, 40, 2)


@pytest.mark.stress
def test_ten_thousand_malformed_forms(server: Served) -> None:
    _survives(server, 10_000, 2)


@pytest.mark.stress
def test_memory_and_descriptors_stay_over_ten_thousand_requests(server: Served) -> None:
    url, data = f"{server.url}/v1/audio/transcriptions", MAINTENANCE.read_bytes()
    names = ("process_resident_memory_bytes", "process_open_fds")
    seen = []

    def ask(client: httpx.Client) -> None:
        for _ in range(250):
            assert client.post(url, files={"file": data}).json()["text"] == SAID

    with concurrent.futures.ThreadPoolExecutor(4) as pool, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client(timeout=60)) for _ in range(4)]
        for i in range(10):
            list(pool.map(ask, clients))
            seen.append([server.figure(name) for name in names])
            print(1000 * (i + 1), *seen[-1], flush=True)
    assert seen[-1][0] < 1.06 * seen[1][0] and seen[-1][1] <= seen[1][1] + 1, seen
