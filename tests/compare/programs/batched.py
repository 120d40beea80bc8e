"""The batched mode, one piece for each stretch of speech."""

import sys

from faster_whisper import BatchedInferencePipeline, WhisperModel

model = WhisperModel(sys.argv[1], device="cpu", compute_type="float32")
batched_model = BatchedInferencePipeline(model=model)
clips = [{"start": 0.0, "end": 3.0}, {"start": 6.8, "end": 9.8}, {"start": 13.5, "end": 17.0}]
segments, info = batched_model.transcribe(sys.argv[2], batch_size=16, beam_size=1, clip_timestamps=clips)

for segment in segments:
    print("[%.2fs -> %.2fs] %s" % (segment.start, segment.end, segment.text))
