"""Wyoming, for Home Assistant: speech to text over tcp, a unix socket or stdio (https://github.com/OHF-Voice/wyoming)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from wyoming.asr import Transcribe, Transcript, TranscriptChunk, TranscriptStart, TranscriptStop
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import AsrModel, AsrProgram, Attribution, Describe, Info
from wyoming.ping import Ping, Pong
from wyoming.server import AsyncEventHandler, AsyncServer

from specedge.errors import ResourceError, SpecedgeError
from specedge.maps.build import build
from specedge.maps.tmap_format import text_fingerprint
from specedge.runtime.audio.audio import RawFormat
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.options import READS_MAPS, TranscribeOptions, drafter_named
from specedge.version import __version__

from .failures import Failure, failure_of, invalid
from .jobs import Job
from .service import Service

_ENCODINGS = {1: "u8", 2: "s16le", 3: "s24le", 4: "s32le"}
_MOST_EVENT_BYTES = 1 << 24
_SOURCE = Attribution(name="specedge", url="https://github.com/openai/whisper")
SENTENCES = (
    " Turn on {name}.",
    " Turn off {name}.",
    " Turn on the {name}.",
    " Turn off the {name}.",
    " Turn the {name} on.",
    " Turn the {name} off.",
    " Open the {name}.",
    " Close the {name}.",
    " Lock the {name}.",
    " Unlock the {name}.",
    " Set the {name} to",
    " Is the {name} on?",
    " What is the {name}?",
    " Turn on the lights in the {name}.",
    " Turn off the lights in the {name}.",
    " What is the temperature in the {name}?",
)
_MOST_NAMES, _MOST_CHARS, _MOST_KEPT = 2000, 100, 8
_making = threading.Lock()


@contextlib.asynccontextmanager
async def serving(service: Service) -> AsyncIterator[None]:
    """Listen at the settings' URI inside the block. Raises ResourceError."""
    uri, name = service.settings.wyoming or "", service.settings.zeroconf
    server = AsyncServer.from_uri(uri)
    handler = partial(_Handler, service=service)
    async with contextlib.AsyncExitStack() as stack:
        try:
            if uri.startswith("stdio"):
                stack.callback(asyncio.create_task(server.run(handler)).cancel)
            else:
                await server.start(handler)
        except OSError as error:
            raise ResourceError(f"cannot listen on {uri}: {error.strerror or error}") from error
        stack.push_async_callback(server.stop)
        if name is not None:
            from wyoming.zeroconf import HomeAssistantZeroconf

            announced = HomeAssistantZeroconf(port=urlparse(uri).port or 0, name=name)
            await announced.register_server()
            stack.push_async_callback(announced._aiozc.async_close)
        yield


def map_of(names: Sequence[str], bundle: Bundle, folder: Path) -> Path | None:
    """The token map of commands with the names of a house, each sentence with each name; it changes no text.

    It lies in `folder`, where the last few are kept, and is made where it is new; None without names. Raises
    ResourceError.
    """
    names = sorted({name.strip()[:_MOST_CHARS] for name in names[:_MOST_NAMES] if name.strip()})
    if not names:
        return None
    key = hashlib.sha256("\0".join([bundle.digest, *names]).encode()).hexdigest()[:32]
    path = folder / f"{key}.tmap"
    with _making:
        if not path.exists():
            tokenizer, eot = bundle.tokenizer, bundle.tokenizer.special.eot
            sentences = (tokenizer.encode(one.replace("{name}", name)) for one in SENTENCES for name in names)
            build(sentences, path, n_text=eot, fingerprint=text_fingerprint(tokenizer.ranks, eot))
        path.touch()
        for old in sorted(folder.glob("*.tmap"), key=os.path.getmtime)[:-_MOST_KEPT]:
            old.unlink()
    return path


