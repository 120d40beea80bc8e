"""What commands print beside results: lines of text, a progress line, tables, and warnings about an audio file.

A file may be read twice, once for its loudest frame and once for its text (audio/mel.py): `silently` keeps the first
reading from saying what the second will say again. Missing audio is logged on the level LOSS, which the command shows
even with --quiet: nobody should take a part for the whole.
"""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import ClassVar, TextIO

GET_TORCH = (
    "pip install torch --index-url https://download.pytorch.org/whl/cpu (without the address, Linux gets the CUDA "
    "build of several gigabytes)"
)
_INTERVAL_S = 0.1
_LABEL = 24
_CLEAR_LINE = "\r\x1b[K"
LOSS = (logging.WARNING + logging.ERROR) // 2
_is_silent: ContextVar[bool] = ContextVar("is_silent", default=False)


def notify(message: str) -> None:
    """Write one line; a standard error that is gone is no reason to stop."""
    Progress.wipe()
    _write(f"specedge: {message}\n")


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()


class Progress(contextlib.AbstractContextManager["Progress"]):
    """One line such as `export x  50%  5/10 weights  0:03 left`, redrawn at most ten times a second on a terminal.

    total: in `unit`s, None when it is not known; unit: "s" are seconds of audio, such as
    `talk.wav  50%  4:48/9:36  3.2x  1:30 left`; is_shown: whether there is a line at all; after: text at its end;
    every_s: where there is no terminal, a line of its own so often, and at the end; None for none.
    """

    _stands: ClassVar[bool] = False  # whether a line is to be wiped before another one is written

    def __init__(
        self,
        total: float | None,
        unit: str = "",
        label: str = "",
        *,
        is_shown: bool = True,
        after: str = "",
        every_s: float | None = None,
    ) -> None:
        self.total, self._unit, self._after = total, unit, after
        self._label = "".join(c if c.isprintable() else "?" for c in label)[:_LABEL]
        self._is_redrawn = is_terminal(sys.stderr)
        self._every_s = (_INTERVAL_S if self._is_redrawn else every_s) if is_shown else None
        self._done = 0.0
        self._started = time.monotonic()
        self._drawn = -math.inf if self._is_redrawn else self._started

    def update(self, n: float = 1) -> None:
        self.update_to(self._done + n)

    def update_to(self, done: float) -> None:
        self._done = done
        if self._every_s is not None and time.monotonic() - self._drawn >= self._every_s:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        line = self._line(self._drawn - self._started)
        if self._is_redrawn:
            _write(_CLEAR_LINE + line[: shutil.get_terminal_size().columns - 1])
            Progress._stands = True
        else:
            _write(line + "\n")

    @classmethod
    def wipe(cls) -> None:
        """Clear the terminal's line; the next update draws it again."""
        if cls._stands:
            _write(_CLEAR_LINE)
            cls._stands = False

    def __exit__(self, *error: object) -> None:
        """Wipe the line, or write the last one where there is no terminal and something was done."""
        if self._is_redrawn:
            self.wipe()
        elif self._every_s is not None and self._done:
            self._draw()

    def _line(self, elapsed_s: float) -> str:
        amount = clock if self._unit == "s" else _amount
        parts = [self._label, amount(self._done)]
        share = min(max(self._done / self.total, 0.0), 1.0) if self.total else 0.0
        if self.total:
            parts[1:] = [f"{share:4.0%}", f"{amount(min(self._done, self.total))}/{amount(self.total)}"]
        if self._unit != "s":
            parts[-1] += f" {self._unit}"
        elif elapsed_s >= 1:
            parts.append(f"{self._done / elapsed_s:.1f}x")
        if share > 0 and elapsed_s >= 1:
            parts.append(f"{clock(elapsed_s / share - elapsed_s)} left")
        return "  ".join(filter(None, [*parts, self._after]))


def is_terminal(stream: TextIO | None) -> bool:
    """Whether text on this stream is seen at once; not on one that is gone."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _amount(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


def clock(seconds: float) -> str:
    """`seconds` as a clock shows them: 0:07, 12:00, 1:02:03."""
    minutes, rest = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def summary(counts: Mapping[str, int], audio_s: float, elapsed_s: float) -> str:
    """`19 done, 1 failed: 9:36 of audio in 0:20 (28.8x)`; counts of nothing are left out, but for "done"."""
    line = ", ".join(f"{count} {what}" for what, count in counts.items() if count or what == "done")
    if not audio_s or elapsed_s <= 0:
        return line
    return f"{line}: {clock(audio_s)} of audio in {clock(elapsed_s)} ({audio_s / elapsed_s:.1f}x)"


def aligned(rows: Sequence[Sequence[str]], *, has_figures: bool = True) -> list[str]:
    """Rows of one length as lines: columns to the left, but figures, between the first column and the last, right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = ["<", *[">" if has_figures else "<"] * (len(widths) - 2), "<"]
    lines = []
    for row in rows:
        cells = [f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def warn(log: logging.Logger, message: str, *args: object, level: int = logging.WARNING) -> None:
    """Log a warning, but not inside `silently`."""
    if not _is_silent.get():
        log.log(level, message, *args)


def lost_seconds(log: logging.Logger, name: str, what: str, missing_s: float, said_s: float) -> None:
    """Log how much of the audio `name` is missing; `what` comes before the seconds, such as "cut short: the last"."""
    message = "%s: %s %.1f s of the %.1f s that its header promises are missing; reading what is there"
    warn(log, message, name, what, missing_s, said_s, level=LOSS)


@contextlib.contextmanager
def silently() -> Iterator[None]:
    """Inside, `warn` logs nothing from this thread."""
    token = _is_silent.set(True)
    try:
        yield
    finally:
        _is_silent.reset(token)
