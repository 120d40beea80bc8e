"""Windows: where they begin and end, how much of them the encoder sees, and the segments that their tokens make.

Segments (`cut_window`) follow `whisper/transcribe.py`. A seek is never before its window's start, so windows can be
read off a stream.

Pauses (`cut_at_pause`): a window of fixed length ends inside a sentence, of which models get words and times wrong more
often than of a sentence with the pause behind it. So a window may end in the middle of its first pause of 200 ms with
speech behind it, once a seventh of the window is over. A pause is a stretch of 150 ms or longer in which the power of
all bands, averaged over 130 ms, stays near the window's noise floor (audio/vad.py). Cutting is the default for speech
LLMs, which have no timestamps to end a window between two words.

Audio context (`AudioContext`, `--audio-context`): Whisper pads each window to its whole length, and the encoder costs
as much for a second of speech as for thirty. So it gets the audio and a margin, and what the encoder makes of silence
stands in for the rest (export/encoder_graph.py): silence as the model was trained with, where openai-whisper has zeros,
which are louder. That is an approximation, and results say so; a window whose text fails its tests is encoded again in
full before any temperature rises. Content is never cut. Drafters change no text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import UsageError

from ..audio.vad import noise_floor, speech_probability
from ..bundle.dims import FRAMES_PER_POSITION, GROUP_POSITIONS
from ..bundle.manifest import HOP_SAMPLES, SAMPLE_RATE_HZ, SPEECH, Manifest
from ..text.special import TokenLayout
from .segments import Word

FRAMES_PER_S = SAMPLE_RATE_HZ // HOP_SAMPLES
Span = tuple[int, int | None]
"""First frame and the one behind the last; None is the end of the audio."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A segment in the making: seconds, the ids, timestamps included, and the words once they are timed.

    first: the place of the first id among the window's.
    """

    start_s: float
    end_s: float
    tokens: tuple[int, ...]
    words: tuple[Word, ...] = ()
    first: int = 0


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A window's pieces, how many frames to advance (1 or more), and whether it ends with a lone timestamp."""

    pieces: tuple[Piece, ...]
    n_advance: int
    ends_with_single: bool


def spans_of_clips(clip_timestamps: Sequence[float]) -> list[Span]:
    """Return the spans of (start, end, start, end, ...) in seconds; without the last end up to the audio's end."""
    points: list[int | None] = [s_to_frames(time_s) for time_s in clip_timestamps] or [0]
    if len(points) % 2:
        points.append(None)
    return [(start or 0, end) for start, end in zip(points[::2], points[1::2], strict=True)]


def cut_window(
    tokens: Sequence[int],
    n_content_frames: int,
    special: TokenLayout,
    *,
    time_offset_s: float = 0.0,
    keeps_start: bool = False,
) -> Cut:
    """Return the pieces of a window that starts at `time_offset_s` and holds `n_content_frames` frames.

    Two timestamps in a row end one piece and begin the next. Text after the last pair is unfinished and is decoded
    again from there, unless it ends with a timestamp of its own: then nothing follows in this window. Without any pair
    the window is one piece up to its last timestamp, or its end. A piece without a timestamp at its beginning starts
    with the window (in openai-whisper before it).

    keeps_start: a window of one piece begins at its first timestamp instead of
    at the window's start as in openai-whisper.
    """
    tokens = tuple(tokens)
    is_timestamp = [special.is_timestamp(token) for token in tokens]
    frames_per_step = special.time_precision_s * FRAMES_PER_S
    ends_with_single = is_timestamp[-2:] == [False, True]

    def step(token: int) -> int:
        return token - special.timestamp_begin if special.is_timestamp(token) else 0

    def piece(begin: int, end: int) -> Piece:
        part = tokens[begin:end]
        first_s, last_s = (step(token) * special.time_precision_s for token in (part[0], part[-1]))
        return Piece(start_s=time_offset_s + first_s, end_s=time_offset_s + last_s, tokens=part, first=begin)

    ends = [i for i in range(1, len(tokens)) if is_timestamp[i - 1] and is_timestamp[i]]
    if not ends:
        last_step = next((step(token) for token in reversed(tokens) if special.is_timestamp(token)), 0)
        duration_s = last_step * special.time_precision_s if last_step else frames_to_s(n_content_frames)
        start_s = step(tokens[0]) * special.time_precision_s if keeps_start and tokens else 0.0
        start_s = time_offset_s + (start_s if start_s < duration_s else 0.0)
        whole = Piece(start_s=start_s, end_s=time_offset_s + duration_s, tokens=tokens)
        return Cut(pieces=(whole,), n_advance=n_content_frames, ends_with_single=ends_with_single)

    if ends_with_single:
        ends.append(len(tokens))
    pieces = tuple(piece(begin, end) for begin, end in zip([0, *ends], ends, strict=False))
    n_advance = n_content_frames if ends_with_single else round(step(tokens[ends[-1] - 1]) * frames_per_step)
    # The rules make a closing timestamp later than 0; without rules a window must not be decoded for ever.
    return Cut(pieces=pieces, n_advance=n_advance or n_content_frames, ends_with_single=ends_with_single)


