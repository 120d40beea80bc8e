"""Wyoming through the real client: over tcp, a unix socket and stdio."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncClient
from wyoming.event import Event
from wyoming.info import Describe, Info
from wyoming.ping import Ping, Pong

import specedge
from specedge.runtime.bundle.bundle import Bundle
from specedge.serve.wyoming import map_of
from support.paths import DEMO
from support.serving import MAINTENANCE, SAID, served

SAMPLES = (specedge.decode_audio(MAINTENANCE) * 32767).astype("<i2")


async def ask(client: AsyncClient, samples: Any = SAMPLES, rate: int = 16_000, **given: Any) -> list[Event]:
    """All events of one request."""
    await client.write_event(Transcribe(**given).event())
    layout = {"rate": rate, "width": samples.dtype.itemsize, "channels": samples.ndim}
    await client.write_event(AudioStart(**layout).event())
    data = samples.tobytes()
    for at in range(0, len(data), 4096):
        await client.write_event(AudioChunk(audio=data[at : at + 4096], **layout).event())
    await client.write_event(AudioStop().event())
    found = [event async for event in _until_stop(client)]
    return found


async def _until_stop(client: AsyncClient) -> AsyncIterator[Event]:
    while (event := await asyncio.wait_for(client.read_event(), 30)) is not None:
        yield event
        if event.type in ("transcript-stop", "error"):
            return


def said(events: list[Event]) -> str:
    return next(Transcript.from_event(event).text for event in events if Transcript.is_type(event.type))


async def _everything(uri: str) -> None:
    async with AsyncClient.from_uri(uri) as client:
        await client.write_event(Describe().event())
        event = await client.read_event()
        assert event is not None
        (program,) = Info.from_event(event).asr
        assert program.name == "specedge" and program.supports_transcript_streaming
        (model,) = program.models
        assert model.name == "demo" and model.languages == sorted(Bundle.open(DEMO).manifest.tokens.languages)
        await client.write_event(Ping(text="x").event())
        event = await client.read_event()
        assert event is not None and Pong.from_event(event).text == "x"
        events = await ask(client, language="en-GB")
        assert said(events) == SAID
        assert [e.type for e in events] == ["transcript-start", "transcript-chunk", "transcript", "transcript-stop"]
        stereo = np.stack([SAMPLES.astype("<i4") << 16] * 2, axis=1)
        assert said(await ask(client, stereo)) == SAID
        assert said(await ask(client, SAMPLES[:0])) == ""
        names = ["generator two", "maintenance crew", "kitchen lamp"]
        assert said(await ask(client, transcript_names=names, transcript_terms=["pump"])) == SAID
        assert (await ask(client, name="nope"))[-1].data["code"] == "model_not_found"
        assert (await ask(client, language="klingon"))[-1].type == "error"
        await client.write_event(Event("audio-chunk", {"rate": "x"}))
        event = await client.read_event()
        assert event is not None and event.data["code"] == "invalid_event"
        assert said(await ask(client, language="auto")) == SAID
        half = {"rate": 8000, "width": 2, "channels": 1}
        await client.write_event(AudioStart(rate=16_000, width=2, channels=1).event())
        await client.write_event(AudioChunk(audio=SAMPLES[::2].tobytes(), **half).event())
        await client.write_event(AudioStop().event())
        events = [event async for event in _until_stop(client)]
        assert said(events) == SAID, events
        await client.write_event(AudioChunk(audio=SAMPLES.tobytes(), rate=16_000, width=2, channels=1).event())
        await client.write_event(AudioChunk(audio=SAMPLES[::2].tobytes(), **half).event())
        event = await client.read_event()
        assert event is not None and "changed from" in event.data["text"]


async def _absurd_length(uri: str) -> None:
    reader, writer = await asyncio.open_unix_connection(uri.removeprefix("unix://"))
    writer.write(b'{"type": "audio-chunk", "payload_length": 99999999999}\n')
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()


def test_a_unix_socket(tmp_path: Path) -> None:
    uri = f"unix://{tmp_path / 'w'}"
    with served("-m", "demo", "--wyoming", uri):
        asyncio.run(_absurd_length(uri))
        asyncio.run(_everything(uri))


def test_commands_that_may_be_written_alone(tmp_path: Path) -> None:
    """`--only` holds for Wyoming, and over HTTP for who asks for nothing else; other speech gives no text."""
    uri, commands = f"unix://{tmp_path / 'w'}", tmp_path / "commands.txt"
    commands.write_text("call the (kitchen|maintenance) crew to generator [number] two\nstop\n", encoding="utf-8")

    async def run() -> str:
        async with AsyncClient.from_uri(uri) as client:
            return said(await ask(client))

    forms: list[tuple[dict[str, str], str]] = [
        ({}, SAID),
        ({"only": "call the kitchen crew to generator two\nstop"}, SAID.replace("maintenance", "kitchen")),
        ({"only[]": "start the pump"}, ""),
        ({"bias[]": "generator ten", "bias_weight": "30", "only": SAID.replace("two", "(two|ten)")}, SAID[:-4] + "ten"),
    ]
    with served("-m", "demo", "--wyoming", uri, "--only", str(commands)) as server:
        assert asyncio.run(run()) == SAID
        for form, expected in forms:
            files = {"file": MAINTENANCE.read_bytes()}
            answer = httpx.post(f"{server.url}/v1/audio/transcriptions", data=form, files=files)
            assert answer.json()["text"].rstrip(".") == expected.rstrip("."), answer.text


class _Process(AsyncClient):
    """A client at the ends of the server's pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        super().__init__()
        self._reader, self._writer = process.stdout, process.stdin


@pytest.mark.slow
def test_stdio() -> None:
    async def run() -> str:
        pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        command = ("-m", "specedge", "serve", "-m", "demo", "--port", "0", "--wyoming", "stdio://")
        process = await asyncio.create_subprocess_exec(sys.executable, *command, **pipes)
        try:
            return said(await ask(_Process(process)))
        finally:
            process.kill()
            await process.wait()

    assert asyncio.run(run()) == SAID


def test_names_become_drafts_and_are_made_once(tmp_path: Path) -> None:
    bundle = Bundle.open(DEMO)
    path = map_of(["Kitchen Lamp", "Hall"], bundle, tmp_path)
    assert path is not None
    made = path.stat().st_ino
    assert map_of(["Hall", "Kitchen Lamp", " "], bundle, tmp_path) == path and path.stat().st_ino == made
    assert map_of([], bundle, tmp_path) is None
    for i in range(9):
        assert map_of([f"lamp {i}"], bundle, tmp_path) is not None
    assert len(list(tmp_path.iterdir())) == 8 and not path.exists()
