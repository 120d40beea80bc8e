"""Silence left out."""

import sys

from faster_whisper import WhisperModel

model = WhisperModel(sys.argv[1], device="cpu", compute_type="float32")

segments, info = model.transcribe(
    sys.argv[2],
    beam_size=1,
    vad_filter=True,
    vad_parameters=dict(min_silence_duration_ms=500),
)

segments = list(segments)
for segment in segments:
    print("[%.2fs -> %.2fs] %s" % (segment.start, segment.end, segment.text))
