"""The row-invariance probe: are a row's logits the same bits however many rows, paths or windows share its pass?

Speculative decoding is lossless because of this, and it depends on the machine's kernels as much as on the graph.
`export` notes what it measures, `doctor` shows it. Before a model's first draft or first pass over several texts on a
machine, a short probe decides whether drafting is on and which texts share passes. The answer is kept for each model,
CPU, number of threads, ONNX Runtime version and set of ORT_* variables. Rows are probed at the start of a text and at
the end of the longest one, because kernels split sums by length. Audio and tokens are made up.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import ResourceError

from ..bundle.bundle import Bundle
from ..bundle.manifest import Dims
from ..device import device_fields, device_path, read_device_file, write_device_file
from .kv_cache import Features
from .made_up import N_PROBE_ROWS, probe_ids, probe_mel, probe_window

Engine = Any  # `engine.Engine`, which imports this module
State = Any

ROWS_PER_PASS = (1, 2, 3, 5, 8, 16)
PATHS_PER_PASS = ((2, 4), (3, 7), (4, 16))  # how many, and how many rows each
SHORT_N_ROWS = 17
SHORT_ROWS_PER_PASS = (3, 16)
SHORT_PATHS = ((3, 7),)
SHORT_N_FRAMES = 62
WINDOW_LENGTHS = (150, 97, 31, 24)  # positions of windows in a pass: kernels add up 4 to 64 numbers at a time
WINDOWS_N_SLOTS = 32
LEADS = (0, 1)  # rows run before the first full pass, so that each row has odd and even places in its passes


@dataclass(frozen=True, kw_only=True)
class RowResult:
    """`n_differing` of `n_compared` rows behind `n_before` rows of text are not bit-identical to one-row passes."""

    threads: int
    n_before: int
    rows_per_pass: int
    n_compared: int
    n_differing: int
    max_difference: float
    n_paths: int = 1
    n_windows: int = 1


@dataclass(frozen=True, kw_only=True)
class Invariance:
    results: tuple[RowResult, ...]

    @property
    def exact(self) -> bool:
        """Whether rows and paths of one window are."""
        return all(result.n_differing == 0 for result in self.results if result.n_windows == 1)

    @property
    def windows_exact(self) -> bool:
        """Whether rows of several windows are, too."""
        return all(result.n_differing == 0 for result in self.results)

    @property
    def max_difference(self) -> float:
        return max((result.max_difference for result in self.results), default=0.0)

    def to_json(self) -> dict[str, Any]:
        return {"exact": self.exact, "rows": [dict(vars(result)) for result in self.results]}


def probe_starts(dims: Dims) -> tuple[int, ...]:
    """Where the probe's rows begin: at the start of a text, and where they end with its last position."""
    return tuple(sorted({0, max(0, dims.n_text_ctx - N_PROBE_ROWS)}))


References = Mapping[int, NDArray[np.float32]]
"""By the number of rows before them: logits float32 `[n_rows, n_vocab]` of rows that each had a pass of its own."""


def probe_rows(
    engine: Engine, features: Features, references: References | None = None
) -> tuple[list[RowResult], References]:
    """Compare rows of wide passes, and of passes over several paths, bit for bit with passes of one row each.

    Those are `references`, for each of `probe_starts`, by default this engine's own, and come back behind the results.
    `features` and `references` may come from another number of threads, as only the decoder is judged. Each path in
    turn is the probe's text, whose keys and values are kept, so that later rows judge them too. Raises Interrupted,
    BundleError.
    """
    starts = probe_starts(engine.dims)
    return _probe(engine, features, starts, N_PROBE_ROWS, ROWS_PER_PASS[1:], LEADS, PATHS_PER_PASS, references or {})


