"""One-way imports from floor to floor (support/layers.py), each library in its one place, no circles, no dead names."""

from __future__ import annotations

import pytest

from support.layers import FLOORS, imports, names_of, violations
from support.tree import ROOT, Module, modules, modules_of_tests


def _planted(relative: str, source: str) -> Module:
    """A module with this source that claims to lie at this place in the tree."""
    path = ROOT / relative
    module = Module(path=path, name="specedge." + relative.removesuffix(".py").replace("/", "."))
    module.__dict__["source"] = source
    return module


def test_every_import_is_allowed() -> None:
    found = [line for module in modules() for line in violations(module)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("relative", "source"),
    [
        ("runtime/engine/engine.py", "import onnxruntime"),
        ("runtime/audio/mel.py", "def f():\n    import librosa"),
        ("runtime/audio/mel.py", "from specedge.export import checkpoint"),
        ("runtime/audio/mel.py", "from specedge import export"),
        ("runtime/audio/mel.py", "from ...export import checkpoint"),
        ("runtime/audio/mel.py", "import importlib\nimportlib.import_module('torch')"),
        ("runtime/audio/mel.py", "from ..longform.transcribe import transcribe"),
        ("runtime/decoding/decode.py", "def f():\n    from ..drafters.tokenmap import TokenMapDrafter"),
        ("runtime/drafters/registry.py", "def f():\n    from ..papers.heads import make"),
        ("runtime/device.py", "import onnxruntime"),
        (
            "runtime/engine/engine.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..decoding import decode",
        ),
        ("runtime/audio/mel.py", "import click"),
        ("runtime/audio/media.py", "import av"),
        ("runtime/audio/microphone.py", "import sounddevice"),
        ("runtime/cli/listen.py", "import onnxruntime"),
        ("runtime/audio/audio.py", "try:\n    import av\nexcept ImportError:\n    av = None"),
        ("runtime/_specedge/errors.py", "import sys"),
        ("runtime/longform/transcribe.py", "from specedge.runtime.cli.main import main"),
        ("runtime/longform/transcribe.py", "from specedge.runtime.cli.errors import fail"),
        ("runtime/cli/listen.py", "import onnxruntime"),
        ("runtime/cli/listen.py", "import numpy"),
        ("maps/reader.py", "from specedge.runtime.audio import mel"),
        ("models/store.py", "import numpy"),
        ("export/graph.py", "import onnxruntime"),
        ("export/graph.py", "import torch"),
        ("export/graph.py", "from specedge.export.training import corpus"),
    ],
)
def test_a_planted_import_is_found(relative: str, source: str) -> None:
    assert violations(_planted(relative, source))


@pytest.mark.parametrize(
    ("relative", "source"),
    [
        ("runtime/engine/session.py", "import onnxruntime"),
        ("runtime/audio/media.py", "def f():\n    import av"),
        ("runtime/audio/microphone.py", "def f():\n    import sounddevice"),
        ("runtime/cli/listen.py", "import click"),
        ("runtime/bundle/bundle.py", "from specedge.version import __version__"),
        ("runtime/audio/mel.py", "from specedge.maps import reader"),
        ("export/checkpoint.py", "def f():\n    import torch"),
        ("runtime/cli/models.py", "def f():\n    from specedge.export.export import export_to"),
        ("runtime/cli/listen.py", "import click\ndef f():\n    import numpy"),
        ("runtime/cli/main.py", "from ..console import notify"),
        ("maps/reader.py", "from specedge.errors import MapError"),
    ],
)
def test_a_rightful_import_passes(relative: str, source: str) -> None:
    assert not violations(_planted(relative, source))


def test_only_trainings_import_what_reproduces_papers() -> None:
    """All else finds it by name (`runtime/registered.py`)."""
    rooms = ("runtime/papers/", "export/papers/", "export/training/")
    for module in modules():
        if not module.relative.startswith(rooms):
            found = [item.name for item in imports(module) if ".papers" in item.name]
            assert not found, (module.relative, found)


def test_every_floor_has_its_rooms() -> None:
    for rooms in FLOORS:
        for room in rooms:
            assert (ROOT / room).exists(), room


def test_modules_import_each_other_in_one_direction() -> None:
    """Counting imports in functions and for type checkers: a circle there is a circle for the reader too."""
    known = {module.name: module for module in modules()}
    edges: dict[str, set[str]] = {name: set() for name in known}
    for name, module in known.items():
        for item in imports(module):
            target = item.name if item.name in known else item.name.rpartition(".")[0]
            edges[name].update({target} & known.keys() - {name})
    while leaves := [name for name, targets in edges.items() if not targets & edges.keys()]:
        for name in leaves:
            del edges[name]
    assert not edges, f"these modules import each other in a circle, or lead to one: {sorted(edges)}"


def test_every_name_that_is_imported_is_there() -> None:
    """Also in functions, and in tests that only the slow lane runs."""
    known = {module.name: module for module in [*modules(), *modules_of_tests()]}
    missing = []
    for module in known.values():
        for item in imports(module):
            package, _, name = item.name.rpartition(".")
            if item.name in known or item.top_name not in ("specedge", "support", "tests"):
                continue
            if package not in known or name not in {"*", *names_of(known[package])}:
                missing.append(f"{module.relative}:{item.line}: {item.name}")
    assert not missing, "\n".join(missing)
