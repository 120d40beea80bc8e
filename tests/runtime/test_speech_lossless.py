"""Speech LLMs of random weights: rows are exact, and whatever drafts, the text is that of plain decoding."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specedge.maps.build import BuildOptions, build
from specedge.maps.tmap_format import text_fingerprint
from specedge.runtime.decoding.decode import DecodeOptions, WindowResult, decode_window
from specedge.runtime.decoding.drafter import Drafter, TargetModel
from specedge.runtime.decoding.presets import window_rules
from specedge.runtime.drafters.registry import make_drafter
from specedge.runtime.engine.exactness import probe_shortly
from specedge.runtime.engine.made_up import probe_ids, probe_mel
from specedge.runtime.engine.speech import SpeechEngine
from specedge.runtime.options import DrafterOptions, TranscribeOptions
from specedge.runtime.text.speech_tokens import SpeechTokens
from support.ctc_heads import bundle_with_head, random_head
from support.drafting import Scripted, plain_fields, tree
from support.exported import bundle
from support.qwen_checkpoints import qwen_bundle, qwen_engine

N_TOKENS = 24
WAYS: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.7}, {"temperature": 0.7, "best_of": 3}, {"beam_size": 3})


def special() -> SpeechTokens:
    tokens = qwen_bundle().manifest.tokens
    assert isinstance(tokens, SpeechTokens)
    return tokens


def rows_in_passes(engine: Any, sizes: Sequence[int], ids: Sequence[int], before: Sequence[int] = ()) -> bytes:
    """Logits of `ids` behind the rows `before`, over made-up audio, in passes of these sizes in turn.

    The rows in front are passed in two parts, of which the first is odd.
    """
    state, found, done = engine.start(engine.encode(probe_mel(engine.dims))), [], 0
    for part in (before[:41], before[41:]):
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


@pytest.mark.parametrize("n_before", [0, 3, 200, 700])
def test_a_row_has_the_same_bits_in_any_pass(n_before: int) -> None:
    engine = qwen_engine()
    before, ids = probe_ids(engine.dims, n_before), probe_ids(engine.dims, 48)
    alone = rows_in_passes(engine, [1], ids, before)
    for sizes in (*([size] for size in range(2, 17)), [5, 1], [7, 9], [7, 1, 10, 3], list(range(1, 10))):
        assert rows_in_passes(engine, sizes, ids, before) == alone, sizes


def test_a_prompt_may_be_cut_anywhere() -> None:
    engine = qwen_engine()
    prompt = special().prompt(engine.encode(probe_mel(engine.dims)).n_audio, "en")
    ids = [*prompt, *probe_ids(engine.dims, 6)]
    whole = rows_in_passes(engine, [len(ids)], ids)
    for sizes in ([4], [2, 6], [1, 3, 5], [len(prompt) - 2, 2]):
        assert rows_in_passes(engine, sizes, ids) == whole, sizes


def test_the_probe_of_a_machine_finds_rows_exact() -> None:
    assert probe_shortly(qwen_engine()).exact


def decoded(drafter: Drafter | None = None, **more: Any) -> WindowResult:
    found, engine = qwen_bundle(), qwen_engine()
    mel = probe_mel(engine.dims, 900)
    features = engine.encode(mel)
    options = DecodeOptions(
        rules=window_rules(TranscribeOptions(), found.manifest, found.tokenizer),
        n_text_ctx=engine.dims.n_text_ctx,
        n_sample=N_TOKENS,
        window_key=7,
        mel=lambda n_mels: np.pad(mel[:n_mels], ((0, 0), (0, engine.dims.n_frames - mel.shape[1]))),
        **more,
    )
    return decode_window(engine, features, special().prompt(features.n_audio, "en"), options, drafter)


def named(name: str, folder: Path) -> Drafter:
    more: dict[str, Any] = {}
    if name == "draft":
        more["draft_model"] = bundle("int8", "draft long").path
    if name == "tokenmap":
        path, eot, said = folder / "own.tmap", special().eot, list(decoded().tokens)
        fingerprint = text_fingerprint(qwen_bundle().tokenizer.ranks, eot)
        build([said[:9], said], path, n_text=eot, fingerprint=fingerprint, options=BuildOptions(min_count=1))
        more["token_maps"] = (path,)
    target = TargetModel(qwen_bundle(), threads=1, engine=qwen_engine(), weighs=False)
    return make_drafter(DrafterOptions(name, **more), target)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("name", ["ngram", "tokenmap", "mtp-latent", "draft", "auto"])
def test_drafters_change_nothing(name: str, way: dict[str, Any], tmp_path: Path) -> None:
    drafter = named(name, tmp_path)
    try:
        drafted = decoded(drafter, **way)
        assert plain_fields(drafted) == plain_fields(decoded(**way))
        assert drafted.speculation.evaluated or name in ("ngram", "auto", "draft")
    finally:
        drafter.close()


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_a_speech_llm_drafts_for_another_one(precision: str, way: dict[str, Any]) -> None:
    """Through the target's encoder, and through one of its own."""
    options = DrafterOptions("draft", draft_model=qwen_bundle(precision).path)
    target = TargetModel(qwen_bundle(), threads=1, engine=qwen_engine(), weighs=False)
    drafter = make_drafter(options, target)
    try:
        drafted = decoded(drafter, **way)
        assert plain_fields(drafted) == plain_fields(decoded(**way))
        if not way:
            assert drafted.speculation.accepted >= N_TOKENS // 3
    finally:
        drafter.close()


def test_a_head_that_hears_several_letters_in_a_row_changes_nothing(tmp_path: Path) -> None:
    weights = random_head(qwen_bundle().manifest.dims.n_audio_state, n_parts=4, bias=-6, said=range(97, 123))
    headed = bundle_with_head(qwen_bundle(), tmp_path / "b", weights)
    engine = SpeechEngine(headed, threads=1)
    features = engine.encode(probe_mel(engine.dims, 400))
    rules = window_rules(TranscribeOptions(), headed.manifest, headed.tokenizer)
    asked = DecodeOptions(rules=rules, n_text_ctx=headed.manifest.dims.n_text_ctx, n_sample=N_TOKENS, window_key=7)
    tokens = headed.manifest.tokens
    assert isinstance(tokens, SpeechTokens)
    prompt = tokens.prompt(features.n_audio, "en")
    drafter = make_drafter("ctc", TargetModel(headed, threads=1, engine=engine, weighs=False))
    drafted = decode_window(engine, features, prompt, asked, drafter)
    assert drafted.speculation.evaluated
    assert plain_fields(drafted) == plain_fields(decode_window(engine, features, prompt, asked))


def test_right_and_wrong_drafts_are_verified() -> None:
    plain = decoded()
    said = list(plain.tokens)

    def propose(context: Any, budget: int) -> Any:
        n = len(context.sampled)
        right = said[n : n + 5]
        return tree(right[:budget] if n % 3 else [*right[:2], 9, 9][:budget])

    drafted = decoded(Scripted(propose))
    assert plain_fields(drafted) == plain_fields(plain)
    assert drafted.speculation.accepted > N_TOKENS // 3
    assert drafted.speculation.passes < len(plain.token_logprobs)
