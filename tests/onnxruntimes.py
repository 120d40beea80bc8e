"""Commands and drafters on the lowest and the newest ONNX Runtime that pyproject.toml allows, each in an environment.

    python tests/onnxruntimes.py [--versions 1.31.0,1.32.0] [--limit-s 600]

Asks the package index; an environment is kept in build/onnxruntime-VERSION for the next run and borrows all other
libraries from this one. The last line is JSON; the exit code is 1 when a test fails on one of them.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
TESTS = (
    "tests/runtime/engine/test_doctor.py", "tests/export/test_export_cli.py", "tests/export/test_graphs.py",
    "tests/export/test_heads.py", "tests/export/test_ctc_graph.py", "tests/export/test_learn_graphs.py",
    "tests/runtime/test_lossless.py", "tests/runtime/cli", "tests/runtime/drafters", "tests/runtime/engine",
    "tests/runtime/decoding", "tests/runtime/longform", "tests/runtime/bundle", "tests/runtime/cli/test_cli_process.py",
    "tests/runtime/bench",
)  # fmt: skip


def allowed() -> list[str]:
    """The lowest and the newest version that pyproject.toml allows and the index has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = next(r for r in map(Requirement, project["dependencies"]) if r.name == "onnxruntime")
    asked = [sys.executable, "-m", "pip", "index", "versions", "onnxruntime"]
    shown = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    listed = re.search(r"Available versions: (.*)", shown)
    versions = sorted(map(Version, wanted.specifier.filter(listed[1].split(", ") if listed else [])))
    return [str(version) for version in dict.fromkeys((versions[0], versions[-1]))]


def environment(version: str) -> Path:
    """The Python of an environment with that ONNX Runtime and this tree."""
    folder = ROOT / "build" / f"onnxruntime-{version}"
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=False, clear=True)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
        where = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        packages = Path(subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip())
        borrowed = [path for path in sys.path if path.endswith("site-packages")]
        (packages / "libraries.pth").write_text("\n".join(borrowed) + "\n", encoding="utf-8")
        subprocess.run([*pip, f"onnxruntime=={version}"], check=True)
        subprocess.run([*pip, "--no-index", "--no-build-isolation", "--editable", str(ROOT)], check=True)
        (folder / "ready").touch()
    return python


def run(version: str, limit_s: float, seed: int) -> tuple[int, int]:
    """Tests that ran on it, and those that failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [str(environment(version)), "-m", "pytest", *TESTS, f"--junitxml={report}", "-p", "no:cacheprovider"]
        command += ["--limit-s", str(limit_s), "--order-seed", str(seed)]
        subprocess.run(command, cwd=ROOT, check=False, stdout=sys.stderr)
        suite = next(ElementTree.parse(report).iter("testsuite"))
    tests, skipped, failures, errors = (int(suite.get(k, 0)) for k in ("tests", "skipped", "failures", "errors"))
    return tests - skipped, failures + errors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", help="separated by commas  [default: the lowest and the newest allowed]")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin no test after this")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    versions = given.versions.split(",") if given.versions else allowed()
    deadline, found = time.monotonic() + given.limit_s, {}
    for at, version in enumerate(versions):
        found[version] = run(version, (deadline - time.monotonic()) / (len(versions) - at), given.seed)
        print(f"onnxruntime {version}: {found[version][0]} tests, {found[version][1]} failed", flush=True)
    runs, failures = (sum(counts[i] for counts in found.values()) for i in range(2))
    print(json.dumps({"lane": "onnxruntime", "runs": runs, "failures": failures, "versions": found}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
