"""Transcripts as text: txt and json, and the one way an output file is written.

JSON has openai-whisper's fields in its order and layout (`whisper/utils.py: WriteJSON`), plus `duration` and
`speculation`. Numbers: times to the millisecond, the rest to seven significant digits; what is no number is null.
Does not know: engines, audio, the terminal.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specedge.runtime.errors import ResourceError
from specedge.runtime.segments import Segment
from specedge.runtime.statistics import Speculation

__all__ = ["FORMATS", "Transcript", "segment_line", "speculation_fields", "to_json", "to_txt", "write_atomic"]


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """A finished transcription. `text` is the whole, decoded in one; `duration_s` that of the audio."""

    text: str
    segments: Sequence[Segment]
    language: str | None
    duration_s: float
    speculation: Mapping[str, Any] = field(default_factory=dict)


def segment_line(segment: Segment) -> str:
    """The line of txt output for one segment, newline included."""
    return segment.text.strip() + "\n"


def to_txt(transcript: Transcript) -> str:
    """One line for each segment."""
    return "".join(map(segment_line, transcript.segments))


def to_json(transcript: Transcript) -> str:
    """One line of JSON, newline included."""
    value = {
        "text": transcript.text,
        "segments": [_segment_fields(segment) for segment in transcript.segments],
        "language": transcript.language,
        "duration": _time(transcript.duration_s),
        "speculation": _plain(transcript.speculation),
    }
    return json.dumps(value, allow_nan=False) + "\n"


FORMATS = {"txt": to_txt, "json": to_json}


def speculation_fields(speculation: Speculation, *, encoder_s: float, total_s: float) -> dict[str, Any]:
    """The `speculation` object: counters, rates and times in seconds; `lossless` is true for exact acceptance."""
    return {
        "drafter": speculation.drafter,
        "proposed": speculation.proposed,
        "evaluated": speculation.evaluated,
        "accepted": speculation.accepted,
        "acceptance_rate": speculation.acceptance_rate,
        "passes": speculation.passes,
        "tokens": speculation.tokens,
        "tokens_per_pass": speculation.tokens_per_pass,
        "bonus": speculation.bonus,
        "encoder_s": _time(encoder_s),
        "decoder_s": _time(speculation.decoder_s),
        "draft_s": _time(speculation.draft_s),
        "total_s": _time(total_s),
        "verify_s": _time(speculation.verify_s),
        "rules_s": _time(speculation.rules_s),
        "acceptance_by_position": list(speculation.acceptance_by_position),
        "by_drafter": {name: asdict(counts) for name, counts in speculation.by_drafter.items()},
        "lossless": speculation.lossless,
    }


def write_atomic(path: str | os.PathLike[str], data: str | bytes) -> None:
    """Write a file so that it is the old one or the new one at any instant, whole (reliability 2).

    Temporary file in the same folder, fsync, rename, fsync of the folder. Text is UTF-8 with "\\n".
    Raises ResourceError when the disk is full, the folder is missing or may not be written; nothing is left behind.
    """
    target = Path(path)
    content = data.encode("utf-8", errors="replace") if isinstance(data, str) else data
    # Not tempfile: its files are readable by their owner alone, these follow the umask as any output does.
    temporary = target.parent / f".{target.name[:100]}.{secrets.token_hex(8)}.tmp"
    try:
        try:
            with open(temporary, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ResourceError(
            f"cannot write {target}: {reason}; free some space or choose another folder with -o"
        ) from error
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system lets a folder be opened."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _segment_fields(segment: Segment) -> dict[str, Any]:
    return {
        "id": segment.id,
        "seek": segment.seek,
        "start": _time(segment.start),
        "end": _time(segment.end),
        "text": segment.text,
        "tokens": segment.tokens,
        "temperature": _number(segment.temperature),
        "avg_logprob": _number(segment.avg_logprob),
        "compression_ratio": _number(segment.compression_ratio),
        "no_speech_prob": _number(segment.no_speech_prob),
    }


def _time(seconds: float) -> float | None:
    return round(seconds, 3) if math.isfinite(seconds) else None


def _number(value: float) -> float | None:
    return float(f"{value:.7g}") if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
