"""Giving back mapped weights: only what a session mapped, never what was written, and nothing is lost."""

from __future__ import annotations

import mmap
import os
import platform
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedge.runtime import device
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.engine import packed, session
from specedge.runtime.engine.engine import Engine
from specedge.runtime.engine.made_up import probe_ids, probe_mel
from support.exported import bundle

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pages are given back on Linux only")

N_BYTES = 64 * mmap.PAGESIZE
RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)).map(lambda t: (t[0], t[0] + t[1])), max_size=6)


def logits(engine: Engine) -> np.ndarray:
    state = engine.start(engine.encode(probe_mel(engine.dims)))
    rows = engine.forward(state, probe_ids(engine.dims, 6)).copy()
    engine.release(state)
    return rows


def mapped_file(folder: Path, name: str = "weights.data") -> Path:
    path = folder / name
    path.write_bytes(np.random.default_rng(0).integers(0, 256, N_BYTES, np.uint8).tobytes())
    return path


def resident_kb(path: Path) -> int:
    total, wanted = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if str(path) in line:
            wanted = True
        elif line.startswith("Rss:") and wanted:
            total, wanted = total + int(line.split()[1]), False
    return total


def test_pages_go_and_come_back(tmp_path: Path) -> None:
    path = mapped_file(tmp_path)
    with open(path, "rb") as file, packed.watch(path) as weights:
        mapping = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    assert mapping[:] == path.read_bytes()
    assert resident_kb(path) == N_BYTES // 1024
    weights.release()
    assert resident_kb(path) == 0
    assert mapping[:] == path.read_bytes()


def test_written_pages_are_left_alone(tmp_path: Path) -> None:
    path = mapped_file(tmp_path)
    with open(path, "rb") as file, packed.watch(path) as weights:
        mapping = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    mapping[5] = (mapping[5] + 1) % 256
    changed = mapping[:]
    weights.release()
    assert mapping[:] == changed != path.read_bytes()


def test_mappings_of_others_are_left_alone(tmp_path: Path) -> None:
    """Also where the kernel joins a neighbour of the same file to ours."""
    path = mapped_file(tmp_path)
    with open(path, "rb") as file:
        other = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        assert other[:] == path.read_bytes()
        with packed.watch(path) as weights:
            mapping = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    assert mapping[:] == other[:]
    weights.release()
    assert resident_kb(path) == N_BYTES // 1024


@given(entry=st.tuples(st.integers(0, 20), st.integers(21, 45)), taken=RANGES)
def test_what_is_cut_out_is_what_was_not_there(entry: tuple[int, int], taken: list[tuple[int, int]]) -> None:
    pieces = packed._without(entry, taken)
    covered = {page for start, stop in taken for page in range(start, stop)}
    assert sorted(page for start, stop in pieces for page in range(start, stop)) == [
        page for page in range(*entry) if page not in covered
    ]


@given(ranges=RANGES)
def test_neighbours_are_joined_and_nothing_else(ranges: list[tuple[int, int]]) -> None:
    apart = [one for i, one in enumerate(ranges) if not any(packed._overlap(one, other) for other in ranges[:i])]
    joined = packed._joined(apart)
    covered = sorted(page for start, stop in apart for page in range(start, stop))
    assert [page for start, stop in joined for page in range(start, stop)] == covered
    assert all(before[1] < after[0] for before, after in zip(joined, joined[1:], strict=False))


def test_two_engines_of_one_bundle_do_not_disturb_each_other() -> None:
    opened = Bundle.open(bundle("int8").path)
    first, second = Engine(opened, threads=1), Engine(opened, threads=1)
    expected = logits(first)
    assert (logits(second) == expected).all()
    del second
    assert (logits(first) == expected).all()


def test_large_blocks_lie_outside_the_heap() -> None:
    """In a fresh process: with glibc's moving threshold a block of 8 MB, freed once, comes from the heap ever after."""
    code = (
        "import numpy as np; from specedge.runtime.engine import packed; packed.map_large_blocks()\n"
        "del_me = np.empty(8 << 20, np.uint8); del del_me\n"
        "block = np.empty(8 << 20, np.uint8); at = block.ctypes.data\n"
        "heap = [l.split()[0].split('-') for l in open('/proc/self/maps') if l.rstrip().endswith('[heap]')]\n"
        "print(any(int(a, 16) <= at < int(b, 16) for a, b in heap))"
    )
    names = ("MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
    environment = {name: value for name, value in os.environ.items() if name not in names}

    def lies_in_heap(**extra: str) -> str:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env={**environment, **extra}, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    if platform.libc_ver()[0] != "glibc":
        pytest.skip("another C library")
    assert lies_in_heap() == "False"
    assert lies_in_heap(MALLOC_MMAP_THRESHOLD_=str(16 << 20)) == "True", "who asks for something else gets it"


@pytest.mark.parametrize(("free_kb", "stays"), [(10, False), (1 << 30, True)])
def test_both_halves_stay_mapped_where_memory_is_plenty(
    free_kb: int, stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mapping the decoder's weights anew costs each window most of a plain pass."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemAvailable: {free_kb} kB\n")
    monkeypatch.setattr(device, "MEMORY_INFO", meminfo)
    monkeypatch.setattr(session, "KEPT_BYTES", 0)
    engine = Engine(Bundle.open(bundle("int8").path), threads=1, cache=False)
    with mock.patch.object(packed.MappedWeights, "release") as release:
        logits(engine)
    assert release.called != stays
