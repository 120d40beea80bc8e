"""Word times."""

import sys

from faster_whisper import WhisperModel

model = WhisperModel(sys.argv[1], device="cpu", compute_type="float32")

segments, _ = model.transcribe(sys.argv[2], word_timestamps=True, beam_size=1)

for segment in segments:
    for word in segment.words:
        print("[%.2fs -> %.2fs] %s" % (word.start, word.end, word.word))
