"""Packed weights: made once, found again with the same bits, and never a reason for a start to fail."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.errors import BundleError, Interrupted, SpecedgeError
from specedge.runtime.device import Isa
from specedge.runtime.engine import engine as engine_module
from specedge.runtime.engine import packed
from specedge.runtime.engine.engine import Engine
from specedge.runtime.engine.packed import READY, entry_path, kept, lookup
from support.exported import PRECISIONS, bundle, noise_mel
from support.first_starts import starts

Usage = namedtuple("Usage", "total used free")
IDS = [5, 17, 900, 3, 44]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, not made yet; gives the folder of its entries."""
    monkeypatch.setenv("SPECEDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPECEDGE_CACHE_BYTES", raising=False)
    return tmp_path / "cache" / "prepacked"


def outputs(made: Engine) -> NDArray[np.float32]:
    """Bits of a window and of some rows."""
    features = made.encode(noise_mel(80, 200))
    logits = made.forward(made.start(features), IDS)
    return np.concatenate([features.hidden.ravel(), logits.ravel()])


def packed_bits(precision: str = "int8") -> NDArray[np.float32]:
    return outputs(Engine(bundle(precision), threads=1))


def plain_bits(precision: str = "int8") -> NDArray[np.float32]:
    return outputs(Engine(bundle(precision), threads=1, cache=False))


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir()) if cache.is_dir() else []


