"""What `specedge serve` adds to a transcription: beside the same model in this process, and for clients who go.

    python tests/bench/serve_times.py [-m demo] [--rounds 15]

Each round asks for the same in turn: a command of 3 s in this process, over Wyoming and over HTTP; the first words of a
recording of 80 s in this process and in a stream over HTTP; and how long the server works on for a client that has hung
up in the middle of 80 s with a beam of 5. Medians, with the least and the greatest, and the ratio to this process,
round by round. A client of each protocol stays connected.

Both models take all threads and never work at the same time. The command has other noise each time: of the same audio
the text of before would be the draft. In this process and over Wyoming it comes behind a call that was given up, whose
drafter is not kept, and opens one of its own; over HTTP it has Wyoming's. It does not measure several clients
(`callers.py`), or a network. The last line of output is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from rounds import print_json, print_table, ratios
from wyoming.asr import Transcribe
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncClient

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import specedge  # noqa: E402
from specedge.runtime.audio.audio import SAMPLE_RATE  # noqa: E402
from support.serving import MAINTENANCE, NOTES, Served, served  # noqa: E402
from support.sound import wav_bytes  # noqa: E402

TARGETS = {"wyoming": 1.15, "first words, http": 1.2}
LONG_S, DROPPED_TARGET_S = 80, 0.5
CHUNK_BYTES = 4096
PAUSE_S = 0.5  # threads of the other process spin for a while behind its last pass, on the same cores


class Clients:
    """Asks a server and a model of this process for the same things; every method gives seconds."""

    def __init__(self, server: Served, model: specedge.WhisperModel, wyoming_uri: str) -> None:
        self.server, self.model = server, model
        self.loop = asyncio.new_event_loop()
        self.wyoming_client = AsyncClient.from_uri(wyoming_uri)
        self.loop.run_until_complete(self.wyoming_client.connect())
        self.http_client = httpx.Client(base_url=server.url, timeout=60)
        self._command = specedge.decode_audio(MAINTENANCE)
        self._noise = np.random.default_rng(0)
        notes = specedge.decode_audio(NOTES)
        self.long = np.tile(notes, 1 + LONG_S * SAMPLE_RATE // len(notes))[: LONG_S * SAMPLE_RATE]
        self.long_file = wav_bytes(self.long, SAMPLE_RATE, "PCM_16")

    def close(self) -> None:
        """Hang up."""
        self.http_client.close()
        self.loop.run_until_complete(self.wyoming_client.disconnect())
        self.loop.close()

    def here(self) -> float:
        """The command in this process."""
        samples = self._another()
        with timed() as spent:
            list(self.model.transcribe(samples)[0])
        return spent()

    def wyoming(self) -> float:
        """The command over Wyoming, all of its samples at once."""
        data = (self._another() * 32767).astype("<i2").tobytes()
        with timed() as spent:
            self.loop.run_until_complete(self._ask_wyoming(data))
        return spent()

    async def _ask_wyoming(self, data: bytes) -> None:
        layout = {"rate": SAMPLE_RATE, "width": 2, "channels": 1}
        await self.wyoming_client.write_event(Transcribe().event())
        await self.wyoming_client.write_event(AudioStart(**layout).event())
        for at in range(0, len(data), CHUNK_BYTES):
            await self.wyoming_client.write_event(AudioChunk(audio=data[at : at + CHUNK_BYTES], **layout).event())
        await self.wyoming_client.write_event(AudioStop().event())
        while (event := await self.wyoming_client.read_event()) is not None and event.type != "transcript-stop":
            pass

    def http(self) -> float:
        """The command over HTTP."""
        file = wav_bytes(self._another(), SAMPLE_RATE, "PCM_16")
        with timed() as spent:
            self.http_client.post("/v1/audio/transcriptions", files={"file": file}).raise_for_status()
        return spent()

    def _another(self) -> NDArray[np.float32]:
        """The command with noise that nobody hears."""
        noise = self._noise.uniform(-1e-3, 1e-3, len(self._command))
        return np.clip(self._command + noise, -1, 1).astype(np.float32)

    def first_here(self) -> float:
        """The first segment of the long recording in this process: one window's time."""
        with timed() as spent:
            segments = iter(self.model.transcribe(self.long)[0])
            next(segments)
            seconds = spent()
        segments.close()  # type: ignore[attr-defined]
        return seconds

    def first_http(self) -> float:
        """The first words of the long recording in a stream."""
        with timed() as spent:
            with self._streamed({"stream": "true"}) as answer:
                next(line for line in answer.iter_lines() if "delta" in line)
                seconds = spent()
        self._until_idle()
        return seconds

    def dropped(self) -> float:
        """From hanging up until the server has no request that runs."""
        with self._streamed({"stream": "true", "beam_size": "5", "drafter": "none"}) as answer:
            next(line for line in answer.iter_lines() if "delta" in line)
        return self._until_idle()

    @contextlib.contextmanager
    def _streamed(self, form: dict[str, str]) -> Iterator[httpx.Response]:
        files = {"file": io.BytesIO(self.long_file)}
        with self.http_client.stream("POST", "/v1/audio/transcriptions", data=form, files=files) as answer:
            answer.raise_for_status()
            yield answer

    def _until_idle(self) -> float:
        with timed() as spent:
            while self.server.figure("specedge_requests_running"):
                time.sleep(0.01)
        return spent()


@contextlib.contextmanager
def timed() -> Iterator[Callable[[], float]]:
    """Seconds since the beginning, whenever it is asked."""
    started = time.perf_counter()
    yield lambda: time.perf_counter() - started


def measure(clients: Clients, n_rounds: int) -> dict[str, list[float]]:
    """Seconds of each row in every round, after a round that warms all up."""
    rows: dict[str, Callable[[], float]] = {
        "here": clients.here,
        "wyoming": clients.wyoming,
        "http": clients.http,
        "first words, here": clients.first_here,
        "first words, http": clients.first_http,
        "until free of a dropped client": clients.dropped,
    }
    found: dict[str, list[float]] = {name: [] for name in rows}
    for at in range(n_rounds + 1):
        for name, ask in rows.items():
            time.sleep(PAUSE_S)
            seconds = ask()
            if at:
                found[name].append(seconds)
    return found


def report(found: dict[str, list[float]]) -> dict[str, Any]:
    """Print the table; gives what belongs into the JSON."""
    beside = {"wyoming": "here", "http": "here", "first words, http": "first words, here"}
    table, figures = [["", "ms", "(least, greatest)", "of this process", "target"]], {}
    for name, seconds in found.items():
        ratio = ratios(seconds, found[beside[name]]) if name in beside else None
        target = f"{TARGETS[name]:g}" if name in TARGETS else ""
        if name.startswith("until"):
            target = f"{1000 * DROPPED_TARGET_S:.0f} ms"
        spread = f"({1000 * min(seconds):.1f}, {1000 * max(seconds):.1f})"
        table.append([name, f"{1000 * median(seconds):.1f}", spread, f"{ratio['median']:.3f}" if ratio else "", target])
        figures[name] = {"median_s": median(seconds), "least_s": min(seconds), "most_s": max(seconds), "ratio": ratio}
    print_table(table)
    return figures


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        uri = f"tcp://127.0.0.1:{free_port()}"
        server = stack.enter_context(served("-m", options.model, "--wyoming", uri))
        clients = Clients(server, specedge.WhisperModel(options.model), uri)
        stack.callback(clients.close)
        figures = report(measure(clients, options.rounds))
    print_json("serve_times", model=options.model, rounds=options.rounds, rows=figures)


def free_port() -> int:
    """A TCP port that nobody has now."""
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
