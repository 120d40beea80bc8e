"""How an error becomes one line on standard error and an exit code."""

from __future__ import annotations

import errno
import re
import sys
import traceback

import click

from specedge.errors import Interrupted, OutOfMemoryError, ResourceError, SpecedgeError, UsageError

from ..console import GET_TORCH, notify
from ..interrupt import interruption, stop_behind

_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some disk space, or choose another place"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "close other programs, or raise the limit of open files"),
}
_FREE_MEMORY = "use a smaller model, close other programs, or raise the limit of memory (ulimit -v)"

# What the dynamic loader says when a library finds no room, and Python when the stack of a thread finds none.
_NO_ROOM = "failed to map segment|cannot allocate memory|cannot create shared object|can't start new thread"

_EXTRA = "pip install '.[{}]' in specedge's source"
_HOW_TO_GET = {
    "onnx": "pip install onnx",
    "safetensors": "pip install safetensors",
    "huggingface_hub": "pip install huggingface_hub",
    "torch": GET_TORCH,
    "transformers": _EXTRA.format("test"),
    "sounddevice": _EXTRA.format("mic"),
    "zeroconf": _EXTRA.format("zeroconf"),
    **dict.fromkeys(
        ("starlette", "uvicorn", "python_multipart", "prometheus_client", "wsproto", "wyoming"), _EXTRA.format("serve")
    ),
    **dict.fromkeys(("dask", "distributed", "fsspec"), _EXTRA.format("fleet")),
}


def fail(error: BaseException, *, debug: bool) -> int:
    """Say what happened in one line, with the traceback before it if `debug`; returns the exit code."""
    if type(error).__name__ == "NoArgsIsHelpError" and isinstance(error, click.UsageError):
        click.echo(error.format_message(), err=True)
        return error.exit_code
    if debug and sys.stderr is not None:
        traceback.print_exception(error)
    shown = _as_ours(error)
    # The prompt comes back on a line of its own after ^C; there is nothing to explain to the one who pressed it.
    notify(str(shown) if isinstance(shown, Interrupted) else f"error: {shown}")
    return shown.exit_code


def _as_ours(error: BaseException) -> SpecedgeError:
    if isinstance(error, SpecedgeError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return interruption(error)
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        hint = f" (see `{context.command_path} --help`)" if context is not None else ""
        return UsageError(error.format_message().rstrip(".") + hint)
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return OutOfMemoryError(f"out of memory: {_FREE_MEMORY}")
    if isinstance(error, OSError) and error.errno in _REMEDIES:
        where = f"{error.filename}: " if error.filename else ""
        return ResourceError(f"{where}{error.strerror or error}: {_REMEDIES[error.errno]}")
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in _HOW_TO_GET:
        name = (error.name or "").split(".")[0]
        return UsageError(f"this needs {name}, which is not installed: {_HOW_TO_GET[name]}")
    stop = stop_behind(error)
    if stop is not None:
        return interruption(stop)
    if isinstance(error, (ImportError, RuntimeError)) and re.search(_NO_ROOM, str(error), re.IGNORECASE):
        return OutOfMemoryError(f"out of memory ({str(error)[:200]}): {_FREE_MEMORY}")
    return SpecedgeError(
        f"internal fault, {type(error).__name__}: {str(error)[:500]} (run it again with --debug to see where, "
        "and please report it)"
    )
