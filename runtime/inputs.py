"""Which files `specedge transcribe` reads and writes: folders searched for audio, and the name of each output.

A folder stands for the audio files in it and below, in the order of their paths. Audio is what has the extension of a
sound or video file, or begins as one whatever it is called; hidden files and folders are passed over. An output is
named as openai-whisper names it: the input's name without its extension, in one folder.
Does not know: how audio is decoded, what a transcript looks like, the terminal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from specedge.maps.outputs import check_output, identities
from specedge.runtime.errors import AudioError, ResourceError, UsageError
from specedge.runtime.output.formats import KINDS
from specedge.runtime.sound.signatures import HEAD_BYTES, begins_as_media

__all__ = ["STDIN", "expand_folders", "output_paths"]

STDIN = "-"

_EXTENSIONS = frozenset(
    ".3gp .aac .aif .aifc .aiff .alac .amr .ape .au .avi .caf .flac .flv .m2ts .m4a .m4b .m4v .mka .mkv .mov .mp2 .mp3"
    " .mp4 .mpeg .mpg .mts .oga .ogg .ogv .opus .ra .rf64 .snd .spx .w64 .wav .wave .webm .wma .wmv".split()
)


def expand_folders(
    names: Sequence[str], *, notify: Callable[[str], None], report: Callable[[Exception], None]
) -> list[str]:
    """`names` with every folder replaced by the audio files in it.

    `notify` is told how many each folder holds; `report` gets the AudioError of a folder that holds none or cannot be
    read. Raises that error when the folder is the only name.
    """
    files: list[str] = []
    for name in names:
        if name == STDIN or not os.path.isdir(name):
            files.append(name)
            continue
        try:
            found = list(_audio_files(name))
            if not found:
                raise AudioError(f"{name}: no audio file is in this folder")
        except AudioError as error:
            if len(names) == 1:
                raise
            report(error)
            continue
        notify(f"{name}: {len(found)} audio file{'s' if len(found) > 1 else ''}")
        files += found
    return files


def output_paths(sources: Sequence[str], folder: Path | None, formats: Sequence[str]) -> list[Mapping[str, Path]]:
    """For each source the output file of each format, none where `folder` is None: standard output. Makes the folder.

    Raises UsageError when two inputs would share an output, an output would replace an input or a file that is no
    transcript in its format, or standard input is named twice; ResourceError when the folder cannot be made.
    """
    if list(sources).count(STDIN) > 1:
        raise UsageError("'-' is given twice: standard input can be read once")
    if folder is None:
        return [{} for _ in sources]
    taken: dict[str, str] = {}
    targets: list[Mapping[str, Path]] = []
    for source in sources:
        stem = "stdin" if source == STDIN else Path(source).stem
        paths: Mapping[str, Path] = {format: folder / f"{stem}.{format}" for format in formats}
        first = paths[formats[0]]
        other = taken.setdefault(stem.casefold(), source)  # one file on macOS and Windows
        if len(taken) == len(targets):
            raise UsageError(
                f"{other} and {source} would both be written to {first}: rename one, or use two runs with different -o"
            )
        targets.append(paths)
    inputs = identities(source for source in sources if source != STDIN)
    for paths in targets:
        for format, path in paths.items():
            check_output(path, KINDS[format], inputs=inputs)
    _make_folder(folder)
    return targets


def _audio_files(folder: str) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise AudioError(f"{error.filename or folder}: cannot be read: {error.strerror or error}") from None

    paths = []
    for place, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [Path(place, name) for name in files if not name.startswith(".")]
    for path in sorted(paths):
        if path.is_file() and _is_audio(path):
            yield str(path)


def _is_audio(path: Path) -> bool:
    if path.suffix.lower() in _EXTENSIONS:
        return True
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return False
    return begins_as_media(head)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"-o {folder}: this is a file, expected a folder") from None
    except OSError as error:
        raise ResourceError(f"cannot make the folder {folder}: {error.strerror or error}; choose another -o") from None
