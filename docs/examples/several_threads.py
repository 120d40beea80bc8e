"""Several recordings at a time with one model: windows share passes, and each text is the one it would be alone.

python docs/examples/several_threads.py first.wav second.wav
"""

import sys
from concurrent.futures import ThreadPoolExecutor

from specedge import SpecedgeError, WhisperModel


def text_of(model: WhisperModel, path: str) -> str:
    """The text of one file, or why there is none."""
    try:
        segments, info = model.transcribe(path, drafter="auto")
        text = "".join(segment.text for segment in segments).strip()
    except SpecedgeError as error:
        return f"{path}: error: {error}"
    return f"{path} ({info.duration:.1f} s, {info.language}): {text}"


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    shared = WhisperModel("tiny.en")
    with ThreadPoolExecutor(max_workers=4) as threads:
        for line in threads.map(lambda path: text_of(shared, path), sys.argv[1:]):
            print(line)
