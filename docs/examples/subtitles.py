"""Subtitles with word times: a line of at most five words, each shown while it is spoken.

python docs/examples/subtitles.py docs/examples/jfk.flac > recording.srt
"""

import sys
from itertools import count

from specedge import WhisperModel, format_timestamp

N_WORDS = 5


def subtitles(path: str) -> str:
    """The text of an SRT file."""
    segments, _ = WhisperModel("tiny.en").transcribe(path, word_timestamps=True, drafter="auto")
    number = count(1)
    blocks = []
    for segment in segments:
        spoken = segment.words or []
        for first in range(0, len(spoken), N_WORDS):
            words = spoken[first : first + N_WORDS]
            start, end = (format_timestamp(at_s, True, ",") for at_s in (words[0].start, words[-1].end))
            text = "".join(word.word for word in words).strip()
            blocks.append(f"{next(number)}\n{start} --> {end}\n{text}\n")
    return "\n".join(blocks)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(subtitles(sys.argv[1]))
