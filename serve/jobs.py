"""One transcription in a thread of its own; its segments come to the event loop, and it can be stopped at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.audio.audio import RawFormat, open_audio
from specedge.runtime.longform.segments import Segment, TranscriptionInfo
from specedge.runtime.model import TranscriptionRun, WhisperModel, for_model, lend_drafter, vad_options
from specedge.runtime.options import DrafterOptions, TranscribeOptions
from specedge.runtime.output.report import source_names

_STOP_AGAIN_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a caller asks for. vad: parameters of the filter, None for no filter; raw: how headerless PCM lies."""

    source: Path | NDArray[np.float32]
    options: TranscribeOptions
    drafter: DrafterOptions
    vad: dict[str, Any] | None = None
    raw: RawFormat | None = None
    max_duration_s: float


class Job:
    """A transcription. `info` is there from the first segment, or the end, on; so are `drafters`, who may draft."""

    info: TranscriptionInfo

    def __init__(self, model: WhisperModel, wanted: Wanted) -> None:
        self.model, self.wanted = model, wanted
        self.drafters: tuple[str, ...] = ()
        self.total_s = 0.0
        self._call: TranscriptionRun | None = None
        self._is_stopped = False
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Segment | BaseException | None] = asyncio.Queue()

    async def segments(self, threads: ThreadPoolExecutor) -> AsyncGenerator[Segment, None]:
        """The segments; leaving early stops the work, and returns once it has stopped. Raises what decoding raises."""
        work = self._loop.run_in_executor(threads, self._work)
        try:
            while (item := await self._items.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            await asyncio.shield(self._ended(work))

    async def _ended(self, work: asyncio.Future[None]) -> None:
        while not work.done():
            self.stop()
            await asyncio.wait([work], timeout=_STOP_AGAIN_S)

    def stop(self) -> None:
        """Have the work end with its next pass, or within the encoder's."""
        self._is_stopped = True
        if self._call is not None:
            self._call.transcription.stop()

    def _work(self) -> None:
        started_s = time.perf_counter()
        try:
            for segment in self._decoded():
                self._tell(segment)
        except BaseException as error:
            self._tell(error)
        finally:
            self.total_s = time.perf_counter() - started_s
            self._tell(None)

    def _tell(self, item: Segment | BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)

    def _decoded(self) -> Any:
        wanted, model = self.wanted, self.model
        options = for_model(wanted.options, model.bundle.manifest.tokens)
        with contextlib.ExitStack() as stack:
            loan = stack.enter_context(lend_drafter(model, wanted.drafter, options))
            self.drafters = source_names(loan.drafter)
            limit_s = wanted.max_duration_s
            source = open_audio(wanted.source, raw=wanted.raw, max_duration_s=limit_s, name="file")
            stack.callback(source.close)
            vad = None if wanted.vad is None else vad_options(wanted.vad)
            self._call = model.begin(source, options, vad=vad, drafter=loan.drafter)
            if self._is_stopped:
                self._call.transcription.stop()
            segments, self.info = model.hand_over(self._call, stack.pop_all(), on_sound_end=loan.keep)
        with contextlib.closing(segments):
            yield from segments
