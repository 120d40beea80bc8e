"""`specedge transcribe`: several inputs, one model, text to standard output or files into a folder.

Cheap checks come first: options and output names, the model's name, the first audio, and only then the model. An input
that fails is one line on standard error and the others go on; a lone input that fails gives its own exit code. Segments
are printed as they come. Files are written when an input is done, each whole or not at all. Ctrl-C and SIGTERM are ends
like any other: what was decided up to then is printed and written, and the error says how far that is.

How outputs are named: `output_names`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from specedge.errors import AudioError, Interrupted, ResourceError, SpecedgeError, UsageError

from ..audio.audio import STDIN, AudioStream, expand_folders, open_audio
from ..batched import BatchedInferencePipeline
from ..console import Progress, clock, is_terminal, notify, summary
from ..interrupt import interruption
from ..longform.segments import Segment, TranscriptionInfo
from ..model import WhisperModel
from ..output.formats import STREAMED, Transcript, render, write_transcript
from ..output.report import coloured_text, describe, legend, statistics, timed_text
from .errors import fail
from .output_names import output_paths
from .request import Request

_FEWEST = 8  # tokens that say something: single words are often as unsure
_UNSURE = -1.0  # openai-whisper's logprob_threshold, which all fallbacks missed


def transcribe_files(request: Request, *, debug: bool) -> int:
    """Do it; returns 0, or 1 when some of several inputs failed. debug: with the traceback of each that failed.

    Raises UsageError, ModelError, ResourceError, Interrupted, and the error of a lone input.
    """
    output, started = request.output, time.monotonic()
    remark: Callable[[str], None] = (lambda _: None) if output.quiet else notify
    failed: list[Exception] = []

    def report(error: Exception) -> None:
        failed.append(error)
        fail(error, debug=debug)

    files = expand_folders(request.files, notify=remark, report=report)
    is_alone = len(files) == 1 and not failed
    _check(request, files)
    folder = None if output.folder is None else Path(output.folder)
    targets = output_paths(files, folder, request.formats, request.files)
    path = None if request.model.model is None else request.find_model()
    work = list(zip(files, targets, strict=True))
    if output.skips_existing:
        work = [(source, paths) for source, paths in work if not all(map(os.path.exists, paths.values()))]
    done_s: list[float] = []
    model: WhisperModel | None = None
    with contextlib.ExitStack() as stack:
        for number, (source, paths) in enumerate(work, 1):
            mark = f"{number}/{len(work)} " if len(work) > 1 else ""
            rest_s = (time.monotonic() - started) / max(1, number - 1) * (len(work) - number + 1)
            left = f"all {clock(rest_s)} left" if number > 1 else ""
            try:
                with open_audio(source, raw=request.raw) as stream:
                    if model is None:
                        path = path or request.find_model()  # a model is fetched for audio that can be read
                        model = request.model.load(path)
                        stack.callback(model.kept_drafters.close)
                        stack.enter_context(model.engine.interruptible())
                        if output.verbose:
                            remark(f"model {request.model.model or path.name}: {path}")
                    done_s.append(_Run(request, model, stream, paths, remark, mark, left, is_alone).run())
            except Exception as error:
                # The others may succeed where audio is bad, or where it brought out a fault of ours.
                ends_all = isinstance(error, (SpecedgeError, OSError, MemoryError, ImportError))
                if is_alone or (ends_all and not isinstance(error, AudioError)):
                    raise
                report(error)
    if not is_alone or output.skips_existing:
        counts = {"done": len(done_s), "failed": len(failed), "left out": len(files) - len(work)}
        remark(summary(counts, sum(done_s), time.monotonic() - started))
    return 1 if failed else 0


@dataclass
class _Run:
    """The transcription of one input: what is written goes to `paths`, without any to standard output.

    mark: such as `3/20 ` for the third of twenty; left: what it and those behind it will take, if they are like those
    before.
    """

    _request: Request
    _model: WhisperModel
    _stream: AudioStream
    _paths: Mapping[str, Path]
    _remark: Callable[[str], None]
    _mark: str
    _left: str
    _is_alone: bool

    def __post_init__(self) -> None:
        request, stream = self._request, self._stream
        self._streamed = None if self._paths else STREAMED.get(request.formats[0])
        self._info: TranscriptionInfo | None = None
        self._segments: list[Segment] = []
        self._n_segments = 0
        self._n_tokens, self._logprobs = 0, 0.0
        self._done_s = 0.0
        self._beside = ""
        self._stopped_by: BaseException | None = None
        # Two things drawn on one terminal would tear each other up.
        is_hidden = (self._streamed is not None and is_terminal(sys.stdout)) or request.output.quiet
        name = self._mark + ("stdin" if stream.name == STDIN else Path(stream.name).name)
        self._progress = Progress(stream.duration_s, "s", name, is_shown=not is_hidden, after=self._left)

    def run(self) -> float:
        """Transcribe, print or write, and say what is to be said; returns the seconds of audio.

        Raises Interrupted after writing what there is.
        """
        with self._progress:
            try:
                self._read()
            except (KeyboardInterrupt, Interrupted) as error:
                self._stopped_by = error
        if self._info is not None:
            self._finish(self._info)
        if self._stopped_by is not None:
            raise interruption(self._stopped_by, self._how_far())
        return self._info.duration if self._info is not None else 0.0

    def _read(self) -> None:
        """Have the text decoded, printed as it comes, or kept for files."""
        front = self._model if self._request.batch_size is None else BatchedInferencePipeline(self._model)
        segments, self._info = front.transcribe(self._stream, on_progress=self._advance, **self._request.arguments())
        with contextlib.closing(segments):
            said = self._until_stopped(segments)
            if self._streamed is None:
                self._segments.extend(said)
                return
            for piece in self._writer(self._info.drafters)(said, self._request.subtitles):
                _print(piece)

    def _writer(self, drafters: tuple[str, ...]) -> Callable[..., Iterator[str]]:
        """What makes pieces of text for standard output of segments."""
        request, writer = self._request, self._streamed
        assert writer is not None
        if is_terminal(sys.stdout) and not self._is_alone:
            _print(f"==> {self._stream.name} <==\n")
        if request.options.draft_sources:
            notify(_no_colours() or legend(drafters))
            return coloured_text(self._model.bundle.tokenizer, drafters, has_colours=_no_colours() is None)
        if is_terminal(sys.stdout) and not request.output.formats and not request.output.quiet:
            return timed_text(has_colours=not os.environ.get("NO_COLOR"))
        return writer

    def _until_stopped(self, segments: Iterator[Segment]) -> Iterator[Segment]:
        """The segments; Ctrl-C while the next one is awaited ends them, so that a writer may finish its last cue."""
        try:
            for segment in segments:
                self._n_segments += 1
                self._n_tokens += len(segment.tokens)
                self._logprobs += segment.avg_logprob * len(segment.tokens)
                self._advance(segment.end)
                yield replace(segment, id=segment.id - 1)  # openai-whisper counts from 0
        except (KeyboardInterrupt, Interrupted) as error:
            self._stopped_by = error

    def _advance(self, done_s: float) -> None:
        """So far the audio is done, or with a filter so many seconds of speech, which are fewer."""
        self._done_s = max(self._done_s, done_s)
        self._progress.update_to(self._done_s)

    def _finish(self, info: TranscriptionInfo) -> None:
        request, name, is_whole = self._request, self._stream.name, self._stopped_by is None
        info = info if is_whole else replace(info, duration=self._done_s)
        text = self._model.bundle.tokenizer.decode([token for one in self._segments for token in one.tokens])
        transcript = Transcript(text=text, segments=self._segments, info=info, interrupted=not is_whole)
        if info.drafter_error is not None:
            notify(f"{name}: the drafter {request.drafter.name} failed and was dropped: {info.drafter_error}")
        if self._paths and (self._segments or is_whole):
            written = ", ".join(map(str, write_transcript(self._paths, transcript, request.subtitles).values()))
            if is_whole:
                self._remark(f"{self._mark}wrote {written}")
            else:
                older = "; the older transcript is kept" if any(map(os.path.lexists, self._paths.values())) else ""
                self._beside = f"; what is done is in {written}{older}"
        elif not self._paths and self._streamed is None:
            _print(render(request.formats[0], transcript))
        if self._n_tokens >= _FEWEST and self._logprobs < _UNSURE * self._n_tokens:
            self._remark(
                f"warning: {name}: the model is very unsure of this text (average log-probability "
                f"{self._logprobs / self._n_tokens:.1f}), which may be nonsense: check the language (-l), or use a "
                "larger model (-m)"
            )
        if not self._n_segments and is_whole:
            self._remark(f"{name}: no speech" + (", or no sentence of --only" if request.options.only else ""))
        if request.output.verbose:
            self._remark(f"{name}: {describe(info, self._n_segments)}")
        if request.output.stats:
            for line in statistics(info):
                notify(f"{name}: {line}")

    def _how_far(self) -> str:
        total_s = self._stream.duration_s
        done = clock(self._done_s) if total_s is None else f"{clock(min(self._done_s, total_s))} of {clock(total_s)}"
        left = "; the same command with --skip-existing goes on" if self._request.output.skips_existing else ""
        return f"interrupted: {self._stream.name} at {done}{self._beside}{left}"


def _check(request: Request, files: list[str]) -> None:
    """Combinations that cannot be. Raises UsageError."""
    if request.output.folder is None:
        if len(request.formats) > 1:
            raise UsageError(
                f"several formats ({', '.join(request.formats)}) need a folder: add -o DIR, or give one format"
            )
        if len(files) > 1 and request.formats[0] not in ("txt", "json"):
            raise UsageError(
                f"{request.formats[0]} of {len(files)} inputs cannot share standard output: add -o DIR, or use -f txt"
            )
    if request.options.draft_sources and (request.output.folder is not None or request.formats != ("txt",)):
        raise UsageError("--print-drafts colours text on standard output: leave out -o, and any -f but txt")


def _no_colours() -> str | None:
    """Why drafts are not coloured, in a line; None where they are. NO_COLOR is the variable of no-color.org."""
    if os.environ.get("NO_COLOR"):
        return "--print-drafts: no colours, because NO_COLOR is set"
    if not is_terminal(sys.stdout):
        return "--print-drafts: no colours, because standard output is no terminal"
    return None


def _print(text: str) -> None:
    if sys.stdout is None:
        raise ResourceError("standard output is closed: give a folder with -o, or redirect the output to a file")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ResourceError(
            f"cannot write to standard output: {error.strerror or error}; give a folder with -o"
        ) from None
