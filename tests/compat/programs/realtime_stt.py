"""RealtimeSTT's engine for faster-whisper, one by one and batched, with and without voice activity."""

import sys

from faster_whisper import decode_audio
from RealtimeSTT.transcription_engines.base import TranscriptionEngineConfig
from RealtimeSTT.transcription_engines.faster_whisper_engine import FasterWhisperEngine

samples = decode_audio(sys.argv[1])
for batch_size in (0, 16):
    for vad_filter in (True, False):
        config = TranscriptionEngineConfig(  # suppressed tokens as its recorder sets them
            model="base", batch_size=batch_size, vad_filter=vad_filter, suppress_tokens=[-1]
        )
        found = FasterWhisperEngine(config).transcribe(samples, language="en", word_timestamps=True)
        assert len(found.metadata["words"]) == 22, found
        print("text:", found.text)
