"""Ask wyoming-faster-whisper over its standard input and output: what it knows, a recording, and nothing at all."""

import subprocess
import sys

from faster_whisper import decode_audio
from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.event import read_event, write_event
from wyoming.info import Describe, Info

recording, folder = sys.argv[1:]
command = [sys.executable, "-m", "wyoming_faster_whisper", "--model", "base", "--uri", "stdio://", "--data-dir", folder]
command += ["--language", "en", "--device", "cpu", "--stt-library", "faster-whisper"]


def ask(server, audio):
    def tell(event):
        write_event(event.event(), server.stdin)
        server.stdin.flush()

    def hear(kind):
        while (event := read_event(server.stdout)) is not None:
            if kind.is_type(event.type):
                return kind.from_event(event)
        raise SystemExit("the server ended")

    tell(Describe())
    print("languages:", len(hear(Info).asr[0].models[0].languages))
    tell(Transcribe(language="en"))
    tell(AudioStart(rate=16_000, width=2, channels=1))
    if audio:
        tell(AudioChunk(rate=16_000, width=2, channels=1, audio=audio))
    tell(AudioStop())
    print("text:", hear(Transcript).text.strip())


pcm = (decode_audio(recording) * 32767).astype("<i2").tobytes()
for audio in (pcm, b""):  # a server ends with its connection
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        ask(server, audio)
        server.terminate()
