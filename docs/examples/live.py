"""Live text from audio that arrives block by block: confirmed text is final, tentative text may still change.

    python docs/examples/live.py docs/examples/jfk.flac

A file stands in for the microphone here; `specedge listen` uses a real one.
"""

import sys

from specedge import WhisperModel, decode_audio

BLOCK = 8000  # samples, half a second at 16 kHz

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    samples = decode_audio(sys.argv[1])
    blocks = (samples[at : at + BLOCK] for at in range(0, len(samples), BLOCK))
    for update in WhisperModel("tiny.en").stream(blocks, language="en"):
        print(f"{update.start_s:5.1f} s  confirmed: {update.confirmed!r}  tentative: {update.tentative!r}")
