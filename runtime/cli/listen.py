"""`specedge listen`: live transcription of a microphone or of standard input, on a terminal or into a pipe.

On a terminal the tentative text stands dimmed behind the confirmed text and is redrawn in place. Elsewhere each
utterance is a line, written once it is over; with --json it is a line of JSON, behind lines of what is known so far.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import sys
import unicodedata
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, TextIO

import click

from specedge.errors import Interrupted, ResourceError, UsageError

from ..console import notify
from ..options import CPU, TranscribeOptions, VadOptions, check_together
from .options import (
    DRAFTING,
    GroupedCommand,
    ModelOptions,
    drafter_options,
    fields_of,
    made,
    option,
    options_of,
    transcribe_options,
    values_of,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..longform.live import LiveUpdate

_STDIN_SAMPLES = 1600
_CLEAR_LINE, _DIM, _PLAIN = "\r\x1b[K", "\x1b[2m", "\x1b[0m"
_SOURCE = (
    option("--device", metavar="NAME", help="Microphone: number, or part of its name.  [default: the system's]"),
    option("--raw", metavar="FORMAT", help="Read standard input as headerless PCM, such as s16le:16000."),
    option(
        "--step-s",
        type=float,
        default=1.0,
        show_default=True,
        metavar="SECONDS",
        help="Seconds between two passes over the audio.",
    ),
)
_OUTPUT = (
    option("--json", "as_json", is_flag=True, help="Print lines of JSON: start, end, text, and whether it is final."),
    option("-q", "--quiet", is_flag=True, help="Only print errors on stderr."),
)


@click.command(cls=GroupedCommand)
@click.argument("source", required=False, metavar="[-]")
@options_of(
    fields_of(ModelOptions, "model"),
    fields_of(TranscribeOptions, "language", "task"),
    _OUTPUT,
    _SOURCE,
    fields_of(ModelOptions, without=("model",)),
    DRAFTING,
    fields_of(TranscribeOptions, "accept", "initial_prompt", "hotwords", "bias", "only", "audio_context"),
    fields_of(VadOptions, "min_silence_duration_ms", "threshold", "neg_threshold", default=None, is_usual=True),
)
def listen(source: str | None, **given: Any) -> None:
    """Turn speech into text while it is spoken, from the microphone, or from standard input with `-`.

    Text is confirmed when an utterance ends, and in long ones bit by bit. Into a file or a pipe each utterance is a
    line. With --json lines that are not final give what is known of the utterance so far. Ctrl-C
    ends; the rest is written first. A microphone needs the extra [mic].

    \b
    Examples:
      specedge listen -m small
      specedge listen --device USB -l de
      specedge listen --drafter tokenmap --token-map clinic.tmap
      arecord -f S16_LE -r 16000 -t raw | specedge listen - --raw s16le:16000
      arecord -f S16_LE -r 16000 -t raw | specedge listen - --raw s16le:16000 --json -q | jq 'select(.final)'
    """
    if source not in (None, "-"):
        raise UsageError(f"{source}: expected - for standard input, or nothing for the microphone")
    if source is None and given["raw"] is not None:
        raise UsageError("--raw is for standard input: specedge listen - --raw FORMAT")
    if source is not None and given["device"] is not None:
        raise UsageError("--device is for the microphone: leave out -")
    wanted, options, drafter = made(ModelOptions, given), transcribe_options(given), drafter_options(given)
    check_together(options, drafter)
    path = wanted.find(options.language, options.task, quiet=given["quiet"])
    if sys.stdout is None:
        raise ResourceError("standard output is closed: redirect it to a file")
    vad = {name: value for name, value in values_of(VadOptions, given).items() if value is not None}
    with contextlib.ExitStack() as stack:
        blocks = stack.enter_context(contextlib.closing(_blocks(source, given["device"], given["raw"])))
        # Before the model is loaded, so that a microphone that is not there is said at once, and records meanwhile.
        first = next(blocks, None)
        model = wanted.load(path)
        text: LiveText | LiveLines
        if sys.stdout.isatty() and not given["as_json"]:
            text = LiveText(sys.stdout)
        else:
            provider = model.engine.encoder_provider
            about = {} if provider == CPU else {"encoder_provider": provider}
            text = LiveLines(sys.stdout, as_json=given["as_json"], about=about)
        stack.callback(text.close)
        live = model.stream(drafter=drafter, step_s=given["step_s"], vad_parameters=vad, **vars(options))
        stack.callback(live.close)
        if source is None and not given["quiet"]:
            notify("listening; Ctrl-C ends")
        is_stopped = False
        try:
            with model.engine.interruptible():
                for block in itertools.chain([] if first is None else [first], blocks):
                    for update in live.feed(block):
                        text.show(update)
        except (Interrupted, KeyboardInterrupt):
            is_stopped = True
        with model.engine.interruptible():  # a Ctrl-C from here on ends the last pass too
            for update in live.finish():
                text.show(update)
        if is_stopped:
            raise Interrupted("interrupted")


def _blocks(source: str | None, device: str | None, raw: str | None) -> Generator[NDArray[np.float32], None, None]:
    if source is None:
        from ..audio.microphone import microphone_blocks

        yield from microphone_blocks(int(device) if device is not None and device.isdecimal() else device)
        return
    from ..audio.audio import RawFormat, open_audio

    layout = None if raw is None else RawFormat.parse(raw)
    with open_audio(source, raw=layout, block_frames=_STDIN_SAMPLES) as stream:
        while len(block := stream.read(_STDIN_SAMPLES)):
            yield block


class LiveLines:
    """A line on `out` for each utterance, flushed at once. as_json: objects, and some before the utterance is over.

    about: what objects have besides.
    """

    def __init__(self, out: TextIO, *, as_json: bool = False, about: Mapping[str, str] | None = None) -> None:
        self._out, self._as_json, self._about = out, as_json, about or {}
        self._text = ""  # confirmed, of the utterance in work
        self._range: tuple[float, float] | None = None

    def show(self, update: LiveUpdate) -> None:
        """Take an update in."""
        self._text += update.confirmed
        start_s = update.start_s if self._range is None else self._range[0]
        if update.ends_utterance:
            self._range = (update.start_s, update.end_s)
            self.close()
            return
        so_far = " ".join((self._text + update.tentative).split())
        self._range = (start_s, update.end_s) if so_far else None
        if so_far:
            self._write(so_far, is_final=False)

    def close(self) -> None:
        """Write the utterance in work."""
        text, self._text = " ".join(self._text.split()), ""
        if text:
            self._write(text, is_final=True)
        self._range = None

    def _write(self, text: str, *, is_final: bool) -> None:
        if self._as_json:
            start_s, end_s = self._range or (0.0, 0.0)
            value = {"start": round(start_s, 3), "end": round(end_s, 3), "text": text, "final": is_final}
            text = json.dumps({**value, **self._about})
        elif not is_final:
            return
        print(text, file=self._out, flush=True)


class LiveText:
    """Confirmed and tentative text on a terminal, redrawn in place."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._line = ""  # confirmed text of the terminal's last line

    def show(self, update: LiveUpdate) -> None:
        """Append its confirmed text for good; its tentative text takes the place of the last one."""
        confirmed, tentative = update.confirmed, update.tentative
        width = shutil.get_terminal_size().columns - 1
        done, self._line = _wrapped(self._line + confirmed, width)
        room = width - _width(self._line)
        shown = tentative if self._line else tentative.lstrip()
        while _width(shown) > room:
            shown = shown[1:]  # the last words are the new ones
        dimmed = f"{_DIM}{shown}{_PLAIN}" if shown else ""
        lines = "".join(line + "\n" for line in done)
        print(_CLEAR_LINE, lines, self._line, dimmed, sep="", end="", file=self._out, flush=True)

    def close(self) -> None:
        """Take the tentative text away and end the line."""
        print(_CLEAR_LINE + self._line, end="\n" if self._line else "", file=self._out, flush=True)
        self._line = ""


def _wrapped(text: str, width: int) -> tuple[list[str], str]:
    """Full lines of at most `width` columns, broken at spaces where there are any, and the line that is left."""
    lines: list[str] = []
    text = text.lstrip()
    while _width(text) > width:
        end = max(next(i for i in range(len(text)) if _width(text[: i + 1]) > width), 1)
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
