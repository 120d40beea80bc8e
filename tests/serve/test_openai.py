"""The HTTP server through the real `openai` client: every format, the stream, every error."""

from __future__ import annotations

import concurrent.futures
import io
import json
import re
import time
from typing import Any

import httpx
import numpy as np
import openai
import pytest

import specedge
from support.serving import MAINTENANCE, NOTES, PATHS, SAID, Served
from support.sound import wav_bytes


@pytest.fixture(scope="module")
def client(server: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def create(client: openai.OpenAI, **given: Any) -> Any:
    return client.audio.transcriptions.create(**{"model": "demo", "file": MAINTENANCE, **given})


def test_plain_formats(client: openai.OpenAI) -> None:
    for name in ("whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe"):
        assert create(client, model=name).text == SAID
    assert create(client, response_format="text") == SAID + "\n"
    assert create(client, response_format="srt").startswith("1\n00:00:00,")
    assert create(client, response_format="vtt").startswith("WEBVTT\n\n00:00.")
    found = create(client, include=["logprobs"])
    assert found.text == SAID and "".join(one.token for one in found.logprobs).strip() == SAID
    assert all(one.logprob <= 0 and bytes(map(int, one.bytes)).decode() == one.token for one in found.logprobs)


def test_verbose_json_is_the_typed_answer(client: openai.OpenAI) -> None:
    extra = {"include[]": "drafts"}
    found = create(
        client, response_format="verbose_json", timestamp_granularities=["word", "segment"], extra_body=extra
    )
    assert (found.text, found.language) == (SAID, "english") and found.duration == pytest.approx(2.858, abs=0.01)
    assert [word.word for word in found.words] == SAID.split()
    segment = found.segments[0]
    assert segment.id == 0 and segment.text.strip() == SAID
    by = segment.model_extra["tokens_by"]
    assert "".join(token["text"] for token in by) == segment.text and {token["by"] for token in by} <= {"ctc", None}
    assert all(one["accepted"] <= one["rows"] for one in segment.model_extra["passes"])
    assert found.model_extra["figures"]["passes"] >= 1


def test_the_model_and_facts(client: openai.OpenAI, server: Served) -> None:
    assert [model.id for model in client.models.list()] == ["demo"] and client.models.retrieve("demo").id == "demo"
    drafters = httpx.get(f"{server.url}/v1/specedge/drafters").json()["drafters"]
    assert drafters[:2] == ["auto", "none"] and {"ctc", "tokenmap"} <= set(drafters)
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{server.url}/ready").status_code == 200
    assert "specedge_requests_total{status=" in httpx.get(f"{server.url}/metrics").text


def test_a_stream_ends_with_its_whole_text(client: openai.OpenAI) -> None:
    events = list(create(client, file=NOTES, stream=True))
    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert events[-1].type == "transcript.text.done" and events[-1].text == "".join(deltas)
    assert events[-1].text == create(client, file=NOTES).text


def test_a_stream_says_who_drafted_what(server: Served) -> None:
    form = {"stream": "true", "include[]": "drafts", "model": "demo"}
    with NOTES.open("rb") as file:
        text = httpx.post(f"{server.url}/v1/audio/transcriptions", data=form, files={"file": file}, timeout=60).text
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    found = [json.loads(event) for event in events]
    for one in found:
        if one["type"] == "specedge.segment":
            assert "".join(token["text"] for token in one["tokens"]) == one["text"]
            assert all(token["pass"] < len(one["passes"]) for token in one["tokens"])
            assert one["language"] == "en" and one["duration"] >= one["end"] - 0.02
    assert found[-1]["type"] == "specedge.figures" and found[-1]["tokens_per_pass"] >= 1


def test_translations_are_the_other_task(server: Served) -> None:
    url, form = f"{server.url}/v1/audio/translations", {"response_format": "verbose_json"}
    answer = httpx.post(url, files={"file": MAINTENANCE.read_bytes()}, data=form)
    assert answer.json()["task"] == "translate"


@pytest.mark.parametrize(
    ("given", "status", "code", "param"),
    [
        ({"model": "nope"}, 404, "model_not_found", "model"),
        ({"model": "/etc"}, 404, "model_not_found", "model"),
        ({"response_format": "xml"}, 400, "invalid_value", "response_format"),
        ({"response_format": "srt", "stream": True}, 400, "invalid_value", "stream"),
        ({"file": ("x.wav", b"nonsense")}, 400, "invalid_audio", "file"),
        ({"file": ("x.wav", b"")}, 400, "invalid_audio", "file"),
        ({"file": ("x.wav", b"0" * 3_000_000)}, 413, "file_too_large", "file"),
        ({"temperature": 1e30}, 400, "invalid_value", "temperature"),
        ({"language": "klingon"}, 400, "invalid_value", None),
        ({"extra_body": {"drafter": "magic"}}, 400, "invalid_value", "drafter"),
        ({"extra_body": {"beam_size": "nan"}}, 400, "invalid_value", "beam_size"),
        ({"extra_body": {"only": "start (the pump"}}, 400, "invalid_value", "only"),
        ({"timestamp_granularities": ["letter"]}, 400, "invalid_value", "timestamp_granularities[]"),
    ],
)
def test_errors_have_openai_s_shape(
    client: openai.OpenAI, given: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        create(client, **given)
    error = caught.value
    assert (error.status_code, error.code) == (status, code)
    assert error.param == param and not PATHS.search(error.message)


@pytest.mark.parametrize(
    "form",
    [
        [("timestamp_granularities[0]", "word"), ("timestamp_granularities[1]", "segment")],
        [("timestamp_granularities", '["word", "segment"]'), ("temperature", "[0.0, 0.2]"), ("language", "auto")],
        [("timestamp_granularities[]", "word"), ("temperature[]", "0"), ("temperature[]", "0.4"), ("stream", "off")],
    ],
)
def test_lists_in_every_spelling_of_a_client(server: Served, form: list[tuple[str, str]]) -> None:
    parts = [("file", ("a.wav", MAINTENANCE.read_bytes())), ("response_format", (None, "verbose_json"))]
    parts += [(name, (None, value)) for name, value in form]
    found = httpx.post(f"{server.url}/v1/audio/transcriptions", files=parts, timeout=60).json()
    assert [word["word"] for word in found["words"]] == SAID.split() and found["segments"][0]["temperature"] == 0


@pytest.mark.parametrize("word", ["on", "yes", "1"])
def test_fields_that_are_not_known_are_named_in_the_header_and_the_log(server: Served, word: str) -> None:
    form = {"bean_size": "5", "stream": word}
    answer = httpx.post(f"{server.url}/v1/audio/transcriptions", data=form, files={"file": MAINTENANCE.read_bytes()})
    assert answer.headers["x-specedge-ignored"] == "bean_size" and answer.text.endswith("data: [DONE]\n\n")
    line = r"specedge: POST /v1/audio/transcriptions demo 2\.9 s of audio \(ignored: bean_size\) in \d+\.\d\d s: 200\n"
    until_s = time.monotonic() + 5
    while not any(re.fullmatch(line, one) for one in server.lines) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert any(re.fullmatch(line, one) for one in server.lines), server.lines


def test_what_is_not_there_lists_what_is(server: Served) -> None:
    message = httpx.get(f"{server.url}/v2/nothing").json()["error"]["message"]
    assert "/v1/audio/transcriptions" in message and "/v1/models" in message


def test_endless_audio_ends_at_the_limit(client: openai.OpenAI) -> None:
    long = wav_bytes(np.zeros(130 * 4000, np.float32), 4000, "PCM_U8")
    with pytest.raises(openai.APIStatusError, match="longer than") as caught:
        create(client, file=("long.wav", long))
    assert caught.value.status_code == 413


def test_an_error_within_a_stream(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIError, match="^file: .*no(t)? audio"):
        list(create(client, file=("x.wav", b"nonsense"), stream=True))


@pytest.mark.slow
def test_eight_clients_get_what_one_gets(client: openai.OpenAI) -> None:
    """Token ids and log-probabilities, whoever shares a pass with whom."""
    model = specedge.WhisperModel("demo")
    alone = {path: [(s.tokens, s.avg_logprob) for s in model.transcribe(path)[0]] for path in (MAINTENANCE, NOTES)}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        wanted = [(MAINTENANCE, NOTES)[i % 2] for i in range(24)]
        jobs = [pool.submit(create, client, file=path, response_format="verbose_json") for path in wanted]
        for path, job in zip(wanted, jobs, strict=True):
            found = [(segment.tokens, segment.avg_logprob) for segment in job.result().segments]
            assert found == alone[path]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_frees_the_cpu(server: Served, stream: bool) -> None:
    speech = specedge.decode_audio(NOTES)
    long = wav_bytes(np.tile(speech, 40)[: 16_000 * 110 : 2], 8_000, "PCM_U8")
    before_s = server.figure("specedge_audio_seconds_total")
    form = {"stream": str(stream), "drafter": "none", "beam_size": "5"}
    url = f"{server.url}/v1/audio/transcriptions"
    files = {"file": io.BytesIO(long)}
    if stream:
        with httpx.stream("POST", url, data=form, files=files, timeout=30) as answer:
            assert next(answer.iter_lines()).startswith("data: ")
    else:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, data=form, files=files, timeout=httpx.Timeout(30, read=0.3))
    until_s = time.monotonic() + 2
    while server.figure("specedge_requests_running") and time.monotonic() < until_s:
        time.sleep(0.05)
    assert server.figure("specedge_requests_running") == 0
    assert server.figure("specedge_audio_seconds_total") == before_s, "it ended before its end"


def test_other_servers_interfaces(server: Served) -> None:
    files = {"audio_file": MAINTENANCE.read_bytes()}
    url = f"{server.url}/asr"
    assert httpx.post(url, files=files).text == SAID + "\n"
    assert httpx.post(url, files=files, params={"output": "srt"}).text.startswith("1\n00:00:00,")
    found = httpx.post(url, files=files, params={"output": "json", "word_timestamps": "true"}).json()
    assert found["language"] == "en" and found["segments"][0]["text"].strip() == SAID
    raw = (specedge.decode_audio(MAINTENANCE) * 32767).astype("<i2").tobytes()
    assert httpx.post(url, files={"audio_file": raw}, params={"encode": "false"}).text == SAID + "\n"
    files = {"file": MAINTENANCE.read_bytes()}
    form = {"response_format": "text", "language": "auto", "temperature_inc": "0.2"}
    answer = httpx.post(f"{server.url}/inference", files=files, data=form)
    assert answer.text == SAID + "\n" and answer.headers["x-specedge-ignored"] == "temperature_inc"
