"""`specedge doctor`: does this machine keep the promises of this bundle?

Measures row invariance (`exactness`) and compares a fixed pass with the logits of the exporting machine, which a kernel
that is wrong here, or 8-bit products that clip, would change.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..bundle.bundle import Bundle
from ..bundle.manifest import SPEECH, Manifest
from ..device import isa, threads_allowed
from .engine import Engine, Features
from .exactness import Invariance, RowResult, probe_rows, probe_windows
from .made_up import probe_ids, probe_mel
from .session import RUNTIME_VERSION, Canceller
from .speech import open_engine

N_GOLDEN_ROWS = 6
N_GOLDEN_VALUES = 8
# Of the logits' spread. Between sound CPUs rounding moved logits by up to 2e-5 (fp32), 0.31 (int8) and 0.54 (int4, Arm
# from x86); leaving out one layer's Gelu or self-attention by 0.74 and more (int8; docs/experiments).
GOLDEN_TOLERANCE = {"fp32": 0.01, "int8": 0.5, "int4": 1.0}
_SYSTEM = f"{platform.system()} {platform.machine()}"


@dataclass(frozen=True, kw_only=True)
class Report:
    """The findings; `healthy` when every promise holds."""

    manifest: Manifest
    invariance: Invariance
    can_share_passes: bool
    golden_difference: float | None

    @property
    def agrees(self) -> bool:
        """Whether a pass here gives the logits of the exporting machine."""
        return self.golden_difference is None or self.golden_difference <= self.golden_tolerance  # NaN does not

    @property
    def golden_tolerance(self) -> float:
        return GOLDEN_TOLERANCE[self.manifest.precision]

    @property
    def shares_passes(self) -> bool:
        """Whether texts of several windows share passes, which costs no promise where they do not."""
        return self.can_share_passes and self.invariance.windows_exact

    @property
    def healthy(self) -> bool:
        return self.invariance.exact and self.agrees

    def to_json(self) -> dict[str, Any]:
        return {
            "bundle": self.manifest.name,
            "precision": self.manifest.precision,
            "onnxruntime": RUNTIME_VERSION,
            "python": platform.python_version(),
            "system": _SYSTEM,
            "threads_allowed": threads_allowed(),
            "isa": asdict(isa()),
            "invariance": self.invariance.to_json(),
            "shares_passes": self.shares_passes,
            "golden_difference": self.golden_difference if math.isfinite(self.golden_difference or 0.0) else None,
            "golden_tolerance": self.golden_tolerance,
            "agrees": self.agrees,
            "healthy": self.healthy,
        }


def examine(bundle: Bundle, *, threads: tuple[int, ...] | None = None) -> Report:
    """Run every check, with 1, 2 and all allowed threads unless `threads` says otherwise."""
    counts = threads or tuple(sorted({1, 2, threads_allowed()}))
    results: list[RowResult] = []
    features = references = golden = None
    can_share_passes = False
    canceller = Canceller()
    with canceller.on_sigint():
        for count in counts:  # one engine at a time: a large model need not fit twice
            engine = open_engine(bundle, threads=count, canceller=canceller)
            if features is None:
                golden = _golden_difference(engine, bundle.manifest.selfcheck)
                features = engine.encode(probe_mel(engine.dims, bundle.manifest.n_frames))
            rows, references = probe_rows(engine, features, references)
            results += [*rows, *probe_windows(engine)]
            can_share_passes = engine.shares_passes
            del engine
    return Report(
        manifest=bundle.manifest,
        invariance=Invariance(results=tuple(results)),
        can_share_passes=can_share_passes,
        golden_difference=golden,
    )


def golden_logits(engine: Engine, features: Features) -> list[list[float]]:
    """A few logits of the probe's window, `[N_GOLDEN_ROWS][N_GOLDEN_VALUES]`, for the manifest."""
    ids = probe_ids(engine.dims, N_GOLDEN_ROWS)
    state = engine.start(features)
    logits = engine.forward(state, ids)
    columns = probe_ids(engine.dims, N_GOLDEN_VALUES)
    values = logits[:, columns].astype(float).tolist()
    engine.release(state)
    return [[round(value, 6) for value in row] for row in values]


def render(report: Report) -> str:
    """The report as text for a terminal."""
    lines = [f"A PROMISE DOES NOT HOLD: {reason}" for reason in broken_promises(report)] or ["every promise holds"]
    lines += [
        "",
        f"bundle           {report.manifest.name} ({report.manifest.precision})",
        f"onnxruntime      {RUNTIME_VERSION}, python {platform.python_version()}, {_SYSTEM}",
        f"cpu              {isa().model or isa().machine}",
        f"kernel features  {' '.join(isa().features) or 'unknown'}",
        f"threads          {threads_allowed()} allowed to this process",
        "",
        "row invariance (bits of each row against a pass of its own)",
        "threads  rows before  windows  paths  rows each  compared  differing  largest difference",
    ]
    for row in report.invariance.results:
        lines.append(
            f"{row.threads:7d}  {row.n_before:11d}  {row.n_windows:7d}  {row.n_paths:5d}  {row.rows_per_pass:9d}  "
            f"{row.n_compared:8d}  {row.n_differing:9d}  {row.max_difference:.3g}"
        )
    lines += ["", _sharing_line(report)]
    if report.golden_difference is not None:
        ok = "ok" if report.agrees else "NOT OK"
        lines.append(
            f"difference from the exporting machine: {report.golden_difference:.3g} of the logits' spread, "
            f"at most {report.golden_tolerance:g}: {ok}"
        )
    return "\n".join(lines)


def _sharing_line(report: Report) -> str:
    if report.shares_passes:
        return "texts share passes: beams, batches and several callers read the weights once"
    reason = "it would change bits here"
    if report.manifest.kind == SPEECH:
        reason = "those of a speech LLM have passes of their own"
    elif not report.can_share_passes:
        reason = "this needs a bundle with the graph many, and ONNX Runtime 1.32"
    return f"texts share no passes ({reason}): beams, batches and several callers are slower, with the same text"


def broken_promises(report: Report) -> list[str]:
    """Each promise that does not hold, and what to do."""
    broken = []
    if not report.invariance.exact:
        broken.append("drafts could change the text here; use --drafter none with this bundle")
    if not report.agrees:
        broken.append(
            "this machine computes something else than the one that made the bundle: install another onnxruntime "
            f"({RUNTIME_VERSION} is here), or export the model again on this machine, or with --precision fp32"
        )
    return broken


def _golden_difference(engine: Engine, selfcheck: Mapping[str, Any]) -> float | None:
    try:
        expected = np.array(selfcheck.get("golden"), np.float64)
    except (TypeError, ValueError):
        return None
    measured = np.array(golden_logits(engine, engine.encode(probe_mel(engine.dims))), np.float64)
    is_like = expected.shape == measured.shape
    return float(np.abs(measured - expected).max() / max(float(expected.std()), 1e-6)) if is_like else None
