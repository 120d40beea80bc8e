"""What a run of `specedge transcribe` is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specedge.errors import UsageError

from ..options import DrafterOptions, TranscribeOptions, described
from ..output.formats import FORMATS, SubtitleOptions
from .options import ModelOptions

if TYPE_CHECKING:
    from ..audio.audio import RawFormat

_messages = partial(described, group="Messages")


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is read and written, and what is said meanwhile. Raises UsageError for what cannot be."""

    formats: tuple[str, ...] = described(
        (),
        f"{', '.join(FORMATS)}, several with commas, or all.",
        names=("--output-format", "-f"),
        metavar="FORMATS",
        choices=FORMATS,
        default_text="txt; on a terminal with times",
        is_usual=True,
    )
    folder: str | None = described(
        None,
        "Write files there, named like the inputs; sub-folders are kept. For one input also a file: talk.srt.",
        names=("--output-dir", "-o"),
        metavar="DIR",
        default_text="print",
        is_usual=True,
    )
    skips_existing: bool = described(
        False,
        "Leave out inputs whose files are all in DIR, to go on with a stopped run.",
        names=("--skip-existing",),
        is_usual=True,
    )
    raw: str | None = described(
        None, "Read the inputs as headerless PCM, such as s16le:16000 or s16le:48000:2.", metavar="FORMAT"
    )
    quiet: bool = described(
        False, "Only print errors and truncated-audio warnings on stderr.", names=("--quiet", "-q"), is_usual=True
    )
    verbose: bool = _messages(
        False,
        "Print more on stderr: the model, each input's language and length.",
        names=("--verbose", "-v"),
        is_usual=True,
    )
    stats: bool = _messages(False, "Print statistics of drafting and where the time went on stderr.")

    def __post_init__(self) -> None:
        if self.skips_existing and self.folder is None:
            raise UsageError("--skip-existing looks at the files of -o: add -o DIR")
        if self.folder == "-":
            raise UsageError("-o - is no folder: to print the text, leave -o out")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to transcribe, how, and where to.

    model_folder: where `model` is looked for first; vad: fields of `VadOptions`, None: no filter; batch_size: pieces of
    speech decoded together, None: one window after another; raw: how headerless PCM lies.
    """

    files: tuple[str, ...]
    model: ModelOptions = ModelOptions()
    model_folder: Path | None = None
    output: OutputOptions = OutputOptions()
    options: TranscribeOptions = TranscribeOptions()
    drafter: DrafterOptions = DrafterOptions()
    vad: Mapping[str, Any] | None = None
    batch_size: int | None = None
    raw: RawFormat | None = None
    subtitles: SubtitleOptions = field(default_factory=SubtitleOptions)

    @property
    def formats(self) -> tuple[str, ...]:
        return self.output.formats or ("txt",)

    def arguments(self) -> dict[str, Any]:
        """The arguments of `WhisperModel.transcribe`, or of `BatchedInferencePipeline`, that ask for this."""
        found = dict(vars(self.options))
        if self.batch_size is not None:
            del found["clip_timestamps"]
            return {**found, "drafter": self.drafter, "vad_parameters": self.vad, "batch_size": self.batch_size}
        return {**found, "drafter": self.drafter, "vad_filter": self.vad is not None, "vad_parameters": self.vad}

    def find_model(self) -> Path:
        """The folder of the model. Raises ModelError."""
        if self.model.model is not None and self.model_folder is not None:
            if (folder := self.model_folder / self.model.model).is_dir():
                return folder
        return self.model.find(self.options.language, self.options.task, quiet=self.output.quiet)
