"""Qwen3-ASR's layout against transformers: encoder, projector, logits and texts of random weights in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specedge.runtime.decoding.decode import DecodeOptions, decode_window
from specedge.runtime.decoding.languages import UNKNOWN_LANGUAGE, detect_language
from specedge.runtime.decoding.presets import window_rules
from specedge.runtime.engine.speech import SpeechEngine
from specedge.runtime.options import TranscribeOptions
from specedge.runtime.text.speech_tokens import SpeechTokens
from support.qwen_checkpoints import ENDS, IDS, N_TEXT, N_VOCAB, export_speech, make_qwen, qwen_checkpoint, qwen_engine

pytestmark = pytest.mark.slow
N_TOKENS = 30
# A part of a chunk, one chunk, a window of attention and a bit, three of them and a part, a whole window.
LENGTHS = (50, 51, 100, 333, 807, 2500, 3000)


def their_model(folder: Path) -> Any:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, "Qwen3ASRForConditionalGeneration"):
        pytest.skip("this transformers has no Qwen3-ASR")
    model = transformers.Qwen3ASRForConditionalGeneration.from_pretrained(folder, attn_implementation="eager")
    return model.float().eval()


def mel_of(seed: int, n_frames: int) -> np.ndarray:
    values = np.random.default_rng(seed).normal(0.1, 0.6, (80, n_frames))
    return np.clip(values, -1, 1.5).astype(np.float32)


def their_audio(mel: np.ndarray) -> dict[str, Any]:
    """The inputs of a model for a log-mel [n_mels, n_frames]: chunks are filled with zeros, as its extractor does."""
    import torch

    n_frames = mel.shape[1]
    padded = np.pad(mel, ((0, 0), (0, -n_frames % 100)))
    mask = np.arange(padded.shape[1]) < n_frames
    return {
        "input_features": torch.from_numpy(padded[None]),
        "input_features_mask": torch.from_numpy(mask[None].astype(np.int64)),
    }


def close(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return bool(np.linalg.norm(ours - theirs) < 1e-4 * np.linalg.norm(theirs))


def compared(model: Any, engine: SpeechEngine, mel: np.ndarray, language: str | None) -> None:
    import torch

    tokens, dims = engine.bundle.manifest.tokens, engine.dims
    assert isinstance(tokens, SpeechTokens)
    features, audio = engine.encode(mel), their_audio(mel)
    with torch.no_grad():
        theirs = model.get_audio_features(**audio, return_dict=True)
    assert close(features.hidden, theirs.last_hidden_state.numpy().reshape(-1, dims.n_audio_state))
    assert close(features.cross["audio"][0], theirs.pooler_output.numpy().reshape(-1, dims.n_text_state))
    prompt = tokens.prompt(features.n_audio, language)
    ids = torch.tensor([[IDS["<|audio_pad|>"] if id_ >= N_VOCAB else id_ for id_ in prompt]])
    suppressed = [id_ for id_ in range(N_TEXT, N_VOCAB) if id_ not in ENDS]
    with torch.no_grad():
        logits = model(input_ids=ids, **audio).logits[0, -1].numpy()
        made = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            **audio,
            max_new_tokens=N_TOKENS,
            do_sample=False,
            eos_token_id=ENDS,
            pad_token_id=ENDS[1],
            suppress_tokens=suppressed,
        )
    state = engine.start(features)
    assert close(engine.forward(state, prompt, [len(prompt) - 1])[0], logits)
    engine.release(state)
    rules = window_rules(TranscribeOptions(), engine.bundle.manifest, engine.bundle.tokenizer)
    options = DecodeOptions(rules=rules, n_text_ctx=dims.n_text_ctx, n_sample=N_TOKENS)
    result = decode_window(engine, features, prompt, options)
    assert [id_ for id_ in made[0, ids.shape[1] :].tolist() if id_ not in ENDS] == list(result.tokens)


def test_twenty_windows_are_those_of_transformers() -> None:
    model = their_model(qwen_checkpoint(published=False))
    for seed in range(20):
        mel = mel_of(seed, LENGTHS[seed % len(LENGTHS)])
        compared(model, qwen_engine("fp32"), mel, ("en", "tl", None)[seed % 3])


def test_a_folder_that_transformers_saved_is_read(tmp_path: Path) -> None:
    model = their_model(make_qwen(tmp_path / "given", published=False, seed=3))
    model.save_pretrained(tmp_path / "saved")
    for name in ("tokenizer.json", "chat_template.jinja"):
        (tmp_path / "saved" / name).write_bytes((tmp_path / "given" / name).read_bytes())
    made = export_speech(tmp_path / "saved", tmp_path / "b", "fp32")
    compared(model, SpeechEngine(made, threads=1), mel_of(1, 907), "zh")


def test_languages_have_the_probabilities_that_the_model_gives_them() -> None:
    import torch

    model, engine = their_model(qwen_checkpoint(published=False)), qwen_engine("fp32")
    tokens = engine.bundle.manifest.tokens
    assert isinstance(tokens, SpeechTokens)
    mel = mel_of(5, 400)
    features = engine.encode(mel)
    ours = detect_language(engine, features, tokens)
    told = {**tokens.languages, UNKNOWN_LANGUAGE: tokens.unknown}
    # The share of a language is the product, over its ids, of what each has among the ids that go on to a language.
    expected = {}
    for code, ids in told.items():
        prompt = [*tokens.question(features.n_audio), *ids[:-1]]
        given = torch.tensor([[IDS["<|audio_pad|>"] if id_ >= N_VOCAB else id_ for id_ in prompt]])
        with torch.no_grad():
            logits = model(input_ids=given, **their_audio(mel)).logits[0, -len(ids) :].double().numpy()
        share = 1.0
        for depth, id_ in enumerate(ids):
            open_ids = sorted({other[depth] for other in told.values() if other[:depth] == ids[:depth]})
            row = np.exp(logits[depth, open_ids] - logits[depth, open_ids].max())
            share *= row[open_ids.index(id_)] / row.sum()
        expected[code] = share
    assert set(ours) == set(expected) and sum(ours.values()) == pytest.approx(1)
    assert list(ours.values()) == sorted(ours.values(), reverse=True)
    for code, share in expected.items():
        assert ours[code] == pytest.approx(share, rel=1e-3)
