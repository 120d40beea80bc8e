"""The interfaces of other servers: whisper.cpp's `/inference` and whisper-asr-webservice's `/asr`.

https://github.com/ggml-org/whisper.cpp/tree/master/examples/server, https://github.com/ahmetoner/whisper-asr-webservice
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from specedge.runtime.audio.audio import RawFormat
from specedge.runtime.longform.segments import Segment
from specedge.runtime.output.formats import STREAMED, SubtitleOptions

from . import shapes
from .failures import invalid
from .jobs import Job
from .openai import Ask, answer, ask_of
from .service import Service
from .uploads import Form

_OUTPUTS = ("txt", "vtt", "srt", "tsv", "json")


async def inference(request: Request) -> Response:
    """whisper.cpp's: a form with `file`, the answer as with OpenAI."""
    service: Service = request.app.state.service

    def ask_for(form: Form) -> Ask:
        known = [(name, value) for name, value in form.fields if name != "stream"]
        translates = any(name == "translate" and value.lower() in ("true", "1") for name, value in known)
        return ask_of(known, service, task="translate" if translates else "transcribe")

    return await answer(request, ask_for, file_field="file")


async def asr(request: Request) -> Response:
    """whisper-asr-webservice's: options in the address, `audio_file` in the form; `encode=false`: raw s16le."""
    service: Service = request.app.state.service
    query = request.query_params
    output = query.get("output") or "txt"
    if output not in _OUTPUTS:
        raise invalid("output", output, f"one of {', '.join(_OUTPUTS)}")

    def ask_for(_: Form) -> Ask:
        names = ("language", "task", "word_timestamps", "vad_filter", "model")
        fields = [(name, query[name]) for name in names if name in query]
        ask = ask_of([*fields, ("prompt", query.get("initial_prompt", ""))], service, task="transcribe")
        ask.raw = RawFormat("s16le", 16_000) if query.get("encode", "").lower() == "false" else None
        return ask

    def shape(ask: Ask, segments: Sequence[Segment], job: Job) -> Response:
        if output != "json":
            return PlainTextResponse("".join(STREAMED[output](segments, SubtitleOptions())))
        value = shapes.verbose(segments, job.info, ask.options, None)
        return JSONResponse({**value, "language": job.info.language})

    return await answer(request, ask_for, file_field="audio_file", shape=shape)
