"""From a form to the answer or the stream: OpenAI's `/v1/audio/transcriptions` and `/translations`, and the interfaces
of two other servers, whisper.cpp's `/inference` and whisper-asr-webservice's `/asr`.

https://github.com/ggml-org/whisper.cpp/tree/master/examples/server, https://github.com/ahmetoner/whisper-asr-webservice
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
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
from .failures import Failure, failure_or_fault, invalid
from .jobs import Job
from .service import ABOUT, Service, client_of
from .uploads import Form, read_form

_log = logging.getLogger(__name__)
_FORMATS = ("json", "text", "srt", "vtt", "verbose_json")
_ASR_OUTPUTS = ("txt", "vtt", "srt", "tsv", "json")
_CODED_JSON = "verbose_json with a code"  # of the language, not its name
_ON, _OFF = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_REFUSED = ("known_speaker_names[]", "known_speaker_references[]")


@dataclass(kw_only=True)
class _Ask:
    """What a form asks for."""

    model: str
    format: str = "json"
    stream: bool = False
    include: tuple[str, ...] = ()
    options: TranscribeOptions
    drafter: str
    vad: dict[str, Any] | None = None
    raw: RawFormat | None = None
    ignored: list[str] = field(default_factory=list)


class _Fields:
    """Fields of a form, by name; those that nobody asked for are left.

    A list is a field `name[]`, `name[0]` or `name`, again and again, or one with a list in JSON.
    """

    def __init__(self, fields: Sequence[tuple[str, str]]) -> None:
        self._left: dict[str, list[str]] = {}
        for name, value in fields:
            self._left.setdefault(re.sub(r"\[\d{0,3}\]$", "", name), []).append(value)

    def text(self, name: str) -> str | None:
        values = self._left.pop(name, [""])
        if "\0" in values[-1]:
            raise Failure(400, "invalid_value", f"{name}: holds a zero byte", param=name)
        return values[-1] or None

    def all(self, name: str) -> tuple[str, ...]:
        return tuple(item for value in self._left.pop(name, ()) for item in _items(value) if item)

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

    def left(self) -> list[str]:
        """The names that nobody asked for."""
        return sorted(self._left)


def _phrases(form: _Fields) -> dict[str, Phrases]:
    """Phrases that may change the text, as far as the form gives them. Raises Failure."""
    weight = form.number("bias_weight", 0.001, 100) or WEIGHT
    found: dict[str, Phrases] = {}
    for name, read in (("bias", phrases), ("only", sentences)):
        if texts := [line for text in form.all(name) for line in text.splitlines()]:
            try:
                found[name] = read(Phrases(tuple(texts), weight))
            except UsageError as error:
                raise Failure(400, "invalid_value", f"{name}: {error}", param=name) from None
    return found


def _items(value: str) -> list[str]:
    """The items of a list in JSON; else the value."""
    if value.startswith("[") and value.endswith("]"):
        with contextlib.suppress(ValueError, RecursionError):
            return [one if isinstance(one, str) else json.dumps(one) for one in json.loads(value)]
    return [value]


def _ask_of(fields: Sequence[tuple[str, str]], service: Service, *, task: str) -> _Ask:
    """Raises Failure, UsageError."""
    form = _Fields(fields)
    format, stream = form.text("response_format") or "json", form.is_on("stream")
    if format not in _FORMATS:
        raise invalid("response_format", format, f"one of {', '.join(_FORMATS)}")
    if stream and format not in ("json", "text"):
        raise Failure(400, "invalid_value", "stream: goes with response_format json or text", param="stream")
    for name in _REFUSED:
        if form.all(name.removesuffix("[]")):
            raise Failure(400, "invalid_value", f"{name}: speakers are not told apart here", param=name)
    include, granularities = form.all("include"), form.all("timestamp_granularities")
    for name, values, known in (
        ("include[]", include, ("logprobs", "drafts")),
        ("timestamp_granularities[]", granularities, ("word", "segment")),
    ):
        for value in values:
            if value not in known:
                raise invalid(name, value, " or ".join(known))
    temperature = form.number("temperature", 0, 2)
    context = form.text("audio_context")
    options = TranscribeOptions(
        language=form.text("language"),
        task=form.text("task") or task,
        temperature=(temperature,) if temperature else FALLBACK_TEMPERATURES,
        initial_prompt=form.text("prompt"),
        hotwords=", ".join((*form.all("keywords"), *form.all("hotwords"))) or None,
        beam_size=int(form.number("beam_size", 1, 16) or 1),
        seed=int(form.number("seed", 0, 2**53) or 0),
        audio_context=audio_context(context) if context else TranscribeOptions.audio_context,
        word_timestamps="word" in granularities or form.is_on("word_timestamps"),
        draft_sources=bool(include),
        **service.phrases | _phrases(form),
    )
    vad: dict[str, Any] | None = {} if form.is_on("vad_filter") or form.text("chunking_strategy") else None
    return _Ask(
        model=service.models.name_of(form.text("model") or ""),
        format=format,
        stream=stream,
        include=include,
        options=options,
        drafter=form.text("drafter") or service.settings.drafter,
        vad=vad,
        ignored=form.left(),
    )


async def endpoint(request: Request, task: str) -> Response:
    """Transcribe, or translate into English."""
    service: Service = request.app.state.service
    return await _answer(request, lambda form: _ask_of(form.fields, service, task=task), file_field="file")


async def inference(request: Request) -> Response:
    """whisper.cpp's: a form with `file`, the answer as with OpenAI."""
    service: Service = request.app.state.service

    def ask_for(form: Form) -> _Ask:
        known = [(name, value) for name, value in form.fields if name != "stream"]
        translates = any(name == "translate" and value.lower() in ("true", "1") for name, value in known)
        return _ask_of(known, service, task="translate" if translates else "transcribe")

    return await _answer(request, ask_for, file_field="file")


