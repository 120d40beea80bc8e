"""One server for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

for _name in ("starlette", "uvicorn", "python_multipart", "wsproto", "wyoming", "openai"):
    pytest.importorskip(_name)

from support.serving import Served, served  # noqa: E402


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    """The demo model, a small upload limit, Wyoming on a free port of its own."""
    with served("-m", "demo", "--max-upload", "2MB", "--max-duration", "2m", "--drafter", "ctc") as running:
        yield running
