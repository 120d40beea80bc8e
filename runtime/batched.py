"""Batched mode: speech in independent pieces of at most one window, as faster-whisper's `BatchedInferencePipeline`.

Pauses are left out and what remains is cut into pieces, at pauses where there are any, else where the last third is
quietest. Each piece is transcribed by itself: without the text before it, at the first temperature only, with no test
of the result. Up to `batch_size` pieces are decoded together, in shared passes of the decoder, each with a drafter of
its own; one that ends makes room for the next. Those that come together are encoded together, fewer where features are
large (`Engine.n_at_once`). Their texts come in order. An error, of one piece or while reading, comes after the texts of
the pieces before.
"""

from __future__ import annotations

import bisect
import contextlib
import inspect
import itertools
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from specedge.errors import AudioError, UsageError

from .audio.audio import SAMPLE_RATE, AudioSource, AudioStream, decode_audio, open_audio, quietest
from .audio.mel import HeldAudio
from .bundle.bundle import Bundle
from .bundle.manifest import HOP_SAMPLES, N_FFT
from .decoding.decode import Speculation
from .decoding.drafter import Drafter, Guard
from .decoding.passes import Together, run
from .longform.segments import Segment, TranscriptionInfo
from .longform.transcribe import Transcription
from .model import (
    TranscriptionRun,
    WhisperModel,
    lend_drafter,
    new_info,
    opened,
    progress_bar,
    taken,
    vad_options,
)
from .options import BATCH_SIZE, TranscribeOptions, VadOptions

if TYPE_CHECKING:
    from .engine.engine import Engine
    from .longform.vad_filter import SpeechAudio

