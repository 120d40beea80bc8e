"""The CPU lane: does specedge keep its promises on CPUs that are not this one?

    python -m tests.cpus.run [--only haswell,cortex-a76] [-o docs/cpus.md]

Each CPU is this machine with features hidden from ONNX Runtime, or one that qemu emulates (cpu_models.py). On each:
every drafter of the bundled model beside none, doctor's rows of the bundled model and of a small one in each precision,
`specedge export` of a small model. Texts are compared between the x86 CPUs. Times are not measured.

Progress goes to stderr; the table to stdout, or into FILE between its marks; the last line is one JSON document. The
exit code is 1 unless every CPU asked for was run to its end and passes.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

# `python -m tests.cpus.run` puts the root of the tree, not tests/, in front of Python's path.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cpus.cpu_models import CPUS, HERE, Cpu, NotHere  # noqa: E402
from cpus.environments import cache_folder, command, make_ready  # noqa: E402
from cpus.table import Outcome, faults, table  # noqa: E402

from support.checkpoints import SIZES, Shape, make_checkpoint  # noqa: E402
from support.paths import DEMO  # noqa: E402
from support.tree import ROOT  # noqa: E402

INSIDE = ROOT / "tests" / "cpus" / "inside.py"
PRECISIONS = ("int8", "int4", "fp32")
SMALL = Shape(
    n_state=128, n_head=2, n_audio_layer=2, n_text_layer=2, n_vocab=1000, n_audio_ctx=100, n_text_ctx=448
)  # heads as wide as Whisper's, and room for a text that is long enough for every kernel
EMULATED_ROWS = 16  # of doctor's 80: an emulated pass takes a thousand times as long
MARKS = ("<!-- cpus: written by `python -m tests.cpus.run -o docs/cpus.md` -->", "<!-- end of cpus -->")


_running: set[subprocess.Popen[str]] = set()


def _jobs(work: Path) -> dict[str, Any]:
    """What inside.py is told: a small checkpoint, and bundles of it that are exported here."""
    with mock.patch.dict(SIZES, {"small lane": SMALL}):
        checkpoint = make_checkpoint(work / "checkpoint", size="small lane")
    bundles = {}
    for precision in PRECISIONS:
        bundles[f"small {precision}"] = (str(work / precision), [1, 4])
        words = [*command(HERE, ["-m", "specedge", "export"]), str(checkpoint), "-o", str(work / precision)]
        subprocess.run([*words, "--precision", precision], check=True, cwd=ROOT, stdout=sys.stderr)
    return {"bundles": bundles, "checkpoint": str(checkpoint)}


def run_on(cpu: Cpu, jobs: dict[str, Any], work: Path, limit_s: float) -> Outcome:
    """Everything on one CPU, within its time."""
    demo = (str(DEMO), [1] if cpu.arm else [1, 2])
    job = {**jobs, "bundles": {"demo int8": demo, **jobs["bundles"]}, "work": str(work / cpu.name), "rows": None}
    if cpu.arm:
        job["rows"] = EMULATED_ROWS
    try:
        make_ready(cpu)
        words = command(cpu, [str(INSIDE), json.dumps(job)])
    except NotHere as error:
        _say(cpu, f"not run: {error}")
        return Outcome(cpu=cpu, trouble=str(error))
    errors = work / f"{cpu.name}.err"
    steps = []
    with errors.open("wb") as stderr, _ended(words, stderr, limit_s) as (process, timer):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                steps.append(json.loads(line))
                _say(cpu, _summary(steps[-1]))
        code = process.wait()
    trouble = None
    if timer.is_set():
        trouble = f"more than {limit_s:g} s"
    elif code:
        last = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""]
        trouble = f"ended with {code}: {last[-1][:200]}"
    if trouble:
        _say(cpu, trouble)
    return Outcome(cpu=cpu, steps=steps, trouble=trouble)


@contextmanager
def _ended(words: list[str], stderr: Any, limit_s: float) -> Iterator[tuple[subprocess.Popen[str], threading.Event]]:
    """A process that ends with the block or with its time; the event says that it was late."""
    late = threading.Event()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT) as process:

        def kill() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(limit_s, kill)
        timer.start()
        _running.add(process)
        try:
            yield process, late
        finally:
            timer.cancel()
            process.kill()
            _running.discard(process)


def _say(cpu: Cpu, text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {cpu.name}: {text}", file=sys.stderr, flush=True)


def _summary(step: dict[str, Any]) -> str:
    shown = {k: v for k, v in step.items() if k not in ("step", "what", "features", "problems", "s")}
    return f"{step['step']} {step['what']}, {step['s']} s: {json.dumps(shown)}"[:240]


def write(text: str, out: Path | None) -> None:
    """Print the table, or put it into a file between the marks, or alone where there are none."""
    if out is None:
        print(text)
        return
    old = out.read_text(encoding="utf-8") if out.exists() else ""
    new = f"{MARKS[0]}\n{text}\n{MARKS[1]}\n"
    if MARKS[0] in old:
        new = re.sub(f"{re.escape(MARKS[0])}.*{re.escape(MARKS[1])}\n", lambda _: new, old, flags=re.DOTALL)
    out.write_text(new, encoding="utf-8")


def _chosen(names: str | None) -> list[Cpu]:
    known = {cpu.name: cpu for cpu in CPUS}
    wanted = names.split(",") if names else list(known)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SystemExit(f"--only: no CPU is called {', '.join(unknown)}; known are {', '.join(known)}")
    return [cpu for cpu in CPUS if cpu.name in wanted and cpu != HERE]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cpus.run", description="Run the CPU lane.")
    parser.add_argument("--only", metavar="NAMES", help=f"CPUs with commas between: {', '.join(c.name for c in CPUS)}")
    parser.add_argument("--time", type=float, default=3600, metavar="S", help="seconds that a CPU may take (3600)")
    parser.add_argument("--jobs", type=int, default=1, help="CPUs at the same time (1)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="where the table goes")
    options = parser.parse_args(arguments)
    chosen = _chosen(options.only)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cache_folder().mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="run-", dir=cache_folder()))
    try:
        jobs = _jobs(work)
        here = run_on(HERE, jobs, work, options.time)
        pool = ThreadPoolExecutor(max_workers=options.jobs)
        try:
            outcomes = [here, *pool.map(lambda cpu: run_on(cpu, jobs, work, options.time), chosen)]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in [*_running]:  # none but behind Ctrl-C
                process.kill()
            pool.shutdown()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    write(table(outcomes, here), options.output)
    wrong = {outcome.cpu.name: faults(outcome, here) for outcome in outcomes}
    results = [{"cpu": o.cpu.name, "how": o.cpu.how, "faults": wrong[o.cpu.name], "steps": o.steps} for o in outcomes]
    print(json.dumps({"passes": not any(wrong.values()), "cpus": results}))
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
