"""What the command says about a transcription: `--stats`, `--verbose`, the colours of `--print-drafts`.

Times of the encoder, the decoder and the drafter stand side by side, because speculation speeds up the decoder alone.
In coloured text, a character whose bytes come from several tokens belongs to the last of them.
"""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ..console import clock
from ..decoding.drafter import Drafter, EmptyDrafter
from ..longform.segments import DraftedSegment, Segment, TranscriptionInfo
from ..options import CPU
from ..text.tokenizer import Tokenizer
from .formats import SubtitleOptions, format_timestamp


def describe(info: TranscriptionInfo, n_segments: int) -> str:
    """One line such as `9:36 of audio, language de (0.98), 120 segments`."""
    sure = "" if info.all_language_probs is None else f" ({info.language_probability:.2f})"
    segments = "segment" if n_segments == 1 else "segments"
    return f"{clock(info.duration)} of audio, language {info.language}{sure}, {n_segments} {segments}"


def statistics(info: TranscriptionInfo) -> Iterator[str]:
    """Lines of `--stats`, at most three: where the time went, what drafts saved, and what else there is to know."""
    counted = info.speculation
    duration_s, total_s = info.duration, counted["total_s"]
    parts = {name: counted[f"{name}_s"] for name in ("encoder", "decoder", "draft")}
    parts["other"] = max(total_s - sum(parts.values()), 0.0)
    spent = {name: f" ({seconds / total_s:.0%})" if total_s > 0 else "" for name, seconds in parts.items()}
    shares = ", ".join(f"{name} {seconds:.2f} s{spent[name]}" for name, seconds in parts.items())
    speed = f" ({duration_s / total_s:.1f}x)" if total_s > 0 else ""
    provider = "" if info.encoder_provider == CPU else f"; encoder on {info.encoder_provider}"
    yield f"{duration_s:.1f} s of audio in {total_s:.2f} s{speed}: {shares}{provider}"
    per_pass = "" if counted["tokens_per_pass"] is None else f", {counted['tokens_per_pass']:.2f} a pass"
    choice = f" ({counted['choice']})" if counted["choice"] else ""
    yield (
        f"{counted['tokens']} tokens in {counted['passes']} passes of the decoder{per_pass}; drafter "
        f"{counted['drafter']}{choice}: {counted['proposed']} tokens drafted, {counted['accepted']} accepted"
    )
    if notes := list(_notes(info)):
        yield "; ".join(notes)


def _notes(info: TranscriptionInfo) -> Iterator[str]:
    counted, context = info.speculation, info.audio_context
    if not counted["lossless"]:
        yield "by --accept, --bias or --only the text may not be the model's own"
    if context and context["heard_s"] < context["window_s"]:
        again = f", {context['encoded_again']} again in full" if context["encoded_again"] else ""
        yield (
            f"audio context {context['asked']}: {context['heard_s']:.1f} s encoded of windows of "
            f"{context['window_s']:.1f} s"
            + (", silence standing in for the rest" if context["approximate"] else "")
            + again
        )
    if (learning := counted["learning"]) is not None:
        back = f", rolled back {learning['rollbacks']} times" if learning["rollbacks"] else ""
        yield f"learning: {learning['updates']} updates in {learning['seconds']:.2f} s{back}"


# Of the eight that every terminal has, without black and white.
_COLOURS = {"green": 32, "yellow": 33, "cyan": 36, "magenta": 35, "blue": 34, "red": 31}
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def timed_text(*, has_colours: bool) -> Callable[[Iterable[Segment], SubtitleOptions], Iterator[str]]:
    """Lines such as `[00:00.000 --> 00:02.540] Inspect valve four.`: a writer like those of `formats`."""
    dim, plain = (_DIM, _PLAIN) if has_colours else ("", "")

    def write(segments: Iterable[Segment], _: SubtitleOptions) -> Iterator[str]:
        for segment in segments:
            times = f"[{format_timestamp(segment.start)} --> {format_timestamp(segment.end)}]"
            yield f"{dim}{times}{plain} {segment.text.strip()}\n"

    return write


def source_names(drafter: Drafter | None) -> tuple[str, ...]:
    """Names that `DraftedSegment.sources` may hold with this drafter; () without drafts."""
    if drafter is None or isinstance(drafter, EmptyDrafter):
        return ()
    try:
        return drafter.sources or (drafter.name,)
    except Exception:  # a program's own drafter; the guard says what is wrong with it
        return ()


def source_runs(segment: Segment, tokenizer: Tokenizer) -> Iterator[tuple[str, str]]:
    """The text of a segment, without blanks at its ends, in runs of one source, as (text, source); "" is the model."""
    sources = (segment.sources if isinstance(segment, DraftedSegment) else ()) or ("",) * len(segment.tokens)
    pairs = zip(token_texts(segment.tokens, tokenizer), (*sources, *sources[-1:]), strict=False)
    signs = [(sign, source) for text, source in pairs for sign in text]
    said = [number for number, (sign, _) in enumerate(signs) if not sign.isspace()]
    for source, run in itertools.groupby(signs[said[0] : said[-1] + 1] if said else (), key=lambda each: each[1]):
        yield "".join(sign for sign, _ in run), source


def token_texts(tokens: Sequence[int], tokenizer: Tokenizer) -> list[str]:
    """The text of each token, a character of several tokens at the last of them, and bytes at the end that are none."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    texts = [decoder.decode(tokenizer.decode_bytes([token])) for token in tokens]
    return [*texts, decoder.decode(b"", final=True)]


def coloured_text(
    tokenizer: Tokenizer, names: Sequence[str], *, has_colours: bool
) -> Callable[[Iterable[Segment], SubtitleOptions], Iterator[str]]:
    """The format txt with the text of each of `names` in its colour, if at all: a writer like those of `formats`."""
    codes = {name: f"\x1b[{_COLOURS[colour]}m" for name, colour in _colours(names).items()} if has_colours else {}

    def write(segments: Iterable[Segment], _: SubtitleOptions) -> Iterator[str]:
        for segment in segments:
            runs = source_runs(segment, tokenizer)
            parts = [f"{codes[name]}{text}{_PLAIN}" if name in codes else text for text, name in runs]
            yield "".join(parts) + "\n"

    return write


def legend(names: Sequence[str]) -> str:
    """One line that says which colour is which drafter's."""
    if not names:
        return "nothing is drafted with --drafter none"
    drafted = ", ".join(f"{name} {colour}" for name, colour in _colours(names).items())
    return f"drafted by {drafted}; without colour: the model's own tokens"


def _colours(names: Sequence[str]) -> Mapping[str, str]:
    return dict(zip(names, itertools.cycle(_COLOURS), strict=False))