class _Bounded:
    """A reader that refuses events no client sends: their lengths are the client's word."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    async def readexactly(self, n: int) -> bytes:
        if not 0 < n <= _MOST_EVENT_BYTES:
            raise ValueError("an event is too large")
        return await self._reader.readexactly(n)


class _Handler(AsyncEventHandler):
    """One connection: a request after another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, service: Service) -> None:
        super().__init__(_Bounded(reader), writer)  # type: ignore[arg-type]
        self._service = service
        self._wanted = Transcribe()
        self._audio: Any = None
        self._layout = (16_000, 2, 1)

    async def run(self) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, KeyError, TypeError, AttributeError):
            await super().run()

    async def disconnect(self) -> None:
        self._forget()

    def _forget(self) -> None:
        if self._audio is not None:
            self._audio.close()
            Path(self._audio.name).unlink(missing_ok=True)
            self._audio = None

    async def handle_event(self, event: Event) -> bool:
        try:
            return await self._handle(event)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:
            is_ours = isinstance(error, SpecedgeError)
            if isinstance(error, (KeyError, TypeError, AttributeError, ValueError)) and not is_ours:
                error = Failure(400, "invalid_event", f"the event {event.type[:40]!r} has wrong or missing fields")
            failure = failure_of(error, "a Wyoming request")
            self._forget()
            await self.write_event(Error(text=failure.message, code=failure.code).event())
            return failure.status < 500

    async def _handle(self, event: Event) -> bool:
        if Describe.is_type(event.type):
            await self.write_event(self._info().event())
        elif Ping.is_type(event.type):
            await self.write_event(Pong(text=Ping.from_event(event).text).event())
        elif Transcribe.is_type(event.type):
            self._wanted = Transcribe.from_event(event)
        elif AudioStart.is_type(event.type):
            self._forget()
        elif AudioChunk.is_type(event.type):
            chunk = AudioChunk.from_event(event)
            layout = (chunk.rate, chunk.width, chunk.channels)
            if self._audio is None:
                self._service.check()
                if chunk.width not in _ENCODINGS:
                    raise invalid("width", chunk.width, "1 to 4 bytes")
                self._layout = layout
                self._audio = tempfile.NamedTemporaryFile(dir=self._service.folder, delete=False)
            elif layout != self._layout:
                raise Failure(400, "invalid_value", f"rate, width, channels: changed from {self._layout} to {layout}")
            if self._audio.tell() + len(chunk.audio) > self._service.settings.max_upload_bytes:
                raise Failure(413, "file_too_large", "the audio is too long for this server")
            self._audio.write(chunk.audio)
        elif AudioStop.is_type(event.type):
            await self._transcribe()
        return True

    async def _transcribe(self) -> None:
        wanted, self._wanted = self._wanted, Transcribe()
        texts: list[str] = []
        about: dict[str, Any] = {}
        started_s, status = time.perf_counter(), "failed"
        language = wanted.language
        try:
            await self.write_event(TranscriptStart(language=language).event())
            if self._audio is not None and self._audio.tell():
                self._audio.close()
                about["model"] = self._service.models.name_of(wanted.name or "")
                async with self._service.models.use(about["model"]) as model:
                    job = await asyncio.to_thread(self._job, wanted, model)
                    coming = job.segments(str(self.writer.get_extra_info("peername")), about)
                    async with contextlib.aclosing(coming) as segments:
                        async for segment in segments:
                            if segment is not None:
                                texts.append(segment.text if texts else segment.text.lstrip())
                                await self.write_event(TranscriptChunk(text=texts[-1]).event())
                    language = job.info.language
            await self.write_event(Transcript(text="".join(texts).strip(), language=language).event())
            await self.write_event(TranscriptStop().event())
            status = "done"
        finally:
            self._forget()
            about["taken_s"] = time.perf_counter() - started_s
            self._service.log("wyoming transcribe", about, status)

    def _job(self, wanted: Transcribe, model: Any) -> Job:
        rate_hz, width, n_channels = self._layout
        names = [str(name) for name in (*(wanted.transcript_names or ()), *(wanted.transcript_terms or ()))]
        drafter = self._service.settings.drafter
        about = self._service.drafter_options(drafter)
        own = map_of(names, model.bundle, self._service.folder) if drafter in READS_MAPS else None
        if own is not None:
            bundled = [model.bundle.file(name) for name in sorted(model.bundle.manifest.files) if name[:5] == "maps/"]
            about["token_maps"] = (own, *(about.get("token_maps") or bundled))
        language = wanted.language.partition("-")[0] if wanted.language else None
        return Job(
            self._service,
            model,
            Path(self._audio.name),
            TranscribeOptions(language=language, hotwords=", ".join(names) or None, **self._service.phrases),
            drafter_named(drafter, **about),
            raw=RawFormat(_ENCODINGS[width], rate_hz, n_channels),
        )

    def _info(self) -> Info:
        common: dict[str, Any] = {"attribution": _SOURCE, "installed": True, "version": __version__}
        models = [
            AsrModel(name=name, description=f"Whisper: {name}", languages=languages, **common)
            for name, languages in self._service.models.languages.items()
        ]
        about = "Whisper on the CPU with lossless speculative decoding"
        program = AsrProgram(
            name="specedge", description=about, models=models, supports_transcript_streaming=True, **common
        )
        return Info(asr=[program])
