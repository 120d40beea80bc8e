"""Counters of the server, by prometheus_client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

if TYPE_CHECKING:
    from .jobs import Job
    from .queue import FairQueue

_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_SUMS = {
    "encoder_seconds": "encoder_s",
    "decoder_seconds": "decoder_s",
    "draft_seconds": "draft_s",
    "tokens": "tokens",
    "passes": "passes",
}
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """Sums since the start, and what holds now."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter("specedge_requests", "Answers by status.", ["status"], registry=registry)
        self._sums = {
            name: Counter(f"specedge_{name}", f"Sum of {name} of transcriptions.", registry=registry)
            for name in ("audio_seconds", *_SUMS)
        }
        self._drafts = Counter("specedge_draft_tokens", "Drafted tokens.", ["drafter", "outcome"], registry=registry)
        self._factor = Histogram(
            "specedge_real_time_factor", "Time taken by audio.", buckets=_BUCKETS, registry=registry
        )
        self._now = {
            name: Gauge(f"specedge_{name}", text, registry=registry)
            for name, text in (
                ("requests_running", "Requests in work."),
                ("requests_waiting", "Requests in line."),
                ("sessions", "Open realtime sessions."),
                ("models_loaded", "Models in memory."),
            )
        }

    def count_request(self, status: int) -> None:
        """Count an answer."""
        self._requests.labels(status).inc()

    def count_job(self, job: Job) -> None:
        """Count a transcription that is over."""
        info = job.info
        speculation: Any = info.speculation
        self._sums["audio_seconds"].inc(info.duration)
        for name, key in _SUMS.items():
            self._sums[name].inc(speculation.get(key) or 0)
        for drafter, counts in (speculation.get("by_drafter") or {}).items():
            for outcome in ("proposed", "accepted"):
                self._drafts.labels(drafter, outcome).inc(counts[outcome])
        if info.duration:
            self._factor.observe(job.total_s / info.duration)

    def text(self, queue: FairQueue, n_sessions: int, n_loaded: int) -> str:
        """All of it, as Prometheus reads it. n_loaded: models in memory."""
        values = (queue.n_running, queue.n_waiting, n_sessions, n_loaded)
        for gauge, value in zip(self._now.values(), values, strict=True):
            gauge.set(value)
        return generate_latest(self._registry).decode()
