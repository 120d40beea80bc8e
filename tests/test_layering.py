"""One-way imports: export -> runtime -> maps, each library in its one place, no cycles, no name that is not there."""

from __future__ import annotations

import pytest

from support.layers import imports, names_of, violations
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
        ("runtime/passes/engine.py", "import onnxruntime"),
        ("runtime/sound/mel.py", "def f():\n    import librosa"),
        ("runtime/sound/mel.py", "from specedge.export import checkpoint"),
        ("runtime/sound/mel.py", "from specedge import export"),
        ("runtime/sound/mel.py", "from ...export import checkpoint"),
        ("runtime/sound/mel.py", "import importlib\nimportlib.import_module('torch')"),
        ("runtime/sound/mel.py", "from specedge.models import cli"),
        ("runtime/sound/mel.py", "import click"),
        ("runtime/sound/sndfile.py", "import soundfile"),
        ("runtime/sound/microphone.py", "import sounddevice"),
        ("runtime/commands/listen.py", "import onnxruntime"),
        ("runtime/commands/listen.py", "from specedge.export import checkpoint"),
        ("runtime/sound/audio.py", "try:\n    import soxr\nexcept ImportError:\n    soxr = None"),
        ("runtime/errors.py", "import sys"),
        ("runtime/longform/transcribe.py", "from specedge.runtime.cli import main"),
        ("runtime/longform/transcribe.py", "from specedge.runtime.commands.console import notify"),
        ("runtime/commands/listen.py", "import onnxruntime"),
        ("runtime/commands/listen.py", "import numpy"),
        ("maps/reader.py", "from specedge.runtime.sound import mel"),
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
        ("runtime/passes/session.py", "import onnxruntime"),
        ("runtime/sound/sndfile.py", "def f():\n    import soundfile"),
        ("runtime/sound/microphone.py", "def f():\n    import sounddevice"),
        ("runtime/commands/listen.py", "import click"),
        ("runtime/bundles/bundle.py", "from specedge import __version__"),
        ("runtime/sound/mel.py", "from specedge.maps import reader"),
        ("export/checkpoint.py", "def f():\n    import torch"),
        ("models/cli.py", "def f():\n    from specedge.export.cli import export"),
        ("runtime/commands/listen.py", "import click\ndef f():\n    import numpy"),
        ("runtime/cli.py", "from specedge.runtime.commands.console import notify"),
        ("maps/reader.py", "from specedge.runtime.errors import MapError"),
    ],
)
def test_a_rightful_import_passes(relative: str, source: str) -> None:
    assert not violations(_planted(relative, source))


def test_modules_import_each_other_in_one_direction() -> None:
    known = {module.name: module for module in modules()}
    edges: dict[str, set[str]] = {name: set() for name in known}
    for name, module in known.items():
        for item in imports(module):
            if item.at_top:
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
            if package not in known or name not in names_of(known[package]):
                missing.append(f"{module.relative}:{item.line}: {item.name}")
    assert not missing, "\n".join(missing)