def frames_to_s(n_frames: int) -> float:
    """Return the seconds of this many mel frames."""
    return n_frames * HOP_SAMPLES / SAMPLE_RATE_HZ


def s_to_frames(seconds: float) -> int:
    """Return the nearest mel frame; halves go to the even one, as in openai-whisper."""
    return round(seconds * FRAMES_PER_S)


Pause = tuple[int, int]
"""First frame and the one behind the last."""
# Of a window, that it keeps however soon a pause comes; and the pause that ends it.
_FIRST_CUT = 0.15
_SHORTEST_CUT_FRAMES = 20
_AVERAGED_FRAMES = 13
_THRESHOLD = 0.5
_SHORTEST_PAUSE_FRAMES = 15
_SHORTEST_SPEECH_FRAMES = 5
_LN_SCALE = 4 * math.log(10)  # the normalised log-mel's 1, as a natural logarithm of power
_MELS_OF_A_BAND = 4
# A frame none of whose bands rises by more than this above the least of the window is digital silence.
_SILENCE = 1e-3


def cut_at_pause(mel: NDArray[np.float32], n_content_frames: int) -> tuple[NDArray[np.float32], int]:
    """Cut a window in the middle of its first long pause with speech behind it. Returns it and its content frames.

    mel: its normalised log-mel, float32 [n_mels, n_frames], 0.0 from `n_content_frames` on, and from the cut on after.
    """
    for start, end in find_pauses(mel[:, :n_content_frames]):
        is_inside = _FIRST_CUT * mel.shape[1] <= start and end < n_content_frames
        if is_inside and end - start >= _SHORTEST_CUT_FRAMES:
            n_content_frames = (start + end) // 2
            mel[:, n_content_frames:] = 0.0
            break
    return mel, n_content_frames


def find_pauses(mel: NDArray[np.float32]) -> list[Pause]:
    """Return the pauses of a normalised log-mel, float32 [n_mels, n_frames]; [] for one without speech."""
    if mel.shape[1] == 0:
        return []
    is_loud = mel.max(axis=0) > mel.min() + _SILENCE
    power = np.exp((mel - mel.max()) * np.float32(_LN_SCALE))
    bands = np.add.reduceat(power, np.arange(0, len(power), _MELS_OF_A_BAND), axis=0)
    # Each band's power, averaged over the frames around.
    half = _AVERAGED_FRAMES // 2
    total = np.cumsum(np.pad(bands, ((0, 0), (half + 1, half)), mode="edge"), axis=1, dtype=np.float64)
    powers = ((total[:, _AVERAGED_FRAMES:] - total[:, :-_AVERAGED_FRAMES]) / _AVERAGED_FRAMES).T
    floor = noise_floor(powers[is_loud] if is_loud.any() else powers)
    is_speech = speech_probability(powers, floor) > _THRESHOLD
    n_frames = len(is_speech)
    for first, end in _runs(~is_speech):
        if end - first < _SHORTEST_PAUSE_FRAMES and first > 0 and end < n_frames:
            is_speech[first:end] = True
    for first, end in _runs(is_speech):
        if end - first < _SHORTEST_SPEECH_FRAMES:
            is_speech[first:end] = False
    return _runs(~is_speech) if is_speech.any() else []