_PAUSE_SAMPLES = SAMPLE_RATE // 10


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Samples float32 [n_samples] at 16 kHz, and where they begin in the stream, seconds."""

    samples: NDArray[np.float32]
    start_s: float


def speech_chunks(stream: HeldAudio, max_samples: int, ends: Callable[[], Sequence[int]]) -> Iterator[Chunk]:
    """Cut `stream` into chunks of at most `max_samples`, none empty.

    `ends` gives, in samples of the stream, where each stretch of speech found so far ends, the one being read last.
    """
    at = 0
    held = stream.read(max_samples)
    while len(held):
        more = stream.read(1) if len(held) == max_samples else held[:0]
        if not len(more):
            yield Chunk(samples=held, start_s=at / SAMPLE_RATE)
            return
        last_third = len(held) - len(held) // 3
        known = ends()
        n_fitting = bisect.bisect_right(known[:-1], at + max_samples)
        last_pause = max(0, known[n_fitting - 1] - at) if n_fitting else 0  # the last stretch that ends in the chunk
        cut = last_pause or last_third + quietest(held[last_third:], _PAUSE_SAMPLES)
        yield Chunk(samples=held[:cut], start_s=at / SAMPLE_RATE)
        at += cut
        held = np.concatenate([held[cut:], more])
        held = np.concatenate([held, stream.read(max_samples - len(held))])


MIN_SILENCE_MS = 160  # faster-whisper's, of its speech detection in this mode
SILENCE = np.zeros(1, np.float32)


@dataclass
class Pieces:
    """What is to be transcribed, of so many seconds of audio as far as that is known, and of its speech.

    `source` and `speech` are None where the times need no translation.
    """

    chunks: Iterator[Chunk]
    held: HeldAudio
    source: AudioStream | None = None
    speech: SpeechAudio | None = None
    duration_s: float = 0.0
    speech_s: float = 0.0

    def beginning(self, n_samples: int) -> Any:
        """Samples to hear the language in: the first `n_samples` and what the last frame sees behind them."""
        samples = self.held.peek(n_samples + N_FFT)
        return samples if len(samples) else SILENCE


def piece_options(options: TranscribeOptions) -> TranscribeOptions:
    """What of `options` holds for a piece: nothing that looks at other pieces, and no second try."""
    return replace(
        options,
        temperature=options.temperature[:1],
        condition_on_previous_text=False,
        compression_ratio_threshold=None,
        log_prob_threshold=None,
        no_speech_threshold=None,
        hallucination_silence_threshold=None,
        prefix=None,
    )


def speech_pieces(source: AudioStream, vad: VadOptions, max_s: float) -> Pieces:
    """The speech of `source` in pieces of at most `max_s`, which is also the longest stretch of speech."""
    from .longform.vad_filter import SpeechAudio

    speech = SpeechAudio(source, replace(vad, max_speech_duration_s=max_s))
    held = HeldAudio(speech)
    duration_s = source.duration_s or 0.0
    chunks = speech_chunks(held, round(max_s * SAMPLE_RATE), lambda: speech.ends)
    return Pieces(chunks, held, source, speech, duration_s, duration_s)


@dataclass(eq=False)
class _Text:
    """A piece in work in a seat, or over: then `segments` returns what it says, or raises what went wrong."""

    chunk: Chunk
    transcription: Transcription
    seat: int
    segments: Callable[[], list[Segment]] | None = None


class PieceTranscription(Iterator[Segment]):
    """A lazy iterator of segments, with the attributes of a `Transcription`; times are those of the speech.

    `options`: from `piece_options`. `on_progress` is called with the seconds of audio done after each piece.
    """

    def __init__(
        self,
        engine: Engine,
        bundle: Bundle,
        pieces: Pieces,
        options: TranscribeOptions,
        *,
        batch_size: int,
        drafter: Drafter | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        self._engine, self._bundle, self._pieces, self._options = engine, bundle, pieces, options
        self._on_progress = on_progress
        n_own = options.best_of if options.temperature[0] > 0 else options.beam_size
        n_texts = n_own + (n_own > 1)  # of a piece; so many of all can share a pass
        # Seats of the pieces that are decoded together. Each has a drafter of its own, the first the given one.
        self._free = list(range(max(1, min(batch_size, engine.n_texts // n_texts))))
        self._drafters: dict[int, Drafter | None] = {0: drafter}
        self._guard = Guard(drafter)  # for what is learned
        # Made now for what it refuses: a language or task that the model does not have.
        first = Transcription(engine, bundle, open_audio(SILENCE), options, drafter=drafter)
        self.language = first.language
        self.language_probabilities: dict[str, float] = {}
        self.speculation: Speculation = first.speculation
        self.audio_context, self.encoder_provider = first.audio_context, first.encoder_provider
        self.drafter_error: str | None = None
        self.encoder_s = 0.0
        self._segments = self._run()

    def __next__(self) -> Segment:
        return next(self._segments)

    def close(self) -> None:
        """Stop early; the audio stream stays the caller's."""
        self._segments.close()

    def find_language(self) -> None:
        """Hear the language in the beginning of the speech, if it is not given, and not before the first segment."""
        if self.language is not None:
            return
        n_samples = self._options.language_detection_segments * self._bundle.manifest.n_samples
        heard = Transcription(self._engine, self._bundle, open_audio(self._pieces.beginning(n_samples)), self._options)
        heard.find_language()
        self.language, self.language_probabilities = heard.language, heard.language_probabilities
        self.encoder_s += heard.encoder_s
        self.audio_context.add(heard.audio_context)

    def _run(self) -> Generator[Segment, None, None]:
        self.find_language()
        self._options = replace(self._options, language=self.language)
        ids = itertools.count()
        with contextlib.ExitStack() as stack, contextlib.closing(Together[_Text, list[Segment]]()) as sharing:
            for text in self._in_order(sharing, stack):
                for segment in self._said(text):
                    segment.id = next(ids)
                    yield segment

    def _in_order(self, sharing: Together[_Text, list[Segment]], stack: contextlib.ExitStack) -> Iterator[_Text]:
        """The texts of the pieces, each as soon as it and those before are over. `sharing` has those in work.

        stack: closes the drafters that are made here.
        """
        texts = deque[_Text]()  # not yet given out
        failure: AudioError | None = None
        while True:
            while failure is None and self._free:
                n_wanted = len(self._free)
                new, failure = self._seated(stack)
                texts += new
                self._encode(new)
                for text in new:
                    self._over(sharing.add(text, text.transcription.steps()))
                if len(new) < n_wanted:
                    break
            while texts and texts[0].segments is not None:
                yield texts.popleft()
            if not len(sharing):
                break
            self._over(sharing.took(run(self._engine, sharing.wanted)))
        if failure is not None:
            raise failure

    def _seated(self, stack: contextlib.ExitStack) -> tuple[list[_Text], AudioError | None]:
        """The next pieces for the free seats, and why there are no more, if that is an error."""
        new: list[_Text] = []
        try:
            for chunk in itertools.islice(self._pieces.chunks, len(self._free)):
                seat = self._free.pop(0)
                if seat not in self._drafters:
                    guard = self._guard.another()
                    self._drafters[seat] = None if guard is None else guard.drafter
                    if guard is not None:
                        stack.callback(guard.close)
                stream, drafter = open_audio(chunk.samples), self._drafters[seat]
                said = Transcription(self._engine, self._bundle, stream, self._options, drafter=drafter, n_paths=1)
                new.append(_Text(chunk, said, seat))
        except AudioError as error:
            return new, error
        return new, None

    def _encode(self, texts: Sequence[_Text]) -> None:
        """Encode the windows of these, those of one length together."""
        heard: dict[tuple[int, bool], list[tuple[Transcription, NDArray[np.float32]]]] = {}
        for text in texts:
            if (sound := text.transcription.peek()) is not None:
                alike_as = sound.mel.shape[1], sound.ends_in_silence
                heard.setdefault(alike_as, []).append((text.transcription, sound.mel))
        encoding_since = time.perf_counter()
        for (_, ends_in_silence), alike in heard.items():
            for first in range(0, len(alike), self._engine.n_at_once):
                some = alike[first : first + self._engine.n_at_once]
                features = self._engine.encode_all([mel for _, mel in some], ends_in_silence=ends_in_silence)
                if not ends_in_silence:
                    self.encoder_provider = self._engine.encoder_provider
                for (said, _), one in zip(some, features, strict=True):
                    said.give(one)
        self.encoder_s += time.perf_counter() - encoding_since

    def _over(self, ended: Mapping[_Text, Future[list[Segment]]]) -> None:
        """Free the seats of texts that are over."""
        for text, result in ended.items():
            text.segments = result.result
            bisect.insort(self._free, text.seat)

    def _said(self, text: _Text) -> list[Segment]:
        """The segments of a text that is over, with times of the speech, to the millisecond as faster-whisper gives
        them. Raises what went wrong in it."""
        said = text.transcription
        self.encoder_s += said.encoder_s
        self.speculation = replace(
            self.speculation.plus(said.speculation),
            drafter=self.speculation.drafter,
            learning=self._guard.learning,
        )
        self.audio_context.add(said.audio_context)
        self.drafter_error = self.drafter_error or said.drafter_error
        segments, start_s = [] if text.segments is None else text.segments(), text.chunk.start_s
        for segment in segments:
            segment.seek += int(start_s * SAMPLE_RATE / HOP_SAMPLES)
            for one in (segment, *(segment.words or ())):
                one.start, one.end = round(one.start + start_s, 3), round(one.end + start_s, 3)
        if self._on_progress is not None:
            end_s = start_s + len(text.chunk.samples) / SAMPLE_RATE
            speech = self._pieces.speech
            self._on_progress(end_s if speech is None else speech.original_time(end_s, is_end=True))
        return segments


