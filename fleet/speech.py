"""The speech of a file in pieces, and a long file's pieces in parts that workers can do apart.

Pieces are those of `transcribe --batch-size`: each is decoded by itself, so it does not matter who does it. Where
speech lies is found once, in the whole file; the times of segments are led back with the spans of all of it. So a file
that was split has the segments that it would have in one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..runtime.audio.audio import SAMPLE_RATE, AudioStream, HeldAudio, open_audio, take
from ..runtime.batched import MIN_SILENCE_MS, SILENCE, Chunk, Pieces, PieceTranscription, speech_pieces
from ..runtime.longform.vad_filter import SpeechAudio, SpeechMap
from ..runtime.model import WhisperModel, for_model, lend_drafter, vad_options
from ..runtime.options import drafter_named
from ..runtime.output.formats import plain, segment_fields
from .job import Job, Speech

_BLOCK_SAMPLES = 1 << 16


def find_speech(
    model: WhisperModel, job: Job, stream: AudioStream, audio_sha256: str
) -> tuple[Speech, list[Chunk] | None]:
    """Read the stream to its end: where its speech is, and the pieces themselves where they are one part.

    Memory holds the speech of one part at most.
    """
    window_s = model.bundle.manifest.window_s
    vad = vad_options(job.vad, min_silence_duration_ms=MIN_SILENCE_MS, max_speech_duration_s=window_s)
    pieces = speech_pieces(stream, vad, window_s)
    language, probability = _language(model, job, pieces)
    sizes: list[int] = []
    firsts, n_samples = [0], 0  # of the part that is being filled
    kept: list[Chunk] | None = []
    for chunk in pieces.chunks:
        if n_samples + len(chunk.samples) > job.shard_s * SAMPLE_RATE:
            firsts.append(len(sizes))
            n_samples, kept = 0, None
        sizes.append(len(chunk.samples))
        n_samples += sizes[-1]
        if kept is not None:
            kept.append(chunk)
    speech = Speech(
        audio_sha256=audio_sha256,
        language=language,
        language_probability=probability,
        duration_s=stream.read_s,
        spans=tuple(cast(SpeechAudio, pieces.speech).times.spans),
        sizes=tuple(sizes),
        firsts=tuple(firsts),
    )
    return speech, kept


def _language(model: WhisperModel, job: Job, pieces: Pieces) -> tuple[str, float]:
    options = for_model(job.options, model.bundle.manifest.tokens)
    if options.language is not None:
        return options.language, 1.0
    n_windows = options.language_detection_segments
    language, probability, _ = model.detect_language(
        pieces.beginning(n_windows * model.bundle.manifest.n_samples),
        language_detection_segments=n_windows,
        language_detection_threshold=options.language_detection_threshold,
    )
    return language, probability


def chunks_of(speech: Speech, stream: AudioStream, shard: int) -> Iterator[Chunk]:
    """The pieces of a part, read from the stream of the whole file, which must be at its beginning."""
    starts = [0, *accumulate(speech.sizes)]
    first, last = speech.firsts[shard], [*speech.firsts, len(speech.sizes)][shard + 1]
    blocks = _speech_from(stream, speech.spans, starts[first])
    waiting: list[NDArray[np.float32]] = []
    for number in range(first, last):
        while sum(map(len, waiting)) < speech.sizes[number]:
            waiting.append(next(blocks))
        yield Chunk(samples=take(waiting, speech.sizes[number]), start_s=starts[number] / SAMPLE_RATE)


def _speech_from(stream: AudioStream, spans: Sequence[tuple[int, int]], first: int) -> Iterator[NDArray[np.float32]]:
    """The spans put end to end, from the sample `first` of that on, span by span."""
    at = n_before = 0
    for start, end in spans:
        begin = start + max(0, first - n_before)
        n_before += end - start
        if begin < end:
            while at < begin:
                at += len(stream.read(min(_BLOCK_SAMPLES, begin - at)))
            yield stream.read(end - begin)
            at = end


def decoded(model: WhisperModel, job: Job, speech: Speech, chunks: Iterator[Chunk]) -> dict[str, Any]:
    """The segments of these pieces, whether their text is that of plain decoding, and on what they were decoded."""
    options = replace(for_model(job.options, model.bundle.manifest.tokens), language=speech.language)
    pieces = Pieces(chunks, HeldAudio(open_audio(SILENCE)), None, SpeechMap.of(speech.spans))
    with lend_drafter(model, drafter_named(job.drafter), options) as loan:
        call = PieceTranscription(
            model.engine, model.bundle, pieces, options, batch_size=job.batch_size, drafter=loan.drafter
        )
        segments = [plain(segment_fields(segment)) for segment in call]
        if call.drafter_error is None:
            loan.keep()
    return {"segments": segments, "lossless": call.speculation.lossless, "isa": job.isa}