def _runs(marks: NDArray[np.bool_]) -> list[Pause]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marks, [False]])))
    return [(int(first), int(end)) for first, end in zip(edges[::2], edges[1::2], strict=True)]


_MOST_SILENCE_FRAMES, _KEPT_SILENCE_FRAMES = 100, 50


def around_sound(sound: tuple[int, int], n_content_frames: int) -> tuple[int, int]:
    """Return the first frame of a window to keep and the one behind the last: long digital silence is left out.

    sound: the first frame with energy and the one behind the last, as `MelStream.sound`; where nothing has energy both
    are `n_content_frames`. Models invent sentences over such silence, and double or lose the speech around it.
    """
    first, last = (min(edge, n_content_frames) for edge in sound)
    if first == last:
        return n_content_frames, n_content_frames
    start = first - _KEPT_SILENCE_FRAMES if first > _MOST_SILENCE_FRAMES else 0
    is_long = n_content_frames - last > _MOST_SILENCE_FRAMES
    return start, last + _KEPT_SILENCE_FRAMES if is_long else n_content_frames


MIN_FRAMES = 50  # half a second, to which Qwen3-ASR's own code fills shorter audio
MARGIN_BEFORE_SILENCE_FRAMES = 100
LEAST_REST_FRAMES = 50  # behind the last pair of timestamps before silence: over less a model only repeats itself
GROUP_FRAMES = FRAMES_PER_POSITION * GROUP_POSITIONS


@dataclass(frozen=True, kw_only=True)
class Sound:
    """What of a window is encoded: a log-mel float32 [n_mels, n_frames], and whether silence stands in for the rest."""

    mel: NDArray[np.float32]
    ends_in_silence: bool = False


def silent_behind(mel: NDArray[np.float32], n_content_frames: int, floor: float) -> NDArray[np.float32]:
    """A copy of a log-mel [n_mels, n_frames] that is `floor`, as silence is, from `n_content_frames` on."""
    mel = mel.copy()
    mel[:, n_content_frames:] = floor
    return mel


