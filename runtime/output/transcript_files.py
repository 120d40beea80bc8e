"""The files of one transcript, a format each; where a transcription was stopped, never in the place of an older one.

An older file may be a whole transcript, and nothing in a txt says whether it is. So what a stopped transcription has is
written beside it, as NAME.partial.txt. Does not know: what is in the files, who reads them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from specedge.runtime.output.formats import KINDS, SubtitleOptions, Transcript, render, write_atomic

__all__ = ["kept_beside", "write_transcript"]


def write_transcript(
    paths: Mapping[str, Path], transcript: Transcript, subtitles: SubtitleOptions
) -> Mapping[str, Path]:
    """Write a file for each format and return their paths: `paths`, or others where those of an older one are kept.

    Raises ResourceError when one cannot be written, UsageError when it would replace what is no transcript.
    """
    if transcript.interrupted and any(map(os.path.lexists, paths.values())):
        paths = _beside(paths)
    for format, path in paths.items():
        write_atomic(path, render(format, transcript, subtitles), KINDS[format])
    return paths


def kept_beside(paths: Mapping[str, Path]) -> str:
    """What to say of files that were written beside older ones."""
    return f"what is done is in {', '.join(map(str, paths.values()))}; the older transcript is kept"


def _beside(paths: Mapping[str, Path]) -> Mapping[str, Path]:
    """Names that nothing has, the same in all formats."""
    mark, number = "partial", 1
    while True:
        free = {format: path.with_name(f"{path.stem}.{mark}{path.suffix}") for format, path in paths.items()}
        if not any(map(os.path.lexists, free.values())):
            return free
        number += 1
        mark = f"partial-{number}"