def _signature() -> inspect.Signature:
    """That of `WhisperModel.transcribe` with faster-whisper's differences for batched mode."""
    own = {"without_timestamps": True, "vad_filter": True, "clip_timestamps": None}
    parameters = []
    for parameter in inspect.signature(WhisperModel.transcribe).parameters.values():
        if parameter.name == "hotwords":
            parameters.append(parameter.replace(name="batch_size", default=BATCH_SIZE, annotation="int"))
        parameters.append(parameter.replace(default=own.get(parameter.name, parameter.default)))
    return inspect.Signature(parameters, return_annotation="tuple[Generator[Segment, None, None], TranscriptionInfo]")


class BatchedInferencePipeline:
    """A way of using `model` for long audio with pauses; see the module."""

    def __init__(self, model: WhisperModel) -> None:
        self.model = model

    def transcribe(
        self, audio: AudioSource | AudioStream, *arguments: Any, batch_size: int = BATCH_SIZE, **named: Any
    ) -> tuple[Generator[Segment, None, None], TranscriptionInfo]:
        """As `WhisperModel.transcribe`, with its arguments; `initial_prompt` goes before every piece.

        batch_size: the most pieces decoded together; it changes no text. without_timestamps and vad_filter are True by
        default. chunk_length: the longest piece, seconds, at most (and by default) the model's window. clip_timestamps:
        the pieces, [{"start": seconds, "end": seconds}, ...], instead of finding speech; the audio is then held in
        memory. Raises UsageError and AudioError at once.
        """
        bound = _SIGNATURE.bind(self, audio, *arguments, batch_size=batch_size, **named)
        bound.apply_defaults()
        given = bound.arguments
        if batch_size < 1:
            raise UsageError(f"batch_size: got {batch_size!r}, expected 1 or more")
        clips, chunk_length = given.pop("clip_timestamps"), given["chunk_length"]
        window_s = self.model.bundle.manifest.window_s
        max_s = window_s if chunk_length is None else chunk_length
        if not 0 < max_s <= window_s:
            raise UsageError(f"chunk_length: got {chunk_length!r}, expected up to {window_s:g} s, this model's window")
        options, asked, allow_inexact = taken(given, self.model.bundle.manifest.tokens)
        options, on_progress = piece_options(options), given["on_progress"]
        with contextlib.ExitStack() as stack:
            loan = stack.enter_context(lend_drafter(self.model, asked, options, allow_inexact=allow_inexact))
            pieces = self._pieces(stack, audio, max_s, clips, given["vad_parameters"] if given["vad_filter"] else False)
            name = "" if pieces.source is None else pieces.source.name
            if given["log_progress"]:
                on_progress = progress_bar(stack, pieces.duration_s or None, name, on_progress)
            found = None if pieces.speech is None else pieces.speech.options
            info = new_info(pieces.duration_s, options, found, loan.drafter)
            info.duration_after_vad = pieces.speech_s
            transcription = PieceTranscription(
                self.model.engine,
                self.model.bundle,
                pieces,
                options,
                batch_size=batch_size,
                drafter=loan.drafter,
                on_progress=on_progress,
            )
            said = cast(Transcription, transcription)
            call = TranscriptionRun(said, info, source=pieces.source, speech=pieces.speech)
            return self.model.hand_over(call, stack.pop_all(), on_sound_end=loan.keep)

    def _pieces(
        self,
        stack: contextlib.ExitStack,
        audio: AudioSource | AudioStream,
        max_s: float,
        clips: Sequence[Mapping[str, float]] | None,
        vad: Mapping[str, Any] | VadOptions | Literal[False] | None,
    ) -> Pieces:
        """What to transcribe: the clips, else the speech, else (`vad` False) all of it in one piece."""
        if clips:
            return _clipped(cast(AudioSource, audio), clips)
        source = opened(stack, audio)
        if vad is not False:
            # faster-whisper's defaults in this mode; the longest stretch of speech is always a piece.
            found = vad_options(vad, min_silence_duration_ms=MIN_SILENCE_MS, max_speech_duration_s=max_s)
            return speech_pieces(source, found, max_s)
        max_samples = round(max_s * SAMPLE_RATE)
        samples = source.read(max_samples + 1)
        if len(samples) > max_samples:
            raise UsageError(
                f"{source.name}: longer than a chunk ({max_s:g} s): leave vad_filter on, or give clip_timestamps"
            )
        chunk = Chunk(samples=samples, start_s=0.0)
        return Pieces(iter([chunk]), HeldAudio(open_audio(samples)), source, None, source.read_s, source.read_s)


