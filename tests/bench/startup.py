"""What starting the program costs: `import specedge`, `specedge --help`, and `specedge transcribe` around its passes.

    python tests/bench/startup.py [--bundle BUNDLE] [--rounds 11]

Wall time of whole processes, interleaved with an empty Python, which is the part that is not ours. "transcribe around
its passes" is a transcription of one second of sound, less the time inside the encoder and inside the decoder:
imports, opening the bundle, loading the engine from a warm cache, audio, log-mel, output. Without --bundle that part is
left out. Files are in the page cache; the first start of a machine is not measured.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from jobs import SAMPLE_RATE_HZ, synthetic, write_wav
from rounds import print_json, print_table

from specedge.errors import SpecedgeError
from specedge.runtime.bench.measure import run_measured

TARGETS = {"import specedge": 0.3, "specedge --help": 0.4}
AROUND = "transcribe around its passes"

CHILD = """
import sys, time
import specedge.runtime.cli.main, specedge.runtime.engine.engine, specedge.runtime.longform.transcribe
spent = 0.0
def timed(function):
    def call(*args, **kwargs):
        global spent
        started = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent += time.perf_counter() - started
    return call
specedge.runtime.engine.engine.Engine.encode = timed(specedge.runtime.engine.engine.Engine.encode)
specedge.runtime.longform.transcribe.run = timed(specedge.runtime.longform.transcribe.run)
report, *sys.argv[1:] = sys.argv[1:]
code = specedge.runtime.cli.main.main()
with open(report, "w") as file:
    file.write(repr(spent))
sys.exit(code)
"""


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    run = [sys.executable, "-m", "specedge"]
    commands = {
        "python alone": [sys.executable, "-c", "pass"],
        "import specedge": [sys.executable, "-c", "import specedge"],
        "specedge --help": [*run, "--help"],
        "specedge transcribe --help": [*run, "transcribe", "--help"],
    }
    try:
        with tempfile.TemporaryDirectory(prefix="specedge-bench-") as folder:
            if options.bundle is not None:
                audio, spent = Path(folder) / "second.wav", Path(folder) / "spent"
                write_wav(audio, synthetic(SAMPLE_RATE_HZ))
                transcribe = ["transcribe", str(audio), "-m", str(options.bundle), "-l", "en", "--no-timestamps"]
                commands[AROUND] = [sys.executable, "-c", CHILD, str(spent), *transcribe]
            env = {"SPECEDGE_CACHE": folder}
            for command in commands.values():
                run_measured(command, env=env)
            found: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
            for _ in range(options.rounds):
                for name, command in commands.items():
                    values = run_measured(command, env=env)
                    if name == AROUND:
                        values["wall_s"] -= float(spent.read_text(encoding="ascii"))
                    found[name].append(values)
    except (SpecedgeError, OSError) as error:
        raise SystemExit(f"startup: {error}") from None
    rows = [["", "s, median", "min", "max", "over python", "target"]]
    medians = {name: statistics.median(value["wall_s"] for value in values) for name, values in found.items()}
    for name, median in medians.items():
        walls = [value["wall_s"] for value in found[name]]
        over = median - medians["python alone"]
        target = TARGETS.get(name)
        verdict = "" if target is None else f"< {target:g} {'met' if median < target else 'MISSED'}"
        cells = [f"{value:.3f}" for value in (median, min(walls), max(walls), over)]
        rows.append([name, *cells, verdict])
    print_table(rows)
    print_json("startup", median_s=medians, targets=TARGETS)


if __name__ == "__main__":
    main()
