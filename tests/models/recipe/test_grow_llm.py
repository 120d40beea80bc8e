"""demo-llm grown says what the original says, with its heads, its token map and its CTC head."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the training extra is not installed")
pytest.importorskip("transformers", reason="the test extra is not installed")

from specedge import WhisperModel, decode_audio  # noqa: E402
from specedge.models import store  # noqa: E402
from specedge.models.recipe.grow import texts_of  # noqa: E402
from specedge.models.recipe.grow_llm import Size, grow_llm  # noqa: E402
from support.noise import SAMPLES  # noqa: E402


@pytest.mark.slow
def test_a_grown_speech_llm_says_what_the_original_says(tmp_path: Path) -> None:
    made = grow_llm(tmp_path / "grown", Size(n_layers=6, n_vocab=600))
    dims = made.manifest.dims
    assert (dims.n_text_state, dims.n_text_layer, dims.n_text_head, dims.n_kv_head) == (1024, 6, 16, 8)
    assert (dims.head_dim, dims.n_vocab) == (128, 600)
    sounds = [decode_audio(str(path)) for path in SAMPLES]
    said = texts_of(made.path, sounds)
    assert said == texts_of(store.find("demo-llm"), sounds) and all(said)
    model = WhisperModel(str(made.path))
    for drafter in ("mtp-latent", "ctc", "tokenmap"):
        segments, info = model.transcribe(sounds[0], "en", temperature=0.0, drafter=drafter)
        assert [token for segment in segments for token in segment.tokens] == said[0]
        assert info.speculation["accepted"] > len(said[0]) // 3
