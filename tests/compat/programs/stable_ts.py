"""stable-ts on real base: transcribe, align, align_words, refine. It gets samples, as there is no ffmpeg."""

import json
import sys

import stable_whisper
from faster_whisper import decode_audio

samples = decode_audio(sys.argv[1])
model = stable_whisper.load_faster_whisper("base")
said = model.transcribe(samples, verbose=None)
aligned = model.align(samples, said.text, language="en", verbose=None)
words = model.align_words(samples, said, verbose=None)
refined = model.refine(samples, said, verbose=None)
for result in (said, aligned, words, refined):
    print(json.dumps([[word.word, float(word.start), float(word.end)] for word in result.all_words()]))
