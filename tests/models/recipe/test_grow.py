"""A grown model computes what the original does, in another shape; its heads guess the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason="the training extra is not installed")
pytest.importorskip("transformers", reason="the test extra is not installed")

import onnx  # noqa: E402

from specedge.errors import UsageError  # noqa: E402
from specedge.export.bundling import write_bundle  # noqa: E402
from specedge.export.checkpoint import Checkpoint, open_checkpoint  # noqa: E402
from specedge.export.ctc_graph import write_ctc_graph  # noqa: E402
from specedge.export.heads import head_shapes  # noqa: E402
from specedge.export.selfcheck import decode, encode  # noqa: E402
from specedge.export.spec import expected_shapes  # noqa: E402
from specedge.models.recipe import grow as grow_module  # noqa: E402
from specedge.models.recipe.dequantised import BundleWeights, bundle_spec, bundled_heads  # noqa: E402
from specedge.models.recipe.grow import (  # noqa: E402
    Growth,
    farthest_logit,
    grow,
    grown_ctc,
    grown_heads,
    write_checkpoint,
)
from specedge.runtime.audio.mel import log_mel  # noqa: E402
from specedge.runtime.bundle.bundle import Bundle  # noqa: E402
from specedge.runtime.engine.made_up import probe_mel  # noqa: E402
from specedge.runtime.options import HEAD_KINDS  # noqa: E402
from support import exported  # noqa: E402
from support import heads as head_support  # noqa: E402
from support.checkpoints import make_checkpoint  # noqa: E402
from support.ctc_heads import random_head  # noqa: E402
from support.edits import read_tensors, write_tensors  # noqa: E402
from support.noise import SAMPLES  # noqa: E402

TWICE = Growth(times=2, n_audio_layer=5, n_text_layer=3)
IDS = [3, 141, 59, 26, 535, 89]
TABLE = "model.decoder.embed_tokens.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint in which tokens from 900 on share a row."""
    folder = make_checkpoint(tmp_path_factory.mktemp("grow") / "checkpoint")
    tensors = read_tensors(folder / "model.safetensors")
    tensors[TABLE][900:] = tensors[TABLE][900]
    write_tensors(folder / "model.safetensors", tensors)
    return folder


@pytest.fixture(scope="module")
def source(folder: Path) -> Checkpoint:
    return open_checkpoint(folder)


@pytest.mark.parametrize("times", (2, 3))
def test_the_function_stays_with_wider_and_more_layers(source: Checkpoint, times: int) -> None:
    grown = grow(source, replace(TWICE, times=times), "grown")
    dims = grown.spec.dims
    assert (dims.n_text_state, dims.n_text_head, dims.n_audio_layer, dims.n_text_layer) == (64 * times, 2 * times, 5, 3)
    scale = np.abs(decode(IDS, encode(probe_mel(dims), dims, grown), dims, grown)).max()
    assert farthest_logit(grown, source, probe_mel(dims), IDS) < 1e-5 * max(1.0, scale)


def test_tokens_that_share_a_row_get_rows_of_their_own_which_no_logit_sees(source: Checkpoint) -> None:
    table = source.tensor(TABLE)
    assert len(np.unique(table, axis=0)) == 901
    grown = grow(source, TWICE, "grown")
    wide = grown.tensor(TABLE)
    assert len(np.unique(wide, axis=0)) == len(table)
    assert np.array_equal(wide[:900], np.tile(table[:900], 2))
    assert 0 < np.abs(wide[900:] - np.tile(table[900:], 2)).max() < 0.1 * np.abs(table).max()
    assert np.allclose(wide[900:].reshape(-1, 2, 64).sum(1), 2 * table[900:], atol=1e-6)
    assert np.array_equal(wide, grown.tensor(TABLE)), "the noise is the same each time"


def test_added_layers_say_nothing_and_do_the_work_of_the_one_before(source: Checkpoint) -> None:
    grown = grow(source, TWICE, "grown")
    root = "model.encoder.layers"
    silent = [not grown.tensor(f"{root}.{i}.fc2.weight").any() for i in range(5)]
    assert silent == [False, True, False, True, True]
    assert not grown.tensor(f"{root}.3.self_attn.out_proj.bias").any()
    assert np.array_equal(grown.tensor(f"{root}.3.fc1.weight"), grown.tensor(f"{root}.2.fc1.weight"))


