"""Buffers of texts: handed from one to the next, over audio that is bound by the first pass."""

from __future__ import annotations

import pytest

from support.exported import engine, noise_mel

IDS = (3, 141, 59)


@pytest.mark.parametrize("keeps_hidden", [False, True])
def test_texts_hear_their_own_audio_in_whatever_order_they_begin(keeps_hidden: bool) -> None:
    made = engine("int8")
    windows = [made.encode(noise_mel(made.dims.n_mels, 2 * made.dims.n_audio_ctx, seed)) for seed in (0, 1)]
    found: dict[int, list[bytes]] = {0: [], 1: []}
    for order in ((0, 1), (1, 0), (0, 0)):
        states = [made.start(windows[at], keeps_hidden=keeps_hidden) for at in order]
        for at, state in zip(order, states, strict=True):
            row = made.forward(state, IDS)[-1].tobytes()
            made.commit(state, len(IDS))
            found[at].append(row + (b"" if state.hidden is None else state.hidden[: len(IDS)].tobytes()))
        for state in states:
            made.release(state)
    assert len(set(found[0])) == len(set(found[1])) == 1 and found[0][0] != found[1][0]
