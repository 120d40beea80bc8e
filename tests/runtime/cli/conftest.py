"""What tests of the subcommands share: a folder of their own, a scripted model, and the request a command makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specedge.runtime.cli import main, transcribe_files
from specedge.runtime.cli.request import Request


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Request]:
    """Call it with the arguments of `specedge transcribe` to get the request they make."""
    caught: list[Request] = []

    def catch(request: Request, **_: Any) -> int:
        caught.append(request)
        return 0

    monkeypatch.setattr(transcribe_files, "transcribe_files", catch)

    def parse(*args: str) -> Request:
        code = main.main(["transcribe", *args])
        assert code == 0, capsys.readouterr().err
        return caught.pop()

    return parse
