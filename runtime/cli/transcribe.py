"""`specedge transcribe`: the command's options, and the request that they make."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from specedge.errors import UsageError

from ..console import LOSS, notify
from ..options import BATCH_SIZE, TranscribeOptions, VadOptions, check_together
from ..output.formats import SubtitleOptions
from .options import (
    DRAFTING,
    INCREMENT,
    GroupedCommand,
    ModelOptions,
    Value,
    drafter_options,
    fields_of,
    made,
    option,
    options_of,
    switch,
    transcribe_options,
    values_of,
)
from .request import OutputOptions, Request

_MODE = (
    switch("--vad", "--vad-filter", "vad_filter", shown="--vad, --vad-filter", help="Skip what is not speech."),
    option(
        "--batch-size",
        type=Value(int | None),
        metavar="N",
        help="Batched mode: cut speech into independent pieces and decode up to N together. Much faster on long "
        "audio; without earlier text as context, without fallback.",
        group="Voice activity and batches",
    ),
)
# Options of openai-whisper and whisper-ctranslate2 that decide nothing here.
_ACCEPTED = (
    option("--model-dir", hidden=True, type=click.Path(path_type=Path)),
    option("--device", hidden=True, default="cpu"),
    option("--device-index", hidden=True),
    option("--compute-type", hidden=True, default="default"),
    switch("--batched", hidden=True),  # whisper-ctranslate2's: --batch-size with its default
    switch("--fp16", hidden=True),
    switch("--local-files-only", hidden=True),
)


@click.command(cls=GroupedCommand)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=str))
@options_of(
    fields_of(ModelOptions, "model"),
    fields_of(TranscribeOptions, "language", "task"),
    fields_of(OutputOptions),
    fields_of(ModelOptions, without=("model",)),
    DRAFTING,
    fields_of(TranscribeOptions, without=("language", "task")),
    (INCREMENT,),
    _MODE,
    fields_of(VadOptions, default=None),
    fields_of(SubtitleOptions),
    _ACCEPTED,
)
@click.pass_context
def transcribe(ctx: click.Context, /, files: tuple[str, ...], **given: Any) -> None:
    """Turn speech into text: print it, or write files for each FILE with -o.

    FILE is any audio or video with sound, a folder of such files, or - for standard input.
    Decoding is greedy by default, where drafts save most. Drafts change neither greedy nor beam-search results. Option
    names and values of openai-whisper are accepted too (--output_format, --word_timestamps True).

    \b
    Examples:
      specedge transcribe talk.wav
      specedge transcribe talk.wav -m small -l de -f json
      specedge transcribe talks/ -o out/ -f srt,txt
      specedge transcribe talk.wav -f srt --word-timestamps --max-line-width 42 --max-line-count 2
      specedge transcribe talk.wav --drafter ctc --print-drafts
      arecord -f S16_LE -r 16000 -t raw | specedge transcribe - --raw s16le:16000 -f srt
    """
    request = _request(_expand(files), given)
    if request.output.quiet:
        logging.getLogger("specedge").setLevel(LOSS)
    elif request.output.verbose or request.output.stats:  # then windows that are decoded again say so, and why
        logging.getLogger("specedge").setLevel(logging.INFO)
    for remark in _without_effect(given, request):
        if not request.output.quiet:
            notify(f"warning: {remark}")
    from .transcribe_files import transcribe_files

    ctx.exit(transcribe_files(request, debug=bool(ctx.obj)))


def _request(files: tuple[str, ...], given: Mapping[str, Any]) -> Request:
    """What is asked for. Raises UsageError for values and combinations that cannot be."""
    options, drafter = transcribe_options(given), drafter_options(given)
    check_together(options, drafter)
    subtitles = values_of(SubtitleOptions, given)
    for name, value in subtitles.items():
        if value and not options.word_timestamps:
            raise UsageError(f"--{name.replace('_', '-')} needs word times: add --word-timestamps")
    if given["device"] not in ("cpu", "auto"):
        raise UsageError(f"--device {given['device']}: specedge runs on the CPU; leave the option out")
    downloads = given["downloads"] and not given["local_files_only"]
    output = made(OutputOptions, given)
    from ..audio.audio import RawFormat

    return Request(
        files=files,
        model=made(ModelOptions, given, downloads=downloads),
        model_folder=given["model_dir"],
        output=output,
        raw=None if output.raw is None else RawFormat.parse(output.raw),
        options=options,
        drafter=drafter,
        vad=None if _has_clips(options) else _vad(given),
        batch_size=_batch_size(given, options),
        subtitles=SubtitleOptions(**subtitles),
    )


def _vad(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The fields of VadOptions that were given; an option of the filter asks for the filter."""
    found = {name: value for name, value in values_of(VadOptions, given).items() if value is not None}
    return found if found or given["vad_filter"] else None


def _batch_size(given: Mapping[str, Any], options: TranscribeOptions) -> int | None:
    """How many pieces of speech are encoded together; None: no pieces. Raises UsageError."""
    size: int | None = given["batch_size"]
    if size is None and not given["batched"]:
        return None
    if size is not None and size < 1:
        raise UsageError(f"--batch-size: got {size}, expected 1 or more, or None")
    if _has_clips(options):
        raise UsageError("--batch-size looks for speech itself: leave out --clip-timestamps")
    return size or BATCH_SIZE


def _has_clips(options: TranscribeOptions) -> bool:
    """Whether parts of the audio are named: as in faster-whisper, no filter looks for speech then."""
    return options.clip_timestamps != TranscribeOptions.clip_timestamps


def _without_effect(given: Mapping[str, Any], request: Request) -> list[str]:
    options, subtitles = request.options, request.subtitles
    remarks = []
    if request.batch_size is not None:
        other = {
            "--prefix": options.prefix,
            "--hallucination-silence-threshold": options.hallucination_silence_threshold,
            "--vad-max-speech-duration-s": given["max_speech_duration_s"],
        }
        remarks += [f"{name} has no effect in batched mode" for name, value in other.items() if value is not None]
    if _has_clips(options) and _vad(given) is not None:
        remarks.append("--vad has no effect with --clip-timestamps")
    if subtitles.max_line_count and not subtitles.max_line_width:
        remarks.append("--max-line-count has no effect without --max-line-width")
    if subtitles.max_words_per_line and subtitles.max_line_width and subtitles.max_line_count:
        remarks.append("--max-words-per-line has no effect with --max-line-width and --max-line-count")
    if options.hallucination_silence_threshold is not None and not options.word_timestamps:
        remarks.append("--hallucination-silence-threshold has no effect without --word-timestamps")
    if given["compute_type"] not in ("default", "auto"):
        remarks.append(
            f"--compute-type {given['compute_type']} has no effect: a bundle's precision is chosen when it is exported"
        )
    return remarks


def _expand(files: tuple[str, ...]) -> tuple[str, ...]:
    """What a shell does elsewhere: Windows passes `*.wav` as it is."""
    if os.name != "nt":
        return files
    import glob

    return tuple(name for pattern in files for name in (sorted(glob.glob(pattern)) or [pattern]))
