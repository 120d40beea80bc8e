"""A file object that is closed before the segments are read, a prompt, and a clip."""

import sys

from faster_whisper import WhisperModel

model = WhisperModel(sys.argv[1], device="cpu", compute_type="float32")
with open(sys.argv[2], "rb") as file:
    segments, info = model.transcribe(
        file,
        language="en",
        beam_size=1,
        temperature=[0.0],
        initial_prompt="Maintenance log.",
        condition_on_previous_text=False,
        clip_timestamps="0,10",
    )
for segment in segments:
    print("%d [%.2fs -> %.2fs] %s" % (segment.id, segment.start, segment.end, segment.text))
