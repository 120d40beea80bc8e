"""The interfaces of other servers: whisper.cpp's `/inference` and whisper-asr-webservice's `/asr`.

https://github.com/ggml-org/whisper.cpp/tree/master/examples/server, https://github.com/ahmetoner/whisper-asr-webservice
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from specedge.runtime.audio.audio import RawFormat

from .failures import invalid
from .openai import CODED_JSON, Ask, answer, ask_of
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
        ask.format = CODED_JSON if output == "json" else output
        return ask

    return await answer(request, ask_for, file_field="audio_file")
