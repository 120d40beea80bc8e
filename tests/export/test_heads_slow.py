"""Checkpoints of whisper-medusa at the true size of large-v2: every tensor in its place, and the widths that it has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from specedge.export.checkpoint import open_checkpoint
from specedge.export.export import export_to
from specedge.export.heads import HeadsSpec, head_shapes
from specedge.export.spec import Source
from specedge.runtime.decoding.decode import DecodeOptions, decode_window
from specedge.runtime.decoding.presets import window_rules
from specedge.runtime.engine.engine import Engine
from specedge.runtime.engine.heads import HeadsPass
from specedge.runtime.engine.session import Canceller
from specedge.runtime.options import TranscribeOptions
from specedge.runtime.papers.heads import HeadsDrafter
from support import heads
from support.checkpoints import SIZES, Layout, Shape, config, make_checkpoint, tensors
from support.drafting import plain_fields
from support.drafts import FREE
from support.exported import noise_mel

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["medusa-linear", "medusa-block"])
def test_the_tensors_of_a_true_large_v2_with_heads_are_in_their_places(kind: str, tmp_path: Path) -> None:
    """A file of 3 GB that takes no room: its header is what opening reads."""
    shape, d = SIZES["large-v2"], 1280
    is_linear = kind == "medusa-linear"
    entries = [(f"whisper_model.{name}", size) for name, size in tensors(shape)]
    entries += head_shapes(HeadsSpec(kind=kind, n_heads=10 + is_linear), d, 4 * d, 0)
    header, end = {}, 0
    for name, size in entries:
        start, end = end, end + 2 * int(np.prod(size))
        header[name] = {"dtype": "F16", "shape": list(size), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    layout = Layout.of(shape.n_vocab, shape.n_audio_ctx, en=False)
    settings = config(shape, layout, "float16") | {
        "medusa_num_heads": 10,
        "medusa_heads_type": "base_head" if is_linear else "medusa_block",
    }
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with open_checkpoint(tmp_path) as opened:
        assert opened.spec.source == Source(kind="folder", id=tmp_path.name)
        found = opened.spec.heads
        assert found is not None and (found.kind, found.n_heads, found.replaces_base) == (kind, 10, is_linear)
        n_weights = sum(int(np.prod(size)) for _, size in opened.spec.shapes())
        assert 1.56e9 < n_weights < 1.60e9
        assert opened.tensor("medusa_heads.9.0.linear.weight").shape == (d, d)


@pytest.mark.parametrize("kind", ["medusa-linear", "medusa-block"])
def test_heads_of_large_v2s_width_draft_for_it(kind: str, tmp_path: Path) -> None:
    """Ten heads over 51865 tokens of 1280 numbers, with two layers of each kind instead of 32."""
    shallow: Shape = replace(SIZES["large-v2"], n_audio_layer=2, n_text_layer=2)
    with mock.patch.dict(SIZES, {"shallow": shallow}):
        plain = make_checkpoint(tmp_path / "plain", size="shallow")
    folder = heads.published_checkpoint(plain, tmp_path / "medusa", kind, n_heads=10)
    made = export_to(str(folder), tmp_path / "out")
    engine = Engine(made, threads=2)
    features = engine.encode(noise_mel(80, 1000))
    rules = window_rules(TranscribeOptions(without_timestamps=True), made.manifest, made.tokenizer)
    options = DecodeOptions(rules=rules, n_text_ctx=448, n_sample=24)
    prompt = made.manifest.tokens.prompt("en", timestamps=False)
    expected = decode_window(engine, features, prompt, options)
    run = HeadsPass(made, kind, Canceller())
    assert run.n_heads == 10
    found = decode_window(engine, features, prompt, options, HeadsDrafter(kind, run, FREE, gated=False))
    assert plain_fields(found) == plain_fields(expected) and found.speculation.evaluated > 0
