"""`specedge align`: when each word of a known text is said."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from specedge.errors import UsageError

from ..console import notify
from ..longform.segments import Segment
from ..options import TranscribeOptions
from ..output.formats import KINDS, SubtitleOptions, Transcript, render, write_transcript
from .options import GroupedCommand, ModelOptions, fields_of, made, option, options_of

_UNLIKELY = -3.0  # a line's average log-probability
_FORMATS = ("json", "srt", "vtt", "tsv", "lrc")
_OUTPUT = (
    option(
        "-f",
        "--output-format",
        type=click.Choice(_FORMATS),
        default="json",
        show_default=True,
        help="json has every word with start, end and probability; in srt and vtt a line of TEXT is a subtitle.",
    ),
    option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write it there.  [default: print]"),
)


@click.command(cls=GroupedCommand)
@click.argument("audio", metavar="AUDIO", type=click.Path(path_type=str))
@click.argument("text", metavar="TEXT", type=click.Path(path_type=str))
@options_of(
    fields_of(ModelOptions, "model"),
    fields_of(TranscribeOptions, "language"),
    _OUTPUT,
    fields_of(ModelOptions, without=("model",), is_usual=True, group="Options"),
    fields_of(SubtitleOptions, is_usual=True),
)
def align(audio: str, text: str, **given: Any) -> None:
    """Find when each word of TEXT is said in AUDIO.

    TEXT is a file, or - for standard input: each line of plain text is a segment. Subtitles (srt, vtt) and transcripts
    (json, tsv) are taken too; their sentences get new times. The words must be those that are said, in this order.

    \b
    Examples:
      specedge align talk.wav talk.txt
      specedge align talk.wav talk.txt -f srt -o talk.srt
      specedge align talk.wav talk.txt -f vtt --max-words-per-line 1
      echo "Call the crew." | specedge align call.wav - -m small -l en
    """
    from ..audio.audio import decode_audio
    from ..text.transcripts import find_transcripts, read_sentences

    subtitles = made(SubtitleOptions, given)
    kind, output = given["output_format"], given["output"]
    if audio == text == "-":
        raise UsageError("'-' is given twice: standard input can be read once")
    known = "\n".join(read_sentences(find_transcripts([text])))
    if not known.strip():
        raise UsageError(f"{text}: holds no words, expected the text of the audio")
    if output is not None:
        from specedge.files import check_output, identities

        check_output(output, KINDS[kind], inputs=identities(name for name in (audio, text) if name != "-"))
    samples, wanted = decode_audio(audio), made(ModelOptions, given)
    model = wanted.load(wanted.find(given["language"], quiet=True))
    with model.engine.interruptible():
        segments, info = model.align(samples, known, given["language"])
    _warn_of_unlikely(segments)
    lines = "\n".join(segment.text.strip() for segment in segments)
    transcript = Transcript(text=lines, segments=segments, info=info)
    if output is not None:
        write_transcript({kind: output}, transcript, subtitles)
    else:
        sys.stdout.write(render(kind, transcript, subtitles))


def _warn_of_unlikely(segments: Sequence[Segment]) -> None:
    """Warn of lines that are probably not spoken: spoken lines scored -0.1 to -1.6, others -4.5 and below."""
    unlikely = [segment for segment in segments if segment.avg_logprob < _UNLIKELY]
    if unlikely:
        first = unlikely[0]
        notify(
            f"{len(unlikely)} of {len(segments)} lines do not seem to be spoken in this audio, the first at "
            f"{first.start:.1f} s: {first.text.strip()[:60]!r}; do not rely on their times"
        )
