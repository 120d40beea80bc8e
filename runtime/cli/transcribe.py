"""`specedge transcribe`: the command's options, and the request that they make.

Flags are kebab-case; openai-whisper's snake_case and whisper-ctranslate2's additions are accepted and not shown.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from specedge.errors import UsageError

from ..console import LOSS, notify
from ..options import TranscribeOptions, check_together
from ..output.formats import FORMATS, SubtitleOptions
from .errors import fail
from .options import (
    COMMON,
    DECODING,
    DETECTION,
    DRAFTER,
    DRAFTING,
    ENCODER_PROVIDER,
    NO_DOWNLOAD,
    PROMPTING,
    WINDOWS,
    WORDS,
    GroupedCommand,
    Names,
    Number,
    drafter_options,
    option,
    options_of,
    switch,
    transcribe_options,
)

__all__ = ["SUBTITLES", "transcribe"]

_MAYBE_INT, _MAYBE_FLOAT = Number(int, optional=True), Number(float, optional=True)
_WORD_OPTIONS = ("highlight_words", "max_line_width", "max_line_count", "max_words_per_line")
_VAD = "vad_"
_SUBTITLE: dict[str, Any] = {"group": "Subtitles"}
_VOICE: dict[str, Any] = {"group": "Voice activity and batches"}
_REPORT: dict[str, Any] = {"group": "Messages"}

_OUTPUT = (
    option(
        "-f",
        "--output-format",
        type=Names(FORMATS),
        metavar="FORMATS",
        help=f"{', '.join(FORMATS)}, several with commas, or all.  [default: txt; on a terminal with times]",
    ),
    option(
        "-o",
        "--output-dir",
        metavar="DIR",
        help="Write files there, named like the inputs; a folder's sub-folders are kept.  [default: print]",
    ),
    switch("--skip-existing", help="Leave out inputs whose files are all in DIR, to go on with a stopped run."),
)

_RUN = (
    switch("--vad", "--vad-filter", "vad_filter", shown="--vad, --vad-filter", help="Skip what is not speech."),
    option("-t", "--threads", type=click.IntRange(min=0), metavar="N", help="CPU threads.  [default: by machine]"),
    ENCODER_PROVIDER,
    NO_DOWNLOAD,
    option("-q", "--quiet", is_flag=True, help="Only print errors and truncated-audio warnings on stderr."),
    option("--raw", metavar="FORMAT", help="Read the inputs as headerless PCM, such as s16le:16000 or s16le:48000:2."),
)

_MESSAGES = (
    switch("-v", "--verbose", help="Print more on stderr: the model, each input's language and length.", **_REPORT),
    option("--stats", is_flag=True, help="Print statistics of drafting and where the time went on stderr.", **_REPORT),
    switch(
        "--print-drafts",
        "draft_sources",
        shown="--print-drafts",
        help="Colour the text on a terminal by the drafter of each token; the model's own tokens stay plain.",
        **_REPORT,
    ),
    # Taken out of the line by the main command, wherever it stands; here for the help.
    option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.", **_REPORT),
)

SUBTITLES = (
    option("--max-line-width", type=_MAYBE_INT, metavar="N", help="Characters in a line.", **_SUBTITLE),
    option(
        "--max-line-count",
        type=_MAYBE_INT,
        metavar="N",
        help="Lines in a subtitle, which may then span segments; needs a line width.",
        **_SUBTITLE,
    ),
    option("--max-words-per-line", type=_MAYBE_INT, metavar="N", help="Words in a subtitle.", **_SUBTITLE),
    switch("--highlight-words", help="Underline each word while it is spoken.", **_SUBTITLE),
)

_VOICE_ACTIVITY = (
    option(
        "--batch-size",
        type=_MAYBE_INT,
        metavar="N",
        help="Batched mode: cut speech into independent pieces and decode up to N together. Much faster on long "
        "audio; without earlier text as context, without fallback.",
        **_VOICE,
    ),
    option(
        "--vad-detector",
        type=click.Choice(["energy", "silero"]),
        help="Voice activity detector.  [default: energy]",
        **_VOICE,
    ),
    option(
        "--vad-threshold", type=_MAYBE_FLOAT, metavar="X", help="Probability from which a frame is speech.", **_VOICE
    ),
    option(
        "--vad-neg-threshold", type=_MAYBE_FLOAT, metavar="X", help="Probability below which speech ends.", **_VOICE
    ),
    option(
        "--vad-min-speech-duration-ms", type=_MAYBE_INT, metavar="MS", help="Ignore speech shorter than this.", **_VOICE
    ),
    option(
        "--vad-max-speech-duration-s", type=_MAYBE_FLOAT, metavar="S", help="Split speech longer than this.", **_VOICE
    ),
    option(
        "--vad-min-silence-duration-ms", type=_MAYBE_INT, metavar="MS", help="Keep silence shorter than this.", **_VOICE
    ),
    option("--vad-speech-pad-ms", type=_MAYBE_INT, metavar="MS", help="Audio kept on both sides of speech.", **_VOICE),
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
    COMMON,
    _OUTPUT,
    WORDS,
    DRAFTER,
    _RUN,
    DRAFTING,
    DECODING,
    WINDOWS,
    _VOICE_ACTIVITY,
    SUBTITLES,
    DETECTION,
    PROMPTING,
    _MESSAGES,
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
      cat talk.wav | specedge transcribe - -f srt
      arecord -f S16_LE -r 16000 -t raw | specedge transcribe - --raw s16le:16000
    """
    request = _request(_expand(files), given)
    _set_verbosity(given)
    for remark in _without_effect(given, request.options):
        if not given["quiet"]:
            notify(f"warning: {remark}")

    def report(error: Exception) -> None:
        fail(error, debug=bool(ctx.obj))

    from .transcribe_files import transcribe_files

    ctx.exit(transcribe_files(request, notify=notify, report=report))