def probe_shortly(engine: Engine) -> Invariance:
    """The probe in a fraction of a second. Raises Interrupted, BundleError when a graph cannot be loaded."""
    starts = (3, max(0, engine.dims.n_text_ctx - SHORT_N_ROWS - 2))
    features = engine.encode(probe_mel(engine.dims, SHORT_N_FRAMES))
    results, _ = _probe(engine, features, starts, SHORT_N_ROWS, SHORT_ROWS_PER_PASS, LEADS[1:], SHORT_PATHS, {})
    return Invariance(results=(*results, *probe_windows(engine)))


def _probe(
    engine: Engine,
    features: Features,
    starts: Sequence[int],
    n_probed: int,
    widths: Sequence[int],
    leads: Sequence[int],
    paths: Sequence[tuple[int, int]],
    references: References,
) -> tuple[list[RowResult], References]:
    """`n_probed` rows behind made-up keys and values, in passes of `widths` rows and over `paths`."""
    results, used = [], {}
    state = engine.start(features)
    try:
        _fill(state)
        for start in starts:
            state.length = start
            alone = _in_passes(engine, state, n_probed, 1)
            used[start] = references.get(start, alone)
            results.append(_judge(engine, [alone], used[start], start, 1))
            for n_rows in widths:
                runs = [_in_passes(engine, state, n_probed, n_rows, lead=lead) for lead in leads]
                results.append(_judge(engine, runs, used[start], start, n_rows))
            for n_paths, n_rows in paths if engine.n_paths > 1 else ():
                if n_rows < n_probed:
                    runs = [_in_passes(engine, state, n_probed, n_rows, n_paths=n_paths)]
                    results.append(_judge(engine, runs, used[start], start, n_rows, n_paths=n_paths))
    finally:
        engine.release(state)
    return results, used


def probe_windows(engine: Engine) -> tuple[RowResult, ...]:
    """Compare a pass over texts of several windows, of several lengths where they may share it, with one pass each.

    Windows and earlier rows are made up. Empty where texts cannot share passes. Raises Interrupted, BundleError.
    """
    if not engine.shares_passes:
        return ()
    lengths = WINDOW_LENGTHS if engine.pads_windows else WINDOW_LENGTHS[:1] * len(WINDOW_LENGTHS)
    windows = [probe_window(engine.bundle.manifest, n_ctx, seed) for seed, n_ctx in enumerate(lengths)]
    states = [engine.start(window) for window in windows]
    try:
        texts = []
        for i, state in enumerate(states):
            _fill(state, WINDOWS_N_SLOTS)
            state.length = 3 * i
            texts.append((state, probe_ids(engine.dims, 2 + i), None))
        alone = np.concatenate([engine.forward(*text).copy() for text in texts])
        with _believed(engine):
            together = np.concatenate(engine.forward_many(texts))
    finally:
        for state in states:
            engine.release(state)
    return (_judge(engine, [together], alone, 0, 1 + len(texts), n_windows=len(texts)),)


@contextlib.contextmanager
def _believed(engine: Engine) -> Iterator[None]:
    """While inside, the engine lets texts share passes, whatever is known about them."""
    with engine.lock:
        known = engine.is_exact, engine.windows_are_exact
        engine.is_exact = engine.windows_are_exact = True
        try:
            yield
        finally:
            engine.is_exact, engine.windows_are_exact = known


def _fill(state: State, n_slots: int | None = None) -> None:
    """Noise for keys and values, of the first `n_slots` rows or of all."""
    block = np.random.default_rng(0).standard_normal(4099).astype(np.float32)  # a prime, so that no two slots are alike
    for array in state.memory.caches.values():
        slots = array[:, :, :n_slots]
        slots[...] = np.resize(block, slots.shape)


