"""What goes wrong with a request, as the client is told: a status, a code, and one line without names of files here."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Mapping
from typing import Any

from specedge.errors import AudioError, Interrupted, ResourceError, SpecedgeError, UsageError

_log = logging.getLogger(__name__)
_FOLDERS = re.compile(r"(?<![\w/:.<])(?:/[^\s/:,;'\"()]+)*/(?=[^\s/:,;'\"()]+)|\b[A-Za-z]:\\(?:[^\s\\:,;'\"()]+\\)*")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_TYPES = {401: "authentication_error", 429: "rate_limit_exceeded"}


class Failure(Exception):
    """An answer that is an error. param: the field that is wrong; retry_after_s: when to come again."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.retry_after_s = status, code, param, retry_after_s
        self.message = without_paths(message)

    @property
    def headers(self) -> Mapping[str, str]:
        """Of the answer."""
        found = {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}
        return {**found, "WWW-Authenticate": "Bearer"} if self.status == 401 else found

    def body(self) -> dict[str, Any]:
        """The answer in OpenAI's shape."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def invalid(name: str, given: object, expected: str) -> Failure:
    """The failure of a field whose value cannot be."""
    shown = repr(given[:40]) if isinstance(given, str) else str(given)[:40]
    return Failure(400, "invalid_value", f"{name}: got {shown}, expected {expected}", param=name)


def without_paths(message: str) -> str:
    """`message` in which paths have lost their folders."""
    return _FOLDERS.sub("", " ".join(message.split()))


def failure_of(error: BaseException, what: str) -> Failure:
    """The failure that an error of the runtime is for a client. A fault of the server itself is logged, as one of
    `what`, and the client is told no more than that."""
    if isinstance(error, Failure):
        return error
    text = str(error)
    if isinstance(error, AudioError):
        is_long = "longer than" in text
        return Failure(413 if is_long else 400, "audio_too_long" if is_long else "invalid_audio", text, param="file")
    if isinstance(error, UsageError):
        field = re.match(r"(\w+):", text)
        return Failure(400, "invalid_value", text, param=field and field[1])
    if isinstance(error, Interrupted):
        return Failure(503, "shutting_down", "the server is about to end: send the request again", retry_after_s=5)
    if isinstance(error, MemoryError):
        return Failure(503, "overloaded", "not enough memory now: send the request again later", retry_after_s=10)
    if isinstance(error, ResourceError) or (isinstance(error, OSError) and error.errno in _FULL):
        return Failure(507, "insufficient_storage", "there is no room for the upload here: send it again later")
    if isinstance(error, SpecedgeError) and "word" in text and "graph" in text:
        return Failure(400, "invalid_value", "this model has no word times", param="timestamp_granularities[]")
    _log.error("%s failed", what, exc_info=error)
    return Failure(500, "internal_error", f"a fault of the server; its log says more of {what}")