def _request(files: tuple[str, ...], given: Mapping[str, Any]) -> Any:
    """The Request. Raises UsageError for values and combinations that cannot be."""
    options, drafter = transcribe_options(given), drafter_options(given)
    check_together(options, drafter)
    for name in _WORD_OPTIONS:
        if given[name] and not given["word_timestamps"]:
            raise UsageError(f"--{name.replace('_', '-')} needs word times: add --word-timestamps")
    subtitles = SubtitleOptions(**{name: given[name] for name in _WORD_OPTIONS})
    if given["device"] not in ("cpu", "auto"):
        raise UsageError(f"--device {given['device']}: specedge runs on the CPU; leave the option out")

    if given["skip_existing"] and given["output_dir"] is None:
        raise UsageError("--skip-existing looks at the files of -o: add -o DIR")
    if given["output_dir"] == "-":
        raise UsageError("-o - is no folder: to print the text, leave -o out")

    from ..audio.audio import RawFormat
    from .transcribe_files import Request

    return Request(
        files=files,
        model=given["model"],
        model_folder=given["model_dir"],
        downloads=not (given["no_download"] or given["local_files_only"]),
        threads=given["threads"] or None,
        encoder_provider=given["encoder_provider"],
        formats=given["output_format"] or ("txt",),
        has_times=given["output_format"] is None,
        skips_existing=given["skip_existing"],
        folder=None if given["output_dir"] is None else Path(given["output_dir"]),
        raw=None if given["raw"] is None else RawFormat.parse(given["raw"]),
        drafter=drafter,
        vad=None if _has_clips(options) else _vad(given),
        batch_size=_batch_size(given, options),
        subtitles=subtitles,
        quiet=given["quiet"],
        verbose=given["verbose"],
        stats=given["stats"],
        options=options,
    )


def _vad(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The fields of VadOptions that were given; an option of the filter asks for the filter."""
    names = [name for name in given if name.startswith(_VAD) and name != "vad_filter" and given[name] is not None]
    if not (given["vad_filter"] or names):
        return None
    return {name.removeprefix(_VAD): given[name] for name in names}


def _batch_size(given: Mapping[str, Any], options: TranscribeOptions) -> int | None:
    """How many pieces of speech are encoded together; None: no pieces. Raises UsageError."""
    if given["batch_size"] is None and not given["batched"]:
        return None
    if given["batch_size"] is not None and given["batch_size"] < 1:
        raise UsageError(f"--batch-size: got {given['batch_size']}, expected 1 or more, or None")
    if _has_clips(options):
        raise UsageError("--batch-size looks for speech itself: leave out --clip-timestamps")
    from ..batched import BATCH_SIZE

    return BATCH_SIZE if given["batch_size"] is None else int(given["batch_size"])


def _has_clips(options: TranscribeOptions) -> bool:
    """Whether parts of the audio are named: as in faster-whisper, no filter looks for speech then."""
    return options.clip_timestamps != TranscribeOptions.clip_timestamps


def _without_effect(given: Mapping[str, Any], options: TranscribeOptions) -> list[str]:
    remarks = []
    if given["batch_size"] is not None or given["batched"]:
        remarks += [
            f"--{name.replace('_', '-')} has no effect in batched mode"
            for name in ("prefix", "hallucination_silence_threshold", "vad_max_speech_duration_s")
            if given[name] is not None
        ]
    if _has_clips(options) and _vad(given) is not None:
        remarks.append("--vad has no effect with --clip-timestamps")
    if given["max_line_count"] and not given["max_line_width"]:
        remarks.append("--max-line-count has no effect without --max-line-width")
    if given["max_words_per_line"] and given["max_line_width"] and given["max_line_count"]:
        remarks.append("--max-words-per-line has no effect with --max-line-width and --max-line-count")
    if options.hallucination_silence_threshold is not None and not options.word_timestamps:
        remarks.append("--hallucination-silence-threshold has no effect without --word-timestamps")
    if given["compute_type"] not in ("default", "auto"):
        remarks.append(
            f"--compute-type {given['compute_type']} has no effect: a bundle's precision is chosen when it is exported"
        )
    return remarks


def _set_verbosity(given: Mapping[str, Any]) -> None:
    if given["quiet"]:
        logging.getLogger("specedge").setLevel(LOSS)
    elif given["verbose"]:
        logging.getLogger("specedge").setLevel(logging.INFO)


def _expand(files: tuple[str, ...]) -> tuple[str, ...]:
    """What a shell does elsewhere: Windows passes `*.wav` as it is."""
    if os.name != "nt":
        return files
    import glob

    return tuple(name for pattern in files for name in (sorted(glob.glob(pattern)) or [pattern]))
