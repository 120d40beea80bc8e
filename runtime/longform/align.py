"""Forced alignment: when each word of a known text is said.

Word times come from the decoder's attention, as those of a transcription (`words.py`). Audio of one window is aligned
at once. Of longer audio a transcription says which windows there are and what is said in each; the known text is
matched with it by the longest common runs of words, and each window is aligned with its part. Words without a match
are dealt out between the windows of their neighbours.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from specedge.errors import UsageError

from ..audio.audio import open_audio
from ..audio.mel import MelStream
from ..bundle.bundle import Bundle
from ..bundle.manifest import HOP_SAMPLES, require_align
from ..engine.engine import Engine
from ..options import TranscribeOptions
from ..text.words import UNSPACED_LANGUAGES, bare
from .segments import Segment, Word
from .transcribe import compression_ratio
from .windows import AudioContext, Piece, frames_to_s, settle
from .words import time_words

_Unit = tuple[int, str]
"""The number of the line that a word is in, and the word, or a character where words have no spaces between them."""
_Part = tuple[int, int, list[_Unit]]
"""The first frame of a window, how many of its frames are audio, and what is said there."""


def align_text(
    engine: Engine,
    bundle: Bundle,
    samples: NDArray[np.float32],
    text: str,
    options: TranscribeOptions,
    transcribed: Callable[[], Iterable[Segment]],
) -> list[Segment]:
    """Return a segment for each line of `text` that is not blank, with its words.

    samples: float32 [n_samples] at 16 kHz, not empty; options: of which language, a code, and punctuations count;
    transcribed: gives a transcription of the samples, and is called for audio longer than a window. avg_logprob of a
    segment is the mean over its words; no_speech_prob is 0.

    Raises UsageError for a text without words and for more text than a window can hold, BundleError when the bundle has
    no graph for word times, ResourceError, Interrupted.
    """
    require_align(bundle.manifest, bundle.path)
    language = options.language
    joint = "" if language in UNSPACED_LANGUAGES else " "
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    units = [(number, unit) for number, line in enumerate(lines) for unit in _units(line, joint)]
    if not units:
        raise UsageError("text: holds no words")
    n_frames = max(1, len(samples) // HOP_SAMPLES)
    if n_frames <= bundle.manifest.n_frames:
        parts = [(0, n_frames, units)]
    else:
        parts = _parts(units, list(transcribed()), n_frames, bundle.manifest.n_frames, joint)
    words: dict[int, list[Word]] = {}
    seeks: dict[int, int] = {}
    dims, encode = bundle.manifest.dims, bundle.tokenizer.encode
    n_most = dims.n_text_ctx - len(bundle.manifest.whisper_tokens.prompt(language, timestamps=False)) - 1
    last_speech_s = 0.0
    context = AudioContext("full", bundle.manifest)
    with open_audio(samples) as stream:
        mels = MelStream(stream, dims.n_mels, bundle.manifest.n_frames, again=stream.again)
        for seek, n_content_frames, said in parts:
            start_s, end_s = frames_to_s(seek), frames_to_s(seek + n_content_frames)
            pieces: dict[int, Piece] = {}
            for number, group in groupby(said, key=lambda unit: unit[0]):
                tokens = encode(joint + joint.join(unit for _, unit in group))
                pieces[number] = Piece(start_s=start_s, end_s=end_s, tokens=tuple(tokens))
            n_ids = sum(len(piece.tokens) for piece in pieces.values())
            if n_ids > n_most:
                raise UsageError(
                    f"text: {n_ids} tokens for the {frames_to_s(n_content_frames):.1f} s of audio from {start_s:.1f} s "
                    f"on, more than the {n_most} that the model takes; is this what is said there?"
                )
            mel, _ = mels.window(seek, n_content_frames)
            timed = time_words(
                engine,
                engine.encode(context.sound(mel, n_content_frames).mel),
                list(pieces.values()),
                tokenizer=bundle.tokenizer,
                options=options,
                language=language,
                n_content_frames=n_content_frames,
                last_speech_s=last_speech_s,
                time_offset_s=start_s,
            )
            spoken = {number: piece for number, piece in zip(pieces, timed, strict=True) if piece.words}
            for number, piece in zip(spoken, settle(list(spoken.values()), last_speech_s, end_s), strict=True):
                seeks.setdefault(number, seek)
                words.setdefault(number, []).extend(piece.words)
                last_speech_s = piece.end_s
    return [
        Segment(
            id=id_,
            seek=seeks[number],
            start=words[number][0].start,
            end=words[number][-1].end,
            text=joint + lines[number],
            tokens=encode(joint + lines[number]),
            avg_logprob=fmean(math.log(max(word.probability, 1e-10)) for word in words[number]),
            compression_ratio=compression_ratio(lines[number]),
            no_speech_prob=0.0,
            words=words[number],
        )
        for id_, number in enumerate(sorted(words), start=1)
    ]


def _units(line: str, joint: str) -> list[str]:
    return line.split() if joint else [character for character in line if not character.isspace()]


def _parts(units: list[_Unit], segments: Sequence[Segment], n_frames: int, n_window: int, joint: str) -> list[_Part]:
    """The windows of the transcription with the units that are said in them; windows without any are left out."""
    seeks = sorted({0, *(segment.seek for segment in segments)})
    spoken = [(bare(unit) or unit, seeks.index(s.seek)) for s in segments for unit in _units(s.text, joint)]
    places = _places([bare(unit) or unit for _, unit in units], spoken, len(seeks))
    ends = [*seeks[1:], n_frames]
    return [
        (seeks[place], max(1, min(n_window, ends[place] - seeks[place])), [unit for unit, _ in group])
        for place, group in groupby(zip(units, places, strict=True), key=lambda item: item[1])
    ]


def _places(wanted: Sequence[str], spoken: Sequence[tuple[str, int]], n_windows: int) -> list[int]:
    """The window of each wanted word, never decreasing."""
    matcher = difflib.SequenceMatcher(None, wanted, [word for word, _ in spoken], autojunk=False)
    known = {a + i: spoken[b + i][1] for a, b, n in matcher.get_matching_blocks() for i in range(n)}
    places: list[int] = []
    while len(places) < len(wanted):
        first = len(places)
        if first in known:
            places.append(known[first])
            continue
        end = next((i for i in range(first, len(wanted)) if i in known), len(wanted))
        before = places[-1] if places else known.get(end, 0) if end < len(wanted) else 0
        after = known.get(end, n_windows - 1)
        share = (after - before) / (end - first + 1)
        places += [before + round(share * (i + 1)) for i in range(end - first)]
    return places
