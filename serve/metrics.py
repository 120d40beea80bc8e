"""Counters of the server, by prometheus_client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest

from specedge.runtime.longform.segments import TranscriptionInfo

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

    def __init__(self, now: Mapping[str, tuple[str, Callable[[], float]]]) -> None:
        """now: of each gauge the text and what gives its value."""
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter("specedge_requests", "Answers by status.", ["status"], registry=registry)
        self._sums = {
            name: Counter(f"specedge_{name}", f"Sum of {name} of transcriptions.", registry=registry)
            for name in ("audio_seconds", *_SUMS)
        }
        self._drafts = Counter("specedge_draft_tokens", "Drafted tokens.", ["drafter", "outcome"], registry=registry)
        for name, (text, value) in now.items():
            Gauge(f"specedge_{name}", text, registry=registry).set_function(value)

    def count_request(self, status: int) -> None:
        """Count an answer."""
        self._requests.labels(status).inc()

    def count_job(self, info: TranscriptionInfo) -> None:
        """Count a transcription that is over."""
        speculation: Any = info.speculation
        self._sums["audio_seconds"].inc(info.duration)
        for name, key in _SUMS.items():
            self._sums[name].inc(speculation.get(key) or 0)
        for drafter, counts in (speculation.get("by_drafter") or {}).items():
            for outcome in ("proposed", "accepted"):
                self._drafts.labels(drafter, outcome).inc(counts[outcome])

    def text(self) -> str:
        """All of it, as Prometheus reads it."""
        return generate_latest(self._registry).decode()
