"""Log-mel of one window: ours beside faster-whisper's feature extractor, in turns.

    python tests/bench/mel.py BUNDLE [--ct2-python PYTHON]

Times samples in memory to float32 log-mel, for the bundle's window and bands, and compares a sample of the values:
their largest difference says whether both computed the same thing. Reading and resampling audio are not measured.
Without a Python that has faster-whisper only ours is timed.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

from jobs import make_job
from rounds import BenchError, Peer, Running, Series, print_json, report


def can_import(python: str, module: str) -> bool:
    """Whether that Python has the module."""
    command = [python, "-c", f"import {module}"]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


def measure(options: argparse.Namespace, folder: Path) -> None:
    """All rounds, the table and the JSON."""
    job = make_job(options.bundle, folder, threads=options.threads, audio=None)
    job_file = str(job.save(folder / "job.json"))
    peers = [
        Peer(
            name="specedge",
            python=sys.executable,
            script="peer_specedge.py",
            arguments=(job_file, str(options.bundle)),
        )
    ]
    if can_import(options.ct2_python, "faster_whisper"):
        peers.append(
            Peer(name="faster-whisper", python=options.ct2_python, script="peer_ct2.py", arguments=(job_file, "-"))
        )
    else:
        print(f"{options.ct2_python} has no faster-whisper; ours alone", file=sys.stderr)
    series: dict[str, Series] = {peer.name: {"mel ms": []} for peer in peers}
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(Running(peer, threads=job.threads)) for peer in peers]
        samples = [peer.ask("sample", kind="mel")[1] for peer in running]
        for _ in range(options.rounds):
            for peer in running:
                series[peer.name]["mel ms"].append(peer.ask("mel", warm=1, repeat=5)[0])
    difference = None
    if len(samples) == 2:
        difference = max(abs(a - b) for a, b in zip(*samples, strict=True))
        print(f"largest difference of {len(samples[0])} values: {difference:.2g}")
    result = report(["mel ms"], series, {})
    print_json("mel", n_mels=job.n_mels, rounds=options.rounds, difference=difference, **result)


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--ct2-python", default=sys.executable, help="a Python that has faster-whisper")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="specedge-bench-") as folder:
            measure(options, Path(folder))
    except (BenchError, OSError) as error:
        raise SystemExit(f"mel: {error}") from None


if __name__ == "__main__":
    main()
