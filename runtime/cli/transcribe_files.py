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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specedge.errors import AudioError, Interrupted, ResourceError, SpecedgeError, UsageError

from ..audio.audio import STDIN, AudioStream, RawFormat, expand_folders, open_audio
from ..console import Progress, clock
from ..decoding.drafter import Drafter
from ..interrupt import interruption
from ..longform.segments import Segment
from ..model import TranscriptionRun, WhisperModel, vad_options
from ..options import CPU, DrafterOptions, TranscribeOptions
from ..output.formats import STREAMED, SubtitleOptions, Transcript, kept_beside, render, write_transcript
from ..output.report import coloured_text, describe, legend, source_names, statistics, timed_text
from .options import model_path
from .output_names import output_paths
from .tally import Tally

__all__ = ["Request", "transcribe_files"]


_FEWEST = 8  # tokens that say something: single words are often as unsure
_UNSURE = -1.0  # openai-whisper's logprob_threshold, which all fallbacks missed


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to transcribe and where to.

    model None is the default one (export/default_model.py); downloads: it may be fetched;
    folder None is standard output; has_times: text on a terminal is shown with times;
    skips_existing: inputs whose outputs are all there are left out; vad: fields of `VadOptions`, None: no filter;
    batch_size: pieces of speech decoded together, None: one window after another; options.draft_sources: the text is
    printed in colours that tell who drafted it (txt on standard output alone); quiet: no remarks and no progress;
    verbose: more remarks; stats: what speculation did and where the time went.
    """

    files: tuple[str, ...]
    model: str | None = None
    model_folder: Path | None = None
    downloads: bool = True
    threads: int | None = None
    encoder_provider: str = CPU
    formats: tuple[str, ...] = ("txt",)
    folder: Path | None = None
    has_times: bool = False
    skips_existing: bool = False
    raw: RawFormat | None = None
    drafter: DrafterOptions = DrafterOptions()
    vad: Mapping[str, Any] | None = None
    batch_size: int | None = None
    subtitles: SubtitleOptions = field(default_factory=SubtitleOptions)
    quiet: bool = False
    verbose: bool = False
    stats: bool = False
    options: TranscribeOptions = field(default_factory=TranscribeOptions)

    @property
    def filters_speech(self) -> bool:
        """Whether windows are cut from speech alone, so that their times are not those of the audio."""
        return self.vad is not None and self.batch_size is None


def transcribe_files(request: Request, *, notify: Callable[[str], None], report: Callable[[Exception], None]) -> int:
    """Do it; returns 0, or 1 when some of several inputs failed.

    `notify` gets lines for standard error; `report` gets the error of each input that failed.
    Raises UsageError, ModelError, ResourceError, Interrupted, and the error of a lone input.
    """
    remark = _nothing if request.quiet else notify
    failed: list[Exception] = []
    tally = Tally()

    def fail(error: Exception) -> None:
        failed.append(error)
        report(error)

    files = expand_folders(request.files, notify=remark, report=fail)
    is_alone = len(files) == 1 and not failed
    _check(request, files)
    targets = output_paths(files, request.folder, request.formats, request.files)
    path = None if request.model is None else _model_path(request)
    work = list(zip(files, targets, strict=True))
    if request.skips_existing:
        work = [(source, paths) for source, paths in work if not all(map(os.path.exists, paths.values()))]
    tally.begin(len(work), n_skipped=len(files) - len(work), n_failed=len(failed))
    model: WhisperModel | None = None
    drafter: Drafter | None = None  # one for all inputs: it keeps what it learns
    with contextlib.ExitStack() as stack:
        for source, paths in work:
            try:
                with open_audio(source, raw=request.raw) as stream:
                    if model is None:
                        path = path or _model_path(request)  # a model is fetched for audio that can be read
                        model = WhisperModel(
                            path, cpu_threads=request.threads or 0, encoder_provider=request.encoder_provider
                        )
                        drafter = model.drafter_for(request.drafter, request.options)
                        stack.callback(drafter.close)
                        stack.enter_context(model.engine.interruptible())
                        _say_what_is_used(request, path, drafter, remark, notify)
                    tally.next()
                    _Run(request, model, stream, paths, drafter, remark, notify, tally).run()
            except Exception as error:
                if is_alone or not _concerns_one_input(error):
                    raise
                fail(error)
                tally.n_failed += 1
    if tally.is_of_several or request.skips_existing:
        remark(tally.closing())
    return 1 if failed else 0


class _Run:
    """The transcription of one input."""

    def __init__(
        self,
        request: Request,
        model: WhisperModel,
        stream: AudioStream,
        paths: Mapping[str, Path],
        drafter: Drafter | None,
        remark: Callable[[str], None],
        notify: Callable[[str], None],
        tally: Tally,
    ) -> None:
        self._tally = tally
        self._tokenizer = model.bundle.tokenizer
        self._request, self._stream, self._paths, self._remark, self._notify = request, stream, paths, remark, notify
        self._streamed = STREAMED.get(request.formats[0]) if not paths else None
        is_seen = self._streamed is not None and _is_terminal()
        if is_seen and request.has_times and not request.quiet:
            self._streamed = timed_text(has_colours=not os.environ.get("NO_COLOR"))
        if is_seen and tally.is_of_several:
            _print(f"==> {stream.name} <==\n")
        if request.options.draft_sources:
            self._streamed = coloured_text(self._tokenizer, source_names(drafter), has_colours=_no_colours() is None)
        self._segments: list[Segment] = []
        self._n_segments = 0
        self._n_tokens, self._logprobs, self._is_doubted = 0, 0.0, False
        self._done_s = 0.0
        self._written = paths
        self._stopped_by: BaseException | None = None
        self._progress = _progress(stream, request, tally, prints_segments=self._streamed is not None)
        self._call = _begin(model, stream, request, drafter, self._on_progress)

    def run(self) -> None:
        """Transcribe, print or write, and say what is to be said. Raises Interrupted after writing what there is."""
        with self._progress:
            try:
                self._read()
            except (KeyboardInterrupt, Interrupted) as error:
                self._stopped_by = error
        self._finish()
        if self._stopped_by is not None:
            raise interruption(self._stopped_by, self._how_far())

    def _read(self) -> None:
        if self._streamed is None:
            self._segments.extend(self._until_stopped())
            return
        for piece in self._streamed(self._until_stopped(), self._request.subtitles):
            _print(piece)

    def _until_stopped(self) -> Iterator[Segment]:
        """The segments; Ctrl-C while the next one is awaited ends them, so that a writer may finish its last cue."""
        try:
            for segment in self._call:
                self._n_segments += 1
                self._n_tokens += len(segment.tokens)
                self._logprobs += segment.avg_logprob * len(segment.tokens)
                self._advance(segment.end)
                self._doubt()  # before the text that it is about
                yield segment
        except (KeyboardInterrupt, Interrupted) as error:
            self._stopped_by = error

    def _doubt(self) -> None:
        """Say once that the model is too unsure of the text up to now."""
        if self._is_doubted or self._n_tokens < _FEWEST or self._logprobs >= _UNSURE * self._n_tokens:
            return
        self._is_doubted = True
        self._remark(
            f"warning: {self._stream.name}: the model is very unsure of this text (average log-probability "
            f"{self._logprobs / self._n_tokens:.1f}), which may be nonsense: check the language (-l), or use a larger "
            "model (-m)"
        )

    def _on_progress(self, done_s: float) -> None:
        if not self._request.filters_speech:  # else these are seconds of speech, and the segments tell the time
            self._advance(done_s)

    def _advance(self, done_s: float) -> None:
        self._done_s = max(self._done_s, done_s)
        self._progress.update_to(self._done_s)

    def _finish(self) -> None:
        request, call, name = self._request, self._call, self._stream.name
        said = call.transcription
        if said.drafter_error is not None:
            self._notify(f"{name}: the drafter {request.drafter.name} failed and was dropped: {said.drafter_error}")
        if self._paths:
            if self._segments or self._stopped_by is None:
                self._written = write_transcript(
                    self._paths, self._transcript(), request.subtitles, names_are_whole=request.skips_existing
                )
                if self._stopped_by is None:
                    self._remark(f"{self._tally.mark}wrote {', '.join(map(str, self._written.values()))}")
        elif self._streamed is None:
            _print(render(request.formats[0], self._transcript()))
        self._tally.done(self._duration_s())
        if request.verbose:
            self._remark(f"{name}: {describe(said, self._duration_s(), self._n_segments)}")
        if request.stats:
            for line in statistics(said, self._duration_s(), call.total_s, call.n_words):
                self._notify(f"{name}: {line}")

    def _transcript(self) -> Transcript:
        return Transcript(
            text=self._tokenizer.decode([token for segment in self._segments for token in segment.tokens]),
            segments=self._segments,
            language=self._call.transcription.language,
            duration_s=self._duration_s(),
            speculation=self._call.speculation(self._duration_s()),
            audio_context=self._call.transcription.audio_context.fields(),
            encoder_provider=self._call.transcription.encoder_provider,
            interrupted=self._stopped_by is not None,
        )

    def _duration_s(self) -> float:
        """Seconds of audio, as far as it was read; of the audio before the filter where one cuts it."""
        if not self._request.filters_speech:
            return float(self._call.transcription.duration_s)
        is_whole = self._stream.duration_s is not None and self._stopped_by is None
        return self._stream.duration_s or 0.0 if is_whole else self._done_s

    def _how_far(self) -> str:
        total_s = self._stream.duration_s
        done_s = self._done_s if total_s is None else min(self._done_s, total_s)
        of = "" if total_s is None else f" of {clock(total_s)}"
        beside = "" if self._written == self._paths else f"; {kept_beside(self._written, self._paths)}"
        left = "; the same command with --skip-existing goes on" if self._request.skips_existing else ""
        return f"interrupted: {self._stream.name} at {clock(done_s)}{of}{beside}{left}"


def _begin(
    model: WhisperModel,
    stream: AudioStream,
    request: Request,
    drafter: Drafter | None,
    on_progress: Callable[[float], None],
) -> TranscriptionRun:
    """The transcription of `stream`, in batched mode if asked for."""
    if request.batch_size is None:
        vad = None if request.vad is None else vad_options(request.vad)
        return model.begin(stream, request.options, vad=vad, drafter=drafter, on_progress=on_progress)
    from ..batched import BatchedInferencePipeline

    return BatchedInferencePipeline(model).begin(
        stream,
        request.options,
        vad=request.vad,
        batch_size=request.batch_size,
        drafter=drafter,
        on_progress=on_progress,
    )


def _check(request: Request, files: list[str]) -> None:
    """Combinations that cannot be. Raises UsageError."""
    if request.folder is None:
        if len(request.formats) > 1:
            raise UsageError(
                f"several formats ({', '.join(request.formats)}) need a folder: add -o DIR, or give one format"
            )
        if len(files) > 1 and request.formats[0] not in ("txt", "json"):
            raise UsageError(
                f"{request.formats[0]} of {len(files)} inputs cannot share standard output: add -o DIR, or use -f txt"
            )
    if request.options.draft_sources and (request.folder is not None or request.formats != ("txt",)):
        raise UsageError("--print-drafts colours text on standard output: leave out -o, and any -f but txt")


def _model_path(request: Request) -> Path:
    if (
        request.model is not None
        and request.model_folder is not None
        and (request.model_folder / request.model).is_dir()
    ):
        return request.model_folder / request.model
    options = request.options
    return model_path(
        request.model, language=options.language, task=options.task, download=request.downloads, quiet=request.quiet
    )


def _say_what_is_used(
    request: Request, path: Path, drafter: Drafter, remark: Callable[[str], None], notify: Callable[[str], None]
) -> None:
    """The colours of drafters, and the model."""
    if request.options.draft_sources:
        notify(_no_colours() or legend(source_names(drafter)))
    if request.verbose:
        remark(f"model {request.model or path.name}: {path}")


def _no_colours() -> str | None:
    """Why drafts are not coloured, in a line; None where they are. NO_COLOR is the variable of no-color.org."""
    if os.environ.get("NO_COLOR"):
        return "--print-drafts: no colours, because NO_COLOR is set"
    if not _is_terminal():
        return "--print-drafts: no colours, because standard output is no terminal"
    return None


def _nothing(message: str) -> None:
    """Where remarks go that nobody wants."""


def _concerns_one_input(error: Exception) -> bool:
    """Whether the other inputs may still succeed: bad audio, or a fault of ours that it brought out."""
    return isinstance(error, AudioError) or not isinstance(error, (SpecedgeError, OSError, MemoryError, ImportError))


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _progress(stream: AudioStream, request: Request, tally: Tally, *, prints_segments: bool) -> Progress:
    # Two things drawn on one terminal would tear each other up.
    is_hidden = (prints_segments and _is_terminal()) or request.quiet
    name = tally.mark + ("stdin" if stream.name == STDIN else Path(stream.name).name)
    return Progress(
        stream.duration_s, "s", name, enabled=False if is_hidden else None, is_time=True, after=tally.left()
    )


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
            f"cannot write to standard output: {error.strerror or error}; free some space, or give a folder with -o"
        ) from None
