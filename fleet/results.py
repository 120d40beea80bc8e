"""The files of an output folder: `results/NAME.json`, and for as long as a long file is in work `parts/NAME...`.

A result is a transcript as `transcribe -f json` writes it, with what it was made from and on. It holds no path and no
time of day, so its bytes are the same whoever makes it on machines of one kind.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specedge.version import __version__

from ..runtime.longform.segments import Segment
from ..runtime.output.formats import plain, segment_fields
from .job import Job
from .places import Folder
from .speech import Speech

__all__ = ["join", "part", "part_file", "plan_file", "remove_parts", "result_bytes", "result_file", "write_part"]

_Part = dict[str, Any]


def result_file(name: str) -> str:
    return f"results/{name}.json"


def plan_file(name: str) -> str:
    """Where the speech of a long file lies."""
    return f"parts/{name}.speech.json"


def part_file(name: str, shard: int, n_shards: int) -> str:
    return f"parts/{name}.{shard}-{n_shards}.json"


def part(segments: Sequence[Segment], lossless: bool) -> _Part:
    """The segments of a whole file, or of a part of one."""
    return {"segments": [plain(segment_fields(segment)) for segment in segments], "lossless": lossless}


def result_bytes(job: Job, speech: Speech, parts: Sequence[_Part]) -> bytes:
    """The result of a file. Segments are counted through."""
    segments = [
        {**segment, "id": number} for number, segment in enumerate(one for some in parts for one in some["segments"])
    ]
    value = {
        "text": "".join(segment["text"] for segment in segments),
        "segments": segments,
        "language": speech.language,
        "language_probability": round(speech.language_probability, 6),
        "duration": round(speech.duration_s, 3),
        "lossless": all(some["lossless"] for some in parts),
        "audio_sha256": speech.audio_sha256,
        "bundle": job.bundle,
        "encoder_provider": job.encoder,
        "options": job.text_options(),
        "isa": job.isa,
        "threads": job.threads,
        "onnxruntime": job.onnxruntime,
        "specedge": __version__,
    }
    return (json.dumps(value, allow_nan=False) + "\n").encode()


def write_part(folder: Folder, name: str, shard: int, n_shards: int, made: _Part, *, isa: str) -> None:
    """Keep what a part says. Raises ResourceError."""
    folder.write(part_file(name, shard, n_shards), json.dumps({**made, "isa": isa}, allow_nan=False).encode())


def join(folder: Folder, job: Job, name: str) -> bool:
    """Write the result of a file whose parts are all there, and remove them; False where one is missing.

    Where parts were made on several instruction sets, the result names them all.
    """
    try:
        speech = Speech.from_json(folder.read(plan_file(name)))
        n_shards = len(speech.firsts)
        parts = [json.loads(folder.read(part_file(name, shard, n_shards))) for shard in range(n_shards)]
    except FileNotFoundError:
        return folder.exists(result_file(name))
    isas = ", ".join(sorted({one["isa"] for one in parts}))
    folder.write(result_file(name), result_bytes(replace(job, isa=isas), speech, parts))
    remove_parts(folder, name)
    return True


def remove_parts(folder: Folder, name: str) -> None:
    """Remove what a file's parts left, its result being there."""
    for one in folder.names("parts"):
        if one.startswith(f"{name}."):
            folder.remove(f"parts/{one}")
