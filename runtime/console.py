"""What goes to standard error: lines of text, a progress line on a terminal, and warnings about an audio file.

A file may be read twice, once for its loudest frame and once for its text (audio/mel.py): `silently` keeps the first
reading from saying what the second will say again. Missing audio is logged on the level LOSS, which the command shows
even with --quiet: nobody should take a part for the whole.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Self, TextIO

GET_TORCH = (
    "pip install torch --index-url https://download.pytorch.org/whl/cpu (without the address, Linux gets the CUDA "
    "build of several gigabytes)"
)
_INTERVAL_S = 0.1
_NO_TERMINAL_COLUMNS = 100
_FEWEST_CELLS, _BAR_CELLS = 6, 24
_LABEL = 18
_CLEAR_LINE = "\r\x1b[K"
LOSS = (logging.WARNING + logging.ERROR) // 2
_on_terminal: list[Progress] = []  # whose line stands on standard error now; wiped before another line is written
_is_silent: ContextVar[bool] = ContextVar("is_silent", default=False)


def notify(message: str) -> None:
    """Write one line; a standard error that is gone is no reason to stop."""
    for progress in tuple(_on_terminal):
        progress.close()
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:
            sys.stderr.write(f"specedge: {message}\n")
            sys.stderr.flush()


class Progress:
    """One line such as `export x  [######------]  50%  5/10 weights  0:03 left`, redrawn at most ten times a second.

    total: in `unit`s, None when it is not known; enabled: None shows the line when standard error is a terminal;
    is_time: seconds of audio are counted: `talk.wav  [######------]  50%  4:48/9:36  3.2x  1:30 left`; after: text at
    its end. The line fits the terminal: the bar gives way first. every_s: where there is no terminal, a line of its own
    so often, and at the end; None for none.
    """

    def __init__(
        self,
        total: float | None,
        unit: str = "",
        label: str = "",
        *,
        stream: TextIO | None = None,
        enabled: bool | None = None,
        is_time: bool = False,
        after: str = "",
        every_s: float | None = None,
    ) -> None:
        self.total, self._unit, self._label, self._is_time = total, unit, label, is_time
        self._after = f"  {after}" if after else ""
        self._stream = sys.stderr if stream is None else stream
        self._enabled = is_terminal(self._stream) if enabled is None else enabled
        self._done = 0.0
        self._started = time.monotonic()
        self._drawn = float("-inf")
        self._visible = False
        self._every_s = None if self._enabled else every_s

    def update(self, n: float = 1) -> None:
        self._done += n
        now = time.monotonic()
        if self._enabled and now - self._drawn >= _INTERVAL_S:
            self._drawn = now
            width = shutil.get_terminal_size().columns - 1
            self._write(_CLEAR_LINE + self._line(now - self._started, width)[:width])
            if not self._visible and self._stream is sys.stderr:
                _on_terminal.append(self)
            self._visible = True
        if self._every_s is not None and now - max(self._drawn, self._started) >= self._every_s:
            self._write_line(now)

    def _write_line(self, now: float) -> None:
        self._drawn = now
        self._write(self._line(now - self._started, _NO_TERMINAL_COLUMNS).rstrip() + "\n")

    def update_to(self, done: float) -> None:
        self.update(done - self._done)

    def close(self) -> None:
        """Wipe the line, or write the last one where there is no terminal and something was done."""
        if self._every_s is not None and self._done:
            self._write_line(time.monotonic())
            self._every_s = None
        if self._visible:
            self._write(_CLEAR_LINE)
            self._visible = False
            if self in _on_terminal:
                _on_terminal.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _line(self, elapsed_s: float, width: int) -> str:
        label = "".join(c if c.isprintable() else "?" for c in self._label)
        label = label if len(label) <= _LABEL else label[: _LABEL - 3] + "..."
        speed = f"  {self._done / elapsed_s:.1f}x" if self._is_time and elapsed_s >= 1 else ""
        if not self.total or self.total <= 0:
            return f"{label}  {self._shown(self._done)}{speed}{self._after}".strip()
        share = min(max(self._done / self.total, 0.0), 1.0)
        left = f"  {clock(elapsed_s / share - elapsed_s)} left" if share > 0 and elapsed_s >= 1 else ""
        done = min(self._done, self.total)
        amounts = f"{clock(done) if self._is_time else _amount(done)}/{self._shown(self.total)}"
        before, behind = f"{label}  [", f"] {share:4.0%}  {amounts}{speed}{left}{self._after}"
        n_cells = min(max(width - len(before) - len(behind), _FEWEST_CELLS), _BAR_CELLS)
        bar = "#" * round(share * n_cells)
        return f"{before}{bar:-<{n_cells}}{behind}".strip()

    def _shown(self, value: float) -> str:
        return clock(value) if self._is_time else f"{_amount(value)} {self._unit}"

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # a terminal that went away is no reason to stop the work
            self._enabled = False


def is_terminal(stream: TextIO | None) -> bool:
    """Whether text on this stream is seen at once; not on one that is gone."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _amount(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) >= 100 else f"{value:.1f}".removesuffix(".0")


def clock(seconds: float) -> str:
    """`seconds` as a clock shows them: 0:07, 12:00, 1:02:03."""
    minutes, rest = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def warn(log: logging.Logger, message: str, *args: object) -> None:
    """Log a warning, but not inside `silently`."""
    if not _is_silent.get():
        log.warning(message, *args)


def lost(log: logging.Logger, message: str, *args: object) -> None:
    """Log a warning that audio is missing, but not inside `silently`."""
    if not _is_silent.get():
        log.log(LOSS, message, *args)


def lost_seconds(log: logging.Logger, name: str, what: str, missing_s: float, said_s: float) -> None:
    """Log how much of the audio `name` is missing; `what` comes before the seconds, such as "cut short: the last"."""
    message = "%s: %s %.1f s of the %.1f s that its header promises are missing; reading what is there"
    lost(log, message, name, what, missing_s, said_s)


@contextlib.contextmanager
def silently() -> Iterator[None]:
    """Inside, `warn` and `lost` log nothing from this thread."""
    token = _is_silent.set(True)
    try:
        yield
    finally:
        _is_silent.reset(token)
