"""The files of an output folder: `results/NAME.json`, `texts/` for people, and `parts/` while long files are in work.

A result is a transcript as `transcribe -f json` writes it, with what it was made from and on. It holds no path and no
time of day, so its bytes are the same whoever makes it on machines of one kind. Texts are made from results, under the
names that the recordings have.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import PurePosixPath
from typing import Any

from specedge.version import __version__

from ..runtime.longform.segments import Segment, Word
from ..runtime.output.formats import STREAMED, SubtitleOptions
from .job import Job, Speech
from .places import Folder, Source


def result_file(name: str) -> str:
    """Where a result lies."""
    return f"results/{name}.json"


def result_bytes(job: Job, speech: Speech, parts: Sequence[dict[str, Any]]) -> bytes:
    """The result of a file, of all its parts, which `speech.decoded` made. Segments are counted through.

    Where parts were made on several instruction sets, the result names them all.
    """
    segments = [segment for one in parts for segment in one["segments"]]
    value = {
        "text": "".join(segment["text"] for segment in segments),
        "segments": [{**segment, "id": number} for number, segment in enumerate(segments)],
        "language": speech.language,
        "language_probability": round(speech.language_probability, 6),
        "duration": round(speech.duration_s, 3),
        "lossless": all(one["lossless"] for one in parts),
        "audio_sha256": speech.audio_sha256,
        "bundle": job.bundle,
        "encoder_provider": job.encoder,
        "options": job.text_options(),
        "isa": ", ".join(sorted({one["isa"] for one in parts})),
        "threads": job.threads,
        "onnxruntime": job.onnxruntime,
        "specedge": __version__,
    }
    return (json.dumps(value, allow_nan=False) + "\n").encode()


def join(folder: Folder, job: Job, speech: Speech) -> bool:
    """Write the result of a file whose parts are all there, and remove them; False where one is missing."""
    name = job.result_name(speech.audio_sha256)
    try:
        parts = [json.loads(folder.read(file)) for file in speech.part_files(name)]
    except FileNotFoundError:
        return folder.exists(result_file(name))
    folder.write(result_file(name), result_bytes(job, speech, parts))
    remove_parts(folder, name)
    return True


def remove_parts(folder: Folder, name: str) -> None:
    """Remove what a file's parts left, its result being there."""
    for one in folder.names("parts"):
        if one.startswith(f"{name}."):
            folder.remove(f"parts/{one}")


def text_stems(sources: Sequence[Source]) -> dict[str, str]:
    """The name in `texts/` of each source, by its path: that below its folder, without the extension.

    Where several would have one name they keep the extension, and then take as many parent folders as it needs.
    """
    stems: dict[str, str] = {}
    taken: set[str] = set()
    for source in sources:
        inside = PurePosixPath(source.inside)
        parents = PurePosixPath(source.place.replace("\\", "/")).parts[1:]
        longer = ("/".join(parents[-n:]) for n in range(len(inside.parts) + 1, len(parents) + 1))
        names = [inside.with_suffix("").as_posix(), inside.as_posix(), *longer, f"{len(taken)}-{inside.name}"]
        stems[source.path] = next(name for name in names if name.casefold() not in taken)
        taken.add(stems[source.path].casefold())
    return stems


def write_texts(folder: Folder, result: str, stem: str, formats: Sequence[str]) -> None:
    """Write a result as `texts/STEM.FORMAT`, where that does not lie there already. Raises ResourceError."""
    data = folder.read(result)
    known = {one.name for one in fields(Segment)}
    segments = []
    for given in json.loads(data)["segments"]:
        words = [Word(**word) for word in given["words"]] if given.get("words") is not None else None
        segments.append(Segment(**{name: given[name] for name in known & set(given)} | {"words": words}))
    for format in formats:
        text = data if format == "json" else "".join(STREAMED[format](segments, SubtitleOptions())).encode()
        name = f"texts/{stem}.{format}"
        if not folder.exists(name) or folder.read(name) != text:
            folder.write(name, text)
