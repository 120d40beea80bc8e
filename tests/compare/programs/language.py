"""The language alone, and the samples of a file."""

import sys

from faster_whisper import WhisperModel, decode_audio, format_timestamp

model = WhisperModel(sys.argv[1], device="cpu", compute_type="float32")
audio = decode_audio(sys.argv[2], sampling_rate=16000)
language, probability, everything = model.detect_language(audio)
print(language, round(probability, 3), len(everything), everything[0][0] == language)
print(format_timestamp(len(audio) / 16000), audio.dtype, "en" in model.supported_languages)
