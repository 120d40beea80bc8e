"""`specedge serve --encoder-provider`: where the option comes from, what is refused at the start, what answers say."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from specedge.errors import BundleError
from specedge.runtime.cli.main import main
from specedge.serve.app import make_app
from specedge.serve.models import Models
from specedge.serve.service import Service
from specedge.serve.settings import Settings
from support.providers import CpuBackend, micro_with_plain, take_for_openvino
from support.sound import wav_bytes


def test_the_option_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Settings] = []
    monkeypatch.setattr("specedge.serve.server.run", found.append)
    monkeypatch.setenv("SPECEDGE_SERVE_ENCODER_PROVIDER", "openvino")
    assert main(["serve", "-m", "demo"]) == 0
    assert main(["serve", "-m", "demo", "--encoder-provider", "cpu"]) == 0
    assert [one.encoder_provider for one in found] == ["openvino", "cpu"]


def test_a_model_without_such_an_encoder_is_refused_at_the_start() -> None:
    with pytest.raises(BundleError, match="export the checkpoint again with --encoder-plain"):
        Models(Settings(models=("demo",), encoder_provider="openvino"))


def test_answers_name_the_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECEDGE_CACHE", str(tmp_path / "cache"))
    take_for_openvino(CpuBackend(), monkeypatch)
    made = micro_with_plain(tmp_path / "micro")
    service = Service(Settings(models=(str(made.path),), encoder_provider="openvino"), tmp_path)

    async def ask() -> Any:
        transport = httpx.ASGITransport(app=make_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://specedge") as client:
            form = {"response_format": "verbose_json", "language": "en", "temperature": "0", "include[]": "drafts"}
            sound = wav_bytes(np.random.default_rng(0).uniform(-0.1, 0.1, 40_000).astype(np.float32))
            return (await client.post("/v1/audio/transcriptions", data=form, files={"file": sound})).json()

    answer = asyncio.run(ask())
    service.threads.shutdown()
    assert answer["encoder_provider"] == answer["figures"]["encoder_provider"] == "openvino 1 (a CPU)"


def test_ready_says_whether_a_request_would_be_taken_now(tmp_path: Path) -> None:
    service = Service(Settings(models=("demo",), parallel=1, queue=0), tmp_path)

    async def asked() -> list[tuple[int, str]]:
        transport = httpx.ASGITransport(app=make_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://specedge") as client:
            answers = [await client.get("/ready")]
            async with service.queue.turn("a"):
                answers.append(await client.get("/ready"))
            service.is_ending = True
            answers.append(await client.get("/ready"))
        return [(answer.status_code, answer.json()["status"]) for answer in answers]

    assert asyncio.run(asked()) == [(200, "ready"), (503, "full"), (503, "ending")]
    service.threads.shutdown()
