"""whisperX's own load_model, by name and with a model given. Its voice activity is replaced: all is speech."""

import sys
import types

EMPTY = ("pyannote.audio.core.io", "pyannote.audio.pipelines.utils", "pyannote.core", "pyannote.metrics", "ctranslate2")


class _Anything(types.ModuleType):
    __path__: list = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


for name in EMPTY:
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:length]), _Anything(".".join(parts[:length])))

import faster_whisper  # noqa: E402
from whisperx.asr import load_model  # noqa: E402
from whisperx.vads import Vad  # noqa: E402


class Whole(Vad):
    def __init__(self):
        super().__init__(0.5)

    def __call__(self, audio, **_):
        return [types.SimpleNamespace(start=0.0, end=audio["waveform"].shape[-1] / 16_000, speaker="A")]

    @staticmethod
    def preprocess_audio(audio):
        return audio

    @staticmethod
    def merge_chunks(segments, chunk_size, onset=0.5, offset=None):
        return [{"start": s.start, "end": s.end, "segments": [(s.start, s.end)]} for s in segments]


samples = faster_whisper.decode_audio(sys.argv[1])
for given in (None, faster_whisper.WhisperModel("base")):
    for language, batch_size in (("en", None), (None, 4)):
        pipeline = load_model("base", "cpu", vad_model=Whole(), model=given, language=language)
        (segment,) = pipeline.transcribe(samples, batch_size=batch_size)["segments"]
        print("text:", segment["text"].strip())