def test_the_checkpoint_is_one_that_transformers_reads(source: Checkpoint, tmp_path: Path) -> None:
    from transformers import WhisperForConditionalGeneration

    grown = grow(source, TWICE, "grown")
    write_checkpoint(grown, tmp_path / "out", TWICE.times)
    again = open_checkpoint(tmp_path / "out")
    assert again.spec.dims == grown.spec.dims and again.vocabulary() == source.vocabulary()
    for name, _ in expected_shapes(grown.spec):
        assert np.array_equal(again.tensor(name), grown.tensor(name)), name
    model = WhisperForConditionalGeneration.from_pretrained(tmp_path / "out").eval()
    mel = probe_mel(source.spec.dims, 2 * source.spec.dims.n_audio_ctx)
    with torch.no_grad():
        theirs = model(torch.from_numpy(mel)[None], decoder_input_ids=torch.tensor([IDS])).logits[0].numpy()
    dims = source.spec.dims
    assert np.allclose(theirs, decode(IDS, encode(mel, dims, source), dims, source), atol=1e-3)


def test_alignment_heads_go_where_their_layers_are(source: Checkpoint, tmp_path: Path) -> None:
    spec = replace(source.spec, generation={**source.spec.generation, "alignment_heads": [[0, 1], [1, 0]]})
    source = Checkpoint(spec, source._weights, where="x")
    assert grow(source, TWICE, "grown").spec.generation["alignment_heads"] == [[0, 1], [1, 0]]
    deeper = replace(TWICE, n_text_layer=4)
    assert grow(source, deeper, "grown").spec.generation["alignment_heads"] == [[0, 1], [2, 0]]


def test_a_bundle_read_back_says_what_it_computes(source: Checkpoint, tmp_path: Path) -> None:
    """Exported again it is the same, and so is what grows from it."""
    bundle = write_bundle(source, tmp_path / "bundle", precision="int8", name="micro", version="0")
    weights = BundleWeights(bundle)
    for name, shape in expected_shapes(source.spec):
        value = weights.tensor(name)
        assert value.shape == shape and value.dtype == np.float32, name
        assert np.allclose(value, source.tensor(name), atol=0.01 * np.abs(value).max()), name
    assert not weights.has("model.decoder.layers.0.self_attn.k_proj.bias")


def test_the_configs_of_a_bundled_draft() -> None:
    bundle = Bundle.open(Path(grow_module.DEMO.parents[1] / "bundled" / "demo-draft-en"))
    spec = bundle_spec(bundle)
    assert spec.dims == bundle.manifest.dims
    assert spec.generation["suppress_tokens"] == list(bundle.manifest.suppress_tokens)


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_heads_guess_what_they_did(kind: str, tmp_path: Path) -> None:
    """Read out of a bundle, then grown: for the original's hidden rows over 2, twice, the same probabilities."""
    small = Bundle.open(head_support.bundle().path)
    heads = bundled_heads(small, kind)
    checkpoint = open_checkpoint(head_support.checkpoint())
    dims = checkpoint.spec.dims
    expected = dict(head_shapes(heads.spec, dims.n_text_state, 4 * dims.n_text_state, dims.n_vocab))
    assert {name: heads.weights.tensor(name).shape for name in expected} == expected
    wide, decoder = grown_heads(heads, 2), grow(checkpoint, replace(TWICE, n_text_layer=2), "grown")
    rng = np.random.default_rng(0)
    hidden, features = (rng.standard_normal((n, dims.n_text_state)).astype(np.float32) for n in (5, 20))
    before = head_support.guesses(heads, hidden, features, dims, checkpoint)
    twice = [np.tile(hidden, 2) / 2, np.tile(features, 2)]
    after = head_support.guesses(wide, *twice, decoder.spec.dims, decoder)
    assert np.allclose(before, after, atol=1e-4)


