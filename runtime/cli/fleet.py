"""`specedge fleet`: archives into text, on several processes or machines."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from specedge.errors import Interrupted, UsageError

from ..console import notify, summary
from ..interrupt import interruption
from ..options import BATCH_SIZE, TranscribeOptions, described
from ..output.formats import FORMATS
from .options import GroupedCommand, ModelOptions, fields_of, option, options_of

_workers = partial(described, group="Workers")


@dataclass(frozen=True, kw_only=True)
class _Run:
    """Arguments of `specedge.fleet.transcribe` that are this command's alone."""

    formats: tuple[str, ...] = described(
        (),
        f"Texts to write as OUT/texts/NAME.FORMAT, in a tree like SRC's; comma-separated: {', '.join(FORMATS)}.",
        names=("--format", "-f"),
        metavar="FORMATS",
        choices=FORMATS,
    )
    retry_quarantined: bool = described(False, "Try files again that ended their process in an earlier run.")
    quiet: bool = described(False, "Only print errors on stderr.", names=("--quiet", "-q"))
    n_workers: int | None = _workers(
        None, "Worker processes on this machine.", names=("--local",), default_text="one a core"
    )
    cluster: str | None = _workers(
        None, "Scheduler of a Dask cluster, such as tcp://host:8786, instead of processes here.", metavar="ADDRESS"
    )
    threads: int = _workers(1, "CPU threads of each worker's model.", names=("--threads", "-t"))
    batch_size: int = _workers(BATCH_SIZE, "Pieces of speech that a worker decodes together.")
    same_isa: bool = _workers(False, "Refuse workers of different instruction sets.")


_OUT = option("-o", "--output-dir", "out", required=True, metavar="OUT", help="Folder or URL for results and records.")
_FIRST = ("formats", "retry_quarantined", "quiet")


@click.command(cls=GroupedCommand)
@click.argument("sources", nargs=-1, required=True, metavar="SRC...", type=click.Path(path_type=str))
@options_of(
    fields_of(ModelOptions, "model"),
    fields_of(TranscribeOptions, "language", "task", "word_timestamps"),
    (_OUT, *fields_of(_Run, *_FIRST, is_usual=True)),
    fields_of(ModelOptions, "encoder_provider", group="Options", is_usual=True),
    fields_of(_Run, without=_FIRST, is_usual=True),
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
    out, quiet = given.pop("out"), given.pop("quiet")
    if given["n_workers"] is not None and given["cluster"] is not None:
        raise UsageError("--local and --cluster are two ways to run: give one of them")
    from specedge.fleet import transcribe

    counts = dict.fromkeys(("done", "duplicate", "there already", "failed", "quarantined"), 0)
    audio_s, started_s = 0.0, time.monotonic()
    say = (lambda _: None) if quiet else notify
    records = transcribe(sources, out, progress=not quiet, say=say, **given)
    try:
        with contextlib.closing(records):
            for record in records:
                is_old = record.state == "done" and not record.is_new
                counts["duplicate" if record.is_duplicate else "there already" if is_old else record.state] += 1
                if record.state == "done" and record.is_new:
                    audio_s += record.duration_s or 0.0
                elif record.error is not None:
                    notify(f"{record.state}: {record.error}")
    except (KeyboardInterrupt, Interrupted) as stop:
        done = summary(counts, audio_s, time.monotonic() - started_s)
        raise interruption(stop, f"{done}; the same command goes on") from None
    if not quiet:
        notify(summary(counts, audio_s, time.monotonic() - started_s))
    return 1 if counts["failed"] + counts["quarantined"] else 0
