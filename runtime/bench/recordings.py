"""Recordings with their texts, to count errors in: folders with NAME.txt beside NAME.wav, and lists in .jsonl files."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specedge.errors import UsageError

from ..audio.audio import expand_folders
from ..console import notify
from ..text.special import find_language
from ..text.transcripts import read_sentences


@dataclass(frozen=True, kw_only=True)
class Recording:
    """file: the audio; text: what is said, "" where nobody wrote it down; language: its code, None if it is to be
    detected."""

    file: str
    text: str = ""
    language: str | None = None


def read_recordings(sources: Sequence[str], language: str | None = None) -> list[Recording]:
    """The recordings of `sources`: audio files, folders of them, and .jsonl files, in their order.

    A text lies beside its audio under the same name with .txt, or in a .jsonl file in the folder. A line of such a file
    is an object with `audio`, a path from the file's folder, and perhaps `text` and `language`. language: of recordings
    that have none of their own. Raises UsageError, AudioError for a folder without audio.
    """
    found: list[Recording] = []
    for source in sources:
        lists = [source] if source.endswith(".jsonl") else sorted(map(str, Path(source).glob("*.jsonl")))
        listed = [one for path in lists for one in _of_list(Path(path), language)]
        known = {os.path.realpath(one.file) for one in listed}
        files = [] if source in lists else expand_folders([source], notify=notify)
        found += listed
        for file in files:
            if os.path.realpath(file) not in known:
                text = Path(file).with_suffix(".txt")
                said = " ".join(read_sentences([str(text)])) if text.is_file() else ""
                found.append(Recording(file=file, text=said, language=language))
    return found


def _of_list(path: Path, language: str | None) -> list[Recording]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{where}: this is no JSON: {error}") from None
        row = row if isinstance(row, dict) else {}
        audio, text, spoken = row.get("audio"), row.get("text", ""), row.get("language", language)
        if not isinstance(audio, str) or not isinstance(text, str) or not isinstance(spoken, str | None):
            raise UsageError(f"{where}: expected audio, and perhaps text and language, each a string")
        spoken = None if spoken is None else find_language(spoken)
        found.append(Recording(file=str(path.parent / audio), text=text, language=spoken))
    return found