def _judge(
    engine: Engine,
    runs: list[NDArray[np.float32]],
    reference: NDArray[np.float32],
    n_before: int,
    rows_per_pass: int,
    *,
    n_paths: int = 1,
    n_windows: int = 1,
) -> RowResult:
    n_differing, largest = 0, 0.0
    for run in runs:
        expected = reference[: len(run)]
        # Compared as bits: a NaN equals itself and -0.0 differs from 0.0. The largest is finite, for JSON.
        n_differing += int((run.view(np.uint32) != expected.view(np.uint32)).any(axis=1).sum())
        with np.errstate(invalid="ignore"):
            difference = np.abs(run - expected)
        largest = max(largest, float(difference.max(where=np.isfinite(difference), initial=0.0)))
    return RowResult(
        threads=engine.threads,
        n_before=n_before,
        rows_per_pass=rows_per_pass,
        n_compared=sum(map(len, runs)),
        n_differing=n_differing,
        max_difference=largest,
        n_paths=n_paths,
        n_windows=n_windows,
    )


def _in_passes(
    engine: Engine, state: State, n_probed: int, n_rows: int, *, n_paths: int = 1, lead: int = 0
) -> NDArray[np.float32]:
    """Logits `[n, n_vocab]` of the probe's first `n_probed` rows, `n_rows` at a time after a pass of `lead` rows.

    As each of `n_paths` in turn; then a last row alone is left out, as it is no path. The rows are forgotten at the
    end.
    """
    start = state.length
    ids = probe_ids(engine.dims, start + n_probed)[start:]
    logits: list[NDArray[np.float32]] = []
    done = right = 0
    with engine.lock if n_paths == 1 else _believed(engine):  # the lock once, and not in each pass
        while done + (n_paths > 1) < len(ids):
            part = ids[done : done + (lead if done == 0 and lead else n_rows)]
            if n_paths == 1:
                rows = engine.forward(state, part).copy()
                state.length += len(rows)  # committed enough for a text that is forgotten
            else:
                _, *path = part
                others = [[(token + 1 + i) % engine.dims.n_vocab for token in reversed(path)] for i in range(n_paths)]
                paths = [path if i == right else others[i] for i in range(n_paths)]
                rows = np.stack(engine.forward_paths(state, part[0], paths)[right])
                engine.commit(state, len(rows), right)
            logits.append(rows)
            done += len(rows)
            right = (right + 1) % n_paths
    state.length = start
    return np.concatenate(logits)


_VERSION = 4
_known: dict[Path, tuple[bool, bool]] = {}  # of rows and paths of one window, of several windows


def rows_are_exact(engine: Engine, bundle: Bundle) -> bool:
    """Whether a row of `engine` has the same bits however many rows or paths share its pass.

    This is kept as `engine.is_exact`, and as `engine.windows_are_exact` whether the same is true of texts of several
    windows. Raises Interrupted, BundleError when a graph cannot be loaded.
    """
    path = answer_path(bundle, engine.threads)
    if path not in _known:
        with engine.lock:
            if path not in _known:  # no other thread asked before this one
                found = _answer(engine, path)
                _known[path] = found["exact"], found["exact"] and found["windows_exact"]
    engine.is_exact, engine.windows_are_exact = answer = _known[path]
    return answer[0]


def answer_path(bundle: Bundle, threads: int) -> Path:
    """The file of the answer; it need not exist."""
    switches = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("ORT_"))
    digest = hashlib.sha256("\n".join([f"probe {_VERSION}", *switches]).encode(errors="surrogateescape")).hexdigest()
    return device_path(bundle.digest, threads, f"-rows-{digest[:12]}")


def _answer(engine: Engine, path: Path) -> dict[str, Any]:
    """What is kept in the file, else what a probe finds, which is kept if it can be."""
    said = read_device_file(path)
    if not (isinstance(said.get("exact"), bool) and isinstance(said.get("windows_exact"), bool)):
        found = probe_shortly(engine)
        said = {"exact": found.exact, "windows_exact": found.windows_exact, "max_difference": found.max_difference}
        with contextlib.suppress(ResourceError):  # then the next process asks again
            write_device_file(path, {**device_fields(engine.threads), **said})
    return said
