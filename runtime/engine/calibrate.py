"""`specedge doctor --calibrate`: what a decoder pass of k rows costs on this device.

Passes of one model on made-up input are timed at several lengths of committed text, all sizes in turn and over again,
so that a slow moment of the machine touches every size alike; a figure is the median of its times. `device.Profile`
keeps the result.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from ..device import Profile
from .engine import Engine
from .made_up import probe_ids, probe_mel

PASS_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
TREE_ROWS = (4, 8)  # of passes over two paths, all in all
COMMITTED = (16, 64, 192)
N_WARM_UPS = 3
N_ROUNDS = 15
BUDGET_S = 50.0


def measure(engine: Engine, *, rounds: int = N_ROUNDS, on_progress: Callable[[float], None] | None = None) -> Profile:
    """Time passes of `PASS_ROWS` rows behind `COMMITTED` rows, passes over two paths, and the encoder.

    At least one round is measured, at most `rounds`, in about `BUDGET_S`; `on_progress` gets the share done, 0 to 1.
    Raises Interrupted.
    """
    started = time.perf_counter()
    dims = engine.dims
    mel = probe_mel(dims, dims.n_frames)
    features = engine.encode(mel)
    encode_s = [_timed(lambda: engine.encode(mel)) for _ in range(3)]
    ids = probe_ids(dims, dims.n_text_ctx)
    depths = sorted({min(n, dims.n_text_ctx // 2) for n in COMMITTED})
    sizes = [n for n in PASS_ROWS if n <= dims.n_text_ctx - depths[-1]]
    states = []
    try:
        for depth in depths:
            states.append(engine.start(features))
            engine.forward(states[-1], ids[:depth], [depth - 1])
            engine.commit(states[-1], depth)
        times: dict[int, list[float]] = {size: [] for size in sizes}
        of_paths: dict[int, list[float]] = {size: [] for size in TREE_ROWS if engine.n_paths > 1}
        totals: list[float] = []
        for round_ in range(-N_WARM_UPS, rounds):
            begun = time.perf_counter()
            for state in states:
                for size in sizes if round_ % 2 else reversed(sizes):
                    engine.forward(state, ids[:size])
                    if round_ >= 0:  # again, because behind another size a pass of one row takes longer
                        times[size].append(_timed(partial(engine.forward, state, ids[:size])))
                for size, found in of_paths.items():
                    paths = [ids[first : first + size // 2 - 1] for first in (1, 2)]
                    seconds = _timed(partial(engine.forward_paths, state, ids[0], paths))
                    if round_ >= 0:
                        found.append(seconds)
            if round_ >= 0:
                totals.append(time.perf_counter() - begun)
            spent_s = time.perf_counter() - started
            if on_progress is not None:
                on_progress(min(1.0, max((round_ + 1) / rounds, spent_s / BUDGET_S)))
            if round_ >= 0 and spent_s > BUDGET_S:
                break
    finally:
        for state in states:
            engine.release(state)
    pass_s = _never_falling({size: statistics.median(values) for size, values in times.items()})
    return Profile(
        threads=engine.threads,
        pass_s=pass_s,
        paths_s=_beyond(pass_s, of_paths),
        encode_s=statistics.median(encode_s),
        rounds=len(times[sizes[0]]) // len(states),
        scatter=_scatter(totals),
    )


def _scatter(totals: Sequence[float]) -> float:
    """The slowest round over the quickest, without the fifth at either end."""
    found = sorted(totals)
    n_out = len(found) // 5
    return found[-1 - n_out] / found[n_out]


def _never_falling(pass_s: Mapping[int, float]) -> dict[int, float]:
    """More rows never cost less; falling times are noise or the padding to an even number of rows."""
    sizes = sorted(pass_s)
    return dict(zip(sizes, np.maximum.accumulate([pass_s[size] for size in sizes]).tolist(), strict=True))


def _beyond(pass_s: Mapping[int, float], of_paths: Mapping[int, Sequence[float]]) -> float:
    """The time of passes over several paths beyond that of as many rows of one."""
    beyond = [statistics.median(times) - pass_s[size] for size, times in of_paths.items() if size in pass_s]
    return max(0.0, statistics.median(beyond)) if beyond else 0.0


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
