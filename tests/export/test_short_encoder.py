"""The encoder of windows that end in silence, against its definition and beside the encoder of whole windows."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.errors import UsageError
from specedge.export.checkpoint import open_checkpoint
from specedge.export.encoder_graph import FLOOR, build_encoder, made_up_speech, write_short_encoder
from specedge.export.onnx_builder import GraphBuilder
from specedge.export.selfcheck import relative_error
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.bundle.dims import GROUP_POSITIONS
from specedge.runtime.bundle.manifest import LOG_COUNTS, SHORT_ENCODER_GRAPH
from specedge.runtime.cli import main
from specedge.runtime.engine.engine import Engine
from specedge.runtime.engine.many import BIAS
from specedge.runtime.engine.session import Canceller, Session, bind_array_input, run_outputs
from support.exported import bundle, checkpoint, engine, noise_mel, transformers_model

N_AUDIO = 2 * GROUP_POSITIONS  # positions of the audio, of 100 in a window


def test_merged_silence_is_silence_position_by_position(tmp_path: Path) -> None:
    """Groups of equal positions, in float32, against torch layers that attend to each position of silence by itself."""
    import torch

    dims, rng = bundle("fp32").manifest.dims, np.random.default_rng(0)
    names = ["features", *(f"{part}.{i}" for i in range(dims.n_audio_layer) for part in ("key", "value"))]
    tables = {name: rng.standard_normal((5, dims.n_audio_state)).astype(np.float32) for name in names}
    with open_checkpoint(checkpoint()) as weights, GraphBuilder(tmp_path, "encoder") as g:
        build_encoder(g, dims, weights, "fp32")
    write_short_encoder(tmp_path, dims, tables)
    mel = noise_mel(dims.n_mels, 2 * N_AUDIO + 2, seed=1)
    session = Session(tmp_path / "encoder_short.onnx", Canceller(), threads=1)
    binding = session.binding()
    bind_array_input(binding, "mel", windows := np.stack([mel, mel]))
    features, bias = run_outputs(session, binding, ["features", LOG_COUNTS])
    del windows

    silence = {name: torch.from_numpy(table).repeat_interleave(GROUP_POSITIONS, 0) for name, table in tables.items()}
    encoder, heard = transformers_model().model.encoder, torch.from_numpy(mel - mel[0, -1] + FLOOR)
    with torch.no_grad():
        x = torch.nn.functional.gelu(encoder.conv1(heard[None]))
        x = torch.nn.functional.gelu(encoder.conv2(x))[0].T[:N_AUDIO] + encoder.embed_positions.weight[:N_AUDIO]
        for i, layer in enumerate(encoder.layers):
            attention, y = layer.self_attn, layer.self_attn_layer_norm(x)
            k, v = (
                torch.cat([rows, silence[f"{name}.{i}"][N_AUDIO:]])
                for rows, name in ((attention.k_proj(y), "key"), (attention.v_proj(y), "value"))
            )
            q, k, v = (t.view(len(t), dims.n_audio_head, -1).transpose(0, 1) for t in (attention.q_proj(y), k, v))
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(N_AUDIO, -1)
            x = x + attention.out_proj(mixed)
            x = x + layer.fc2(torch.nn.functional.gelu(layer.fc1(layer.final_layer_norm(x))))
        expected = torch.cat([encoder.layer_norm(x), silence["features"][N_AUDIO::GROUP_POSITIONS]]).numpy()
    assert features.shape == (2, N_AUDIO + 3, dims.n_audio_state)
    assert np.abs(features - expected).max() < 1e-4
    assert bias.ravel() == pytest.approx([0.0] * N_AUDIO + [np.log(GROUP_POSITIONS)] * 3)


def short_and_whole(precision: str, variant: str = "plain") -> tuple[NDArray[np.float32], NDArray[np.float32], int]:
    made = engine(precision, variant)
    dims = made.dims
    mel = np.full((dims.n_mels, dims.n_frames), FLOOR, np.float32)
    mel[:, :70] = made_up_speech(dims.n_mels, 70, seed=9)
    short = made.encode(mel[:, : 2 * N_AUDIO + 2], ends_in_silence=True)
    louder = made.encode(mel[:, : 2 * N_AUDIO + 2] + 0.5, ends_in_silence=True)
    assert relative_error(louder.hidden, short.hidden) < 1e-2  # as loud as its silence says
    n_states = short.cross[BIAS].size if BIAS in short.cross else dims.n_audio_ctx
    assert short.ends_in_silence and len(short.hidden) == n_states
    return short.hidden, made.encode(mel).hidden, n_states


@pytest.mark.parametrize(("precision", "variant", "n_states"), [
    ("int8", "plain", 43), ("int4", "plain", 43), ("int8", "odd lengths", 42), ("int8", "odd heads", 43),
    ("fp32", "plain", 100),
])  # fmt: skip
def test_silence_is_nearer_to_the_whole_window_than_a_cut(precision: str, variant: str, n_states: int) -> None:
    short, whole, n_found = short_and_whole(precision, variant)
    made = engine(precision, variant)
    mel = np.full((made.dims.n_mels, 2 * N_AUDIO), FLOOR, np.float32)
    mel[:, :70] = made_up_speech(made.dims.n_mels, 70, seed=9)
    cut = made.encode(mel).hidden
    assert n_found == n_states
    assert relative_error(short[:35], whole[:35]) < relative_error(cut[:35], whole[:35])


def test_windows_share_a_pass_with_the_bits_of_their_own() -> None:
    made = engine("int8")
    mels = [noise_mel(made.dims.n_mels, 2 * N_AUDIO + 2, seed) for seed in range(3)]
    for shared, mel in zip(made.encode_all(mels, ends_in_silence=True), mels, strict=True):
        alone = made.encode(mel, ends_in_silence=True)
        assert (shared.hidden == alone.hidden).all() and (shared.cross["cross_k_0"] == alone.cross["cross_k_0"]).all()


def test_what_cannot_end_in_silence_is_refused() -> None:
    with pytest.raises(UsageError, match="whole groups"):
        engine("int8").encode(noise_mel(80, 80), ends_in_silence=True)


@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_a_bundle_of_before_gets_it_by_one_command(
    precision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From its own graph, with the bytes of an export."""
    folder = tmp_path / "bundle"
    shutil.copytree(bundle(precision).path, folder)
    before = bundle(precision).manifest
    graphs = {name: graph for name, graph in before.graphs.items() if name != SHORT_ENCODER_GRAPH}
    files = {name: entry for name, entry in before.files.items() if not name.startswith("encoder_short.")}
    for kind in ("onnx", "data"):
        (folder / f"encoder_short.{kind}").unlink()
    (folder / "specedge.json").write_bytes(replace(before, graphs=graphs, files=files).to_bytes())
    assert not Engine(Bundle.open(folder), threads=1).knows_silence
    for _ in range(2):  # where it is there, it is made again
        assert main.main(["export", str(folder), "--add-short-audio"]) == 0
        assert "encodes short audio alone now" in capsys.readouterr().out
        assert Bundle.open(folder).manifest.graphs == bundle(precision).manifest.graphs
        for name in ("encoder_short.onnx", "encoder_short.data"):
            assert (folder / name).read_bytes() == (bundle(precision).path / name).read_bytes()
        assert not list(folder.glob(".*"))
