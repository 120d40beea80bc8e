"""From a form to the answer or the stream: OpenAI's `/v1/audio/transcriptions` and `/translations`, and the interfaces
of two other servers, whisper.cpp's `/inference` and whisper-asr-webservice's `/asr`.

https://github.com/ggml-org/whisper.cpp/tree/master/examples/server, https://github.com/ahmetoner/whisper-asr-webservice
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from specedge.errors import UsageError
from specedge.runtime.audio.audio import RawFormat
from specedge.runtime.longform.segments import Segment
from specedge.runtime.options import FALLBACK_TEMPERATURES, TranscribeOptions, audio_context, drafter_named
from specedge.runtime.output.formats import STREAMED, SubtitleOptions
from specedge.runtime.text.phrases import WEIGHT, Phrases, phrases, sentences

from . import shapes
from .failures import Failure, failure_of, invalid
from .jobs import Job
from .service import ABOUT, Service, client_of
from .uploads import read_form

_FORMATS = ("json", "text", "srt", "vtt", "verbose_json")
_ASR_OUTPUTS = ("txt", "vtt", "srt", "tsv", "json")
_CODED_JSON = "verbose_json with a code"  # of the language, not its name
_ON, _OFF = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_Fields = Sequence[tuple[str, str]]


class _Form:
    """Fields of a form, by name; those that nobody asked for are left.

    A list is a field `name[]`, `name[0]` or `name`, again and again, or one with a list in JSON.
    """

    def __init__(self, fields: _Fields) -> None:
        self._left: dict[str, list[str]] = {}
        for name, value in fields:
            self._left.setdefault(re.sub(r"\[\d{0,3}\]$", "", name), []).append(value)

    def text(self, name: str) -> str | None:
        values = self._left.pop(name, [""])
        if "\0" in values[-1]:
            raise Failure(400, "invalid_value", f"{name}: holds a zero byte", param=name)
        return values[-1] or None

    def all(self, name: str, *known: str) -> tuple[str, ...]:
        """The items of a list, of which each is one of those known, if any are."""
        items = tuple(item for value in self._left.pop(name, ()) for item in _items(value) if item)
        for item in items:
            if known and item not in known:
                raise invalid(f"{name}[]", item, " or ".join(known))
        return items

    def is_on(self, name: str) -> bool:
        value = (self.text(name) or "false").lower()
        if value not in (*_ON, *_OFF):
            raise invalid(name, value, "true or false")
        return value in _ON

    def number(self, name: str, low: float, high: float) -> float | None:
        text = next(iter(self.all(name)), None)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise invalid(name, text, f"a number from {low:g} to {high:g}")
        return value

    def phrases(self) -> dict[str, Phrases]:
        """Phrases that may change the text, as far as the form gives them."""
        weight = self.number("bias_weight", 0.001, 100) or WEIGHT
        found: dict[str, Phrases] = {}
        for name, read in (("bias", phrases), ("only", sentences)):
            if texts := [line for text in self.all(name) for line in text.splitlines()]:
                try:
                    found[name] = read(Phrases(tuple(texts), weight))
                except UsageError as error:
                    raise Failure(400, "invalid_value", f"{name}: {error}", param=name) from None
        return found

    def left(self) -> str:
        """The names that nobody asked for."""
        return ", ".join(sorted(self._left)).encode("ascii", "replace").decode()[:500]


def _items(value: str) -> list[str]:
    """The items of a list in JSON; else the value."""
    if value.startswith("[") and value.endswith("]"):
        with contextlib.suppress(ValueError, RecursionError):
            return [one if isinstance(one, str) else json.dumps(one) for one in json.loads(value)]
    return [value]


async def endpoint(request: Request, task: str) -> Response:
    """Transcribe, or translate into English."""
    return await _answer(request, lambda fields: [("task", task), *fields])


async def inference(request: Request) -> Response:
    """whisper.cpp's: a form with `file`, the answer as with OpenAI."""

    def fields_of(given: _Fields) -> _Fields:
        translates = any(name == "translate" and value.lower() in ("true", "1") for name, value in given)
        task = "translate" if translates else "transcribe"
        return [("task", task), *((name, value) for name, value in given if name != "stream")]

    return await _answer(request, fields_of)


async def asr(request: Request) -> Response:
    """whisper-asr-webservice's: options in the address, `audio_file` in the form; `encode=false`: raw s16le."""
    query = request.query_params
    output = query.get("output") or "txt"
    if output not in _ASR_OUTPUTS:
        raise invalid("output", output, f"one of {', '.join(_ASR_OUTPUTS)}")
    names = ("language", "task", "word_timestamps", "vad_filter", "model")
    fields = [(name, query[name]) for name in names if name in query]
    fields.append(("prompt", query.get("initial_prompt", "")))
    raw = RawFormat("s16le", 16_000) if query.get("encode", "").lower() == "false" else None
    format = _CODED_JSON if output == "json" else output
    return await _answer(request, lambda _: fields, file_field="audio_file", format=format, raw=raw)


