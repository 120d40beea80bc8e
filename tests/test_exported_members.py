"""The public names of `import specedge`: all there, all from where they say, none by accident."""

from __future__ import annotations

import builtins
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specedge
from support.tree import ROOT


def test_every_public_name_can_be_reached_and_is_listed() -> None:
    assert dir(specedge) == sorted(specedge.__all__)
    for name in specedge.__all__:
        assert getattr(specedge, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'WhisperModle'"):
        specedge.WhisperModle  # noqa: B018
    assert not hasattr(specedge, "import_model")


def test_the_version_is_the_project_s() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert specedge.__version__ == project["version"]


def test_star_import_gives_the_public_names() -> None:
    code = "from specedge import *; print(SpecedgeError.exit_code, __version__)"
    result = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert result.stdout.split() == ["1", specedge.__version__], result.stderr


# Programs get these from one call of the library and pass them to another; their members are the library's own.
HANDLES = ("AudioStream", "Bundle", "Engine", "TranscriptionRun")


def annotations() -> Iterator[tuple[str, str, Any]]:
    """Every annotation of the public classes' public methods and fields, and of the public functions."""
    for name in set(specedge.__all__) - set(HANDLES):
        value = getattr(specedge, name)
        if inspect.isfunction(value):
            yield from ((name, text, value) for text in value.__annotations__.values())
        elif inspect.isclass(value):
            yield from ((name, text, value) for text in vars(value).get("__annotations__", {}).values())
            for member, method in vars(value).items():
                method = (
                    method.fget if isinstance(method, property) else inspect.unwrap(getattr(method, "__func__", method))
                )
                if inspect.isfunction(method) and (member == "__init__" or not member.startswith("_")):
                    yield from ((f"{name}.{member}", text, value) for text in method.__annotations__.values())


def test_every_type_in_a_public_signature_is_public() -> None:
    found = list(annotations())
    assert len(found) > 200
    for where, text, owner in found:
        for word in re.findall(r"[A-Za-z_][\w.]*", re.sub(r"'[^']*'|\"[^\"]*\"", "", str(text))):
            name = word.split(".")[0]
            value = vars(sys.modules[owner.__module__]).get(name, getattr(builtins, name, None))
            is_known = name == "None" or (value is not None and not _is_class_of_ours(value))
            assert is_known or name in specedge.__all__, f"{where}: {name} of {text!r} is not in specedge"


def _is_class_of_ours(value: object) -> bool:
    return inspect.isclass(value) and value.__module__.startswith("specedge.")


MISSING = (
    (lambda folder: specedge.decode_audio(folder / "gone.wav"), specedge.AudioError),
    (lambda folder: specedge.WhisperModel(folder / "gone"), specedge.ModelError),
    (lambda folder: specedge.WhisperModel("no-such-model"), specedge.ModelError),
    (lambda folder: specedge.Bundle.open(folder / "gone"), specedge.BundleError),
)


@pytest.mark.parametrize(("use", "kind"), MISSING)
def test_what_is_not_there_is_a_file_not_found_error(use: Any, kind: type[Exception], tmp_path: Path) -> None:
    for expected in (FileNotFoundError, kind, specedge.SpecedgeError):
        with pytest.raises(expected):
            use(tmp_path)


def test_a_missing_map_or_checkpoint_is_a_file_not_found_error(tmp_path: Path) -> None:
    from specedge.maps.token_map import TokenMap

    with pytest.raises(FileNotFoundError, match="cannot read the token map") as caught:
        TokenMap.open(tmp_path / "gone.tmap")
    assert isinstance(caught.value, specedge.MapError)
    assert issubclass(specedge.CheckpointNotFoundError, FileNotFoundError)


@pytest.mark.parametrize(
    "use",
    [
        lambda: specedge.TranscribeOptions(best_of=0),
        lambda: specedge.DrafterOptions("oracle"),
        lambda: specedge.VadOptions(threshold=2),
        lambda: specedge.WhisperModel("demo", device="cuda"),
        lambda: specedge.open_audio(np.zeros(1, np.float32), raw=specedge.RawFormat.parse("s16le:16000")),
    ],
)
def test_a_bad_value_is_a_value_error(use: Any) -> None:
    for expected in (ValueError, specedge.UsageError):
        with pytest.raises(expected):
            use()


def test_too_little_disk_or_memory_is_an_error_of_that_kind() -> None:
    assert issubclass(specedge.ResourceError, OSError)
    assert issubclass(specedge.OutOfMemoryError, MemoryError)
    error: BaseException = specedge.OutOfMemoryError("no\n room")
    assert str(error) == "no room" and error.exit_code == 5  # type: ignore[attr-defined]


def test_an_interruption_is_an_exception_that_a_program_catches() -> None:
    assert issubclass(specedge.Interrupted, Exception) and not issubclass(specedge.Interrupted, KeyboardInterrupt)
