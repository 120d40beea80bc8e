"""`specedge fleet`: archives into text, on several processes or machines."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import click

from specedge.errors import Interrupted, UsageError

from ..console import notify
from ..interrupt import interruption
from ..options import TranscribeOptions
from ..output.formats import FORMATS
from .options import GroupedCommand, ModelOptions, Names, fields_of, option, options_of, switch
from .tally import summary

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
    counts = dict.fromkeys(("done", "duplicate", "there already", "failed", "quarantined"), 0)
    audio_s, started_s = 0.0, time.monotonic()
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
        say=(lambda _: None) if quiet else notify,
        **{name: given[name] for name in names},
        **more,
    )
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
