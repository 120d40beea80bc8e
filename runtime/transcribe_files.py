"""`specedge transcribe`: several inputs, one model, text to standard output or one file each into a folder.

The order is cheap checks first: options and output names, the model's name, the first audio, and only then the model.
An input that fails is one line on standard error and the others go on; a lone input that fails gives its own exit code.
Segments are printed as they come. A file appears whole or not at all, so Ctrl-C leaves none for the input it stops.

Does not know: command-line syntax, how errors become exit codes.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specedge.models import store
from specedge.runtime.audio import AudioStream, RawFormat, open_audio
from specedge.runtime.bundle import Bundle
from specedge.runtime.drafters import Drafter, EmptyDrafter
from specedge.runtime.errors import AudioError, ResourceError, SpecedgeError, UsageError
from specedge.runtime.formats import (
    FORMATS,
    Transcript,
    segment_line,
    speculation_fields,
    write_atomic,
)
from specedge.runtime.options import TranscribeOptions
from specedge.runtime.progress import Progress
from specedge.runtime.segments import Segment
from specedge.runtime.transcribe import Transcription, transcribe

__all__ = ["Request", "output_paths", "transcribe_files"]

STDIN = "-"
DRAFTERS: dict[str, Callable[[], Drafter]] = {"none": EmptyDrafter}

DEMO_NOTICE = (
    "using the bundled demo model, which knows maintenance commands, short notes and digits, in English; "
    "for other speech: `specedge models pull base`, then -m base"
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to transcribe and where to. `model` None is the bundled one; `folder` None is standard output."""

    files: tuple[str, ...]
    model: str | None = None
    threads: int | None = None
    format: str = "txt"
    folder: Path | None = None
    raw: RawFormat | None = None
    drafter: str = "none"
    options: TranscribeOptions = field(default_factory=TranscribeOptions)


def transcribe_files(request: Request, *, notify: Callable[[str], None], report: Callable[[Exception], None]) -> int:
    """Do it; returns 0, or 1 when some of several inputs failed.

    `notify` gets lines for standard error; `report` gets the error of each input that failed.
    Raises UsageError, ModelError, ResourceError, Interrupted, and the error of a lone input.
    """
    targets = output_paths(request)
    model_path = store.default() if request.model is None else store.find(request.model)
    model: tuple[Any, Bundle] | None = None
    n_failed = 0
    with contextlib.ExitStack() as stack:
        for source, target in zip(request.files, targets, strict=True):
            try:
                with open_audio(source, raw=request.raw) as stream:
                    if model is None:
                        model = _load(model_path, request.threads)
                        stack.enter_context(model[0].interruptible())
                        if request.model is None:
                            notify(DEMO_NOTICE)
                    _one(request, model, stream, target, notify)
            except Exception as error:
                if len(request.files) == 1 or not _concerns_one_input(error):
                    raise
                n_failed += 1
                report(error)
    return 1 if n_failed else 0


def output_paths(request: Request) -> list[Path | None]:
    """The output file of each input, as openai-whisper names it; None is standard output. Makes the folder.

    Raises UsageError when two inputs would share an output or an output would replace an input.
    """
    if request.files.count(STDIN) > 1:
        raise UsageError("'-' is given twice: standard input can be read once")
    if request.folder is None:
        return [None] * len(request.files)
    taken: dict[str, str] = {}
    targets: list[Path | None] = []
    for source in request.files:
        stem = "stdin" if source == STDIN else Path(source).stem
        target = request.folder / f"{stem}.{request.format}"
        other = taken.setdefault(target.name.casefold(), source)  # one file on macOS and Windows
        if len(taken) == len(targets):
            raise UsageError(
                f"{other} and {source} would both be written to {target}: rename one, or use two runs with different -o"
            )
        if source != STDIN and _same_file(target, Path(source)):
            raise UsageError(f"the output {target} would replace the input: choose another folder with -o")
        targets.append(target)
    _make_folder(request.folder)
    return targets


def _concerns_one_input(error: Exception) -> bool:
    """Whether the other inputs may still succeed: bad audio, or a fault of ours that it brought out."""
    return isinstance(error, AudioError) or not isinstance(error, (SpecedgeError, OSError, MemoryError, ImportError))


def _load(path: Path, threads: int | None) -> tuple[Any, Bundle]:
    from specedge.runtime.engine import Engine

    bundle = Bundle.open(path)
    return Engine(bundle, threads=threads), bundle


def _one(
    request: Request,
    model: tuple[Any, Bundle],
    stream: AudioStream,
    target: Path | None,
    notify: Callable[[str], None],
) -> None:
    started = time.perf_counter()
    prints_segments = target is None and request.format == "txt"
    segments: list[Segment] = []
    with _progress(stream, prints_segments) as progress:
        transcription = transcribe(
            *model, stream, request.options, drafter=DRAFTERS[request.drafter](), on_progress=progress.update_to
        )
        for segment in transcription:
            if prints_segments:
                progress.close()
                _print(segment_line(segment))
            else:
                segments.append(segment)
    if transcription.drafter_error is not None:
        notify(f"{stream.name}: the drafter {request.drafter} failed and was dropped: {transcription.drafter_error}")
    if prints_segments:
        return
    text = FORMATS[request.format](_transcript(model[1], transcription, segments, time.perf_counter() - started))
    if target is None:
        _print(text)
    else:
        write_atomic(target, text)


def _transcript(bundle: Bundle, transcription: Transcription, segments: list[Segment], total_s: float) -> Transcript:
    return Transcript(
        text=bundle.tokenizer.decode([token for segment in segments for token in segment.tokens]),
        segments=segments,
        language=transcription.language,
        duration_s=transcription.duration_s,
        speculation=speculation_fields(transcription.speculation, encoder_s=transcription.encoder_s, total_s=total_s),
    )


def _progress(stream: AudioStream, prints_segments: bool) -> Progress:
    # Two things drawn on one terminal would tear each other up.
    is_shared = prints_segments and sys.stdout is not None and sys.stdout.isatty()
    name = "stdin" if stream.name == STDIN else Path(stream.name).name
    return Progress(stream.duration_s, "s", name, enabled=False if is_shared else None)


def _print(text: str) -> None:
    if sys.stdout is None:
        raise ResourceError("standard output is closed: give a folder with -o, or redirect the output to a file")
    sys.stdout.write(text)
    sys.stdout.flush()


def _same_file(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except OSError:
        return False


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"-o {folder}: this is a file, expected a folder") from None
    except OSError as error:
        raise ResourceError(f"cannot make the folder {folder}: {error.strerror or error}; choose another -o") from None
