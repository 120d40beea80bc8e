"""A Python package index on localhost: /simple/NAME/ as PEP 503 or PEP 691 say, and wheels, by ranges of bytes."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler

from support.hub import FakeServer


def wheel_bytes(members: Mapping[str, bytes]) -> bytes:
    """A wheel, stored without compression, as far as a reader of its members sees it."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


class FakeIndex(FakeServer):
    """Serves `{wheel file name: its bytes}` on a free port while entered.

    is_json: it answers as PEP 691 says. `cuts`: wheels whose connection breaks behind so many bytes, once. `lies`:
    contents that are sent in the place of a wheel's own. `ranges`: (file name, first byte) of what was asked for.
    `credentials`: what it wants in the Authorization header.
    """

    def __init__(self, wheels: Mapping[str, bytes], *, is_json: bool = False, takes_ranges: bool = True) -> None:
        self.wheels, self.is_json, self.takes_ranges = dict(wheels), is_json, takes_ranges
        self.cuts: dict[str, int] = {}
        self.lies: dict[str, bytes] = {}
        self.ranges: list[tuple[str, int]] = []
        self.credentials: str | None = None
        super().__init__(_Handler)
        self.url += "/simple"

    def page(self, project: str) -> tuple[str, bytes] | None:
        """Content type and content of a project's page, None for a project that is not there."""
        stem = project.replace("-", "_") + "-"
        names = [name for name in self.wheels if name.startswith(stem)]
        if not names:
            return None
        hashes = {name: hashlib.sha256(self.wheels[name]).hexdigest() for name in names}
        if self.is_json:
            files = [
                {"filename": name, "url": f"../../files/{name}", "hashes": {"sha256": hashes[name]}} for name in names
            ]
            return "application/vnd.pypi.simple.v1+json", json.dumps({"files": files}).encode()
        anchors = [f'<a href="../../files/{name}#sha256={hashes[name]}">{name}</a>' for name in names]
        return "text/html", f"<!DOCTYPE html><html><body>{''.join(anchors)}</body></html>".encode()


class _Handler(BaseHTTPRequestHandler):
    owner: FakeIndex

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        index, parts = self.owner, self.path.strip("/").split("/")
        if index.credentials is not None and self.headers.get("Authorization") != index.credentials:
            self.send_error(401)
        elif parts[0] == "simple" and (page := index.page(parts[1])) is not None:
            self._send(200, page[1], {"Content-Type": page[0]})
        elif parts[0] == "files" and parts[1] in index.wheels:
            self._send_wheel(parts[1])
        else:
            self.send_error(404)

    def _send_wheel(self, name: str) -> None:
        index, asked = self.owner, self.headers.get("Range")
        content = index.lies.get(name, index.wheels[name])
        first = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        index.ranges.append((name, first))
        if first and first >= len(content):
            self.send_error(416)
            return
        cut = index.cuts.pop(name, None)
        if first and index.takes_ranges:
            self._send(206, content[first:], {}, cut)
        else:
            self._send(200, content, {}, cut)

    def _send(self, status: int, content: bytes, headers: Mapping[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content[:cut])
        if cut is not None:
            self.close_connection = True
