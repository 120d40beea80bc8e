"""The engine: rows that never notice their company, texts that never notice each other, and stops in good time."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specedge.errors import BundleError, Interrupted, UsageError
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.bundle.manifest import GRAPH_NAMES
from specedge.runtime.device import most_threads
from specedge.runtime.engine.engine import Engine, Features, State
from specedge.runtime.engine.exactness import probe_rows
from specedge.runtime.engine.speech import SpeechEngine
from support.exported import PRECISIONS, bundle, engine, noise_mel
from support.qwen_checkpoints import qwen_bundle

SHAPES = [("fp32", "plain"), ("int8", "plain"), ("int4", "plain"), ("int8", "odd lengths"), ("int8", "one head of 64")]


@functools.cache
def features(precision: str, variant: str = "plain", seed: int = 0) -> Features:
    made = engine(precision, variant)
    return made.encode(noise_mel(made.dims.n_mels, 2 * made.dims.n_audio_ctx, seed))


@functools.cache
def text(variant: str = "plain", seed: int = 0) -> tuple[int, ...]:
    """As many random ids as there are positions."""
    dims = bundle("int8", variant).manifest.dims
    return tuple(np.random.default_rng(seed).integers(0, dims.n_vocab, dims.n_text_ctx).tolist())


@functools.cache
def one_by_one(precision: str, variant: str = "plain", seed: int = 0) -> NDArray[np.float32]:
    """Logits of every position of `text`, one row a pass: what every other way must equal bit for bit."""
    made = engine(precision, variant)
    state = made.start(features(precision, variant, seed))
    rows = []
    for token in text(variant, seed):
        rows.append(made.forward(state, [token])[0].copy())
        made.commit(state, 1)
    made.release(state)
    return np.stack(rows)


def same_bits(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    return a.shape == b.shape and bool((a.view(np.uint32) == np.ascontiguousarray(b).view(np.uint32)).all())


def kept(state: State) -> dict[str, NDArray[np.float32]]:
    return {name: array[:, :, : state.length].copy() for name, array in state.memory.caches.items()}


def prefilled(made: Engine, window: Features, ids: tuple[int, ...]) -> dict[str, NDArray[np.float32]]:
    """Keys and values of a text that was run in one pass."""
    state = made.start(window)
    made.forward(state, ids, [len(ids) - 1])
    made.commit(state, len(ids))
    caches = kept(state)
    made.release(state)
    return caches


@pytest.fixture
def state() -> Iterator[State]:
    made = engine("int8")
    opened = made.start(features("int8"))
    yield opened
    made.release(opened)


@pytest.mark.parametrize(("precision", "variant"), SHAPES)
@settings(max_examples=12)
@given(widths=st.lists(st.integers(1, 24), min_size=1, max_size=40))
def test_any_split_gives_the_bits_of_one_row_passes(precision: str, variant: str, widths: list[int]) -> None:
    made, ids, expected = engine(precision, variant), text(variant), one_by_one(precision, variant)
    state = made.start(features(precision, variant))
    for width in widths:
        rows = ids[state.length : state.length + width]
        if not rows:
            break
        logits = made.forward(state, rows)
        assert same_bits(logits, expected[state.length : state.length + len(rows)])
        made.commit(state, len(rows))
    fresh = prefilled(made, features(precision, variant), ids[: state.length])
    assert all(same_bits(array, fresh[name]) for name, array in kept(state).items())
    made.release(state)


@pytest.mark.parametrize(("precision", "variant"), SHAPES)
@settings(max_examples=12)
@given(steps=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 9), st.integers(0, 2**32 - 1)), max_size=14))
def test_wrong_drafts_leave_no_trace(precision: str, variant: str, steps: list[tuple[int, int, int]]) -> None:
    """Passes as speculation makes them: rows of the text, then guesses that are thrown away."""
    made, ids, expected = engine(precision, variant), text(variant), one_by_one(precision, variant)
    state = made.start(features(precision, variant))
    for n_right, n_wrong, seed in steps:
        right = ids[state.length : state.length + n_right]
        if not right:
            break
        room = made.dims.n_text_ctx - state.length - len(right)
        wrong = np.random.default_rng(seed).integers(0, made.dims.n_vocab, min(n_wrong, room)).tolist()
        logits = made.forward(state, [*right, *wrong])
        assert same_bits(logits[: len(right)], expected[state.length : state.length + len(right)])
        made.commit(state, len(right))
    if state.length:
        fresh = prefilled(made, features(precision, variant), ids[: state.length])
        assert all(same_bits(array, fresh[name]) for name, array in kept(state).items())
    made.release(state)


@pytest.mark.parametrize("precision", PRECISIONS)
@given(chosen=st.lists(st.integers(0, 15), min_size=1, max_size=8))
@settings(max_examples=15)
def test_wanted_rows_are_rows_of_the_whole(precision: str, chosen: list[int]) -> None:
    """Any rows, in any order, also twice."""
    made, ids = engine(precision), text()[:16]
    state = made.start(features(precision))
    logits = made.forward(state, ids, chosen)
    assert same_bits(logits, one_by_one(precision)[chosen])
    made.release(state)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("n_frames", range(2, 32, 2))
def test_rows_are_exact_for_windows_of_every_length(precision: str, n_frames: int) -> None:
    """Rows of attention start at other places in memory for each length; sums must not notice."""
    made = engine(precision)
    window = made.encode(noise_mel(made.dims.n_mels, 130 + n_frames, seed=n_frames))
    ids = text()[:17]
    single = made.start(window)
    rows = []
    for token in ids:
        rows.append(made.forward(single, [token])[0].copy())
        made.commit(single, 1)
    together = made.start(window)
    assert same_bits(made.forward(together, ids), np.stack(rows))
    made.release(single)
    made.release(together)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_decoder_does_not_notice_the_number_of_threads(precision: str) -> None:
    _, references = probe_rows(engine(precision, threads=2), features(precision))
    for threads in (1, 3):
        results, _ = probe_rows(engine(precision, threads=threads), features(precision), references)
        assert all(result.n_differing == 0 and result.threads == threads for result in results)


def test_two_texts_at_once_do_not_mix() -> None:
    made = engine("int8")
    first, second = (made.start(features("int8", seed=seed)) for seed in (0, 1))
    for start in range(0, 60, 3):
        for seed, opened in ((0, first), (1, second)):
            rows = made.forward(opened, text(seed=seed)[start : start + 3])
            assert same_bits(rows, one_by_one("int8", seed=seed)[start : start + 3])
            made.commit(opened, 3)
    made.release(first)
    made.release(second)


def test_a_released_buffer_brings_nothing_along() -> None:
    made = Engine(bundle("int8"), threads=1)
    window = made.encode(noise_mel(80, 200))
    dirty = made.start(window)
    for array in dirty.memory.caches.values():
        array.fill(np.nan)
    caches = dirty.memory.caches
    made.release(dirty)
    state = made.start(window)
    assert state.memory.caches is caches, "the buffer was not used again, so this test shows nothing"
    clean = made.start(window)
    assert same_bits(made.forward(state, text()[:9]).copy(), made.forward(clean, text()[:9]))


def test_a_text_that_goes_back_is_one_that_never_went_on(state: State) -> None:
    made, ids = engine("int8"), text()
    made.forward(state, ids[:30])
    made.commit(state, 30)
    state.length = 11
    assert same_bits(made.forward(state, ids[11:20]), one_by_one("int8")[11:20])


def test_features_outlive_their_engine() -> None:
    made = Engine(bundle("int8"), threads=1)
    window = made.encode(noise_mel(80, 200))
    hidden = window.hidden
    before = hidden.copy()
    del made
    other = Engine(bundle("int8"), threads=1)
    for seed in range(5):
        other.encode(noise_mel(80, 200, seed))
    del window
    assert same_bits(hidden, before)


@pytest.mark.parametrize("variant", ["plain", "odd lengths"])
def test_every_position_can_be_used_and_none_beyond(variant: str) -> None:
    made, ids = engine("int8", variant), text(variant)
    n_text_ctx = made.dims.n_text_ctx
    state = made.start(features("int8", variant))
    assert same_bits(made.forward(state, ids), one_by_one("int8", variant))  # all in one pass
    with pytest.raises(UsageError, match=f"a pass of {n_text_ctx + 1} rows after 0: expected 1 to {n_text_ctx}"):
        made.forward(state, [*ids, 1])
    made.forward(state, ids[:-1])
    made.commit(state, n_text_ctx - 1)
    assert same_bits(made.forward(state, ids[-1:]), one_by_one("int8", variant)[-1:])
    with pytest.raises(UsageError, match="a pass of 2 rows"):
        made.forward(state, [1, 2])
    made.forward(state, ids[-1:])
    made.commit(state, 1)
    with pytest.raises(UsageError, match=f"a pass of 1 rows after {n_text_ctx}"):
        made.forward(state, [1])
    made.release(state)


@pytest.mark.parametrize("ids", [[-1], [1000], [3, 10**12], [3, -(10**12)]])
def test_ids_outside_the_vocabulary_are_refused(ids: list[int], state: State) -> None:
    with pytest.raises(UsageError, match=r"token ids .*: expected 0 to 999"):
        engine("int8").forward(state, ids)


@pytest.mark.parametrize("shape", [(80,), (1, 80, 200), (79, 200), (80, 201), (80, 1), (80, 0), (128, 200)])
def test_a_mel_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="expected 80 bands and 2 to 200 frames"):
        engine("int8").encode(np.zeros(shape, np.float32))


@pytest.mark.parametrize("threads", [0, -1, 257, most_threads() + 1])
def test_threads_out_of_range_are_refused(threads: int) -> None:
    with pytest.raises(UsageError, match=f"threads: got {threads}, expected 1 to {most_threads()}, four for each CPU"):
        Engine(bundle("int8"), threads=threads)


def with_dims(opened: Bundle, **changes: int) -> Bundle:
    return replace(opened, manifest=replace(opened.manifest, dims=replace(opened.manifest.dims, **changes)))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"n_vocab": 5000}, "logits"),
        ({"n_mels": 128}, "mel"),
        ({"n_text_head": 4}, "self_k_0"),
        ({"n_text_layer": 3}, "self_k_2"),
        ({"n_audio_state": 128}, "features"),
    ],
)
def test_dimensions_that_are_not_the_graphs_are_refused(changes: dict[str, int], name: str) -> None:
    with pytest.raises(BundleError, match=rf"{name} (does|do) not fit the manifest's dimensions"):
        Engine(with_dims(bundle("int8"), **changes), loads=GRAPH_NAMES)


@pytest.mark.parametrize("what", ["name", "dtype", "shape", "missing"])
@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_a_signature_that_is_not_the_manifests_is_refused(side: str, what: str) -> None:
    opened = bundle("int8")
    spec = opened.manifest.graphs["decoder"]
    first, *rest = getattr(spec, side)
    changed = {
        "name": [replace(first, name="other"), *rest],
        "dtype": [replace(first, dtype="float16"), *rest],
        "shape": [replace(first, shape=(*first.shape[:-1], 17)), *rest],
        "missing": rest,
    }[what]
    graphs = {**opened.manifest.graphs, "decoder": replace(spec, **{side: tuple(changed)})}
    with pytest.raises(BundleError, match=rf"decoder\.onnx: its {side} are not those the manifest lists"):
        Engine(replace(opened, manifest=replace(opened.manifest, graphs=graphs)))


@pytest.mark.parametrize("damage", ["empty", "noise", "cut", "no data", "short data"])
def test_a_graph_that_cannot_be_loaded_is_one_line(damage: str, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "bundle"
    shutil.copytree(bundle("int8").path, folder)
    graph, data = folder / "decoder.onnx", folder / "decoder.data"
    if damage == "no data":
        data.unlink()
    elif damage == "short data":
        os.truncate(data, data.stat().st_size // 2)
    else:
        content = graph.read_bytes()
        graph.write_bytes({"empty": b"", "noise": os.urandom(500), "cut": content[: len(content) // 2]}[damage])
    with pytest.raises(BundleError, match=r"decoder\.onnx: .*export the model again") as raised:
        Engine(replace(bundle("int8"), path=folder))
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 700


def test_cancel_from_another_thread_stops_everything_until_reset() -> None:
    made = Engine(bundle("int8"), threads=1)
    state = made.start(features("int8"))
    made.forward(state, text()[:5])
    made.commit(state, 5)
    timer = threading.Timer(0.05, made.cancel)
    timer.start()
    with pytest.raises(Interrupted) as raised:
        while True:
            made.encode(noise_mel(80, 200))
    assert raised.value.exit_code == 130
    with pytest.raises(Interrupted):
        made.forward(state, text()[5:9])
    with pytest.raises(Interrupted):
        made.encode(noise_mel(80, 200))
    with pytest.raises(UsageError, match="a commit of 4 rows"):
        made.commit(state, 4)  # the pass that was stopped has no rows to keep
    made.reset()
    assert same_bits(made.forward(state, text()[5:9]), one_by_one("int8")[5:9])


def test_interrupted_passes_in_a_loop_never_corrupt_a_text() -> None:
    """Cancel at many moments; each pass either gives the right bits or Interrupted."""
    made = Engine(bundle("int8"), threads=2)
    state = made.start(features("int8"))
    stopping = threading.Event()

    def pester() -> None:
        while not stopping.is_set():
            time.sleep(0.0002)
            made.cancel()

    thread = threading.Thread(target=pester)
    thread.start()
    n_stopped = n_passed = 0
    deadline = time.monotonic() + 20
    try:
        while n_stopped < 20 or n_passed < 20:
            assert time.monotonic() < deadline, (n_stopped, n_passed)
            made.reset()
            state.length %= 60
            try:
                logits = made.forward(state, text()[state.length : state.length + 4])
            except Interrupted:
                n_stopped += 1
                continue
            assert same_bits(logits, one_by_one("int8")[state.length : state.length + 4])
            made.commit(state, 4)
            n_passed += 1
    finally:
        stopping.set()
        thread.join()


def test_an_engine_of_another_kind_of_model_is_refused() -> None:
    for made, opened, kind in ((Engine, qwen_bundle(), "speech"), (SpeechEngine, bundle("fp32"), "whisper")):
        with pytest.raises(UsageError, match=f"kind {kind}, .*WhisperModel"):
            made(opened)
