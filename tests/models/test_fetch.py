"""One known file over HTTPS: whole and checked in the store, or not there at all, with one line saying what to do."""

from __future__ import annotations

import hashlib
import io
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from click.testing import CliRunner

from specedge.errors import ModelError, ResourceError
from specedge.models import catalogue, store
from specedge.runtime.cli.models import models

CONTENT = b"a small model " * 100
KNOWN = replace(catalogue.FILES["silero-vad"], sha256=hashlib.sha256(CONTENT).hexdigest(), size_bytes=len(CONTENT))


class Response(io.BytesIO):
    """As much of an HTTP response as is looked at."""

    def __init__(self, body: bytes, url: str) -> None:
        super().__init__(body)
        self.url = url

    def geturl(self) -> str:
        return self.url


class Server:
    """Stands for `urlopen`: answers with `body`, or raises it; `asked` holds the addresses."""

    def __init__(self) -> None:
        self.body: bytes | Exception = CONTENT
        self.final_url: str | None = None
        self.asked: list[str] = []

    def __call__(self, url: str, timeout: float) -> Response:
        self.asked.append(url)
        if isinstance(self.body, Exception):
            raise self.body
        return Response(self.body, self.final_url or url)


@pytest.fixture(autouse=True)
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    fake, files = Server(), MappingProxyType({"silero-vad": KNOWN})
    monkeypatch.setenv("SPECEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(catalogue, "FILES", files)
    monkeypatch.setattr(urllib.request, "urlopen", fake)
    return fake


def run(*arguments: str) -> Any:
    return CliRunner().invoke(models, list(arguments))


def test_pull_path_and_rm(server: Server) -> None:
    path = store.file_path("silero-vad")
    result = run("pull", "silero-vad")
    assert result.exit_code == 0 and result.stdout == f"{path}\n"
    assert path.read_bytes() == CONTENT and store.find_file("silero-vad") == path
    assert [item.name for item in path.parent.iterdir()] == [path.name], "no temporary file is left"
    assert run("pull", "silero-vad").stdout == f"{path}\n" and server.asked == [KNOWN.url]
    assert run("show", "silero-vad", "--path").stdout == f"{path}\n"
    assert run("rm", "silero-vad").exit_code == 0 and not path.parent.exists()
    assert isinstance(run("rm", "silero-vad").exception, ModelError)
    assert isinstance(run("show", "silero-vad", "--path").exception, ModelError)


@pytest.mark.parametrize("body", [CONTENT[:-1], CONTENT + b"x", b"", b"<html>", CONTENT[:-1] + b"?"])
def test_another_file_is_not_kept(server: Server, body: bytes) -> None:
    server.body = body
    with pytest.raises(ModelError, match="gave another file than the one expected"):
        store.fetch_file("silero-vad")
    assert not store.file_path("silero-vad").exists()


def test_a_file_that_was_changed_is_fetched_again(server: Server) -> None:
    path = store.fetch_file("silero-vad")
    path.write_bytes(CONTENT[:-1] + b"?")
    with pytest.raises(ModelError, match="not the file known as"):
        store.find_file("silero-vad")
    assert store.fetch_file("silero-vad") == path and path.read_bytes() == CONTENT


def test_offline_one_line_says_where_to_put_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError) as caught:
        store.fetch_file("silero-vad")
    assert str(caught.value).endswith(f"save {KNOWN.url} as {store.file_path('silero-vad')}") and server.asked == []


@pytest.mark.parametrize(
    "error", [urllib.error.URLError("no route"), TimeoutError("timed out"), ConnectionResetError("reset")]
)
def test_an_unreachable_server(server: Server, error: Exception) -> None:
    server.body = error
    with pytest.raises(ModelError, match="cannot fetch silero-vad .*: save https://"):
        store.fetch_file("silero-vad")


def test_a_redirection_to_plain_http_is_refused(server: Server) -> None:
    server.final_url = "http://example.org/x"
    with pytest.raises(ModelError, match="without https"):
        store.fetch_file("silero-vad")


def test_a_store_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file in the way")
    with pytest.raises(ResourceError):
        store.fetch_file("silero-vad")
