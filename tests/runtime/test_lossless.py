"""Real graphs with random weights: whatever is drafted, a window's tokens and numbers are those of plain decoding.

`test_decode.py` has the same with made-up engines; here rows share kernels, and keys and values are kept.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.runtime.decode import DecodeOptions, WindowResult, decode_window
from specedge.runtime.drafters import DraftContext, DraftTree
from specedge.runtime.engine import Engine, Features, State
from specedge.runtime.errors import UsageError
from specedge.runtime.rules import build_rules
from support.drafting import Plan, Scripted, draft_plans, plain_fields, tree
from support.exported import PRECISIONS, bundle, engine, noise_mel

SPECIAL = bundle("int8").manifest.tokens
SUPPRESSED = next(token for token in bundle("int8").manifest.suppress_tokens if token < SPECIAL.eot)
TEMPERATURES = (0.0, 0.3, 1.0)


@functools.cache
def features(precision: str) -> Features:
    return engine(precision).encode(noise_mel(80, 200))


def options(*, timestamps: bool, temperature: float, **more: Any) -> DecodeOptions:
    manifest = bundle("int8").manifest
    rules = build_rules(
        SPECIAL,
        space_ids=[32],
        suppressed=manifest.suppress_tokens,
        timestamps=timestamps,
        max_initial_timestamp_index=50,
    )
    return DecodeOptions(
        rules=rules, n_text_ctx=manifest.dims.n_text_ctx, n_sample=24, temperature=temperature, window_key=7, **more
    )


def prompt(*, timestamps: bool, previous: bool) -> list[int]:
    ids = list(SPECIAL.prompt("en", "transcribe", timestamps))
    return [SPECIAL.sot_prev, 5, 99, 12, 7, *ids] if previous else ids


@functools.cache
def plain(precision: str, timestamps: bool, previous: bool, temperature: float) -> WindowResult:
    ids = prompt(timestamps=timestamps, previous=previous)
    chosen = options(timestamps=timestamps, temperature=temperature)
    return decode_window(engine(precision), features(precision), ids, chosen)


@pytest.mark.parametrize("precision", PRECISIONS)
@settings(max_examples=20, deadline=None)
@given(
    timestamps=st.booleans(),
    previous=st.booleans(),
    temperature=st.sampled_from(TEMPERATURES),
    plans=st.lists(draft_plans(SPECIAL, suppressed=SUPPRESSED), min_size=1, max_size=3),
)
def test_no_drafter_changes_a_real_window(
    precision: str, timestamps: bool, previous: bool, temperature: float, plans: list[Plan]
) -> None:
    expected = plain(precision, timestamps, previous, temperature)
    truth = [*expected.tokens, SPECIAL.eot]
    n_calls = 0

    def propose(context: DraftContext, budget: int) -> Any:
        nonlocal n_calls
        n_calls += 1
        return plans[n_calls % len(plans)](truth, context, budget)

    ids = prompt(timestamps=timestamps, previous=previous)
    chosen = options(timestamps=timestamps, temperature=temperature)
    result = decode_window(engine(precision), features(precision), ids, chosen, Scripted(propose))
    assert plain_fields(result) == plain_fields(expected)
    counted = result.speculation
    assert counted.tokens == counted.accepted + counted.passes == len(result.token_logprobs)
    assert counted.passes <= counted.tokens


@pytest.mark.parametrize("width", [1, 3, 6])
def test_an_oracle_needs_the_fewest_passes(width: int) -> None:
    expected = plain("int8", True, False, 0.0)
    drafter = Scripted(lambda context, budget: DraftTree.chain(expected.tokens[len(context.sampled) :][:width]))
    ids = prompt(timestamps=True, previous=False)
    chosen = options(timestamps=True, temperature=0.0)
    counted = decode_window(engine("int8"), features("int8"), ids, chosen, drafter).speculation
    assert counted.passes == math.ceil(counted.tokens / (width + 1))


# ------------------------------------------------------------------------------------- several paths in one pass
def rows_of(state: State, start: int, stop: int) -> list[bytes]:
    return [state.caches[name][:, :, start:stop].tobytes() for name in sorted(state.caches)]


def fresh(made: Engine, precision: str, ids: list[int]) -> State:
    """A text whose rows come from one pass over all of them."""
    state = made.start(features(precision))
    made.forward(state, ids, [len(ids) - 1])
    made.commit(state, len(ids))
    return state


@pytest.mark.parametrize("precision", PRECISIONS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_path_has_the_bits_of_a_pass_of_its_own(precision: str, data: st.DataObject) -> None:
    """Logits of every row; then what is kept of one path equals a fresh prefill of the same ids, bit for bit (P4)."""
    made = engine(precision)
    dims = made.dims
    token = st.integers(0, dims.n_vocab - 1)
    before = data.draw(st.lists(token, min_size=1, max_size=dims.n_text_ctx - 2))
    n_room = dims.n_text_ctx - len(before) - 1
    path = st.lists(token, min_size=1, max_size=min(n_room, 9))
    paths = data.draw(st.lists(path, min_size=2, max_size=made.n_paths))
    if data.draw(st.booleans()):
        paths[-1] = [*paths[0][:2], *paths[-1]][:n_room]
    pending = data.draw(token)
    state = fresh(made, precision, before)
    found = [[row.copy() for row in rows] for rows in made.forward_paths(state, pending, paths)]
    for ids, rows in zip(paths, found, strict=True):
        alone = made.forward(state, [pending, *ids])
        assert [row.tobytes() for row in rows] == [row.tobytes() for row in alone]
    made.forward_paths(state, pending, paths)
    winner = data.draw(st.integers(0, len(paths) - 1))
    n_kept = data.draw(st.integers(1, 1 + len(paths[winner])))
    made.commit(state, n_kept, winner)
    other = fresh(made, precision, [*before, pending, *paths[winner]][: len(before) + n_kept])
    assert state.length == other.length and rows_of(state, 0, state.length) == rows_of(other, 0, other.length)
    made.release(state)
    made.release(other)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_kept_of_rejected_chains_is_a_fresh_prefill(precision: str) -> None:
    made = engine(precision)
    rng = np.random.default_rng(3)
    state, kept = made.start(features(precision)), list[int]()
    while state.length < 60:
        ids = rng.integers(0, made.dims.n_vocab, int(rng.integers(1, 6))).tolist()
        made.forward(state, ids)
        n_kept = int(rng.integers(1, len(ids) + 1))
        made.commit(state, n_kept)
        kept += ids[:n_kept]
    other = fresh(made, precision, kept)
    assert rows_of(state, 0, state.length) == rows_of(other, 0, other.length)
    copy = made.fork(state)
    assert copy.length == state.length and rows_of(copy, 0, copy.length) == rows_of(state, 0, state.length)
    for used in (state, other, copy):
        made.release(used)


def test_paths_that_cannot_be_run_are_refused() -> None:
    made = engine("int8")
    state = fresh(made, "int8", [1, 2, 3])
    n_room = made.dims.n_text_ctx - 4
    for paths in ([], [[1]], [[1], []], [[1]] * 5, [[1], [1] * (n_room + 1)]):
        with pytest.raises(UsageError, match=f"expected 2 to 4 paths of 1 to {n_room}"):
            made.forward_paths(state, 1, paths)
    with pytest.raises(UsageError, match="token ids"):
        made.forward_paths(state, 1, [[1], [made.dims.n_vocab]])
    made.forward_paths(state, 1, [[1, 2], [3]])
    for n_rows, path in ((4, 0), (3, 1), (1, 2), (1, -1)):
        with pytest.raises(UsageError, match=f"a commit of {n_rows} rows"):
            made.commit(state, n_rows, path)
    made.commit(state, 2, 1)
    with pytest.raises(UsageError, match="a commit of 1 rows"):
        made.commit(state, 1)
    made.release(state)


def test_the_paths_graph_is_loaded_when_it_is_first_used() -> None:
    made = Engine(bundle("int8"), threads=1, cache=False)
    found = features("int8")
    chosen, ids = options(timestamps=True, temperature=0.0), prompt(timestamps=True, previous=False)
    decode_window(made, found, ids, chosen, Scripted(lambda context, budget: DraftTree.chain([300, 301])))
    decoder: Any = made._decoder
    assert made.n_paths == 4 and decoder._tree is None
    decode_window(made, found, ids, chosen, Scripted(lambda context, budget: tree([300, 301], [302])))
    assert decoder._tree is not None
    made.encode(noise_mel(80, 200))  # gives the weights of both back
