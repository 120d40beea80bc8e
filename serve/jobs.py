"""One transcription in its turn, segment by segment in threads; it can be stopped at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Generator
from functools import partial
from pathlib import Path
from typing import Any

from specedge.runtime.audio.audio import RawFormat, open_audio
from specedge.runtime.longform.segments import Segment, TranscriptionInfo
from specedge.runtime.model import TranscriptionRun, WhisperModel, for_model, lend_drafter, vad_options
from specedge.runtime.options import DrafterOptions, TranscribeOptions
from specedge.runtime.output.report import source_names

from .service import Service

_STOP_AGAIN_S, _KEEP_ALIVE_S = 0.05, 15.0


class Job:
    """A transcription. `info` is there from the first segment, or the end, on; so are `drafters`, who may draft.

    vad: parameters of the filter, None for no filter; raw: how headerless PCM lies.
    """

    info: TranscriptionInfo

    def __init__(
        self,
        service: Service,
        model: WhisperModel,
        source: Path,
        options: TranscribeOptions,
        drafter: DrafterOptions,
        *,
        vad: dict[str, Any] | None = None,
        raw: RawFormat | None = None,
    ) -> None:
        self._service, limit_s = service, service.settings.max_duration_s
        self.model, self.drafters, self.total_s = model, tuple[str, ...](), 0.0
        self.options, self._drafter, self._vad = options, drafter, vad
        self._opened = partial(open_audio, source, raw=raw, max_duration_s=limit_s, name="file")
        self._call: TranscriptionRun | None = None
        self._is_stopped = False

    async def segments(self, client: str, about: dict[str, Any]) -> AsyncGenerator[Segment | None, None]:
        """The segments, once it is the client's turn, and None whenever nothing came for a while. At the end the job is
        counted, and `about` has its seconds of audio.

        Leaving early stops the work, and returns once it has stopped. Raises Failure 429, and what decoding raises.
        """
        loop, threads = asyncio.get_running_loop(), self._service.threads
        async with self._service.queue.turn(client):
            with contextlib.closing(self._decoded()) as decoded:
                while True:
                    started_s = time.perf_counter()
                    step = loop.run_in_executor(threads, next, decoded, None)
                    try:
                        while not (await asyncio.wait([step], timeout=_KEEP_ALIVE_S))[0]:
                            yield None
                    finally:
                        await asyncio.shield(self._ended(step))
                        self.total_s += time.perf_counter() - started_s
                    segment = step.result()
                    if segment is None:
                        break
                    yield segment
        self._service.metrics.count_job(self.info)
        about["audio_s"] = self.info.duration

    async def _ended(self, step: asyncio.Future[Segment | None]) -> None:
        """Have the work end with its next pass, or within the encoder's."""
        while not step.done():
            self._is_stopped = True
            if self._call is not None:
                self._call.transcription.stop()
            await asyncio.wait([step], timeout=_STOP_AGAIN_S)
        if not step.cancelled():
            step.exception()  # looked at, so that nobody logs it where the client is gone

    def _decoded(self) -> Generator[Segment, None, None]:
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