async def _answer(
    request: Request,
    fields_of: Callable[[_Fields], _Fields],
    *,
    file_field: str = "file",
    format: str | None = None,
    raw: RawFormat | None = None,
) -> Response:
    """Read the form, decode, and answer. fields_of: what counts of the form; format: where the form has none."""
    service: Service = request.app.state.service
    settings, stack = service.settings, contextlib.AsyncExitStack()
    async with stack:
        service.check()
        limits: dict[str, Any] = {"max_bytes": settings.max_upload_bytes, "timeout_s": settings.upload_timeout_s}
        read = read_form(request, service.folder, file_field=file_field, **limits)
        given, path = await stack.enter_async_context(read)
        form = _Form(fields_of(given))
        format, streams = format or _format_of(form), form.is_on("stream")
        if streams and format not in ("json", "text"):
            raise Failure(400, "invalid_value", "stream: goes with response_format json or text", param="stream")
        include = form.all("include", "logprobs", "drafts")
        options = _options(form, service, draft_sources=bool(include))
        vad: dict[str, Any] | None = {} if form.is_on("vad_filter") or form.text("chunking_strategy") else None
        drafter = form.text("drafter") or settings.drafter
        name = service.models.name_of(form.text("model") or "")
        ignored = form.left()
        request.scope[ABOUT] |= {"model": name, "ignored": ignored}
        model = await stack.enter_async_context(service.models.use(name))
        asked = drafter_named(drafter, **service.drafter_options(drafter))
        job = Job(service, model, path, options, asked, vad=vad, raw=raw)
        headers = {"x-specedge-ignored": ignored} if ignored else {}
        if streams:
            headers["Cache-Control"] = "no-store"
            events = _events(job, "drafts" in include, request, stack.pop_all())
            return StreamingResponse(events, media_type="text/event-stream", headers=headers)
        response = _shaped(format, include, await _segments(job, request), job)
        response.headers.update(headers)
        return response


def _format_of(form: _Form) -> str:
    format = form.text("response_format") or "json"
    if format not in _FORMATS:
        raise invalid("response_format", format, f"one of {', '.join(_FORMATS)}")
    return format


def _options(form: _Form, service: Service, *, draft_sources: bool) -> TranscribeOptions:
    """Raises Failure, UsageError."""
    for name in ("known_speaker_names", "known_speaker_references"):
        if form.all(name):
            raise Failure(400, "invalid_value", f"{name}[]: speakers are not told apart here", param=f"{name}[]")
    temperature, context = form.number("temperature", 0, 2), form.text("audio_context")
    granularities = form.all("timestamp_granularities", "word", "segment")
    return TranscribeOptions(
        language=form.text("language"),
        task=form.text("task") or "transcribe",
        temperature=(temperature,) if temperature else FALLBACK_TEMPERATURES,
        initial_prompt=form.text("prompt"),
        hotwords=", ".join((*form.all("keywords"), *form.all("hotwords"))) or None,
        beam_size=int(form.number("beam_size", 1, 16) or 1),
        seed=int(form.number("seed", 0, 2**53) or 0),
        audio_context=audio_context(context) if context else TranscribeOptions.audio_context,
        word_timestamps="word" in granularities or form.is_on("word_timestamps"),
        draft_sources=draft_sources,
        **service.phrases | form.phrases(),
    )


async def _segments(job: Job, request: Request) -> list[Segment]:
    """All segments, unless the client goes: then the work ends. Raises ClientDisconnect."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        work.cancel()

    async def decoded() -> list[Segment]:
        coming = job.segments(client_of(request), request.scope[ABOUT])
        return [segment async for segment in coming if segment is not None]

    work, watch = asyncio.ensure_future(decoded()), asyncio.ensure_future(gone())
    try:
        return await work
    except asyncio.CancelledError:
        raise ClientDisconnect from None
    finally:
        watch.cancel()


async def _events(
    job: Job, has_drafts: bool, request: Request, resources: contextlib.AsyncExitStack
) -> AsyncIterator[str]:
    """The stream. Its resources go with it, also when the client does."""
    done: list[Segment] = []
    async with resources:
        try:
            coming = job.segments(client_of(request), request.scope[ABOUT])
            async with contextlib.aclosing(coming) as segments:
                async for segment in segments:
                    if segment is None:
                        yield ": keep-alive\n\n"
                        continue
                    delta = segment.text if done else segment.text.lstrip()
                    yield shapes.event("transcript.text.delta", delta=delta)
                    if has_drafts:
                        fields = shapes.drafted(segment, job.model.bundle.tokenizer)
                        if job.options.word_timestamps:
                            fields["words"] = shapes.words([segment])
                        fields |= {"start": segment.start, "end": segment.end, "text": segment.text}
                        fields |= {"language": job.info.language, "duration": job.info.duration}
                        yield shapes.event("specedge.segment", id=len(done), **fields, drafters=job.drafters)
                    done.append(segment)
            text = shapes.text_of(done)
            yield shapes.event("transcript.text.done", text=text, usage=shapes.usage(job.info))
            if has_drafts:
                yield shapes.event("specedge.figures", **shapes.figures(job))
        except Exception as error:
            yield shapes.event(**failure_of(error, "a stream").body())
        yield "data: [DONE]\n\n"


def _shaped(format: str, include: Sequence[str], segments: list[Segment], job: Job) -> Response:
    if format == "json":
        value: dict[str, Any] = {"text": shapes.text_of(segments), "usage": shapes.usage(job.info)}
        if "logprobs" in include:
            value["logprobs"] = shapes.logprobs(segments, job.model.bundle.tokenizer)
        return JSONResponse(value)
    if format == "text":
        return PlainTextResponse(shapes.text_of(segments) + "\n")
    if format in STREAMED:
        return PlainTextResponse("".join(STREAMED[format](segments, SubtitleOptions())))
    value = shapes.verbose(segments, job, has_drafts="drafts" in include)
    if format == _CODED_JSON:
        value["language"] = job.info.language
    return JSONResponse(value)
