"""`/v1/realtime` through the real `openai` client."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import numpy as np
import openai
import pytest

import specedge
from specedge.serve.realtime import _LAWS
from support.serving import MAINTENANCE, SAID, Served, served

# The client opens websockets in a way that its newest version calls old.
pytestmark = pytest.mark.filterwarnings("ignore:connect:DeprecationWarning", "ignore::ResourceWarning")
SPEECH = np.concatenate([np.zeros(4_000, np.float32), specedge.decode_audio(MAINTENANCE)])
_EVENTS = "conversation.item.input_audio_transcription"


def pcm(samples: Any) -> str:
    return base64.b64encode((samples * 32767).astype("<i2").tobytes()).decode()


@pytest.fixture
def client(server: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def update(connection: Any, turns: Any, rate: int = 16_000, kind: str = "audio/pcm", language: str = "en") -> None:
    given = {
        "format": {"type": kind, "rate": rate},
        "transcription": {"model": "demo", "language": language},
        "turn_detection": turns,
    }
    connection.send({"type": "session.update", "session": {"type": "transcription", "audio": {"input": given}}})


def until(connection: Any, last: str) -> list[Any]:
    found = []
    while not found or found[-1].type != last:
        found.append(connection.recv())
        assert found[-1].type != "error" or last == "error", found[-1]
    return found


def test_turns_by_commit_and_by_pause(client: openai.OpenAI) -> None:
    with client.realtime.connect(model="demo", extra_query={"intent": "transcription"}) as connection:
        assert connection.recv().type == "session.created"
        for round_ in range(2):
            update(connection, None, 16_000)
            until(connection, "session.updated")
            for at in range(0, len(SPEECH), 8_000):
                connection.send({"type": "input_audio_buffer.append", "audio": pcm(SPEECH[at : at + 8_000])})
            connection.send({"type": "input_audio_buffer.commit"})
            events = until(connection, f"{_EVENTS}.completed")
            deltas = [event.delta for event in events if event.type == f"{_EVENTS}.delta"]
            assert events[-1].transcript == "".join(deltas).strip() == SAID
            assert events[-1].usage.seconds == 4, "of 3.1 s, begun seconds"
            own = [event.model_dump() for event in events if event.type == "specedge.confirmed"]
            assert ["".join(token["text"] for token in one["tokens"]) for one in own] == deltas, round_
            assert len({event.item_id for event in events if hasattr(event, "item_id")}) == 1
        update(connection, {"type": "server_vad", "silence_duration_ms": 500})
        pause = np.zeros(24_000, np.float32)
        connection.send({"type": "input_audio_buffer.append", "audio": pcm(np.concatenate([SPEECH, pause]))})
        kinds = [event.type for event in until(connection, f"{_EVENTS}.completed")]
        assert "input_audio_buffer.speech_stopped" in kinds and "input_audio_buffer.committed" in kinds


def test_audio_at_24_khz(client: openai.OpenAI) -> None:
    import soxr

    with client.realtime.connect(model="demo") as connection:
        update(connection, None, 24_000)
        connection.send({"type": "input_audio_buffer.append", "audio": pcm(soxr.resample(SPEECH, 16_000, 24_000))})
        connection.send({"type": "input_audio_buffer.commit"})
        assert until(connection, f"{_EVENTS}.completed")[-1].transcript == SAID


@pytest.mark.parametrize("kind", ["pcmu", "pcma"])
def test_telephone_audio_is_decoded(client: openai.OpenAI, kind: str) -> None:
    import soxr

    samples = (32767 * soxr.resample(SPEECH, 16_000, 8_000)).astype("<i2")
    # The nearest of the 256 values of the law, by the standard's ends: 0xff and 0x80 are 0 and 32124 of mu-law.
    table = _LAWS[f"audio/{kind}"].astype(int)
    assert [table[0xFF], table[0x80], table[0]] == ([0, 32124, -32124] if kind == "pcmu" else [848, 5504, -5504])
    codes = np.abs(table[None] - samples[:, None]).argmin(axis=1).astype(np.uint8)
    with client.realtime.connect(model="demo") as connection:
        update(connection, None, 8000, f"audio/{kind}", "auto")
        shown = until(connection, "session.updated")[-1].model_dump()["session"]
        assert shown["audio"]["input"]["format"] == {"type": f"audio/{kind}", "rate": 8000}
        connection.send({"type": "input_audio_buffer.append", "audio": base64.b64encode(codes.tobytes()).decode()})
        connection.send({"type": "input_audio_buffer.commit"})
        assert until(connection, f"{_EVENTS}.completed")[-1].transcript == SAID


def test_times_of_speech_follow_the_audio_of_the_session(client: openai.OpenAI) -> None:
    starts = []
    with client.realtime.connect(model="demo") as connection:
        update(connection, None)
        until(connection, "session.updated")
        for _ in range(2):
            connection.send({"type": "input_audio_buffer.append", "audio": pcm(SPEECH)})
            connection.send({"type": "input_audio_buffer.commit"})
            events = until(connection, f"{_EVENTS}.completed")
            starts += [e.audio_start_ms for e in events if e.type == "input_audio_buffer.speech_started"]
    assert starts[1] - starts[0] == pytest.approx(1000 * len(SPEECH) / 16_000, abs=2)


@pytest.mark.slow
def test_idle_sessions_block_nobody_have_a_limit_and_end() -> None:
    with served("-m", "demo", "--parallel", "1", "--queue", "0", "--sessions", "2", "--session-idle", "2s") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        with client.realtime.connect(model="demo") as one, client.realtime.connect(model="demo") as other:
            for session in (one, other):
                until(session, "session.created")
            with client.realtime.connect(model="demo") as third:
                assert until(third, "error")[-1].error.code == "too_many_sessions"
            assert httpx.get(f"{server.url}/ready").json() == {"status": "ready"}
            assert client.audio.transcriptions.create(model="demo", file=MAINTENANCE).text == SAID
            one._connection.send(b"\0\0")
            assert until(one, "error")[-1].error.code == "invalid_event"
            update(one, None)
            until(one, "session.updated")
            assert until(other, "error")[-1].error.code == "session_idle"


def test_wrong_events_are_told_and_the_session_goes_on(client: openai.OpenAI) -> None:
    with client.realtime.connect(model="demo") as connection:
        for event, code in (
            ({"type": "nonsense"}, "unknown_event"),
            ({"type": "input_audio_buffer.append", "audio": "%"}, "invalid_value"),
            ({"type": "input_audio_buffer.commit"}, "input_audio_buffer_commit_empty"),
            ({"type": "session.update", "session": {"audio": {"input": {"format": {"rate": 8}}}}}, "invalid_value"),
            ({"type": "session.update", "session": 3}, "invalid_value"),
            ({"type": "session.update", "session": {"input_audio_format": "mp3"}}, "invalid_value"),
        ):
            connection.send(event)
            assert until(connection, "error")[-1].error.code == code
        update(connection, None)
        until(connection, "session.updated")
        connection.send({"type": "input_audio_buffer.append", "audio": pcm(np.zeros(16_000, np.float32))})
        connection.send({"type": "input_audio_buffer.commit"})
        assert until(connection, f"{_EVENTS}.completed")[-1].transcript == "", "also silence completes"


@pytest.mark.slow
def test_a_live_session_does_not_hold_up_the_end() -> None:
    with served("-m", "demo") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        with client.realtime.connect(model="demo") as connection:
            until(connection, "session.created")
            server.process.terminate()
            assert server.process.wait(10) == 143
