"""What a fresh process loads: the promise that the runtime is lean, and that importing it opens nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from support.tree import modules

# What runs in the fresh process: -I ignores the environment, the user's packages and the current folder.
_PROBE = """
import json, sys
before = set(sys.modules)
watched = ("socket.connect", "socket.getaddrinfo", "socket.bind", "subprocess.Popen", "os.system", "pickle.find_class")
events = []
sys.addaudithook(lambda event, args: events.append(event) if event in watched else None)
code = 0
try:
{code}
except SystemExit as stop:
    code = stop.code or 0
loaded = sorted({{name.split(".")[0] for name in set(sys.modules) - before}} - set(sys.stdlib_module_names))
print("\\n" + json.dumps({{"loaded": loaded, "events": events, "code": code}}))
"""

RUNTIME = {"specedge", "numpy", "onnxruntime", "click"}


def _fresh(code: str) -> dict[str, object]:
    """Run the code in a fresh interpreter; what it loaded besides the standard library, and what it touched."""
    indented = "\n".join("    " + line for line in code.splitlines())
    command = [sys.executable, "-I", "-c", _PROBE.format(code=indented)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    found: dict[str, object] = json.loads(result.stdout.splitlines()[-1])
    assert found["code"] == 0, result.stderr
    assert not found["events"]
    return found


def _loaded(code: str) -> set[str]:
    loaded = _fresh(code)["loaded"]
    assert isinstance(loaded, list)
    # An editable installation finds the packages through a module of its own.
    return {name for name in loaded if not name.startswith("__editable__")}


def _command(*arguments: str) -> str:
    argv = ["specedge", *arguments]
    return f"import sys\nsys.argv = {argv!r}\nfrom specedge.runtime.cli.main import main\nraise SystemExit(main())"


def test_the_package_alone_loads_nothing() -> None:
    assert _loaded("import specedge\nspecedge.__version__\ndir(specedge)") == {"specedge"}


def test_an_error_class_loads_no_library() -> None:
    assert _loaded("from specedge import SpecedgeError") == {"specedge"}


@pytest.mark.parametrize("name", ["WhisperModel", "BatchedInferencePipeline"])
def test_a_model_s_class_loads_no_onnxruntime(name: str) -> None:
    """Which graphs to run is known when a model is made, and only then are 20 MB of runtime worth loading."""
    assert _loaded(f"from specedge import {name}") <= {"specedge", "numpy"}


@pytest.mark.parametrize("name", ["Segment", "Word", "TranscriptionInfo", "available_models", "download_model"])
def test_names_of_plain_data_load_no_numpy(name: str) -> None:
    assert _loaded(f"from specedge import {name}") == {"specedge"}


def test_the_runtime_loads_numpy_and_onnxruntime_only() -> None:
    shipped = ("specedge.runtime", "specedge.maps", "specedge.models")
    names = [m.name for m in modules() if m.name.startswith(shipped) and ".recipe" not in m.name]
    loaded = _loaded("\n".join(f"import {name}" for name in names))
    assert loaded <= RUNTIME, f"loaded besides: {sorted(loaded - RUNTIME)}"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        ("transcribe", "--help"),
        ("listen", "--help"),
        ("fleet", "--help"),
        ("export", "--help"),
        ("models", "--help"),
        ("map", "--help"),
        ("disk", "--help"),
        ("doctor", "--calibrate", "--help"),
        ("bench", "--help"),
    ],
)
def test_help_loads_neither_numpy_nor_onnxruntime(arguments: tuple[str, ...]) -> None:
    assert _loaded(_command(*arguments)) <= {"specedge", "click"}


def test_the_export_modules_load_no_torch() -> None:
    trains = (".training", ".papers")
    names = [m.name for m in modules() if m.name.startswith("specedge.export") and not any(t in m.name for t in trains)]
    loaded = _loaded("\n".join(f"import {name}" for name in names))
    assert not loaded & {"torch", "transformers", "librosa", "optimum", "tensorflow", "jax"}


def test_onnxruntime_s_telemetry_does_not_begin() -> None:
    """Its worker is the only thread that importing it starts; with that come a device id and uploads."""
    code = "import os; import specedge.runtime.engine.session; print(len(os.listdir('/proc/self/task')))"
    forgotten = ("ORT_DISABLE_TELEMETRY", "ORT_TELEMETRY_DISABLED", "CI", "TF_BUILD", "GITHUB_ACTIONS")
    environment = {name: value for name, value in os.environ.items() if name not in forgotten}
    environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    if not os.path.isdir("/proc/self/task"):
        pytest.skip("threads are counted on Linux only")
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "1\n"


@pytest.mark.parametrize("name", ["ORT_DISABLE_TELEMETRY", "ORT_GQA_DISABLE_FLASH_ATTENTION"])
def test_switches_of_onnxruntime_that_the_user_has_set_are_left_alone(name: str) -> None:
    code = f"import os, specedge; print(os.environ[{name!r}])"
    for given, expected in (({}, "1\n"), ({name: "0"}, "0\n")):
        environment = {known: value for known, value in os.environ.items() if known != name}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env={**environment, **given}, capture_output=True, text=True, check=True)
        assert done.stdout == expected
