"""Voxtral's layout against transformers: encoder, projector, logits and texts of random weights in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specedge.runtime.decoding.decode import DecodeOptions, decode_window
from specedge.runtime.decoding.presets import window_rules
from specedge.runtime.engine.speech import SpeechEngine
from specedge.runtime.options import TranscribeOptions
from specedge.runtime.text.speech_tokens import SpeechTokens
from support.speech_checkpoints import N_CONTROL, checkpoint, export_speech, make_voxtral, speech_bundle, speech_engine

pytestmark = pytest.mark.slow
AUDIO_ID = 24
N_TOKENS = 30


def their_model(folder: Path) -> Any:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.VoxtralForConditionalGeneration.from_pretrained(folder, attn_implementation="eager")
    return model.float().eval()


def their_ids(ids: list[int], n_vocab: int) -> list[int]:
    """The checkpoint's ids of ids of the bundle: control tokens lie in front there, audio has one id."""
    n_text = n_vocab - N_CONTROL
    control = [2, *(i for i in range(N_CONTROL) if i != 2)]
    return [AUDIO_ID if i >= n_vocab else i + N_CONTROL if i < n_text else control[i - n_text] for i in ids]


def mels() -> list[np.ndarray]:
    return [
        np.clip(np.random.default_rng(seed).normal(0.1, 0.6, (80, 200)), -1, 1.5).astype(np.float32)
        for seed in range(20)
    ]


def compared(model: Any, engine: SpeechEngine, mel: np.ndarray, language: str | None) -> None:
    import torch

    tokens, dims = engine.bundle.manifest.tokens, engine.dims
    assert isinstance(tokens, SpeechTokens)
    features = engine.encode(mel)
    with torch.no_grad():
        theirs = model.get_audio_features(torch.from_numpy(mel[None]), return_dict=True)
    for ours, expected in (
        (features.hidden, theirs.last_hidden_state[0].numpy()),
        (features.cross["audio"][0], theirs.pooler_output.numpy()),
    ):
        assert np.linalg.norm(ours - expected) < 1e-4 * np.linalg.norm(expected)
    prompt = tokens.prompt(features.n_audio, language)
    ids = torch.tensor([their_ids(prompt, dims.n_vocab)])
    with torch.no_grad():
        logits = model(input_ids=ids, input_features=torch.from_numpy(mel[None])).logits[0, -1].numpy()
        made = model.generate(
            input_ids=ids,
            input_features=torch.from_numpy(mel[None]),
            attention_mask=torch.ones_like(ids),
            max_new_tokens=N_TOKENS,
            do_sample=False,
            eos_token_id=2,
            pad_token_id=2,
            suppress_tokens=[i for i in range(N_CONTROL) if i != 2],
        )
    state = engine.start(features)
    ours = engine.forward(state, prompt, [len(prompt) - 1])[0].copy()
    engine.release(state)
    expected = logits[their_ids(list(range(dims.n_vocab)), dims.n_vocab)]
    assert np.linalg.norm(ours - expected) < 1e-4 * np.linalg.norm(expected)
    rules = window_rules(TranscribeOptions(), engine.bundle.manifest, engine.bundle.tokenizer)
    options = DecodeOptions(rules=rules, n_text_ctx=dims.n_text_ctx, n_sample=N_TOKENS)
    result = decode_window(engine, features, prompt, options)
    said = their_ids(list(result.tokens), dims.n_vocab)
    assert [i for i in made[0, ids.shape[1] :].tolist() if i != 2] == said


def test_twenty_windows_are_those_of_transformers() -> None:
    model = their_model(checkpoint())
    for i, mel in enumerate(mels()):
        compared(model, speech_engine("fp32"), mel, ("en", "de", None)[i % 3])


def test_a_folder_that_transformers_saved_is_read(tmp_path: Path) -> None:
    """Names, and where rotations are kept, differ between versions."""
    model = their_model(make_voxtral(tmp_path / "given", seed=3, rope_theta=500_000.0))
    model.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "tekken.json").write_bytes((tmp_path / "given" / "tekken.json").read_bytes())
    assert "500000" in json.dumps(json.loads((tmp_path / "saved" / "config.json").read_text()))
    made = export_speech(tmp_path / "saved", tmp_path / "b", "fp32")
    compared(model, SpeechEngine(made, threads=1), mels()[0], "en")


def test_the_default_precision_is_close() -> None:
    """Not equal: rounding moves logits, but not by much."""
    exact, rounded = speech_engine("fp32"), speech_engine("int8")
    tokens = speech_bundle().manifest.tokens
    assert isinstance(tokens, SpeechTokens)
    found = []
    for engine in (exact, rounded):
        features = engine.encode(mels()[0])
        prompt = tokens.prompt(features.n_audio, "en")
        found.append(engine.forward(engine.start(features), prompt, [len(prompt) - 1])[0].copy())
    assert np.linalg.norm(found[0] - found[1]) < 0.2 * np.linalg.norm(found[0])
