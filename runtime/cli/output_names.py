"""Where `specedge transcribe -o DIR` writes the text of each input.

A file is named as openai-whisper names it: the input's name without its extension, in DIR. Files of a folder that was
given keep their sub-folders below it. Where two inputs would still share a name, those take the fewest parent folders
that tell them apart (a/talk.wav and b/talk.wav: DIR/a/talk.txt and DIR/b/talk.txt), and files of one folder that differ
in their extension keep it (talk.wav and talk.mp3: DIR/talk.wav.txt and DIR/talk.mp3.txt). A name that ends like a file
of the format, and is no folder, is the file of the one input: `-f srt -o talk.srt`.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from specedge.errors import ResourceError, UsageError
from specedge.files import check_output, identities

from ..audio.audio import STDIN
from ..output.formats import KINDS


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
        names = _names(sources, given, folder, formats[0])
        targets = [{format: folder / f"{name}.{format}" for format in formats} for name in names]
    inputs = identities(source for source in sources if source != STDIN)
    for paths in targets:
        for format, path in paths.items():
            check_output(path, KINDS[format], inputs=inputs)
    for place in dict.fromkeys([folder, *(path.parent for paths in targets for path in paths.values())]):
        _make_folder(place)
    return list[Mapping[str, Path]](targets)


def _names(sources: Sequence[str], given: Sequence[str], folder: Path, format: str) -> list[Path]:
    """The names in `folder`, without the format's ending. Raises UsageError for two that nothing tells apart."""
    paths = [Path(os.path.abspath(f"{os.sep}stdin" if source == STDIN else source)) for source in sources]
    beside: dict[tuple[Path, str], set[str]] = defaultdict(set)
    for path in paths:
        beside[path.parent, path.stem.casefold()].add(path.name.casefold())
    parts, depths = [], []  # of a name: all folders and the last part, and how many of the folders it takes
    for path in paths:
        keeps_extension = len(beside[path.parent, path.stem.casefold()]) > 1
        parts.append((*path.parent.parts[1:], path.name if keeps_extension else path.stem))
        within = [one for one in map(Path, map(os.path.abspath, given)) if one != path and path.is_relative_to(one)]
        depths.append(len(path.relative_to(within[-1]).parts) - 1 if within else 0)

    def name(number: int) -> Path:
        return Path(*parts[number][-1 - depths[number] :])

    first: dict[tuple[str, ...], int] = {}
    for number, whole in enumerate(parts):
        other = first.setdefault(tuple(map(str.casefold, whole)), number)
        if other != number:
            raise UsageError(
                f"{sources[other]} and {sources[number]} would both be written to "
                f"{folder / f'{name(number)}.{format}'}: rename one, or use two runs with different -o"
            )
    while True:
        keys = [str(name(number)).casefold() for number in range(len(parts))]  # one file on macOS and Windows
        alike = [number for number, n_alike in enumerate(map(Counter(keys).get, keys)) if n_alike != 1]
        if not alike:
            return [name(number) for number in range(len(parts))]
        for number in alike:
            depths[number] = min(depths[number] + 1, len(parts[number]) - 1)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"-o {folder}: this is a file, expected a folder") from None
    except OSError as error:
        raise ResourceError(f"cannot make the folder {folder}: {error.strerror or error}; choose another -o") from None
