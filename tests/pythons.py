"""The wheel in a fresh environment of each Python, installed by pip with all it needs: does it transcribe a sample?

    python tests/pythons.py [--pythons python3.11,python3.12,python3.13]

Names or paths of Pythons, without those that are not here. Asks the package index. The last line is JSON; the exit code
is 1 when a text is wrong, no Python is here, or the wheel is too large.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.wheel import build_wheel  # noqa: E402

WHEEL_BYTES = 1_500_000
SAMPLE = ROOT / "models" / "bundled" / "samples" / "maintenance.wav"
MODEL = ROOT / "models" / "bundled" / "demo"
TEXT = "Call the maintenance crew to generator two."


def installed_and_asked(python: str, wheel: Path, folder: Path) -> dict[str, Any]:
    """What a fresh environment of `python` holds, and what it says to the sample."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    scripts = folder / ("Scripts" if sys.platform == "win32" else "bin")
    subprocess.run([str(scripts / "python"), "-m", "pip", "install", "--quiet", str(wheel)], check=True)
    n_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    # Nothing of this environment, of an earlier run or of the current folder's.
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPECEDGE_HOME")}
    env["SPECEDGE_CACHE"] = str(folder / "cache")
    line = [str(scripts / "specedge"), "transcribe", str(SAMPLE), "-m", str(MODEL)]
    heard = subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True)
    told = subprocess.run([str(scripts / "python"), "--version"], capture_output=True, text=True, check=True).stdout
    text = heard.stdout.strip()
    return {"python": told.split()[-1], "installed_mb": round(n_bytes / 1e6), "text": text, "ok": TEXT in text}


def main() -> int:
    """Build, install, ask."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pythons", default="python3.11,python3.12,python3.13", help="with commas")
    given = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory(prefix="specedge-pythons-") as scratch:
        wheel = build_wheel(Path(scratch))
        wheel_bytes = wheel.stat().st_size
        print(f"{wheel.name}: {wheel_bytes / 1e6:.1f} MB", flush=True)
        for number, python in enumerate(filter(shutil.which, given.pythons.split(","))):
            found.append(installed_and_asked(python, wheel, Path(scratch, f"environment-{number}")))
            print("Python {python}: {installed_mb} MB, {text!r}".format(**found[-1]), flush=True)
    print(json.dumps({"wheel_bytes": wheel_bytes, "pythons": found}))
    return 0 if found and all(one["ok"] for one in found) and wheel_bytes < WHEEL_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
