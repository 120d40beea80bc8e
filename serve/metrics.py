"""Counters, as Prometheus reads them (https://prometheus.io/docs/instrumenting/exposition_formats/)."""

from __future__ import annotations

import contextlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .jobs import Job
    from .queue import FairQueue

__all__ = ["Metrics"]

_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


class Metrics:
    """Sums since the start. Used in the event loop alone."""

    def __init__(self) -> None:
        self._requests: Counter[int] = Counter()
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._drafts: Counter[tuple[str, str]] = Counter()
        self._factors: Counter[float] = Counter()
        self._factor_sum = 0.0

    def count_request(self, status: int) -> None:
        self._requests[status] += 1

    def count_job(self, job: Job) -> None:
        """Count a transcription that is over."""
        info = job.info
        if info is None:
            return
        said: Any = info.speculation
        self._sums["audio_seconds"] += info.duration
        for name, key in (
            ("encoder_seconds", "encoder_s"),
            ("decoder_seconds", "decoder_s"),
            ("draft_seconds", "draft_s"),
            ("tokens", "tokens"),
            ("passes", "passes"),
        ):
            self._sums[name] += said.get(key) or 0
        for drafter, counts in (said.get("by_drafter") or {}).items():
            for kind in ("proposed", "accepted"):
                self._drafts[drafter, kind] += counts[kind]
        if info.duration:
            factor = job.total_s / info.duration
            self._factor_sum += factor
            self._factors[next((b for b in _BUCKETS if factor <= b), float("inf"))] += 1

    def text(self, queue: FairQueue, n_loaded: int) -> str:
        """All of it. n_loaded: models in memory."""
        return "\n".join(self._lines(queue, n_loaded)) + "\n"

    def _lines(self, queue: FairQueue, n_loaded: int) -> Iterator[str]:
        yield "# TYPE specedge_requests_total counter"
        for status, n in sorted(self._requests.items()):
            yield f'specedge_requests_total{{status="{status}"}} {n}'
        for name, value in sorted(self._sums.items()):
            yield f"# TYPE specedge_{name}_total counter"
            yield f"specedge_{name}_total {value}"
        yield "# TYPE specedge_draft_tokens_total counter"
        for (drafter, kind), n in sorted(self._drafts.items()):
            yield f'specedge_draft_tokens_total{{drafter="{drafter}",outcome="{kind}"}} {n}'
        yield "# TYPE specedge_real_time_factor histogram"
        n = 0
        for bucket in _BUCKETS:
            n += self._factors[bucket]
            yield f'specedge_real_time_factor_bucket{{le="{bucket:g}"}} {n}'
        n += self._factors[float("inf")]
        yield f'specedge_real_time_factor_bucket{{le="+Inf"}} {n}'
        yield f"specedge_real_time_factor_sum {self._factor_sum}"
        yield f"specedge_real_time_factor_count {n}"
        gauges = {"requests_running": queue.n_running, "requests_waiting": queue.n_waiting}
        gauges["models_loaded"] = n_loaded
        with contextlib.suppress(OSError, AttributeError, IndexError, ValueError):
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
            gauges["resident_memory_bytes"] = pages * os.sysconf("SC_PAGE_SIZE")
            gauges["open_descriptors"] = len(os.listdir("/proc/self/fd"))
        for name, value in gauges.items():
            yield f"# TYPE specedge_{name} gauge"
            yield f"specedge_{name} {value}"
