"""A Hugging Face hub on localhost: /api/models/ID/revision/REV and /ID/resolve/REV/FILE, as the real one answers them.

    with FakeHub({"owner/name": folder}) as hub: ... hub.url, hub.requests

It serves folders read-only, one commit each (the published one of a checkpoint that has one), knows gated and private
repositories, and takes ranges of bytes. A file's ETag is its sha256, as the real one's of a large file. Errors carry
X-Error-Code, by which huggingface_hub tells them apart.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from specedge.models import catalogue

COMMIT = hashlib.sha1(b"the only commit").hexdigest()


class FakeServer:
    """Answers requests by a handler on a free port of this machine while entered; the handler's `owner` is this."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), {"owner": self}))
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{self.address}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class FakeHub(FakeServer):
    """Serves `{hub id: folder}` on a free port while entered.

    `requests` lists (method, path) in order, `ranges` (file name, first byte) of what was asked for from there on.
    `cuts`: files by name whose connection breaks behind so many bytes, once; `stalls`: files that stop there, until the
    hub ends. `lies`: contents by name that are sent instead of a file's own.
    """

    def __init__(
        self, models: Mapping[str, Path], *, gated: tuple[str, ...] = (), branches: tuple[str, ...] = ("main",)
    ) -> None:
        self.models, self.gated, self.revisions = dict(models), gated, branches
        self.commits = {hub_id: catalogue.pinned(hub_id) or COMMIT for hub_id in models}
        self.requests: list[tuple[str, str]] = []
        self.ranges: list[tuple[str, int]] = []
        self.cuts: dict[str, int] = {}
        self.stalls: dict[str, int] = {}
        self.stalled, self._ended = threading.Event(), threading.Event()
        self.lies: dict[str, bytes] = {}
        self.status: int | None = None  # answer everything with this status
        super().__init__(_Handler)

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        super().__exit__(*exc)

    def stall(self) -> None:
        """What a connection does that stops."""
        self.stalled.set()
        self._ended.wait()

    @property
    def fetched(self) -> list[str]:
        """Names of the files whose contents were sent, in order."""
        return [path.rpartition("/")[2] for method, path in self.requests if method == "GET" and "/resolve/" in path]


def _metadata(body: bytes) -> dict[str, Any]:
    sha256 = hashlib.sha256(body).hexdigest()
    return {"size": len(body), "lfs": {"sha256": sha256, "size": len(body), "pointerSize": 134}}


class _Handler(BaseHTTPRequestHandler):
    owner: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *values: object) -> None:
        """Keep the test's output clean."""

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.owner.requests.append((self.command, path))
        parts = path.strip("/").split("/")
        if self.owner.status is not None:
            self._send(self.owner.status, b"", {})
        elif parts[:2] == ["api", "models"]:
            revision = parts[5] if parts[4:5] == ["revision"] else "main"
            self._model("/".join(parts[2:4]), revision)
        elif parts[2:3] == ["resolve"]:
            self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]), with_body)
        else:
            self._send(404, b"", {})

    def _folder(self, hub_id: str, revision: str) -> Path | None:
        folder = self.owner.models.get(hub_id)
        if folder is None:
            self._send(401, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif revision not in (*self.owner.revisions, self._commit(hub_id)):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
            return None
        return folder

    def _commit(self, hub_id: str) -> str:
        return self.owner.commits.get(hub_id, COMMIT)

    def _model(self, hub_id: str, revision: str) -> None:
        folder = self._folder(hub_id, revision)
        if folder is not None:
            names = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            siblings = [{"rfilename": p.relative_to(folder).as_posix(), **_metadata(p.read_bytes())} for p in names]
            about = {"_id": "0", "id": hub_id, "modelId": hub_id, "sha": self._commit(hub_id), "private": False}
            info = {**about, "siblings": siblings}
            self._send(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

    def _file(self, hub_id: str, revision: str, name: str, with_body: bool) -> None:
        folder = self._folder(hub_id, revision)
        if folder is None:
            return
        if hub_id in self.owner.gated:
            self._send(403, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
        elif not (folder / name).is_file():
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
        else:
            body = (folder / name).read_bytes()
            etag = hashlib.sha256(body).hexdigest()
            body = self.owner.lies.get(name, body)
            headers = {"ETag": f'"{etag}"', "X-Repo-Commit": self._commit(hub_id), "Accept-Ranges": "bytes"}
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            if asked is not None:
                first = int(asked[1])
                self.owner.ranges.append((name, first))
                headers["Content-Range"] = f"bytes {first}-{len(body) - 1}/{len(body)}"
                self._send(206, body[first:], headers, with_body)
            elif with_body and name in self.owner.cuts:
                self._send(200, body, headers, n_sent=self.owner.cuts.pop(name))
                self.close_connection = True
            elif with_body and name in self.owner.stalls:
                self._send(200, body, headers, n_sent=self.owner.stalls.pop(name))
                self.owner.stall()
            else:
                self._send(200, body, headers, with_body)

    def _send(
        self, status: int, body: bytes, headers: Mapping[str, str], with_body: bool = True, n_sent: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body and self.command != "HEAD":
            self.wfile.write(body[:n_sent])
