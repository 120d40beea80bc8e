"""What a program can know of each segment, as JSON."""

import dataclasses
import json
import sys

from faster_whisper import WhisperModel

model = WhisperModel(sys.argv[1], "cpu", 0, "float32", 1)
segments, info = model.transcribe(sys.argv[2], "en", "transcribe", False, 1, temperature=0.0)
for segment in list(segments):
    print(json.dumps(dataclasses.asdict(segment)))
print(json.dumps({"duration": info.duration, "duration_after_vad": info.duration_after_vad}))
