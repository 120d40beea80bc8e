"""The speech of a file in pieces, and a long file's pieces in parts that workers can do apart.

Pieces are those of `transcribe --batch-size`: each is decoded by itself, so it does not matter who does it. Where
speech lies is found once, in the whole file; the times of segments are led back with the spans of all of it. So a file
that was split has the segments that it would have in one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ..runtime.audio.audio import SAMPLE_RATE, AudioStream, HeldAudio, open_audio
from ..runtime.batched import MIN_SILENCE_MS, SILENCE, Chunk, Pieces, PieceTranscription, speech_pieces
from ..runtime.longform.segments import Segment
from ..runtime.longform.vad_filter import SpeechAudio, SpeechMap
from ..runtime.model import WhisperModel, for_model, lend_drafter, vad_options
from ..runtime.options import drafter_named
from .job import Job

_BLOCK_SAMPLES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Speech:
    """Where the speech of a file lies.

    audio_sha256: of the file's bytes; spans: (start, end) in samples of the audio at 16 kHz; sizes: samples of each
    piece, end to end in the speech; firsts: the first piece of each part.
    """

    audio_sha256: str
    language: str
    language_probability: float
    duration_s: float
    spans: tuple[tuple[int, int], ...]
    sizes: tuple[int, ...]
    firsts: tuple[int, ...]

    def to_json(self) -> bytes:
        """All of it."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Speech:
        value = json.loads(data)
        spans = tuple((int(start), int(end)) for start, end in value.pop("spans"))
        return cls(**{**value, "spans": spans, "sizes": tuple(value["sizes"]), "firsts": tuple(value["firsts"])})


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
    limit = round(job.shard_s * SAMPLE_RATE)
    sizes: list[int] = []
    kept: list[Chunk] | None = []
    for chunk in pieces.chunks:
        sizes.append(len(chunk.samples))
        if sum(sizes) > limit:
            kept = None
        elif kept is not None:
            kept.append(chunk)
    speech = Speech(
        audio_sha256=audio_sha256,
        language=language,
        language_probability=probability,
        duration_s=stream.read_s,
        spans=tuple(cast(SpeechAudio, pieces.speech).times.spans),
        sizes=tuple(sizes),
        firsts=_firsts(sizes, -(-sum(sizes) // limit)),
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


def _firsts(sizes: list[int], n_parts: int) -> tuple[int, ...]:
    """The first piece of each of so many parts of about one length."""
    starts = [0, *accumulate(sizes)][:-1]
    wanted = (sum(sizes) * part / max(1, n_parts) for part in range(n_parts))
    firsts = {next((i for i, start in enumerate(starts) if start >= at), 0) for at in wanted}
    return tuple(sorted(firsts | {0}))


def chunks_of(speech: Speech, stream: AudioStream, shard: int) -> Iterator[Chunk]:
    """The pieces of a part, read from the stream of the whole file, which must be at its beginning."""
    starts = [0, *accumulate(speech.sizes)]
    first, last = speech.firsts[shard], [*speech.firsts, len(speech.sizes)][shard + 1]
    blocks = _joined(stream, speech.spans, starts[first], starts[last])
    held = np.zeros(0, np.float32)
    for number in range(first, last):
        size = speech.sizes[number]
        while len(held) < size:
            held = np.concatenate([held, next(blocks)])
        yield Chunk(samples=held[:size], start_s=starts[number] / SAMPLE_RATE)
        held = held[size:]


def _joined(
    stream: AudioStream, spans: Sequence[tuple[int, int]], first: int, last: int
) -> Iterator[NDArray[np.float32]]:
    """The samples `first` to `last` of the spans put end to end, span by span."""
    at = n_before = 0
    for start, end in spans:
        begin, stop = start + max(0, first - n_before), min(end, start + last - n_before)
        n_before += end - start
        if begin < stop:
            while at < begin:
                at += len(stream.read(min(_BLOCK_SAMPLES, begin - at)))
            yield stream.read(stop - begin)
            at = stop


def decoded(model: WhisperModel, job: Job, speech: Speech, chunks: Iterator[Chunk]) -> tuple[list[Segment], bool]:
    """The segments of these pieces, and whether their text is that of plain decoding."""
    options = replace(for_model(job.options, model.bundle.manifest.tokens), language=speech.language)
    pieces = Pieces(chunks, HeldAudio(open_audio(SILENCE)), None, SpeechMap.of(speech.spans))
    with lend_drafter(model, drafter_named(job.drafter), options) as loan:
        call = PieceTranscription(
            model.engine, model.bundle, pieces, options, batch_size=job.batch_size, drafter=loan.drafter
        )
        segments = list(call)
        if call.drafter_error is None:
            loan.keep()
    return segments, call.speculation.lossless