def test_the_ctc_head_hears_what_it_did(tmp_path: Path) -> None:
    import onnxruntime

    weights = random_head(16)
    write_ctc_graph(tmp_path / "ctc.onnx", weights, {})
    grown_ctc(tmp_path / "ctc.onnx", 3, "0" * 64, tmp_path / "grown.onnx")
    onnx.checker.check_model(onnx.load(str(tmp_path / "grown.onnx")))
    features = np.random.default_rng(0).standard_normal((1, 30, 16)).astype(np.float32)
    ours, theirs = (
        onnxruntime.InferenceSession(str(tmp_path / f"{name}.onnx")).run(None, {"features": heard})
        for name, heard in (("grown", np.tile(features, 3)), ("ctc", features))
    )
    assert np.array_equal(ours[0], theirs[0])
    assert np.allclose(ours[1], theirs[1], atol=1e-4)


def test_what_cannot_be_grown(source: Checkpoint, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="layers are added, never left out"):
        grow(source, replace(TWICE, n_text_layer=1), "grown")
    with pytest.raises(UsageError, match="2 times or more, got 1"):
        grow(source, replace(TWICE, times=1), "grown")
    with pytest.raises(UsageError, match="int8 bundle"):
        BundleWeights(exported.bundle("fp32"))


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    for arguments, reason in (
        (["base", "-o", str(tmp_path)], "--force to replace it"),
        (["base", "--speech", str(tmp_path)], "give --bundle too"),
        (["tiny"], "'tiny' is not one of"),
    ):
        done = CliRunner().invoke(grow_module.main, arguments)
        assert done.exit_code != 0
        assert reason in (done.output + str(done.exception)), arguments


needs_demo = pytest.mark.skipif(not grow_module.DEMO.is_dir(), reason="the checkpoint is not in this tree")


@needs_demo
@pytest.mark.slow
def test_base_has_the_demos_logits_and_texts_and_a_draft_on_its_encoder(tmp_path: Path) -> None:
    from specedge import decode_audio
    from specedge.runtime.bundle.bundle import encoder_fingerprint

    demo, growth = grow_module.original("demo"), grow_module.FAMILY["base"]
    assert grow_module.check_logits(grow(demo, growth, "grown-base"), "demo") < 1e-4
    bundle = grow_module.make_bundle("base", "demo", growth, tmp_path / "bundle")
    sounds = [decode_audio(str(path)) for path in SAMPLES]
    ours, theirs = (grow_module.texts_of(path, sounds) for path in (bundle.path, grow_module.store.find("demo")))
    assert ours == theirs and all(ours)
    draft = Bundle.open(bundle.path / "draft")
    assert draft.manifest.dims.n_text_layer == 2
    assert encoder_fingerprint(draft.manifest) == encoder_fingerprint(bundle.manifest)
    assert bundle.manifest.selfcheck["row_invariance"]["exact"]


@needs_demo
@pytest.mark.slow
def test_other_programs_read_the_same_checkpoint(tmp_path: Path) -> None:
    """transformers and faster-whisper say of grown base what they say of the demo."""
    pytest.importorskip("faster_whisper", reason="faster-whisper is not installed")
    import torch

    from specedge import decode_audio
    from support.exported import load_transformers
    from support.faster_peer import FasterPeer

    growth = grow_module.FAMILY["base"]
    write_checkpoint(grow(grow_module.original("demo"), growth, "base"), tmp_path / "base", growth.times)
    sounds = [decode_audio(str(path)) for path in SAMPLES]
    manifest = Bundle.open(grow_module.store.find("demo")).manifest
    prompt = manifest.tokens.prompt("en", timestamps=True)
    texts = [[*prompt, *ids] for ids in grow_module.texts_of(grow_module.store.find("demo"), sounds)]
    mels = [log_mel(sound, manifest.dims.n_mels, manifest.n_frames) for sound in sounds]
    said = []
    for folder in (grow_module.DEMO, tmp_path / "base"):
        model = load_transformers(folder)
        with torch.no_grad():
            rows = [
                model(input_features=torch.from_numpy(mel)[None], decoder_input_ids=torch.tensor([text])).logits[0]
                for mel, text in zip(mels, texts, strict=True)
            ]
        ids = [row.argmax(-1).tolist() for row in rows]
        work = tmp_path / f"{folder.name}-peer"
        work.mkdir()
        peer = FasterPeer(folder, work, n_vocab=51_866, n_audio_ctx=500)
        heard = [peer.transcribe(sound, language="en", beam_size=1, temperature=0)[0] for sound in sounds]
        said.append((ids, [[segment.text for segment in segments] for segments in heard]))
    assert said[0] == said[1] and all(said[0][1])
