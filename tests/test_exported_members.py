"""The public names of `import specedge`: all there, all from where they say, none by accident."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

import specedge
from support.tree import ROOT


def test_every_public_name_can_be_reached_and_is_listed() -> None:
    assert dir(specedge) == sorted(specedge.__all__)
    for name in specedge.__all__:
        assert getattr(specedge, name) is not None


def test_public_classes_are_the_ones_of_their_home_module() -> None:
    from specedge import errors
    from specedge.runtime import batched, model
    from specedge.runtime.longform import segments

    assert specedge.SpecedgeError is errors.SpecedgeError
    assert specedge.WhisperModel is model.WhisperModel
    assert specedge.BatchedInferencePipeline is batched.BatchedInferencePipeline
    assert (specedge.Segment, specedge.Word) == (segments.Segment, segments.Word)
    assert specedge.TranscriptionInfo is segments.TranscriptionInfo


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
