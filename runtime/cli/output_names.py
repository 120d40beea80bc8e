"""Where `specedge transcribe -o DIR` writes the text of each input.

A file is named as openai-whisper names it: the input's name without its extension, in DIR. Files of a folder that was
given keep their sub-folders below it. Inputs that would still share a name keep their folders below the one that all
inputs have in common (DIR/a/talk.txt and DIR/b/talk.txt), and then their extension, too (DIR/talk.wav.txt). A name that
ends like a file of the format, and is no folder, is the file of the one input: `-f srt -o talk.srt`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from specedge.errors import UsageError
from specedge.files import check_output, identities, make_output_folder

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
        names = _names(sources, given)
        targets = [{format: folder / f"{name}.{format}" for format in formats} for name in names]
    inputs = identities(source for source in sources if source != STDIN)
    for paths in targets:
        for format, path in paths.items():
            check_output(path, KINDS[format], inputs=inputs)
    for place in dict.fromkeys([folder, *(path.parent for paths in targets for path in paths.values())]):
        make_output_folder(place)
    return list[Mapping[str, Path]](targets)


def _names(sources: Sequence[str], given: Sequence[str]) -> list[str]:
    """The names in the folder, without the format's ending. Raises UsageError for two that nothing tells apart."""
    folders = [Path(os.path.abspath(one)) for one in given]
    paths = [Path(os.path.abspath("stdin" if source == STDIN else source)) for source in sources]
    n_shared = max(1, len(os.path.commonprefix([path.parent.parts for path in paths])))
    names = []  # of each source, the ones that it may have, the shortest last
    for path in paths:
        within = [path.relative_to(folder) for folder in folders if folder in path.parents]
        own, whole = within[-1] if within else Path(path.name), Path(*path.parts[n_shared:])
        names.append([str(whole), str(whole.with_suffix("")), str(own.with_suffix(""))])
    while True:
        alike: dict[str, list[int]] = defaultdict(list)
        for number, each in enumerate(names):
            alike[each[-1].casefold()].append(number)  # one file on macOS and Windows
        clashes = [numbers for numbers in alike.values() if len(numbers) > 1]
        if not clashes:
            return [each[-1] for each in names]
        for numbers in clashes:
            if any(len(names[number]) == 1 for number in numbers):
                one, other = (sources[number] for number in numbers[:2])
                raise UsageError(f"{one} and {other} would share an output: rename one, or use two runs")
            for number in numbers:
                names[number].pop()
