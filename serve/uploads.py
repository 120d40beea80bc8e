"""Forms with a file: Starlette reads them as they come, every limit holds while reading, and the file gets a name.

Audio is read from a private folder, because a file with a name can be read more than once.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from .failures import Failure

_MAX_FIELDS, _MAX_FIELD_BYTES = 200, 1 << 18


@contextlib.asynccontextmanager
async def read_form(
    request: Request, folder: Path, *, file_field: str, max_bytes: int, timeout_s: float
) -> AsyncIterator[tuple[list[tuple[str, str]], Path]]:
    """The fields of a request's form in their order, and its file named `file_field`, which is there inside the block.

    max_bytes: of the whole body; timeout_s: the longest wait for more of it. Raises Failure, ClientDisconnect.
    """
    limits = {"max_files": 1, "max_fields": _MAX_FIELDS, "max_part_size": _MAX_FIELD_BYTES}
    try:
        if not request.headers.get("content-type", "").strip().lower().startswith("multipart/form-data"):
            raise MultiPartException("expected multipart/form-data")
        found = await MultiPartParser(request.headers, _body(request, max_bytes, timeout_s), **limits).parse()
    except (MultiPartException, ValueError) as error:
        reason = error.message if isinstance(error, MultiPartException) else "no proper multipart"
        raise Failure(400, "invalid_multipart", f"the form cannot be read: {reason}") from None
    path = folder / secrets.token_hex(8)
    try:
        upload = found.get(file_field)
        if not isinstance(upload, UploadFile):
            message = f"{file_field}: send the audio as a file of this name, with a filename"
            raise Failure(400, "missing_field", message, param=file_field)
        await asyncio.to_thread(_save, upload, path)
        yield [(name, value) for name, value in found.multi_items() if isinstance(value, str)], path
    finally:
        path.unlink(missing_ok=True)
        await found.close()


def _save(upload: UploadFile, path: Path) -> None:
    with open(path, "xb") as file, contextlib.closing(upload.file) as received:
        shutil.copyfileobj(received, file)


async def _body(request: Request, max_bytes: int, timeout_s: float) -> AsyncGenerator[bytes, None]:
    too_large = Failure(413, "file_too_large", f"the upload is over {max_bytes} bytes", param="file")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length[:20]) > max_bytes:
        raise too_large
    chunks, n_bytes = request.stream(), 0
    while True:
        try:
            chunk = await asyncio.wait_for(anext(chunks, None), timeout_s)
        except TimeoutError:
            raise Failure(408, "upload_timeout", f"nothing came for {timeout_s:g} s: send the request again") from None
        if chunk is None:
            return
        n_bytes += len(chunk)
        if n_bytes > max_bytes:
            raise too_large
        yield chunk
