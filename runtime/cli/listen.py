"""`specedge listen`: live transcription of a microphone or of standard input, on a terminal or into a pipe.

On a terminal the tentative text stands dimmed behind the confirmed text and is redrawn in place. Elsewhere only
confirmed text is written, one line for each update, flushed at once.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sys
import unicodedata
from collections.abc import Generator
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TextIO

import click

from specedge.errors import Interrupted, ResourceError, UsageError

from ..options import check_together
from .options import COMMON, DRAFTER, DRAFTING, GroupedCommand, drafter_options, option, options_of, transcribe_options

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..audio.audio import RawFormat
    from ..longform.live import LiveTranscriber, LiveUpdate

__all__ = ["LiveText", "listen"]

_STDIN_SAMPLES = 1600
_CLEAR_LINE, _DIM, _PLAIN = "\r\x1b[K", "\x1b[2m", "\x1b[0m"
_SOURCE = (
    option("--device", metavar="NAME", help="Microphone: number, or part of its name.  [default: the system's]"),
    option("--raw", metavar="FORMAT", help="Read standard input as headerless PCM, such as s16le:16000."),
    option("-t", "--threads", type=click.IntRange(min=0), metavar="N", help="CPU threads.  [default: by machine]"),
    option(
        "--step-s",
        type=float,
        default=1.0,
        show_default=True,
        metavar="SECONDS",
        help="Seconds between two passes over the audio.",
    ),
    option(
        "--audio-context",
        metavar="WHAT",
        help="How much of a window is encoded: full, auto (what holds audio), or at least so many seconds.  "
        "[default: full, or auto for models trained on short windows]",
    ),
)


@click.command(cls=GroupedCommand)
@click.argument("source", required=False, metavar="[-]")
@options_of(COMMON, _SOURCE, DRAFTER, DRAFTING)
def listen(source: str | None, **given: Any) -> None:
    """Turn speech into text while it is spoken, from the microphone, or from standard input with `-`.

    Text is confirmed once two passes over the growing audio agree on it. Ctrl-C ends; the rest is written first. A
    microphone needs `pip install 'specedge[mic]'`.

    \b
    Examples:
      specedge listen -m small
      specedge listen --device USB -l de
      specedge listen --drafter tokenmap --token-map clinic.tmap
      arecord -f S16_LE -r 16000 -t raw | specedge listen - --raw s16le:16000
    """
    if source not in (None, "-"):
        raise UsageError(f"{source}: expected - for standard input, or nothing for the microphone")
    if source is None and given["raw"] is not None:
        raise UsageError("--raw is for standard input: specedge listen - --raw FORMAT")
    if source is not None and given["device"] is not None:
        raise UsageError("--device is for the microphone: leave out -")
    _listen(source == "-", given)


def _listen(from_stdin: bool, given: dict[str, Any]) -> None:
    from specedge.models import store

    from ..audio.audio import RawFormat
    from ..model import WhisperModel
    from .transcribe_files import DEMO_NOTICE

    options, drafter = transcribe_options(given), drafter_options(given)
    check_together(options, drafter)
    raw = None if given["raw"] is None else RawFormat.parse(given["raw"])
    path = store.default() if given["model"] is None else store.find(given["model"])
    text = LiveText(_stdout())
    with contextlib.ExitStack() as stack:
        stack.callback(text.close)
        blocks = stack.enter_context(contextlib.closing(_blocks(from_stdin, given["device"], raw)))
        # Before the model is loaded, so that a microphone that is not there is said at once, and records meanwhile.
        first = next(blocks, None)
        model = WhisperModel(path, cpu_threads=given["threads"] or 0)
        asked = {field.name: getattr(options, field.name) for field in fields(options)}
        live = model.stream(drafter=drafter, step_s=given["step_s"], **asked)
        stack.callback(live.close)
        for notice in (DEMO_NOTICE if given["model"] is None else "", "" if from_stdin else "listening; Ctrl-C ends"):
            if notice:
                click.echo(f"specedge: {notice}", err=True)
        try:
            with model.engine.interruptible():
                for block in itertools.chain([] if first is None else [first], blocks):
                    _show(text, live.feed(block))
        except (Interrupted, KeyboardInterrupt):
            _finish(model.engine, live, text)
            raise Interrupted("interrupted") from None
        _finish(model.engine, live, text)


def _finish(engine: Any, live: LiveTranscriber, text: LiveText) -> None:
    # A Ctrl-C from here on ends the last pass too.
    with engine.interruptible():
        _show(text, live.finish())


def _show(text: LiveText, updates: list[LiveUpdate]) -> None:
    for update in updates:
        text.show(update.confirmed, update.tentative)


def _blocks(from_stdin: bool, device: str | None, raw: RawFormat | None) -> Generator[NDArray[np.float32], None, None]:
    if from_stdin:
        return _stdin_blocks(raw)
    from ..audio.microphone import microphone_blocks

    return microphone_blocks(int(device) if device is not None and device.isdecimal() else device)


def _stdin_blocks(raw: RawFormat | None) -> Generator[NDArray[np.float32], None, None]:
    from ..audio.audio import open_audio

    with open_audio("-", raw=raw, block_frames=_STDIN_SAMPLES) as stream:
        while len(block := stream.read(_STDIN_SAMPLES)):
            yield block


def _stdout() -> TextIO:
    if sys.stdout is None:
        raise ResourceError("standard output is closed: redirect it to a file")
    return sys.stdout


class LiveText:
    """Confirmed and tentative text on `out`: in place on a terminal, confirmed lines elsewhere.

    `is_terminal`, `columns`: None asks `out` and the terminal.
    """

    def __init__(self, out: TextIO, *, is_terminal: bool | None = None, columns: int | None = None) -> None:
        self._out = out
        self._is_terminal = out.isatty() if is_terminal is None else is_terminal
        self._columns = columns
        self._line = ""  # confirmed text of the terminal's last line

    def show(self, confirmed: str, tentative: str) -> None:
        """Append `confirmed` for good; `tentative` takes the place of the last one."""
        if not self._is_terminal:
            if confirmed.strip():
                self._write(confirmed.strip() + "\n")
            return
        width = (self._columns or shutil.get_terminal_size().columns) - 1
        done, self._line = _wrapped(self._line + confirmed, width)
        room = width - _width(self._line)
        shown = tentative if self._line else tentative.lstrip()
        while _width(shown) > room:
            shown = shown[:-1]
        dimmed = f"{_DIM}{shown}{_PLAIN}" if shown else ""
        self._write(_CLEAR_LINE + "".join(line + "\n" for line in done) + self._line + dimmed)

    def close(self) -> None:
        """Take the tentative text away and end the line."""
        if self._is_terminal and self._line:
            self._write(_CLEAR_LINE + self._line + "\n")
        elif self._is_terminal:
            self._write(_CLEAR_LINE)
        self._line = ""

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def _wrapped(text: str, width: int) -> tuple[list[str], str]:
    """Full lines of at most `width` columns, broken at spaces where there are any, and the line that is left."""
    lines: list[str] = []
    text = text.lstrip()
    while _width(text) > width:
        end = 0
        for i in range(1, len(text) + 1):
            if _width(text[:i]) > width:
                break
            end = i
        end = max(end, 1)
        space = text.rfind(" ", 1, end + 1)
        cut = space if space > 0 else end
        lines.append(text[:cut].rstrip())
        text = text[cut:].lstrip()
    return lines, text


def _width(text: str) -> int:
    """Columns that a terminal gives the text."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )
