"""Pieces decoded together: the segments of a batch of one, whatever drafts, fails, or stops."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from specedge.errors import Interrupted, ModelError
from specedge.runtime.audio.audio import open_audio
from specedge.runtime.audio.mel import HeldAudio
from specedge.runtime.batched import Chunk, Pieces, PieceTranscription, piece_options
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.decoding.drafter import DraftContext, Drafter, TargetModel
from specedge.runtime.drafters.auto import AutoDrafter
from specedge.runtime.drafters.ctc.drafter import open_ctc
from specedge.runtime.drafters.earlier import EarlierDrafter
from specedge.runtime.drafters.ngram import NgramDrafter
from specedge.runtime.drafters.registry import make_drafter
from specedge.runtime.engine.heads import HeadsPass
from specedge.runtime.engine.session import Canceller
from specedge.runtime.longform.segments import Segment
from specedge.runtime.options import HEAD_KINDS, DrafterOptions, TranscribeOptions
from specedge.runtime.papers.heads import HeadsDrafter
from support import ctc_heads, exported, heads
from support.drafting import KINDS, Scripted, guess
from support.drafts import FREE, NO_TESTS, opened
from support.noise import noise

LENGTHS_S = (0.4, 2.0, 0.02, 1.1, 0.7, 2.0, 1.5)
WAYS: dict[str, TranscribeOptions] = {
    "timestamps": TranscribeOptions(**NO_TESTS, language="en", max_new_tokens=12),
    "none": TranscribeOptions(**NO_TESTS, language="en", max_new_tokens=12, without_timestamps=True),
    "samples": TranscribeOptions(
        **{**NO_TESTS, "temperature": (0.6,)}, language="en", max_new_tokens=9, best_of=3, seed=7
    ),
    "beams": TranscribeOptions(**NO_TESTS, language="en", max_new_tokens=9, beam_size=3),
    "words": TranscribeOptions(**NO_TESTS, language="en", max_new_tokens=12, word_timestamps=True),
}


@functools.cache
def chunks() -> tuple[Chunk, ...]:
    found, at_s = [], 0.0
    for i, length_s in enumerate(LENGTHS_S):
        n = round(length_s * 16_000)
        found.append(Chunk(samples=noise(n, rms=0.05, color="pink", seed=i), start_s=at_s))
        at_s += length_s
    return tuple(found)


def begun(
    engine: Any, bundle: Bundle, way: str, batch_size: int, drafter: Drafter | None = None, given: Iterable[Chunk] = ()
) -> PieceTranscription:
    pieces = Pieces(iter(given or chunks()), HeldAudio(open_audio(np.full(1, 0.01, np.float32))))
    return PieceTranscription(engine, bundle, pieces, piece_options(WAYS[way]), batch_size=batch_size, drafter=drafter)


@functools.cache
def expected(kind: str, way: str) -> list[Segment]:
    """One piece after another, without a drafter."""
    engine, bundle = MODELS[kind]()
    return list(begun(engine, bundle, way, 1))


MODELS: dict[str, Callable[[], tuple[Any, Bundle]]] = {
    "micro": lambda: (exported.engine("int8"), exported.bundle("int8")),
    "heads": lambda: (heads.engine(), heads.bundle()),
}


@pytest.fixture(scope="module")
def with_ctc(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return ctc_heads.bundle_with_head(exported.bundle("int8"), tmp_path_factory.mktemp("ctc") / "bundle")


def drafter_of(kind: str, with_ctc: Bundle) -> Drafter:
    bundle = exported.bundle("int8")
    if kind in HEAD_KINDS:
        return HeadsDrafter(kind, HeadsPass(heads.bundle(), kind, Canceller()), FREE, gated=False)
    if kind == "ngram":
        return NgramDrafter(FREE)
    if kind == "draft":
        return opened(bundle, exported.bundle("int8", "draft"), weighs=False)
    if kind == "ctc":
        return open_ctc(with_ctc, [], FREE)
    if kind == "auto":
        sources = [NgramDrafter(FREE), open_ctc(with_ctc, [], FREE)]
        return AutoDrafter(sources, FREE, earlier=EarlierDrafter(FREE), weighs=False)
    return make_drafter(DrafterOptions(kind), TargetModel(bundle, threads=1))


PAIRS = [
    pytest.param(
        kind,
        way,
        marks=[] if way == "timestamps" and kind not in ("auto", "draft", "medusa-linear") else [pytest.mark.slow],
    )
    for kind in ("none", "ngram", "ctc", "draft", "auto", *HEAD_KINDS)
    for way in WAYS
]


@pytest.mark.parametrize(("kind", "way"), PAIRS)
def test_a_batch_says_what_its_pieces_say(kind: str, way: str, with_ctc: Bundle) -> None:
    model = "heads" if kind in HEAD_KINDS else "micro"
    engine, bundle = MODELS[model]()
    drafter = drafter_of(kind, with_ctc)
    for batch_size in (4, 1 + zlib.crc32(f"{kind} {way}".encode()) % 5):
        said = begun(engine, bundle, way, batch_size, drafter)
        assert list(said) == expected(model, way)
        assert said.drafter_error is None and said.speculation.lossless
    drafter.close()


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_drafted(kind: str) -> None:
    engine, bundle = MODELS["micro"]()
    special = bundle.manifest.tokens
    rng = np.random.default_rng(zlib.crc32(kind.encode()))
    texts = [segment.tokens for segment in expected("micro", "timestamps")]

    def propose(context: DraftContext, budget: int) -> Any:
        truth = next((text for text in texts if tuple(text[: len(context.sampled)]) == context.sampled), [])
        ids = [int(token) for token in rng.integers(0, special.n_vocab, 5)]
        at = int(rng.integers(0, 7))
        return guess(kind, special, special.sot, truth[len(context.sampled) :], width=3, noise=ids, at=at)

    for batch_size in (2, 5):
        said = begun(engine, bundle, "timestamps", batch_size, Scripted(propose))
        assert list(said) == expected("micro", "timestamps")


def free_places(engine: Any) -> int:
    """Places of texts that nobody has."""
    cache = engine._kv_cache
    return len(cache.free) + len({id(memory) for memory in cache.spare if memory.values is cache.values})


def test_one_that_fails_costs_no_text_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, bundle = MODELS["micro"]()
    list(begun(engine, bundle, "none", 4))
    n_free, real = free_places(engine), engine.forward_many
    bad: list[Any] = []

    def breaking(texts: Any) -> Any:
        """The third window's logits are no numbers, from its third pass on."""
        found = real(texts)
        for (state, _, _), rows in zip(texts, found, strict=True):
            if not any(state.features is other for other in bad):
                bad.append(state.features)
            if len(bad) > 2 and state.features is bad[2] and state.length > 4:
                rows[:] = np.nan
        return found

    monkeypatch.setattr(engine, "forward_many", breaking)
    found: list[Segment] = []
    with pytest.raises(ModelError, match="no usable logits"):
        found.extend(begun(engine, bundle, "none", 4))
    whole = expected("micro", "none")
    assert found == whole[: len(found)] and 0 < len(found) < len(whole)
    assert free_places(engine) == n_free
    monkeypatch.undo()
    assert list(begun(engine, bundle, "none", 4)) == whole


@pytest.mark.parametrize("way", ["none", "samples", "beams"])
def test_whoever_stops_leaves_nothing_behind(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, bundle = MODELS["micro"]()
    list(begun(engine, bundle, way, 4))
    n_free = free_places(engine)
    said = begun(engine, bundle, way, 4)
    first = next(said)
    said.close()
    assert first == expected("micro", way)[0] and free_places(engine) == n_free
    real, n_left = engine.forward_many, 5

    def stop(texts: Any) -> Any:
        nonlocal n_left
        n_left -= 1
        if not n_left:
            raise Interrupted("stop")
        return real(texts)

    monkeypatch.setattr(engine, "forward_many", stop)
    with pytest.raises(Interrupted):
        list(begun(engine, bundle, way, 4))
    monkeypatch.undo()
    assert free_places(engine) == n_free
    assert list(begun(engine, bundle, way, 4)) == expected("micro", way)


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_heads_of_several_texts_guess_as_those_of_one(kind: str) -> None:
    rng = np.random.default_rng(2)
    dims = heads.bundle().manifest.dims
    one = HeadsPass(heads.bundle(), kind, Canceller())
    encoded = [rng.standard_normal((20 + n, dims.n_audio_state)).astype(np.float32) for n in range(3)]
    rows = [rng.standard_normal((9, dims.n_text_state)).astype(np.float32) for _ in range(3)]
    alone = []
    for features, hidden in zip(encoded, rows, strict=True):
        one.begin(features)
        alone.append([one.guess(hidden[: n + 1], 3) for n in range(9)])
    several = [one, one.another(), one.another()]
    for pass_, features in zip(several, encoded, strict=True):
        pass_.begin(features)
    for n in range(9):
        for text, (pass_, hidden) in enumerate(zip(several, rows, strict=True)):
            for got, right in zip(pass_.guess(hidden[: n + 1], 3), alone[text][n], strict=True):
                assert (got == right).all()
