"""Export of a checkpoint on a small machine: peak memory and time of `specedge export`, then of a 30 s transcription.

    python tests/bench/export_memory.py CKPT [--precision int8]

Both are child processes; peak memory is what the system counted for the child (getrusage), so weight files that are
mapped count while their pages are resident. The transcription runs twice: the first start also packs the weights for
this CPU, the second finds them. Random weights decode to the length limit, more than speech would. The disk's speed is
not taken out of the times, and accuracy is not measured. The targets are for the large-v2 shape.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from jobs import SAMPLE_RATE_HZ, synthetic, write_wav
from rounds import print_json, print_table

from specedge.errors import SpecedgeError
from specedge.runtime.bench.measure import run_measured

TARGETS = {"export": {"peak_mb": 2000.0, "wall_s": 300.0}, "transcribe": {"peak_mb": 3000.0}}


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--precision", choices=["fp32", "int8", "int4"], default="int8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the bundle is written and removed again  [temporary]")
    options = parser.parse_args()
    run = [sys.executable, "-m", "specedge"]
    found: dict[str, dict[str, float]] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="specedge-bench-", dir=options.folder) as name:
            folder = Path(name)
            bundle, audio = folder / "bundle", folder / "window.wav"
            export = [*run, "export", options.checkpoint, "-o", str(bundle), "--precision", options.precision]
            found["export"] = run_measured([*export, "--name", "bench"])
            manifest = json.loads((bundle / "specedge.json").read_text(encoding="utf-8"))
            write_wav(audio, synthetic(round(manifest["window_s"] * SAMPLE_RATE_HZ)))
            env = {"SPECEDGE_CACHE": str(folder / "cache")}
            transcribe = [*run, "transcribe", str(audio), "-m", str(bundle), "-t", str(options.threads)]
            for step in ("transcribe, first start", "transcribe"):
                found[step] = run_measured([*transcribe, "--no-timestamps"], env=env)
            bundle_mb = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file()) / 1e6
    except (SpecedgeError, OSError) as error:
        raise SystemExit(f"export_memory: {error}") from None
    rows = [["", "wall s", "cpu s", "peak MB", "target"]]
    for step, values in found.items():
        cells = [f"{values[key]:.1f}" for key in ("wall_s", "cpu_s", "peak_mb")]
        verdicts = [
            f"{key} < {target:g} {'met' if values[key] < target else 'MISSED'}"
            for key, target in TARGETS.get(step, {}).items()
        ]
        rows.append([step, *cells, ", ".join(verdicts)])
    print_table(rows)
    print(f"bundle: {bundle_mb:.1f} MB")
    print_json("export_memory", precision=options.precision, bundle_mb=bundle_mb, steps=found, targets=TARGETS)


if __name__ == "__main__":
    main()
