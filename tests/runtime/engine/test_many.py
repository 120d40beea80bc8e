"""Several paths in one pass: the bits of each are those of a pass of its own, and one copy of the weights is enough."""

from __future__ import annotations

import functools
import mmap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.errors import UsageError
from specedge.runtime.decoding.decode import DecodeOptions, decode_window
from specedge.runtime.decoding.rules import RuleSet
from specedge.runtime.engine.engine import Engine, Features, State
from specedge.runtime.engine.kv_cache import zeros_by_page
from support.drafting import Scripted, tree
from support.exported import PRECISIONS, bundle, engine, noise_mel


@functools.cache
def features(precision: str) -> Features:
    return engine(precision).encode(noise_mel(80, 200))


def rows_of(state: State, start: int, stop: int) -> list[bytes]:
    return [state.memory.caches[name][:, :, start:stop].tobytes() for name in sorted(state.memory.caches)]


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


def test_a_bundle_without_the_graph_verifies_one_path() -> None:
    """As bundles from before there was one: the text is the same, and what cannot be run is not tried."""
    opened = bundle("int8")
    graphs = {name: graph for name, graph in opened.manifest.graphs.items() if name != "many"}
    made = Engine(replace(opened, manifest=replace(opened.manifest, graphs=graphs)), threads=1)
    assert made.n_paths == 1
    rules = RuleSet(
        opened.manifest.tokens, space_ids=[], suppressed=[], timestamps=False, max_initial_timestamp_index=None
    )
    chosen = DecodeOptions(rules=rules, n_text_ctx=opened.manifest.dims.n_text_ctx, n_sample=8)
    ids = opened.manifest.tokens.prompt("en", "transcribe", False)
    drafter = Scripted(lambda context, budget: tree([300, 301], [302]))
    result = decode_window(made, features("int8"), ids, chosen, drafter)
    assert result.tokens == decode_window(made, features("int8"), ids, chosen).tokens
    assert drafter.windows[0].n_paths == 1 and {len(v.evaluated) for v in drafter.verdicts[:4]} == {2}
    state = made.start(features("int8"))
    with pytest.raises(UsageError, match="expected 2 to 1 paths"):
        made.forward_paths(state, 1, [[1], [2]])
    made.release(state)


def test_beams_and_samples_leave_the_text_they_began_with() -> None:
    made = engine("fp32")
    manifest = bundle("fp32").manifest
    rules = RuleSet(manifest.tokens, space_ids=[], suppressed=[], timestamps=False, max_initial_timestamp_index=None)
    ids = manifest.tokens.prompt("en", "transcribe", False)

    def run(**more: Any) -> Any:
        chosen = DecodeOptions(rules=rules, n_text_ctx=manifest.dims.n_text_ctx, n_sample=8, **more)
        return decode_window(made, features("fp32"), ids, chosen)

    greedy = run()
    assert run(beam_size=3).sum_logprob >= greedy.sum_logprob
    assert run(temperature=1.0, best_of=3) == run(temperature=1.0, best_of=3)
    first = run(temperature=1.0)
    assert first.token_logprobs == run(temperature=1.0, best_of=1).token_logprobs
    assert run() == greedy


@functools.cache
def windows(precision: str) -> tuple[Features, ...]:
    """Windows of four lengths, two of them the longest."""
    return tuple(engine(precision).encode(noise_mel(80, n, seed=n)) for n in (200, 200, 77, 130))


@pytest.mark.parametrize("precision", PRECISIONS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), n_texts=st.integers(2, 16), n_windows=st.integers(1, 4), gaps=st.booleans())
def test_texts_that_share_a_pass_have_the_bits_of_passes_of_their_own(
    precision: str, seed: int, n_texts: int, n_windows: int, gaps: bool
) -> None:
    """Of 2 to 16 texts with 1 to 8 rows each behind 0 to 48, over one window or several; logits, and what is kept."""
    made, rng = engine(precision), np.random.default_rng(seed)
    n_vocab = made.dims.n_vocab
    states = [made.start(windows(precision)[int(rng.integers(n_windows))]) for _ in range(n_texts)]
    texts: list[list[int]] = [rng.integers(0, n_vocab, int(rng.integers(0, 49))).tolist() for _ in states]
    for state, ids in zip(states, texts, strict=True):
        if ids:
            made.forward(state, ids, [len(ids) - 1])
            made.commit(state, len(ids))
    for _ in range(2):
        chosen = [i for i in range(n_texts) if not gaps or rng.random() < 0.7]
        rows = [rng.integers(0, n_vocab, int(rng.integers(1, 9))).tolist() for _ in chosen]
        found = made.forward_many([(states[i], ids, None) for i, ids in zip(chosen, rows, strict=True)])
        together = [logits.tobytes() for logits in found]
        alone = [made.forward(states[i], ids).tobytes() for i, ids in zip(chosen, rows, strict=True)]
        assert together == alone
        if chosen:
            made.forward_many([(states[i], ids, [0]) for i, ids in zip(chosen, rows, strict=True)])
        for i, ids in zip(chosen, rows, strict=True):
            n_kept = int(rng.integers(0, 1 + len(ids)))
            made.commit(states[i], n_kept)
            texts[i] += ids[:n_kept]
    for state, ids in zip(states, texts, strict=True):
        if ids:
            other = made.start(state.features)
            made.forward(other, ids, [0])
            made.commit(other, len(ids))
            assert rows_of(state, 0, state.length) == rows_of(other, 0, other.length)
            made.release(other)
        made.release(state)


def test_a_text_near_its_last_position_shares_no_pass_with_a_wide_one() -> None:
    """Attention takes as many rows of each text as the widest has, for which the other has no room."""
    made = engine("int8")
    n_last = made.dims.n_text_ctx - 4
    near, new = fresh(made, "int8", [1] * n_last), fresh(made, "int8", [1])
    for ids in ([5] * 2, [5] * 14):
        rows = [(near, [3], None), (new, ids, None)]
        found = [logits.tobytes() for logits in made.forward_many(rows)]
        assert found == [made.forward(state, some).tobytes() for state, some, _ in rows]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_memory_of_texts_is_taken_by_the_page() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    before = resident()
    values = zeros_by_page((64, 1 << 18))  # 64 MiB
    values[:, 0] = 1
    assert resident() - before < 8 << 20
    assert values[:, :2].tolist() == [[1, 0]] * 64


def test_texts_of_many_rows_have_passes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Together they would take megabytes for each row, and no less time."""
    made, shared = engine("int8"), list[int]()
    run = made._run_shared
    monkeypatch.setattr(made, "_run_shared", lambda texts: (shared.append(len(texts)), run(texts))[1])
    states = [made.start(features("int8")) for _ in range(4)]
    for n_rows in (16, 17):
        made.forward_many([(state, [1] * n_rows, [0]) for state in states])
    for state in states:
        made.release(state)
    assert shared == [4]