class AudioContext:
    """How much of its windows a transcription encodes, and how much it did: `n_heard` frames of `n_whole`.

    asked: as in TranscribeOptions. "auto" encodes as much as there is audio, a number of seconds at least that much,
    "full" the whole window. Silence stands in for the rest (`Engine.knows_silence`), up to two thirds of a window:
    above, little is saved, and predicted times may fall on whole seconds. Where it cannot, windows are whole. A speech
    LLM hears all there is and nothing else. Raises UsageError for it where another length is asked for.

    knows_silence: whether silence stands in for the rest; n_again: windows whose text failed its tests, so that they
    were encoded again in full.
    """

    def __init__(self, asked: str | float, manifest: Manifest, *, knows_silence: bool = False) -> None:
        self._hears_all = manifest.kind == SPEECH
        if self._hears_all and asked != "auto":
            raise UsageError(f"audio_context {asked!r}: this speech LLM hears all of the audio; leave it out")
        self.asked, self.knows_silence = asked, knows_silence
        self._n_window = manifest.n_frames
        self.n_heard = self.n_whole = self.n_again = 0
        self.is_approximate = False  # whether a silent window stood in for the rest of one

    @property
    def is_full(self) -> bool:
        """Whether every window is encoded whole."""
        return self.asked == "full" or not (self.knows_silence or self._hears_all)

    def sound(self, mel: NDArray[np.float32], n_content_frames: int, floor: float = 0.0) -> Sound:
        """Return what to encode of a window's log-mel, float32 [n_mels, n_frames], and count it.

        floor: what silence is in it.
        """
        n_frames = self.n_frames(n_content_frames)
        ends_in_silence = self.knows_silence and n_frames < self._n_window
        self.n_heard += n_frames
        self.n_whole += self._n_window
        self.is_approximate |= ends_in_silence
        if ends_in_silence:
            return Sound(mel=silent_behind(mel[:, :n_frames], n_content_frames, floor), ends_in_silence=True)
        return Sound(mel=mel if n_frames == mel.shape[1] else np.ascontiguousarray(mel[:, :n_frames]))

    def n_frames(self, n_content_frames: int) -> int:
        """Return the frames to encode of a window whose first `n_content_frames` hold audio."""
        if self._hears_all:
            return max(n_content_frames, min(MIN_FRAMES, self._n_window))
        if self.is_full:
            return self._n_window
        n_wanted = n_content_frames + MARGIN_BEFORE_SILENCE_FRAMES
        if not isinstance(self.asked, str):
            n_wanted = max(n_wanted, s_to_frames(self.asked))
        # Whole groups, and a position that the convolutions look at.
        n_frames = -(-n_wanted // GROUP_FRAMES) * GROUP_FRAMES + FRAMES_PER_POSITION
        return n_frames if 3 * n_frames < 2 * self._n_window else self._n_window

    def again(self) -> None:
        """Count a window that is encoded once more, and whole."""
        self.n_again += 1
        self.n_heard += self._n_window

    def add(self, other: AudioContext) -> None:
        """Add the frames of another transcription."""
        self.n_heard += other.n_heard
        self.n_whole += other.n_whole
        self.n_again += other.n_again
        self.is_approximate |= other.is_approximate

    def fields(self) -> Mapping[str, Any]:
        """Return, for results, the option, the seconds encoded and those of the whole windows, and the rest."""
        return {
            "asked": self.asked,
            "heard_s": round(frames_to_s(self.n_heard), 2),
            "window_s": round(frames_to_s(self.n_whole), 2),
            "approximate": self.is_approximate,
            "encoded_again": self.n_again,
        }


LEAST_S = 0.02  # a step of the model's time


def settle(pieces: Sequence[Piece], begin_s: float, end_s: float) -> list[Piece]:
    """Return the pieces with their times and those of their words moved into `begin_s` to `end_s`, as little as needed.

    Models predict times behind the end of the audio; times of words from attention may be equal, and a segment's own
    time may be trusted more than a word's. Seeks and prompts follow the model's times all the same. Each lasts
    `LEAST_S`, less only where there is no room for all. A piece with words is as long as they are.
    """
    spans = [
        (span.start, span.end) if not isinstance(span, Piece) else (span.start_s, span.end_s)
        for piece in pieces
        for span in piece.words or (piece,)
    ]
    least_s = min(LEAST_S, max(end_s - begin_s, 0.0) / max(len(spans), 1))
    starts, ends = [start for start, _ in spans], [end for _, end in spans]
    at = begin_s
    for i, start in enumerate(starts):
        starts[i] = max(start, at)
        ends[i] = at = max(min([ends[i], *starts[i + 1 : i + 2]]), starts[i] + least_s)
    at = end_s
    for i in reversed(range(len(starts))):
        ends[i] = min(ends[i], at)
        starts[i] = at = min(starts[i], ends[i] - least_s)
    moved = iter([(round(start, 6), round(end, 6)) for start, end in zip(starts, ends, strict=True)])
    return [_moved(piece, [next(moved) for _ in piece.words or (piece,)]) for piece in pieces]


def _moved(piece: Piece, spans: Sequence[tuple[float, float]]) -> Piece:
    words = tuple([replace(w, start=start, end=end) for w, (start, end) in zip(piece.words, spans, strict=False)])
    return replace(piece, start_s=spans[0][0], end_s=spans[-1][1], words=words)
