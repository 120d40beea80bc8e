"""What is measured on one CPU of the lane: it runs there and prints a line of JSON for each thing that is done.

    python3 tests/cpus/inside.py '{"bundles": {NAME: FOLDER}, "checkpoint": ..., "work": ..., "rows": ..., ...}'

It does not compare with another CPU: run.py does, with what each prints.
"""

from __future__ import annotations

import contextlib
import io
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np  # noqa: E402

from specedge import decode_audio  # noqa: E402
from specedge.runtime.bundle.bundle import Bundle  # noqa: E402
from specedge.runtime.cli.main import main as specedge  # noqa: E402
from specedge.runtime.decoding.drafter import TargetModel  # noqa: E402
from specedge.runtime.device import isa  # noqa: E402
from specedge.runtime.drafters.registry import make_drafter  # noqa: E402
from specedge.runtime.engine import exactness  # noqa: E402
from specedge.runtime.engine.doctor import broken_promises, examine  # noqa: E402
from specedge.runtime.engine.engine import Engine  # noqa: E402
from specedge.runtime.engine.session import RUNTIME_VERSION  # noqa: E402
from specedge.runtime.options import DRAFTERS, HAS_MODEL, DrafterOptions, TranscribeOptions  # noqa: E402
from support.lossless import OnceEncoded, Run, Sound, difference, run  # noqa: E402
from support.paths import DEMO, SAMPLES_FOLDER  # noqa: E402

PRECISIONS = ("int8", "int4", "fp32")
OPTIONS = TranscribeOptions(language="en")


def done(step: str, what: str, make: Callable[..., dict[str, Any]], *arguments: Any) -> None:
    """Print what `make(*arguments)` found as one line of JSON, with the time it took."""
    started = time.monotonic()
    found = make(*arguments)
    print(json.dumps({"step": step, "what": what, **found, "s": round(time.monotonic() - started, 1)}), flush=True)


def machine() -> dict[str, Any]:
    versions = {"onnxruntime": RUNTIME_VERSION, "numpy": np.__version__, "python": platform.python_version()}
    return {**asdict(isa()), **versions}


def doctor(folder: str, threads: list[int], rows: int | None) -> dict[str, Any]:
    """The figures of `specedge doctor`; `rows`: how many rows of a text are looked at, None for as many as it does."""
    with mock.patch.object(exactness, "N_PROBE_ROWS", rows or exactness.N_PROBE_ROWS):
        report = examine(Bundle.open(Path(folder)), threads=tuple(threads))
    results = report.invariance.results
    return {
        "n_differing": sum(result.n_differing for result in results),
        "n_compared": sum(result.n_compared for result in results),
        "max_difference": report.invariance.max_difference,
        "golden_difference": report.golden_difference,
        "agrees": report.agrees,
        "healthy": report.healthy,
        "problems": broken_promises(report),
    }


def probe(bundle: Bundle) -> dict[str, Any]:
    """What comes before a model's first draft on a machine."""
    found = exactness.probe_shortly(Engine(bundle, threads=1))
    return {"exact": found.exact, "max_difference": found.max_difference}


def export(checkpoint: str, out: Path, precision: str) -> dict[str, Any]:
    """`specedge export` on this CPU: whether it wrote a bundle, with exact rows, and its last word where it did not."""
    output = io.StringIO()
    words = ["specedge", "export", checkpoint, "-o", str(out), "--precision", precision]
    with mock.patch.object(sys, "argv", words), contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
        try:
            code = specedge()
        except SystemExit as end:
            code = int(end.code or 0)
    if code:
        return {"ok": False, "message": (output.getvalue().strip().splitlines() or [""])[-1]}
    is_exact = Bundle.open(out).manifest.selfcheck["row_invariance"]["exact"]
    return {"ok": is_exact, "message": "" if is_exact else "rows differ"}


def said(made: Run) -> str:
    return "".join(segment.text for segment in made.segments).strip()


def drafters(bundle: Bundle) -> None:
    """Each drafter beside none on each of the bundled recordings."""
    engine = OnceEncoded(Engine(bundle, threads=1))
    for recording in sorted(SAMPLES_FOLDER.glob("*.wav")):
        sound = decode_audio(str(recording))
        plain = run(engine, bundle, sound, OPTIONS, None)
        done("text", recording.stem, lambda made: {"text": said(made), "n_tokens": made.n_tokens}, plain)
        for name in DRAFTERS:
            if name != "none":
                done("drafter", f"{recording.stem}, {name}", beside_none, name, bundle, engine, sound, plain)


def beside_none(name: str, bundle: Bundle, engine: OnceEncoded, sound: Sound, plain: Run) -> dict[str, Any]:
    """A drafter's run beside the plain one: everything that a transcription gives, compared with ==."""
    model = DEMO if name in HAS_MODEL else None
    # weighs: drafted at any price, so that there are passes of many widths
    drafter = make_drafter(DrafterOptions(name, draft_model=model), TargetModel(bundle, threads=1, weighs=False))
    try:
        got = run(engine, bundle, sound, OPTIONS, drafter)
    finally:
        drafter.close()
    dropped = got.drafter_error and f"dropped: {got.drafter_error}"
    counted = {"drafted": got.speculation.proposed, "accepted": got.speculation.accepted}
    return {**counted, "difference": difference(plain, got) or dropped}


def main(job: dict[str, Any]) -> None:
    bundled = Bundle.open(DEMO)
    done("machine", "", machine)
    done("probe", "demo int8", probe, bundled)
    drafters(bundled)
    for name, (folder, threads) in job["bundles"].items():
        done("doctor", name, doctor, folder, threads, job["rows"])
    for precision in PRECISIONS:
        done("export", precision, export, job["checkpoint"], Path(job["work"]) / precision, precision)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