def forbid_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "_save_packed", lambda *_: pytest.fail("packed again"))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_second_start_uses_what_the_first_one_packed(
    precision: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = packed_bits(precision)
    (name,) = entries(cache)
    files = {path.name for path in (cache / name).iterdir()}
    assert files >= {READY, "encoder.onnx", "decoder.onnx", "decoder.data", "cross_kv.onnx"}
    forbid_packing(monkeypatch)
    assert (packed_bits(precision) == first).all()
    assert (plain_bits(precision) == first).all()


def test_short_audio_alone_loads_one_encoder_from_packed_weights(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mel = noise_mel(80, 82)
    expected = Engine(bundle("int8"), threads=1, cache=False).encode(mel, ends_in_silence=True).hidden
    for _ in range(2):
        made = Engine(bundle("int8"), threads=1)
        assert (made.encode(mel, ends_in_silence=True).hidden == expected).all()
        monkeypatch.setattr(Engine, "_pack", lambda *_: pytest.fail("packed again"))
    assert "encoder" not in made._sessions and len(list(cache.glob("*-short"))) == 1
    shutil.rmtree(cache)  # as if it were evicted: the whole window's encoder comes from the bundle
    assert made.encode(noise_mel(80, 200)).hidden.any()


def test_without_the_cache_nothing_is_written(cache: Path) -> None:
    plain_bits()
    assert not cache.exists()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("damaged", ["decoder.data", "encoder.onnx"])
def test_a_damaged_entry_is_made_again_with_the_same_bits(
    damaged: str, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = packed_bits()
    (name,) = entries(cache)
    flip(cache / name / damaged)
    with caplog.at_level(logging.WARNING, "specedge"):
        assert (packed_bits() == expected).all()
        assert len(caplog.records) == 1 and "packed weights are damaged" in caplog.text
        assert (packed_bits() == expected).all()
    assert len(caplog.records) == 1
    assert entries(cache) == sorted([f".bad-{name}", name])


@pytest.mark.parametrize("where", ["a file", "below a file", "a device"])
def test_a_cache_that_cannot_be_made_costs_only_speed(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("mine")
    places = {"a file": tmp_path / "file", "below a file": tmp_path / "file" / "cache", "a device": Path(os.devnull)}
    monkeypatch.setenv("SPECEDGE_CACHE", str(places[where]))
    assert (packed_bits() == plain_bits()).all()
    assert (tmp_path / "file").read_text() == "mine"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="nothing is read-only for this user")
def test_a_read_only_cache_is_read(cache: Path) -> None:
    expected = packed_bits()
    (name,) = entries(cache)
    for path in (cache / name, cache):
        path.chmod(0o500)
    try:
        assert (packed_bits() == expected).all()
    finally:
        for path in (cache, cache / name):
            path.chmod(0o700)


@pytest.mark.parametrize("limit_bytes", [1000, 30_000, 200_000])
def test_a_disk_that_fills_up_while_packing_costs_only_speed(limit_bytes: int, cache: Path) -> None:
    resource = pytest.importorskip("resource", reason="no limit on the size of files here")
    expected = plain_bits()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        got = packed_bits()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (got == expected).all() and entries(cache) == []


def test_an_entry_that_goes_away_after_the_lookup(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Evicted by another process between the two."""
    monkeypatch.setattr(packed, "lookup", lambda entry: tmp_path / "gone")
    assert (packed_bits() == plain_bits()).all()
    assert "packed weights are damaged" in caplog.text


@pytest.mark.parametrize("fault", [SpecedgeError("ONNX Runtime failed"), BundleError("cannot load"), OSError("full")])
def test_packing_that_fails_costs_only_speed(fault: Exception, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise fault

    monkeypatch.setattr(Engine, "_save_packed", fail)
    assert (packed_bits() == plain_bits()).all()
    assert entries(cache) == []


@pytest.mark.parametrize("fault", [Interrupted("interrupted"), KeyboardInterrupt()])
def test_an_interrupted_packing_leaves_nothing(
    fault: BaseException, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = engine_module.load_graph
    n_loads = 0

    def second_fails(*arguments: Any, **options: Any) -> Any:
        nonlocal n_loads
        n_loads += 1
        if n_loads == 2:
            raise fault
        return load(*arguments, **options)

    monkeypatch.setattr(engine_module, "load_graph", second_fails)
    with pytest.raises(type(fault)):
        Engine(bundle("int8"), threads=1)
    assert entries(cache) == []


def test_packed_weights_that_compute_something_else_are_never_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime's packing has had faults; what it packed is compared with the plain graphs before it is kept."""
    monkeypatch.setattr(Engine, "_probe_bits", lambda self, folder: str(folder).encode())
    assert (packed_bits() == plain_bits()).all()
    (name,) = entries(cache)
    assert [path.name for path in (cache / name).iterdir()] == [READY]
    forbid_packing(monkeypatch)
    assert (packed_bits() == plain_bits()).all()
    assert entries(cache) == [name]


def test_several_processes_start_at_once(cache: Path) -> None:
    results = starts(4)
    assert len(results) == 1, results
    code, out, err = next(iter(results))
    assert (code, err) == (0, "") and len(out) == 65
    (name,) = entries(cache)
    assert lookup(cache / name) is not None
    assert starts(2) == results


@pytest.mark.stress
def test_starts_over_a_cache_that_is_damaged_and_removed_all_the_time(cache: Path) -> None:
    expected = starts(1)
    rng = np.random.default_rng(0)
    for _ in range(12):
        for name in entries(cache):
            action = rng.integers(4)
            if action == 0:
                shutil.rmtree(cache / name, ignore_errors=True)
            elif action == 1 and (cache / name / "decoder.data").exists():
                flip(cache / name / "decoder.data")
            elif action == 2 and (cache / name / READY).exists():
                (cache / name / READY).unlink()
        got = {(code, out) for code, out, _ in starts(6)}
        assert got == {(code, out) for code, out, _ in expected}


def build(n_bytes: int = 1000) -> Any:
    def write(folder: Path) -> None:
        (folder / "weights").write_bytes(b"w" * n_bytes)

    return write


def put(cache: Path, name: str, n_bytes: int = 1000, *, used_s_ago: float = 0.0) -> Path:
    entry = cache / name
    kept(entry, build(n_bytes))
    os.utime(entry / READY, (time.time() - used_s_ago,) * 2)
    return entry


DAMAGES = {
    "a changed byte": lambda entry: flip(entry / "weights"),
    "zeros": lambda entry: zero(entry / "weights"),
    "a short file": lambda entry: os.truncate(entry / "weights", 100),
    "a missing file": lambda entry: (entry / "weights").unlink(),
    "no list": lambda entry: (entry / READY).write_text(""),
    "a list of nothing": lambda entry: (entry / READY).write_text('{"files": {}}'),
    "another list": lambda entry: (entry / READY).write_text("[1, 2]"),
    "deep nesting": lambda entry: (entry / READY).write_text("[" * 100_000),
    "no numbers": lambda entry: (entry / READY).write_text('{"files": {"weights": ["a", null]}}'),
    "a name outside": lambda entry: (entry / READY).write_text('{"files": {"../../x": [1, 1]}}'),
    "no text": lambda entry: (entry / READY).write_bytes(b"\xff\xfe\x00"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_set_aside_and_said_once(damage: str, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    entry = put(cache, "a")
    DAMAGES[damage](entry)
    with caplog.at_level(logging.WARNING, "specedge"):
        assert lookup(entry) is None and lookup(entry) is None
    assert len(caplog.records) == 1 and "packed weights are damaged" in caplog.text
    assert entries(cache) == [".bad-a"]
    assert lookup(put(cache, "a")) == entry


def test_the_least_recently_used_entries_go_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for age, name in enumerate("dcba"):
        put(cache, name, used_s_ago=100.0 * (4 - age))
    assert lookup(cache / "d") is not None  # a use: now it is the youngest
    monkeypatch.setenv("SPECEDGE_CACHE_BYTES", "3500")
    put(cache, "new")
    assert entries(cache) == ["a", "d", "new"]


def test_the_budget_holds_for_the_sum(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECEDGE_CACHE_BYTES", "6000")
    for i in range(20):
        put(cache, f"entry{i:02d}", 1000 + 10 * i, used_s_ago=100.0 - i)
        total = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
        assert total <= 6000 and f"entry{i:02d}" in entries(cache)


@pytest.mark.parametrize(("value", "fits"), [("0", False), ("2999", False), ("1000000000", True), ("many", True)])
def test_what_exceeds_the_budget_alone_is_not_even_built(
    value: str, fits: bool, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECEDGE_CACHE_BYTES", value)
    found = kept(cache / "a", build() if fits else lambda _: pytest.fail("built"), needed_bytes=3000)
    assert found == (cache / "a" if fits else None) and entries(cache) == ["a"] * fits


def test_a_disk_that_is_nearly_full_is_left_alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9, 2999))
    kept(cache / "a", lambda _: pytest.fail("built"), needed_bytes=3000)
    assert entries(cache) == []


@pytest.mark.parametrize("fault", [OSError("full"), ValueError("what"), KeyboardInterrupt()])
def test_a_build_that_fails_leaves_nothing(fault: BaseException, cache: Path) -> None:
    def fail(folder: Path) -> None:
        build()(folder)
        raise fault

    if isinstance(fault, OSError):
        kept(cache / "a", fail)
    else:
        with pytest.raises(type(fault)):
            kept(cache / "a", fail)
    assert entries(cache) == []


def test_the_key_is_bundle_processor_and_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    here = entry_path("0" * 64, "1.31.1")
    assert entry_path("0" * 64, "1.31.1") == here
    others = {entry_path("1" * 64, "1.31.1"), entry_path("0" * 64, "1.31.2"), entry_path("0" * 64, "1.32.0")}
    machine = Isa(machine="x86_64", features=("avx2",), model="some")
    for changed in (machine, replace(machine, features=("avx2", "avx512f")), replace(machine, model="other")):
        monkeypatch.setattr(packed, "isa", lambda changed=changed: changed)
        others.add(entry_path("0" * 64, "1.31.1"))
    assert len(others) == 6 and here not in others


def test_another_runtime_does_not_find_the_entry(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed_bits()
    monkeypatch.setattr(engine_module, "RUNTIME_VERSION", "1.99.0")
    packed_bits()
    assert len(entries(cache)) == 2