_SIGNATURE = _signature()
BatchedInferencePipeline.transcribe.__signature__ = _SIGNATURE  # type: ignore[attr-defined]


def _clipped(audio: AudioSource, clips: Sequence[Mapping[str, float]]) -> Pieces:
    """One piece for each clip, which may overlap and need no order. Raises UsageError."""
    samples = decode_audio(audio)
    chunks = []
    for clip in clips:
        try:
            start_s, end_s = float(clip["start"]), float(clip["end"])
        except (TypeError, KeyError, ValueError):
            raise UsageError(f"clip_timestamps: got {clip!r}, expected {{'start': seconds, 'end': seconds}}") from None
        if not 0 <= start_s < end_s:
            raise UsageError(f"clip_timestamps: got {start_s:g} to {end_s:g} s, expected an end after the start")
        start = int(start_s * SAMPLE_RATE)
        if len(part := samples[start : int(end_s * SAMPLE_RATE)]):
            chunks.append(Chunk(samples=part, start_s=start / SAMPLE_RATE))
    joined = np.concatenate([np.zeros(0, np.float32), *(chunk.samples for chunk in chunks)])
    held = HeldAudio(open_audio(joined if len(joined) else SILENCE))
    return Pieces(iter(chunks), held, None, None, len(samples) / SAMPLE_RATE, len(joined) / SAMPLE_RATE)
