"""Graphs of heads against plain NumPy and torch, their files, and checkpoints in whisper-medusa's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.errors import CheckpointError, UsageError
from specedge.export.bundling import write_bundle
from specedge.export.checkpoint import HEADS_FILE, open_checkpoint, open_heads
from specedge.export.export import export_to
from specedge.export.heads import Heads
from specedge.export.selfcheck import relative_error
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.decoding.decode import DecodeOptions, WindowResult, decode_window
from specedge.runtime.decoding.presets import window_rules
from specedge.runtime.engine.engine import Engine
from specedge.runtime.engine.heads import HeadsPass
from specedge.runtime.engine.session import Canceller
from specedge.runtime.options import HEAD_KINDS, TranscribeOptions
from specedge.runtime.papers.heads import HeadsDrafter
from support import exported, heads
from support.drafting import plain_fields
from support.drafts import FREE
from support.edits import read_tensors, write_tensors
from support.exported import checkpoint, noise_mel

F32 = NDArray[np.float32]
IDS = [7, 99, 12, 5, 300, 41, 8]


def rows_of(made: Engine) -> tuple[F32, F32]:
    """Hidden rows and encoder output of `IDS` over noise."""
    features = made.encode(noise_mel(80, 200))
    state = made.start(features, keeps_hidden=True)
    for start in (0, 3):
        made.forward(state, IDS[start : start + 4][: 3 if not start else 4])
        made.commit(state, 3 if not start else 4)
    rows = state.hidden[: len(IDS)].copy()
    made.release(state)
    return rows, features.hidden


def export(out: Path, given: list[Heads], *, precision: str = "fp32", variant: str = "plain") -> Bundle:
    with open_checkpoint(checkpoint(variant)) as source:
        return write_bundle(source, out, precision=precision, name="micro", version="0.1.0", heads=given)


def probabilities(found: tuple[NDArray[np.int64], F32], n_vocab: int) -> F32:
    """[n_heads, n_vocab], of a pass with all choices."""
    ids, probs = found
    wide = np.zeros((len(ids), n_vocab), np.float32)
    np.put_along_axis(wide, ids, probs, axis=1)
    return wide


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_a_graph_of_heads_computes_what_numpy_does(kind: str, precision: str) -> None:
    made = heads.bundle(precision)
    dims = made.manifest.dims
    hidden, features = rows_of(heads.engine(precision))
    run = HeadsPass(made, kind, Canceller())
    run.begin(features)
    run.guess(hidden[:2], 1)
    got = probabilities(run.guess(hidden, dims.n_vocab), dims.n_vocab)
    with open_checkpoint(checkpoint()) as weights:
        expected = heads.guesses(heads.random_heads(kind, dims), hidden, features, dims, weights)
    assert got.shape == expected.shape == (heads.N_HEADS, dims.n_vocab)
    assert np.allclose(got.sum(axis=1), 1, atol=1e-4)
    if precision == "fp32":
        assert np.abs(got - expected).max() < 1e-4
    else:
        assert relative_error(got, expected) < {"int8": 0.35, "int4": 1.2}[precision]


@pytest.mark.parametrize("kind", ["mtp-latent", "medusa-block"])
def test_a_guess_is_the_same_whatever_was_asked_before(kind: str) -> None:
    """Arrays stay bound between calls: other numbers of choices and rows, another window, and what a caller kept."""
    hidden, features = rows_of(heads.engine("fp32"))
    other = features[::-1].copy()

    def fresh(audio: Any, n_rows: int, n_choices: int) -> tuple[Any, Any]:
        run = HeadsPass(heads.bundle("fp32"), kind, Canceller())
        run.begin(audio)
        return run.guess(hidden[:n_rows], n_choices)

    run = HeadsPass(heads.bundle("fp32"), kind, Canceller())
    kept = []
    windows = ((features, ((2, 1), (3, 4), (4, 1), (7, 1))), (other, ((4, 1), (5, 2))), (features, ((7, 4),)))
    for audio, asked in windows:
        run.begin(audio)
        for n_rows, n_choices in asked:
            kept.append((run.guess(hidden[:n_rows], n_choices), fresh(audio, n_rows, n_choices)))
    for (ids, probs), (expected_ids, expected_probs) in kept:
        assert ids.tolist() == expected_ids.tolist() and np.allclose(probs, expected_probs, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_logits_are_the_bits_of_a_bundle_without_heads(precision: str) -> None:
    """Whether hidden rows are kept or not; the graphs that decide are the same files."""
    plain, with_heads = exported.bundle(precision), heads.bundle(precision)
    for graph in ("encoder", "cross_kv", "decoder", "many"):
        assert plain.file(f"{graph}.onnx").read_bytes() == with_heads.file(f"{graph}.onnx").read_bytes()
    made = heads.engine(precision)
    features = made.encode(noise_mel(80, 200))
    found = []
    for keeps in (False, True):
        state = made.start(features, keeps_hidden=keeps)
        logits = [made.forward(state, IDS).tobytes()]
        made.commit(state, 5)
        paths = made.forward_paths(state, 9, [[1, 2], [3]])
        logits += [row.tobytes() for path in paths for row in path]
        made.commit(state, 3, 0)
        logits.append(made.forward(state, [4]).tobytes())
        found.append(logits)
        made.release(state)
    assert found[0] == found[1]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_hidden_rows_are_those_of_one_pass_whatever_the_passes_were(precision: str) -> None:
    made = heads.engine(precision)
    features = made.encode(noise_mel(80, 200))
    whole = made.start(features, keeps_hidden=True)
    made.forward(whole, IDS)
    made.commit(whole, len(IDS))
    parts = made.start(features, keeps_hidden=True)
    made.forward(parts, [*IDS[:2], 500, 501])
    made.commit(parts, 2)
    made.forward_paths(parts, IDS[2], [[600, 601], IDS[3:6]])
    made.commit(parts, 3, 1)
    fork = made.fork(parts)
    made.forward(fork, IDS[5:])
    made.commit(fork, 2)
    assert fork.hidden[: len(IDS)].tobytes() == whole.hidden[: len(IDS)].tobytes()
    for state in (whole, parts, fork):
        made.release(state)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "n_layers"), [("medusa-linear", 1), ("medusa-linear", 2), ("medusa-block", 1)])
def test_a_checkpoint_in_the_published_layout_is_exported_with_its_heads(
    kind: str, n_layers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = heads.published_checkpoint(checkpoint(), tmp_path / "medusa", kind, n_layers=n_layers)
    made = export_to(str(folder), tmp_path / "out", precision="fp32")
    is_told = "is not the text of the Whisper it was made from" in capsys.readouterr().err
    assert is_told == (kind == "medusa-linear")
    dims = made.manifest.dims
    assert kind in made.manifest.graphs and made.manifest.selfcheck["logits_max_error"] < 1e-3
    engine = Engine(made, threads=1)
    hidden, features = rows_of(engine)
    stored = {name: value.astype(np.float32) for name, value in read_tensors(folder / "model.safetensors").items()}
    torch_heads, torch_base = published_model(kind, stored, hidden, features, dims.n_text_head)
    run = HeadsPass(made, kind, Canceller())
    run.begin(features)
    got = probabilities(run.guess(hidden, dims.n_vocab), dims.n_vocab)
    assert got.shape == torch_heads.shape and np.abs(got - torch_heads).max() < 1e-4
    state = engine.start(engine.encode(noise_mel(80, 200)))
    logits = engine.forward(state, IDS).copy()
    engine.release(state)
    assert np.abs(logits - torch_base).max() < 1e-3
    found = decoded(made, engine, HeadsDrafter(kind, run, FREE, gated=False))
    assert plain_fields(found) == plain_fields(decoded(made, engine)) and found.speculation.evaluated > 0
    if kind == "medusa-block":  # the model's own logits are vanilla Whisper's, bit for bit
        vanilla = exported.engine("fp32", threads=1)
        state = vanilla.start(vanilla.encode(noise_mel(80, 200)))
        assert vanilla.forward(state, IDS).tobytes() == logits.tobytes()
        vanilla.release(state)


def decoded(made: Bundle, engine: Engine, drafter: HeadsDrafter | None = None) -> WindowResult:
    """What a bundle says of noise."""
    rules = window_rules(TranscribeOptions(without_timestamps=True), made.manifest, made.tokenizer)
    options = DecodeOptions(rules=rules, n_text_ctx=made.manifest.dims.n_text_ctx, n_sample=16)
    prompt = made.manifest.tokens.prompt("en", timestamps=False)
    return decode_window(engine, engine.encode(noise_mel(80, 200)), prompt, options, drafter)


def published_model(kind: str, stored: dict[str, F32], hidden: F32, features: F32, n_head: int) -> tuple[F32, F32]:
    """Probabilities of the heads behind the last row, and the logits of the model itself, by torch."""
    import torch
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperDecoderLayer

    tensors = {name: torch.from_numpy(value.copy()) for name, value in stored.items()}
    matrix = tensors["whisper_model.model.decoder.embed_tokens.weight"]
    x = base = torch.from_numpy(hidden)
    first = 0

    def head(i: int, row: Any) -> Any:
        j = 0
        while f"medusa_heads.{i}.{j}.linear.weight" in tensors:
            weight, bias = (tensors[f"medusa_heads.{i}.{j}.linear.{part}"] for part in ("weight", "bias"))
            row, j = row + torch.nn.functional.silu(row @ weight.T + bias), j + 1
        return row

    if kind == "medusa-linear":
        base, first = head(0, x), 1
    else:
        d = hidden.shape[1]
        config = WhisperConfig(d_model=d, decoder_attention_heads=n_head, decoder_ffn_dim=4 * d, dropout=0.0)
        config._attn_implementation = "eager"
        layer = WhisperDecoderLayer(config, layer_idx=0).eval()
        mine = {n.removeprefix("medusa_block."): v for n, v in tensors.items() if n.startswith("medusa_block.")}
        layer.load_state_dict(mine, strict=False)
        mask = torch.full((len(hidden), len(hidden)), -torch.inf).triu(1)[None, None]
        with torch.no_grad():
            out = layer(x[None], attention_mask=mask, encoder_hidden_states=torch.from_numpy(features)[None])
        x = (out[0] if isinstance(out, tuple) else out)[0] if not hasattr(out, "shape") else out[0]
    with torch.no_grad():
        rows = torch.stack([head(first + i, x[-1]) for i in range(heads.N_HEADS)])
        probs = torch.softmax(rows @ matrix.T, dim=-1)
        return probs.numpy(), (base @ matrix.T).numpy()


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_files_of_trained_heads_are_read(kind: str, tmp_path: Path) -> None:
    with open_checkpoint(checkpoint()) as source:
        tokens = np.arange(0, 1000, 9)
        expected = heads.random_heads(kind, source.spec.dims, n_heads=2, tokens=tokens)
        arrays = expected.weights.arrays  # type: ignore[attr-defined]
        write_tensors(tmp_path / HEADS_FILE, {**arrays, "head_tokens": tokens.astype(np.float32)})
        found = open_heads(tmp_path / HEADS_FILE, source.spec)
    assert found.spec == expected.spec and found.tokens is not None and (found.tokens == tokens).all()


def test_what_is_no_heads_for_this_model_is_refused(tmp_path: Path) -> None:
    with open_checkpoint(checkpoint()) as source:
        spec = source.spec

        def refused(match: str, values: dict[str, F32]) -> None:
            write_tensors(tmp_path / HEADS_FILE, values)
            with pytest.raises(CheckpointError, match=match):
                open_heads(tmp_path, spec)

        with pytest.raises(CheckpointError, match="heads.safetensors: there is no such file"):
            open_heads(tmp_path, spec)
        with pytest.raises(CheckpointError, match="no such file"):
            open_heads(tmp_path / "x.safetensors", spec)
        good = heads.random_heads("mtp-latent", spec.dims).weights.arrays  # type: ignore[attr-defined]
        refused("holds no heads", {"x": np.zeros(3, np.float32)})
        refused(
            r"latent_heads.0.weight has shape \[8, 64\]",
            {**good, "latent_heads.0.weight": np.zeros((8, 64), np.float32)},
        )
        refused("latent_heads.1.weight is missing", {n: v for n, v in good.items() if ".1." not in n})
        refused("head_tokens must be rising", {**good, "head_tokens": np.array([3, 3], np.float32)})
        refused(
            "21 heads of 1 layers; expected 1 to 20",
            {f"latent_heads.{i}.weight": np.zeros((64, 64), np.float32) for i in range(21)},
        )
        bad = good["latent_heads.0.weight"].copy()
        bad[0, 0] = np.nan
        write_tensors(tmp_path / HEADS_FILE, {**good, "latent_heads.0.weight": bad})
        with pytest.raises(CheckpointError, match="NaN"):
            write_bundle(
                source,
                tmp_path / "out",
                precision="int8",
                name="m",
                version="0.1.0",
                heads=[open_heads(tmp_path, spec)],
            )
        twice = [heads.random_heads("mtp-latent", spec.dims)] * 2
        with pytest.raises(UsageError, match="two sets of heads of the kind mtp-latent"):
            write_bundle(source, tmp_path / "out", precision="int8", name="m", version="0.1.0", heads=twice)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"medusa_heads_type": "tower"}, "medusa_heads_type 'tower'"),
        ({"medusa_num_heads": 0}, "0 heads of 1 layers; expected 1 to 20"),
        ({"medusa_num_heads": 4}, "medusa_heads.3.0.linear.weight is missing"),
        ({"medusa_hidden_size": 65}, "medusa_hidden_size 65; expected whole numbers, the last one d_model, 64"),
        ({"medusa_num_layers": "1"}, "medusa_num_layers '1' and medusa_hidden_size 64; expected whole numbers"),
    ],
)
def test_a_published_checkpoint_at_odds_with_its_config_is_refused(
    changes: dict[str, Any], match: str, tmp_path: Path
) -> None:
    folder = heads.published_checkpoint(checkpoint(), tmp_path / "medusa", "medusa-block", **changes)
    with pytest.raises(CheckpointError, match=match):
        open_checkpoint(folder)
