"""`/v1/realtime`: OpenAI's transcription events over a WebSocket, and the tentative text as an event of our own.

Events: https://platform.openai.com/docs/guides/realtime-transcription
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import math
import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.websockets import WebSocket, WebSocketDisconnect

from specedge.runtime.audio.media import Resampler, values_of_bytes
from specedge.runtime.audio.wav import Block
from specedge.runtime.longform.live import LiveTranscriber, LiveUpdate
from specedge.runtime.model import WhisperModel
from specedge.runtime.output.report import source_names

from . import shapes
from .failures import Failure, failure_of, invalid
from .service import ABOUT, Service, client_of

_RATES = (16_000, 24_000)
_RATE_HZ = 16_000
_EVENTS = "conversation.item.input_audio_transcription"


async def realtime(socket: WebSocket) -> None:
    """The endpoint."""
    service: Service = socket.app.state.service
    protocols = socket.scope.get("subprotocols") or []
    await socket.accept(subprotocol="realtime" if "realtime" in protocols else None)
    session = _Session(socket, service)
    try:
        service.check_end()
        name = service.models.name_of(socket.query_params.get("model", ""))
        if service.n_sessions >= service.settings.sessions:
            message = f"there are {service.n_sessions} sessions already: connect again later, or see --sessions"
            raise Failure(429, "too_many_sessions", message)
        service.n_sessions += 1
        try:
            await session.run(name)
        finally:
            service.n_sessions -= 1
    except WebSocketDisconnect:
        pass
    except Failure as failure:
        await session.tell("error", **failure.body())
        await socket.close(1008)
    finally:
        socket.scope[ABOUT] |= {"model": session.model_name or "-", "audio_s": session.all_s}
        session.close()


_LAWS = {"audio/pcmu": values_of_bytes("pcm_mulaw"), "audio/pcma": values_of_bytes("pcm_alaw")}
_OLD_FORMATS = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}


class _Session:
    """One connection: its settings, and the turn in work."""

    def __init__(self, socket: WebSocket, service: Service) -> None:
        self._socket, self._service = socket, service
        self._format, self._rate_hz, self._has_vad, self._silence_ms = "audio/pcm", 24_000, True, 1000
        self._options: dict[str, Any] = {}
        self._drafter, self.model_name = service.settings.drafter, ""
        self._live: LiveTranscriber | None = None
        self._drafters: tuple[str, ...] = ()
        self._resampler = Resampler(_RATE_HZ, 1)
        self._last_item: str | None = None
        self.all_s = self._before_s = 0.0  # audio of the session, and of it before the transcriber began
        self._begin_turn()

    async def tell(self, type_: str, **fields: Any) -> None:
        await self._socket.send_text(json.dumps({"type": type_, "event_id": f"event_{secrets.token_hex(8)}", **fields}))

    def close(self) -> None:
        if self._live is not None:
            self._live.close()
        self._live, self._resampler = None, Resampler(_RATE_HZ, 1)

    def _begin_turn(self) -> None:
        self._item, self._text, self._has_spoken = f"item_{secrets.token_hex(8)}", "", False
        self._turn_s = 0.0  # audio since the last turn ended

    async def run(self, name: str) -> None:
        self.model_name = name
        await self.tell("session.created", session=self._shown())
        while True:
            text = await self._received()
            self._service.check_end()
            try:
                await self._take(text)
            except WebSocketDisconnect:
                raise
            except Exception as error:
                await self.tell("error", **failure_of(error, "a realtime session").body())

    async def _received(self) -> str | None:
        """The next message, None for a binary one. Raises Failure where none comes, WebSocketDisconnect."""
        idle_s = self._service.settings.session_idle_s
        try:
            message = await asyncio.wait_for(self._socket.receive(), idle_s)
        except TimeoutError:
            raise Failure(408, "session_idle", f"nothing came for {idle_s:g} s: connect again") from None
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message["code"])
        text: str | None = message.get("text")
        return text

    async def _take(self, text: str | None) -> None:
        if text is None:
            raise Failure(400, "invalid_event", "a binary message: send audio in input_audio_buffer.append, as base64")
        try:
            event = json.loads(text)
            kind = event["type"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise Failure(400, "invalid_event", "expected a JSON object with a type") from None
        if kind in ("session.update", "transcription_session.update"):
            session = event.get("session")
            if not isinstance(session, dict):
                raise Failure(400, "invalid_value", "session: expected an object", param="session")
            self._update(session)
            await self.tell("session.updated", session=self._shown())
        elif kind == "input_audio_buffer.append":
            await self._append(event.get("audio"))
        elif kind == "input_audio_buffer.commit":
            await self._commit()
        elif kind == "input_audio_buffer.clear":
            self.close()
            self._begin_turn()
            self._before_s = self.all_s
            await self.tell("input_audio_buffer.cleared")
        else:
            raise Failure(400, "unknown_event", f"unknown event {str(kind)[:60]!r}", param="type")

    def _update(self, session: dict[str, Any]) -> None:
        given = _object(_object(session.get("audio")).get("input"))
        about = _object(given.get("transcription") or session.get("input_audio_transcription"))
        layout = _object(given.get("format"))
        format = layout.get("type") or session.get("input_audio_format") or "audio/pcm"
        format = _OLD_FORMATS.get(format, format) if isinstance(format, str) else format
        if format not in ("audio/pcm", *_LAWS):
            raise invalid("format", format, f"one of audio/pcm, {', '.join((*_LAWS, *_OLD_FORMATS))}")
        rates = (8000,) if format in _LAWS else _RATES
        rate_hz = layout.get("rate", rates[-1])
        if rate_hz not in rates:
            raise invalid("rate", rate_hz, " or ".join(map(str, rates)))
        turns = given.get("turn_detection", session.get("turn_detection", {}))
        silence_ms = _object(turns).get("silence_duration_ms", 1000)
        if not isinstance(silence_ms, int) or not 100 <= silence_ms <= 10_000:
            raise Failure(400, "invalid_value", "silence_duration_ms: expected 100 to 10000")
        model = about.get("model") or self.model_name
        drafter = _object(session.get("specedge")).get("drafter") or self._drafter
        options = {"language": about.get("language"), "initial_prompt": about.get("prompt")}
        if not all(isinstance(value, str) for value in (model, drafter, *(v for v in options.values() if v))):
            raise Failure(400, "invalid_value", "model, language, prompt and drafter: expected texts")
        self.model_name = self._service.models.name_of(model)
        self._format, self._rate_hz = format, rate_hz
        self._has_vad, self._silence_ms = turns is not None, silence_ms
        self._options = {name: value or None for name, value in options.items()}
        self._drafter = drafter

    def _shown(self) -> dict[str, Any]:
        turns = {"type": "server_vad", "silence_duration_ms": self._silence_ms} if self._has_vad else None
        shown = {
            "format": {"type": self._format, "rate": self._rate_hz},
            "transcription": {"model": self.model_name, "language": self._options.get("language")},
            "turn_detection": turns,
        }
        return {"type": "transcription", "object": "realtime.transcription_session", "audio": {"input": shown}}

    async def _append(self, audio: Any) -> None:
        try:
            data = base64.b64decode(audio, validate=True)
        except (binascii.Error, ValueError, TypeError):
            raise Failure(400, "invalid_value", "audio: expected base64", param="audio") from None
        if self._format in _LAWS:
            samples = _LAWS[self._format][np.frombuffer(data, np.uint8)]
        elif len(data) % 2:
            raise Failure(400, "invalid_value", "audio: half a sample at its end", param="audio")
        else:
            samples = np.frombuffer(data, "<i2")
        self._turn_s += len(samples) / self._rate_hz
        self.all_s += len(samples) / self._rate_hz
        async with self._service.models.use(self.model_name) as model:
            updates = await self._in_thread(self._feed, model, samples)
            await self._report(updates, model)

    async def _commit(self) -> None:
        if self.all_s == self._before_s:
            raise Failure(400, "input_audio_buffer_commit_empty", "there is no audio since the last turn")
        async with self._service.models.use(self.model_name) as model:
            updates = await self._in_thread(self._finish)
            before = self._last_item
            await self._report(updates, model)
            self._before_s = self.all_s
            if self._last_item == before:  # else a pause at the end has told it
                await self._end_turn()

    async def _in_thread(self, do: Any, *arguments: Any) -> list[LiveUpdate]:
        loop = asyncio.get_running_loop()
        async with self._service.live.turn(client_of(self._socket)):
            found: list[LiveUpdate] = await loop.run_in_executor(self._service.threads, do, *arguments)
        return found

    def _feed(self, model: WhisperModel, samples: NDArray[np.int16]) -> list[LiveUpdate]:
        if self._live is None:
            about = {"drafter": self._drafter, **self._service.drafter_options(self._drafter), **self._service.phrases}
            about["token_map"] = about.pop("token_maps", None)
            vad = {"min_silence_duration_ms": self._silence_ms if self._has_vad else 1000}
            self._live = model.stream(vad_parameters=vad, draft_sources=True, **about, **self._options)
            self._drafters = source_names(self._live.drafter)
        if not len(samples):
            return []
        return self._live.feed(self._resampler.resample(Block(samples[:, None], self._rate_hz, "mono")))

    def _finish(self) -> list[LiveUpdate]:
        live, self._live = self._live, None
        return [] if live is None else [*live.feed(self._resampler.finish()), *live.finish()]

    async def _report(self, updates: list[LiveUpdate], model: WhisperModel) -> None:
        for update in updates:
            if not self._has_spoken:
                self._has_spoken = True
                start_ms = round(1000 * (self._before_s + update.start_s))
                await self.tell("input_audio_buffer.speech_started", audio_start_ms=start_ms, item_id=self._item)
            if update.confirmed:
                self._text += update.confirmed
                await self.tell(f"{_EVENTS}.delta", item_id=self._item, content_index=0, delta=update.confirmed)
                about = {"text": update.confirmed, "tokens": _tokens(update, model), "drafters": self._drafters}
                about["encoder_provider"] = model.engine.encoder_provider
                await self.tell("specedge.confirmed", item_id=self._item, **about)
            if update.ends_utterance:
                end_ms = round(1000 * (self._before_s + update.end_s))
                await self.tell("input_audio_buffer.speech_stopped", audio_end_ms=end_ms, item_id=self._item)
                if self._has_vad:
                    await self._end_turn()
            else:
                await self.tell("specedge.tentative", item_id=self._item, text=update.tentative)

    async def _end_turn(self) -> None:
        await self.tell("input_audio_buffer.committed", item_id=self._item, previous_item_id=self._last_item)
        about = {"transcript": self._text.strip(), "usage": {"type": "duration", "seconds": math.ceil(self._turn_s)}}
        await self.tell(f"{_EVENTS}.completed", item_id=self._item, content_index=0, **about)
        self._last_item = self._item
        self._begin_turn()


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _tokens(update: LiveUpdate, model: WhisperModel) -> list[dict[str, Any]]:
    """Who drafted the confirmed text."""
    found, at, end, n_passes = [], 0, update.begins_at + len(update.confirmed), 0
    for segment in update.segments:
        drafted = shapes.drafted(segment, model.bundle.tokenizer)
        for token in drafted["tokens"]:
            text, start = token["text"], at
            at += len(text)
            part = text[max(update.begins_at - start, 0) : max(end - start, 0)]
            if part:
                found.append({**token, "text": part, "pass": token["pass"] + n_passes})
        n_passes += len(drafted["passes"])
    return found
