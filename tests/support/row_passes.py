"""The logits of some ids by passes of chosen sizes: rows are exact where they have the same bits whatever the sizes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from specedge.runtime.engine.engine import Engine
from specedge.runtime.engine.made_up import probe_mel

_CUT = 41  # ids in front are passed in two parts, of which the first is odd


def rows_in_passes(engine: Engine, sizes: Sequence[int], ids: Sequence[int], before: Sequence[int] = ()) -> bytes:
    """Logits of `ids` behind the rows `before`, over made-up audio, in passes of these sizes in turn."""
    state, found, done = engine.start(engine.encode(probe_mel(engine.dims))), [], 0
    for part in (before[:_CUT], before[_CUT:]):
        if part:
            engine.forward(state, part, [len(part) - 1])
            engine.commit(state, len(part))
    for size in itertools.cycle(sizes):
        rows = ids[done : done + size]
        if not rows:
            break
        found.append(engine.forward(state, rows).copy())
        engine.commit(state, len(rows))
        done += len(rows)
    engine.release(state)
    return np.concatenate(found).tobytes()
