"""One transcription in a thread of its own; its segments come to the event loop, and it can be stopped at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from specedge.runtime.audio.audio import RawFormat, open_audio
from specedge.runtime.longform.segments import Segment, TranscriptionInfo
from specedge.runtime.model import TranscriptionRun, WhisperModel, for_model, lend_drafter, vad_options
from specedge.runtime.options import DrafterOptions, TranscribeOptions
from specedge.runtime.output.report import source_names

_STOP_AGAIN_S, _KEEP_ALIVE_S = 0.05, 15.0


class Job:
    """A transcription. `info` is there from the first segment, or the end, on; so are `drafters`, who may draft.

    vad: parameters of the filter, None for no filter; raw: how headerless PCM lies.
    """

    info: TranscriptionInfo

    def __init__(
        self,
        model: WhisperModel,
        source: Path,
        options: TranscribeOptions,
        drafter: DrafterOptions,
        *,
        vad: dict[str, Any] | None = None,
        raw: RawFormat | None = None,
        max_duration_s: float,
    ) -> None:
        self.model, self.drafters, self.total_s = model, tuple[str, ...](), 0.0
        self.options, self._drafter, self._vad = options, drafter, vad
        self._opened = partial(open_audio, source, raw=raw, max_duration_s=max_duration_s, name="file")
        self._call: TranscriptionRun | None = None
        self._is_stopped = False
        self._items: asyncio.Queue[Segment | BaseException | None] = asyncio.Queue()

    async def segments(self, threads: ThreadPoolExecutor) -> AsyncGenerator[Segment | None, None]:
        """The segments, and None whenever nothing came for a while. Raises what decoding raises.

        Leaving early stops the work, and returns once it has stopped.
        """
        self._loop = asyncio.get_running_loop()
        work = self._loop.run_in_executor(threads, self._work)
        try:
            while True:
                try:
                    item = await asyncio.wait_for(self._items.get(), _KEEP_ALIVE_S)
                except TimeoutError:
                    yield None
                    continue
                if item is None:
                    return
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
        model = self.model
        options = for_model(self.options, model.bundle.manifest.tokens)
        with contextlib.ExitStack() as stack:
            loan = stack.enter_context(lend_drafter(model, self._drafter, options))
            self.drafters = source_names(loan.drafter)
            source = stack.enter_context(contextlib.closing(self._opened()))
            vad = None if self._vad is None else vad_options(self._vad)
            self._call = model.begin(source, options, vad=vad, drafter=loan.drafter)
            if self._is_stopped:
                self._call.transcription.stop()
            segments, self.info = model.hand_over(self._call, stack.pop_all(), on_sound_end=loan.keep)
        with contextlib.closing(segments):
            yield from segments
