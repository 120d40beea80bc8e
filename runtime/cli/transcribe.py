"""`specedge transcribe`: the command's options, and the request that they make.

Flags are kebab-case; openai-whisper's snake_case and whisper-ctranslate2's additions are accepted and not shown.
Does not know: how files are transcribed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from specedge.errors import UsageError

from ..console import LOSS, notify
from ..options import HEAD_KINDS, TranscribeOptions
from ..output.formats import FORMATS, SubtitleOptions
from .errors import fail
from .options import (
    DECODING,
    PROMPTING,
    TEXT,
    GroupedCommand,
    Names,
    Number,
    installed_models,
    option,
    switch,
    transcribe_options,
)

__all__ = ["transcribe"]

_INT, _FLOAT = Number(int), Number(float)
_MAYBE_INT, _MAYBE_FLOAT = Number(int, optional=True), Number(float, optional=True)
_COUNT = click.IntRange(min=0)
_WORD_OPTIONS = ("highlight_words", "max_line_width", "max_line_count", "max_words_per_line")
_VAD = "vad_"

_MAIN = (
    option(
        "-m",
        "--model",
        "--model-directory",
        metavar="MODEL",
        shown="-m, --model MODEL",
        shell_complete=installed_models,
        help="Model name or bundle folder.  [default: the bundled demo]",
    ),
    *TEXT,
    option(
        "-f",
        "--output-format",
        type=Names(FORMATS),
        default=("txt",),
        metavar="FORMATS",
        help=f"{', '.join(FORMATS)}, several with commas, or all.  [default: txt]",
    ),
    option("-o", "--output-dir", metavar="DIR", help="Write files there, named as the inputs.  [default: print]"),
    option("--raw", metavar="FORMAT", help="Inputs are headerless PCM, such as s16le:16000 or s16le:48000:2."),
    option("-t", "--threads", type=_COUNT, metavar="N", help="CPU threads.  [default: by machine]"),
    option(
        "--drafter",
        type=click.Choice(["none", "tokenmap", "ngram", "draft", "ctc", *HEAD_KINDS, "cascade", "auto"]),
        default="none",
        show_default=True,
        help="Who guesses the next tokens; the text is the same. cascade: all that the model has, each where it pays; "
        "auto: those that were measured or priced to pay here.",
    ),
    option(
        "--draft-model",
        metavar="MODEL",
        shell_complete=installed_models,
        help="Smaller model that drafts, by name or folder.  [default: none, or with --drafter draft the model's own]",
    ),
    option(
        "--token-map",
        "token_maps",
        multiple=True,
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Token map for --drafter tokenmap, ctc, cascade or auto (repeatable).  [default: the model's own]",
    ),
    option(
        "--map-preset",
        type=click.Choice(["default", "paper"]),
        default="default",
        group="Decoding",
        help="How maps are used: by prices, or as the paper did.",
    ),
    option(
        "--lookahead",
        default="cost",
        metavar="WHAT",
        group="Decoding",
        help="Tokens that a draft model drafts: a number, cost (what pays here), rule (0.8/0.3), confidence, or "
        "adaptive (learned). Of heads: cost, or how many draft, whatever it costs.",
    ),
    switch(
        "--learn",
        group="Decoding",
        help="Let a draft model learn from its target, and keep that for later runs; the text is the same.",
    ),
    option(
        "--learn-domain",
        default="default",
        metavar="NAME",
        group="Decoding",
        help="What is learned is kept under this name, apart from other domains.",
    ),
    switch(
        "--remember",
        group="Decoding",
        help="Let --drafter ngram, draft, cascade or auto keep what it learns for later runs.",
    ),
    switch(
        "--allow-inexact",
        group="Decoding",
        help="Draft also on a machine where that may change the text (`specedge doctor`); the results say so.",
    ),
    switch(
        "--print-drafts",
        "draft_sources",
        shown="--print-drafts",
        help="Colour the text on a terminal by who drafted it; what the model said itself stays plain.",
    ),
    option("--stats", is_flag=True, help="Say on stderr what speculation did and where the time went."),
    option(
        "-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors, missing audio and what was asked for."
    ),
    switch("-v", "--verbose", help="Say more on stderr: the model, each input's language and length."),
    # Taken out of the line by the main command, wherever it stands; here for the help.
    option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."),
)

_SUBTITLES = (
    option("--max-line-width", type=_MAYBE_INT, metavar="N", group="Subtitles", help="Characters in a line."),
    option(
        "--max-line-count",
        type=_MAYBE_INT,
        metavar="N",
        group="Subtitles",
        help="Lines in a subtitle, which then runs on across segments; with a line width.",
    ),
    option("--max-words-per-line", type=_MAYBE_INT, metavar="N", group="Subtitles", help="Words in a subtitle."),
    switch("--highlight-words", group="Subtitles", help="Underline each word while it is spoken."),
)

_VOICE: dict[str, Any] = {"group": "Voice activity"}

_VOICE_ACTIVITY = (
    option(
        "--batch-size",
        type=click.IntRange(min=1),
        metavar="N",
        help="Batched mode: pieces of speech, each by itself, up to N encoded together. Faster; no text before it, no "
        "second try.",
        **_VOICE,
    ),
    switch(
        "--vad",
        "--vad-filter",
        "vad_filter",
        shown="--vad, --vad-filter",
        help="Pass over what is not speech.",
        **_VOICE,
    ),
    option(
        "--vad-detector", type=click.Choice(["energy", "silero"]), help="Who tells speech.  [default: energy]", **_VOICE
    ),
    option("--vad-threshold", type=_FLOAT, metavar="X", help="Speech is what is likelier than this.", **_VOICE),
    option("--vad-neg-threshold", type=_MAYBE_FLOAT, metavar="X", help="Speech ends below this.", **_VOICE),
    option("--vad-min-speech-duration-ms", type=_INT, metavar="MS", help="Shorter speech is none.", **_VOICE),
    option("--vad-max-speech-duration-s", type=_FLOAT, metavar="S", help="Longer speech is cut.", **_VOICE),
    option("--vad-min-silence-duration-ms", type=_INT, metavar="MS", help="Shorter silence is kept.", **_VOICE),
    option("--vad-speech-pad-ms", type=_INT, metavar="MS", help="Kept around speech.", **_VOICE),
)

# What programs written for openai-whisper and whisper-ctranslate2 say, and what decides nothing here.
_ACCEPTED = (
    option("--model-dir", hidden=True, type=click.Path(path_type=Path)),
    option("--device", hidden=True, default="cpu"),
    option("--device-index", hidden=True),
    option("--compute-type", hidden=True, default="default"),
    switch("--batched", hidden=True),  # whisper-ctranslate2's: --batch-size with its default
    switch("--fp16", hidden=True),
    switch("--local-files-only", hidden=True),
)


def _with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in reversed((*_MAIN, *DECODING, *PROMPTING, *_SUBTITLES, *_VOICE_ACTIVITY, *_ACCEPTED)):
        function = decorate(function)
    return function


@click.command(cls=GroupedCommand)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=str))
@_with_options
@click.pass_context
def transcribe(ctx: click.Context, /, files: tuple[str, ...], **given: Any) -> None:
    """Turn speech into text: print it, or write files for each FILE with -o.

    FILE is any audio that libsndfile or an ffmpeg on PATH can read, a folder of such files, or - for standard input.
    Decoding is greedy unless asked for beams, because drafts save most there; they change neither. Option names and
    values of openai-whisper are accepted too (--output_format, --word_timestamps True).

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
    options = transcribe_options(given)
    for name in _WORD_OPTIONS:
        if given[name] and not given["word_timestamps"]:
            raise UsageError(f"--{name.replace('_', '-')} needs word times: add --word-timestamps")
    subtitles = SubtitleOptions(**{name: given[name] for name in _WORD_OPTIONS})
    if given["device"] not in ("cpu", "auto"):
        raise UsageError(f"--device {given['device']}: specedge runs on the CPU; leave the option out")

    if given["output_dir"] == "-":
        raise UsageError("-o - is no folder: to print the text, leave -o out")

    from ..audio.audio import RawFormat
    from .transcribe_files import Request

    return Request(
        files=files,
        model=given["model"],
        model_folder=given["model_dir"],
        threads=given["threads"] or None,
        formats=given["output_format"],
        folder=None if given["output_dir"] is None else Path(given["output_dir"]),
        raw=None if given["raw"] is None else RawFormat.parse(given["raw"]),
        drafter=_drafter(given),
        draft_model=given["draft_model"],
        lookahead=given["lookahead"],
        token_maps=given["token_maps"],
        map_preset=given["map_preset"],
        remember=given["remember"],
        learn=given["learn"],
        learn_domain=given["learn_domain"],
        allow_inexact=given["allow_inexact"],
        vad=None if _has_clips(options) else _vad(given),
        batch_size=_batch_size(given, options),
        subtitles=subtitles,
        quiet=given["quiet"],
        verbose=given["verbose"],
        stats=given["stats"],
        options=options,
    )


def _drafter(given: Mapping[str, Any]) -> str:
    """A draft model asks for its drafter."""
    named: str = given["drafter"]
    return "draft" if named == "none" and given["draft_model"] is not None else named


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
