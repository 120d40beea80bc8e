"""A speech LLM of random weights: rows are exact, and whatever drafts, the text is that of plain decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
from support.qwen_checkpoints import qwen_bundle
from support.row_passes import rows_in_passes
from support.speech_checkpoints import speech_bundle, speech_engine

N_TOKENS = 24


def special() -> SpeechTokens:
    tokens = speech_bundle().manifest.tokens
    assert isinstance(tokens, SpeechTokens)
    return tokens


@pytest.mark.parametrize("n_before", [0, 3, 200])
def test_a_row_has_the_same_bits_in_any_pass(n_before: int) -> None:
    engine = speech_engine()
    before, ids = probe_ids(engine.dims, n_before), probe_ids(engine.dims, 48)
    alone = rows_in_passes(engine, [1], ids, before)
    for sizes in ([2], [3], [5, 1], [8], [16], [7, 9], list(range(1, 10))):
        assert rows_in_passes(engine, sizes, ids, before) == alone, sizes


def test_a_prompt_may_be_cut_anywhere() -> None:
    engine = speech_engine()
    prompt = special().prompt(engine.encode(probe_mel(engine.dims)).n_audio, "en")
    ids = [*prompt, *probe_ids(engine.dims, 6)]
    whole = rows_in_passes(engine, [len(ids)], ids)
    for sizes in ([4], [2, 6], [1, 3, 5], [len(prompt) - 2, 2]):
        assert rows_in_passes(engine, sizes, ids) == whole, sizes


def test_the_probe_of_a_machine_finds_rows_exact() -> None:
    assert probe_shortly(speech_engine()).exact


def options(**more: Any) -> DecodeOptions:
    found = speech_bundle()
    rules = window_rules(TranscribeOptions(), found.manifest, found.tokenizer)
    n_text_ctx = found.manifest.dims.n_text_ctx
    return DecodeOptions(rules=rules, n_text_ctx=n_text_ctx, n_sample=N_TOKENS, window_key=7, **more)


def decoded(drafter: Drafter | None = None, **more: Any) -> WindowResult:
    engine = speech_engine()
    mel = probe_mel(engine.dims, engine.dims.n_frames)
    engine.forget()
    features = engine.encode(mel)
    chosen = options(mel=lambda n_mels: mel[:n_mels], **more)
    return decode_window(engine, features, special().prompt(features.n_audio, "en"), chosen, drafter)


def named(name: str, **more: Any) -> Drafter:
    target = TargetModel(speech_bundle(), threads=1, engine=speech_engine(), weighs=False)
    return make_drafter(DrafterOptions(name, **more), target)


WAYS: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.7}, {"temperature": 0.7, "best_of": 3}, {"beam_size": 3})


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("name", ["ngram", "mtp-latent", "draft", "auto"])
def test_drafters_change_nothing(name: str, way: dict[str, Any]) -> None:
    more = {"draft_model": bundle("int8", "draft en").path} if name == "draft" else {}
    drafter = named(name, **more)
    try:
        drafted = decoded(drafter, **way)
        assert plain_fields(drafted) == plain_fields(decoded(**way))
        assert drafted.speculation.evaluated or name in ("ngram", "auto")
    finally:
        drafter.close()


def test_a_head_that_hears_several_letters_in_a_row_changes_nothing(tmp_path: Path) -> None:
    weights = random_head(qwen_bundle().manifest.dims.n_audio_state, n_parts=4, bias=-6, said=range(97, 123))
    headed = bundle_with_head(qwen_bundle(), tmp_path / "b", weights)
    engine = SpeechEngine(headed, threads=1, cache=False)
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
