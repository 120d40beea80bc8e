"""Forms with a file, read as they come: the file goes to a private folder, and every limit holds while reading.

The folder's maker holds a lock on it, so that the next start sweeps what a killed server left (`leftovers`).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from specedge.leftovers import Names, temporary_folder

from .failures import Failure

_MAX_FIELDS, _MAX_FIELDS_BYTES = 200, 1 << 20
_WRITE_BYTES = 1 << 20
_FILE_FIELDS = ("file", "audio_file")


def spool_folder() -> contextlib.AbstractContextManager[Path]:
    """A private folder for uploads; those of dead servers are swept. Raises OSError."""
    return temporary_folder(Names(parent=Path(tempfile.gettempdir()), prefix="specedge-serve-"))


@dataclass
class Form:
    """The fields of a form in their order, and the file with the name of its field."""

    fields: list[tuple[str, str]] = field(default_factory=list)
    file: Path | None = None
    file_field: str = ""


class _Reader:
    """Callbacks of the parser. What is to be written to the file waits in `block`."""

    def __init__(self, folder: Path) -> None:
        self.form, self.block = Form(), bytearray()
        self.file: BinaryIO | None = None
        self._folder = folder
        self._is_file = self.is_ended = False
        self._header, self._value, self._name = bytearray(), bytearray(), ""
        self._data, self._disposition = bytearray(), b""
        self._n_field_bytes = 0

    def callbacks(self) -> Any:
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._add(self._header, data[start:end]),
            "on_header_value": lambda data, start, end: self._add(self._value, data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._take,
            "on_part_end": self._end,
            "on_end": self._end_all,
        }

    def _begin(self) -> None:
        self._disposition, self._is_file = b"", False
        self._data.clear()

    def _add(self, to: bytearray, data: bytes) -> None:
        self._n_field_bytes += len(data)
        if self._n_field_bytes > _MAX_FIELDS_BYTES:
            raise Failure(413, "file_too_large", "the fields of the form are over 1 MiB together")
        to += data

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        if b"name" not in options:
            raise Failure(400, "invalid_multipart", "a part of the form has no name in its Content-Disposition")
        self._name = options[b"name"].decode("utf-8", "replace")
        # A part with the name of the audio is a file also without filename, or with filename* alone.
        self._is_file = b"filename" in self._disposition or self._name in _FILE_FIELDS
        if self._is_file:
            if self.form.file is not None:
                raise Failure(400, "invalid_multipart", "the form holds more than one file: send one a request")
            self.form.file, self.form.file_field = self._folder / secrets.token_hex(8), self._name
            self.file = open(self.form.file, "xb", buffering=0)
        elif len(self.form.fields) >= _MAX_FIELDS:
            raise Failure(400, "invalid_multipart", f"the form has more than {_MAX_FIELDS} fields")

    def _take(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self.block += data[start:end]
        else:
            self._add(self._data, data[start:end])

    def _end(self) -> None:
        if not self._is_file:
            self.form.fields.append((self._name, self._data.decode("utf-8", "replace")))

    def _end_all(self) -> None:
        self.is_ended = True

    async def write(self, at_least: int) -> None:
        if self.file is not None and len(self.block) >= max(at_least, 1):
            block, self.block = memoryview(bytes(self.block)), bytearray()
            while block:
                block = block[await asyncio.to_thread(self.file.write, block) :]


@contextlib.asynccontextmanager
async def read_form(request: Request, folder: Path, *, max_bytes: int, timeout_s: float) -> AsyncIterator[Form]:
    """The form of a request; its file is there inside the block. Raises Failure, ClientDisconnect.

    max_bytes: of the whole body; timeout_s: the longest wait for more of it.
    """
    _, options = parse_options_header(request.headers.get("content-type", ""))
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    boundary = options.get(b"boundary")
    if kind != "multipart/form-data" or not boundary:
        raise Failure(400, "invalid_multipart", "expected a form: multipart/form-data with a boundary")
    reader = _Reader(folder)
    try:
        try:
            parser = MultipartParser(boundary, reader.callbacks())
            async for chunk in _body(request, max_bytes, timeout_s):
                parser.write(chunk)
                await reader.write(_WRITE_BYTES)
            parser.finalize()
            await reader.write(0)
        except (FormParserError, ValueError, UnicodeError):
            raise Failure(400, "invalid_multipart", "the form cannot be read: it is no proper multipart") from None
        if not reader.is_ended:
            raise Failure(400, "invalid_multipart", "the form ends before its last boundary: send it whole")
        if reader.file is not None:
            reader.file.close()
        yield reader.form
    finally:
        if reader.file is not None:
            reader.file.close()
        if reader.form.file is not None:
            with contextlib.suppress(OSError):
                reader.form.file.unlink()


async def _body(request: Request, max_bytes: int, timeout_s: float) -> AsyncIterator[bytes]:
    too_large = Failure(413, "file_too_large", f"the upload is over {max_bytes} bytes", param="file")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length[:20]) > max_bytes:
        raise too_large
    n_bytes, is_more = 0, True
    while is_more:
        try:
            message = await asyncio.wait_for(request.receive(), timeout_s)
        except TimeoutError:
            raise Failure(408, "upload_timeout", f"nothing came for {timeout_s:g} s: send the request again") from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk, is_more = message.get("body", b""), message.get("more_body", False)
        n_bytes += len(chunk)
        if n_bytes > max_bytes:
            raise too_large
        if chunk:
            yield chunk
