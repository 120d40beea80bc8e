"""Where `specedge transcribe -o DIR` writes the text of each input.

A file is named as openai-whisper names it: the input's name without its extension, in DIR. Files of a folder that was
given keep their sub-folders below it. Where two inputs would still share a name, those take the fewest parent folders
that tell them apart (a/talk.wav and b/talk.wav: DIR/a/talk.txt and DIR/b/talk.txt), and files of one folder that differ
in their extension keep it (talk.wav and talk.mp3: DIR/talk.wav.txt and DIR/talk.mp3.txt). A name that ends like a file
of the format, and is no folder, is the file of the one input: `-f srt -o talk.srt`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specedge.errors import ResourceError, UsageError
from specedge.files import check_output, identities

from ..audio.audio import STDIN
from ..output.formats import KINDS


@dataclass
class _Name:
    """The name of an output: `stem` below the last `depth` of the input's `folders`."""

    source: str
    folders: tuple[str, ...]
    stem: str
    depth: int = 0

    @property
    def path(self) -> Path:
        return Path(*self.folders[len(self.folders) - self.depth :], self.stem)

    @property
    def key(self) -> str:
        return str(self.path).casefold()  # one file on macOS and Windows


def output_paths(
    sources: Sequence[str], folder: Path | None, formats: Sequence[str], given: Sequence[str] = ()
) -> list[Mapping[str, Path]]:
    """For each source the output file of each format, none where `folder` is None: standard output. Makes the folders.

    given: what the user named, the folders of sources among it. Raises UsageError when two inputs would share an
    output, an output would replace an input or a file that is no transcript in its format, or standard input is named
    twice, or a file's name is given for several; ResourceError when a folder cannot be made.
    """
    if list(sources).count(STDIN) > 1:
        raise UsageError("'-' is given twice: standard input can be read once")
    if folder is None:
        return [{} for _ in sources]
    is_file = folder.suffix in {f".{format}" for format in formats} and not folder.is_dir()
    if is_file and len(sources) == len(formats) == 1:
        targets, folder = [{formats[0]: folder}], folder.parent
    elif is_file and sources:
        n_texts = len(sources) * len(formats)
        raise UsageError(f"-o {folder}: one file cannot hold {n_texts} transcripts; give a folder")
    else:
        names = [_plain_name(source, given) for source in sources]
        _keep_extensions(names)
        _tell_apart(names, folder, formats[0])
        targets = [{format: folder / f"{name.path}.{format}" for format in formats} for name in names]
    inputs = identities(source for source in sources if source != STDIN)
    for paths in targets:
        for format, path in paths.items():
            check_output(path, KINDS[format], inputs=inputs)
    for place in dict.fromkeys([folder, *(path.parent for paths in targets for path in paths.values())]):
        _make_folder(place)
    return list[Mapping[str, Path]](targets)


def _plain_name(source: str, given: Sequence[str]) -> _Name:
    """The name without its extension, below the folder that was given."""
    if source == STDIN:
        return _Name(source, (), "stdin")
    path = Path(os.path.abspath(source))
    name = _Name(source, path.parent.parts[1:], path.stem)
    for folder in map(Path, map(os.path.abspath, given)):
        if folder != path and path.is_relative_to(folder):
            name.depth = len(path.relative_to(folder).parts) - 1
    return name


def _keep_extensions(names: Sequence[_Name]) -> None:
    """Where files of one folder differ in their extension alone."""
    beside: dict[tuple[tuple[str, ...], str], set[str]] = defaultdict(set)
    for name in names:
        beside[name.folders, name.stem.casefold()].add(Path(name.source).name.casefold())
    alike = [name for name in names if len(beside[name.folders, name.stem.casefold()]) > 1]
    for name in alike:
        if name.source != STDIN:
            name.stem = Path(name.source).name


def _tell_apart(names: Sequence[_Name], folder: Path, format: str) -> None:
    """Put parent folders in front of names that are the same. Raises UsageError where that does not tell them apart."""
    whole: dict[Path, _Name] = {}
    for name in names:
        other = whole.setdefault(Path(*map(str.casefold, name.folders), name.stem.casefold()), name)
        if other is not name:
            raise UsageError(
                f"{other.source} and {name.source} would both be written to {folder / f'{name.path}.{format}'}: rename "
                "one, or use two runs with different -o"
            )
    while True:
        by_key: dict[str, list[_Name]] = defaultdict(list)
        for name in names:
            by_key[name.key].append(name)
        alike = [group for group in by_key.values() if len(group) > 1]
        if not alike:
            return
        for group in alike:
            for name in group:
                name.depth = min(name.depth + 1, len(name.folders))


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"-o {folder}: this is a file, expected a folder") from None
    except OSError as error:
        raise ResourceError(f"cannot make the folder {folder}: {error.strerror or error}; choose another -o") from None