async def asr(request: Request) -> Response:
    """whisper-asr-webservice's: options in the address, `audio_file` in the form; `encode=false`: raw s16le."""
    service: Service = request.app.state.service
    query = request.query_params
    output = query.get("output") or "txt"
    if output not in _ASR_OUTPUTS:
        raise invalid("output", output, f"one of {', '.join(_ASR_OUTPUTS)}")

    def ask_for(_: Form) -> _Ask:
        names = ("language", "task", "word_timestamps", "vad_filter", "model")
        fields = [(name, query[name]) for name in names if name in query]
        ask = _ask_of([*fields, ("prompt", query.get("initial_prompt", ""))], service, task="transcribe")
        ask.raw = RawFormat("s16le", 16_000) if query.get("encode", "").lower() == "false" else None
        ask.format = _CODED_JSON if output == "json" else output
        return ask

    return await _answer(request, ask_for, file_field="audio_file")


async def _answer(request: Request, ask_for: Callable[[Form], _Ask], *, file_field: str) -> Response:
    """Read the form, decode, and answer."""
    service: Service = request.app.state.service
    stack = contextlib.AsyncExitStack()
    async with stack:
        service.check()
        settings = service.settings
        limits: dict[str, Any] = {"max_bytes": settings.max_upload_bytes, "timeout_s": settings.upload_timeout_s}
        form = await stack.enter_async_context(read_form(request, service.folder, file_field=file_field, **limits))
        ask = ask_for(form)
        ignored = ", ".join(ask.ignored).encode("ascii", "replace").decode()[:500]
        about = request.scope[ABOUT]
        about |= {"model": ask.model, "ignored": ignored}
        model = await stack.enter_async_context(service.models.use(ask.model))
        drafter = drafter_named(ask.drafter, **service.drafter_options(ask.drafter))
        limit_s = settings.max_duration_s
        job = Job(model, form.file, ask.options, drafter, vad=ask.vad, raw=ask.raw, max_duration_s=limit_s)
        if ask.stream:
            events = _events(ask, job, service, request, stack.pop_all())
            headers = {"Cache-Control": "no-store"} | ({"x-specedge-ignored": ignored} if ignored else {})
            return StreamingResponse(events, media_type="text/event-stream", headers=headers)
        segments = await _until_gone(request, _all(service.segments(job, client_of(request), about)))
        response = _shaped(ask, segments, job)
        if ignored:
            response.headers["x-specedge-ignored"] = ignored
        return response


async def _all(segments: AsyncIterator[Segment | None]) -> list[Segment]:
    return [segment async for segment in segments if segment is not None]


async def _until_gone(request: Request, work: Any) -> Any:
    """What `work` gives, unless the client goes: then it is cancelled. Raises ClientDisconnect."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _events(
    ask: _Ask, job: Job, service: Service, request: Request, resources: contextlib.AsyncExitStack
) -> AsyncIterator[str]:
    """The stream. Its resources go with it, also when the client does."""
    has_drafts, tokenizer = "drafts" in ask.include, job.model.bundle.tokenizer
    done: list[Segment] = []
    async with resources:
        try:
            coming = service.segments(job, client_of(request), request.scope[ABOUT])
            async with contextlib.aclosing(coming) as segments:
                async for segment in segments:
                    if segment is None:
                        yield ": keep-alive\n\n"
                        continue
                    yield shapes.event(
                        {"type": "transcript.text.delta", "delta": segment.text if done else segment.text.lstrip()}
                    )
                    if has_drafts:
                        fields = {"id": len(done), "start": segment.start, "end": segment.end, "text": segment.text}
                        fields |= shapes.drafted(segment, tokenizer)
                        if ask.options.word_timestamps:
                            fields["words"] = shapes.words([segment])
                        fields |= {"language": job.info.language, "duration": job.info.duration}
                        yield shapes.event({"type": "specedge.segment", **fields, "drafters": job.drafters})
                    done.append(segment)
            text = {"text": shapes.text_of(done), "usage": shapes.usage(job.info)}
            yield shapes.event({"type": "transcript.text.done", **text})
            if has_drafts:
                figures = shapes.figures(job.info, job.model, job.total_s)
                yield shapes.event({"type": "specedge.figures", **figures})
        except Exception as error:
            yield shapes.event(failure_or_fault(error, _log, "a stream").body())
        yield "data: [DONE]\n\n"


def _shaped(ask: _Ask, segments: list[Segment], job: Job) -> Response:
    info, tokenizer = job.info, job.model.bundle.tokenizer
    if ask.format == "json":
        value: dict[str, Any] = {"text": shapes.text_of(segments), "usage": shapes.usage(info)}
        if "logprobs" in ask.include:
            value["logprobs"] = shapes.logprobs(segments, tokenizer)
        return JSONResponse(value)
    if ask.format == "text":
        return PlainTextResponse(shapes.text_of(segments) + "\n")
    if ask.format in STREAMED:
        return PlainTextResponse("".join(STREAMED[ask.format](segments, SubtitleOptions())))
    has_drafts = "drafts" in ask.include
    value = shapes.verbose(segments, info, ask.options, tokenizer if has_drafts else None)
    if has_drafts:
        value["figures"] = shapes.figures(info, job.model, job.total_s)
    if ask.format == _CODED_JSON:
        value["language"] = info.language
    return JSONResponse(value)
