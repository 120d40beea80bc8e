"""`specedge fleet`: archives into text, on several processes or machines."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import click

from specedge.errors import Interrupted, UsageError

from ..console import clock, notify
from ..interrupt import interruption
from ..options import TranscribeOptions
from ..output.formats import FORMATS
from .options import GroupedCommand, ModelOptions, Names, fields_of, option, options_of, switch

if TYPE_CHECKING:
    from specedge.fleet import Record

__all__ = ["fleet"]

_WHERE: dict[str, Any] = {"group": "Workers"}
_OPTIONS = (
    option("-o", "--output-dir", "out", required=True, metavar="OUT", help="Folder or URL for results and records."),
    option(
        "-f",
        "--format",
        "formats",
        type=Names(FORMATS),
        default=(),
        metavar="FORMATS",
        help=f"Texts to write as OUT/texts/NAME.FORMAT, in a tree like SRC's; comma-separated: {', '.join(FORMATS)}.",
    ),
    switch("--retry-quarantined", help="Try files again that ended their process in an earlier run."),
    option("-q", "--quiet", is_flag=True, help="Only print errors on stderr."),
    *fields_of(ModelOptions, "encoder_provider", group="Options", is_usual=True),
    option(
        "--local",
        type=click.IntRange(min=1),
        metavar="N",
        help="Worker processes on this machine.  [default: one a core]",
        **_WHERE,
    ),
    option(
        "--cluster",
        metavar="ADDRESS",
        help="Scheduler of a Dask cluster, such as tcp://host:8786, instead of processes here.",
        **_WHERE,
    ),
    option(
        "-t",
        "--threads",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        metavar="N",
        help="CPU threads of each worker's model.",
        **_WHERE,
    ),
    option(
        "--batch-size",
        type=click.IntRange(min=1),
        metavar="N",
        help="Pieces of speech that a worker decodes together.  [default: 8]",
        **_WHERE,
    ),
    switch("--same-isa", help="Refuse workers of different instruction sets.", **_WHERE),
)


@click.command(cls=GroupedCommand)
@click.argument("sources", nargs=-1, required=True, metavar="SRC...", type=click.Path(path_type=str))
@options_of(
    fields_of(ModelOptions, "model"),
    fields_of(TranscribeOptions, "language", "task", "word_timestamps"),
    _OPTIONS,
    fields_of(TranscribeOptions, "initial_prompt", "hotwords"),
)
def fleet(sources: tuple[str, ...], **given: Any) -> int:
    """Turn archives into text: each file of SRC once, on many processes or machines.

    SRC is audio, a folder of it, or a URL such as s3://bucket/talks. Files are decoded in batched mode (transcribe
    --batch-size), longest first. OUT gets results/NAME.json, where the name is a digest of audio, model and options,
    records.jsonl with a line a file, and with -f texts/ under the names of the recordings. The same command again goes
    on where the last one was stopped.

    \b
    Examples:
      specedge fleet talks/ -o out/ -m small -f txt,srt
      specedge fleet s3://bucket/talks -o s3://bucket/texts -m small --cluster tcp://10.0.0.1:8786
    """
    if given["local"] is not None and given["cluster"] is not None:
        raise UsageError("--local and --cluster are two ways to run: give one of them")
    from specedge.fleet import transcribe

    quiet = given.pop("quiet")
    more = {"batch_size": given["batch_size"]} if given["batch_size"] else {}
    names = ("model", "language", "task", "word_timestamps", "initial_prompt", "hotwords")
    tally = _Counts()
    records = transcribe(
        sources,
        given["out"],
        cluster=given["cluster"],
        n_workers=given["local"],
        threads=given["threads"],
        same_isa=given["same_isa"],
        encoder_provider=given["encoder_provider"],
        retry_quarantined=given["retry_quarantined"],
        formats=given["formats"],
        progress=not quiet,
        say=_nothing if quiet else notify,
        **{name: given[name] for name in names},
        **more,
    )
    try:
        with contextlib.closing(records):
            for record in records:
                tally.add(record)
    except (KeyboardInterrupt, Interrupted) as stop:
        raise interruption(stop, f"{tally.said()}; the same command goes on") from None
    if not quiet:
        notify(tally.said())
    return 1 if tally.n_bad else 0


class _Counts:
    """What became of the files so far."""

    def __init__(self) -> None:
        self._counts = {"done": 0, "duplicate": 0, "there already": 0, "failed": 0, "quarantined": 0}
        self._audio_s = 0.0
        self._started = time.monotonic()

    def add(self, record: Record) -> None:
        """Count a file; one that has no result is a line of its own."""
        is_old = record.state == "done" and not record.is_new
        self._counts["duplicate" if record.is_duplicate else "there already" if is_old else record.state] += 1
        if record.state == "done" and record.is_new:
            self._audio_s += record.duration_s or 0.0
        elif record.error is not None:
            notify(f"{record.state}: {record.error}")

    @property
    def n_bad(self) -> int:
        return self._counts["failed"] + self._counts["quarantined"]

    def said(self) -> str:
        """`38 done, 2 quarantined: 9:36 of audio in 0:20 (28.8x)`."""
        said = ", ".join(f"{count} {what}" for what, count in self._counts.items() if count or what == "done")
        elapsed_s = time.monotonic() - self._started
        if not self._audio_s or elapsed_s <= 0:
            return said
        return f"{said}: {clock(self._audio_s)} of audio in {clock(elapsed_s)} ({self._audio_s / elapsed_s:.1f}x)"


def _nothing(_: str) -> None:
    """Where remarks go that nobody wants."""
