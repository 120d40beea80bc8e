"""Segments that are changed before they are written, as dictionaries."""

import sys

from faster_whisper import WhisperModel

model = WhisperModel(sys.argv[1], device="cpu", compute_type="float32")
segments, info = model.transcribe(sys.argv[2], language="en", beam_size=1, temperature=0, word_timestamps=True)

for segment in segments:
    segment.text = segment.text.strip()
    segment.start += 60
    for word in segment.words:
        word.word = word.word.upper()
    fields = segment._asdict()
    print(int(fields["start"]), fields["text"], [word["word"] for word in fields["words"]])
