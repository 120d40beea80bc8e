"""Speech alone, in independent pieces of at most one window: what batched mode decodes, for programs and the command.

Pauses are left out, what remains is cut into pieces, and each is transcribed by itself, without the text before it, at
the first temperature only and with no test of the result, as faster-whisper's batched mode does. Up to `batch_size`
pieces are read and encoded together, fewer where features are large (`Engine.n_at_once`), those of one length in one
pass where windows are cut (audio_context.py); then each is decoded by itself. An error while reading comes after the
texts of the pieces before it.
Does not know: arguments of programs, how speech is found, how a window is decoded, which windows share a pass.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.bundles.bundle import Bundle
from specedge.runtime.bundles.manifest import HOP_SAMPLES, N_FFT
from specedge.runtime.decoding.decode import Speculation
from specedge.runtime.drafters import Drafter
from specedge.runtime.errors import AudioError
from specedge.runtime.longform.options import TranscribeOptions
from specedge.runtime.longform.segments import Segment
from specedge.runtime.longform.transcribe import SpeechEngine, Transcription, transcribe
from specedge.runtime.sound.audio import SAMPLE_RATE, AudioStream, open_audio
from specedge.runtime.sound.held_audio import HeldAudio
from specedge.runtime.speech.speech_chunks import Chunk, speech_chunks
from specedge.runtime.speech.vad_spans import VadOptions

if TYPE_CHECKING:
    from specedge.runtime.speech.speech_audio import SpeechAudio

__all__ = ["BATCH_SIZE", "MIN_SILENCE_MS", "SILENCE", "PieceTranscription", "Pieces", "piece_options", "speech_pieces"]

BATCH_SIZE = 8  # faster-whisper's default
MIN_SILENCE_MS = 160  # and of its speech detection in this mode
SILENCE = np.zeros(1, np.float32)


@dataclass
class Pieces:
    """What is to be transcribed. `source` and `speech` are None where the times need no translation."""

    chunks: Iterator[Chunk]
    held: HeldAudio
    source: AudioStream | None = None
    speech: SpeechAudio | None = None

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
    from specedge.runtime.speech.speech_audio import SpeechAudio

    speech = SpeechAudio(source, replace(vad, max_speech_duration_s=max_s))
    held = HeldAudio(speech)
    return Pieces(speech_chunks(held, round(max_s * SAMPLE_RATE), lambda: _ends(speech)), held, source, speech)


class PieceTranscription(Iterator[Segment]):
    """A lazy iterator of segments, with the attributes of a `Transcription`; times are those of the original audio.

    `options`: from `piece_options`. `on_progress` is called with the seconds of audio done after each piece;
    `give_up` after each, too, so that other texts get their turn. total_s: time in reading, encoding and decoding.
    """

    def __init__(
        self,
        engine: SpeechEngine,
        bundle: Bundle,
        pieces: Pieces,
        options: TranscribeOptions,
        *,
        batch_size: int,
        drafter: Drafter | None = None,
        on_progress: Callable[[float], None] | None = None,
        give_up: Callable[[], None] | None = None,
    ) -> None:
        self._engine, self._bundle, self._pieces, self._options = engine, bundle, pieces, options
        self._drafter, self._on_progress, self._give_up = drafter, on_progress, give_up
        self._n_at_once = min(batch_size, engine.n_at_once)
        # Made now for what it refuses: a language or task that the model does not have.
        first = transcribe(engine, bundle, open_audio(SILENCE), options, drafter=drafter)
        self.language = first.language
        self.language_probabilities: dict[str, float] = {}
        self.speculation: Speculation = first.speculation
        self.audio_context = first.audio_context
        self.drafter_error: str | None = None
        self.duration_s = self.encoder_s = self.total_s = 0.0
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
        heard = transcribe(self._engine, self._bundle, open_audio(self._pieces.beginning(n_samples)), self._options)
        heard.find_language()
        self.language, self.language_probabilities = heard.language, heard.language_probabilities
        self.encoder_s += heard.encoder_s
        self.audio_context.add(heard.audio_context)

    def _run(self) -> Generator[Segment, None, None]:
        self.find_language()
        self._options = replace(self._options, language=self.language)
        n_segments = 0
        for chunk, transcription in self._encoded():
            for segment in self._decoded(chunk, transcription):
                yield replace(self._placed(segment, chunk), id=n_segments)
                n_segments += 1
        self._update_duration(0.0)

    def _encoded(self) -> Iterator[tuple[Chunk, Transcription]]:
        """The pieces, each with its window encoded."""
        failure: AudioError | None = None
        while failure is None:
            chunks: list[Chunk] = []
            try:
                for chunk in itertools.islice(self._pieces.chunks, self._n_at_once):
                    chunks.append(chunk)
            except AudioError as error:
                failure = error
            if not chunks and failure is None:
                return
            yield from self._together(chunks)
        raise failure

    def _together(self, chunks: Sequence[Chunk]) -> list[tuple[Chunk, Transcription]]:
        started = time.perf_counter()
        texts = [
            (
                chunk,
                transcribe(self._engine, self._bundle, open_audio(chunk.samples), self._options, drafter=self._drafter),
            )
            for chunk in chunks
        ]
        heard: dict[int, list[tuple[Transcription, NDArray[np.float32]]]] = {}  # by length: one of each in a pass
        for _, text in texts:
            if (mel := text.peek()) is not None:
                heard.setdefault(mel.shape[1], []).append((text, mel))
        encoding_since = time.perf_counter()
        for alike in heard.values():
            features = self._engine.encode_all([mel for _, mel in alike])
            for (text, _), one in zip(alike, features, strict=True):
                text.give(one)
        now = time.perf_counter()
        self.encoder_s += now - encoding_since
        self.total_s += now - started
        return texts

    def _decoded(self, chunk: Chunk, transcription: Transcription) -> list[Segment]:
        started = time.perf_counter()
        try:
            segments = list(transcription)
        finally:
            if self._give_up is not None:
                self._give_up()
        self.total_s += time.perf_counter() - started
        self.encoder_s += transcription.encoder_s
        self.speculation = self.speculation.plus(transcription.speculation)
        self.audio_context.add(transcription.audio_context)
        self.drafter_error = self.drafter_error or transcription.drafter_error
        end_s = chunk.start_s + len(chunk.samples) / SAMPLE_RATE
        speech = self._pieces.speech
        done_s = end_s if speech is None else speech.original_time(end_s, is_end=True)
        self._update_duration(done_s)
        if self._on_progress is not None:
            self._on_progress(done_s)
        return segments

    def _placed(self, segment: Segment, chunk: Chunk) -> Segment:
        """`segment` of the chunk at its place in the audio, times to the millisecond as faster-whisper gives them."""
        placed = replace(
            segment,
            seek=segment.seek + int(chunk.start_s * SAMPLE_RATE / HOP_SAMPLES),
            start=round(segment.start + chunk.start_s, 3),
            end=round(segment.end + chunk.start_s, 3),
            words=None
            if segment.words is None
            else [
                replace(word, start=round(word.start + chunk.start_s, 3), end=round(word.end + chunk.start_s, 3))
                for word in segment.words
            ],
        )
        return placed if self._pieces.speech is None else self._pieces.speech.restored(placed)

    def _update_duration(self, done_s: float) -> None:
        source = self._pieces.source
        known_s = None if source is None else source.read_s if source.is_ended else source.duration_s
        self.duration_s = known_s if known_s is not None else max(self.duration_s, done_s)


def _ends(speech: SpeechAudio) -> list[int]:
    """Where each stretch of speech found so far ends, in samples of the speech."""
    return list(accumulate(end - start for start, end in speech.times.spans))
