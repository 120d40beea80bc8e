"""ONNX files as Optimum writes them give back the weights they were exported from."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from specedge.errors import CheckpointError  # noqa: E402
from specedge.export.checkpoint import Checkpoint, open_checkpoint  # noqa: E402
from specedge.export.optimum_onnx import open_optimum  # noqa: E402
from support.checkpoints import make_checkpoint  # noqa: E402


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("source"), dtype="float32", tokenizer=False)


class Exported:
    """A graph with torch.onnx.export's habits: biases with names, transposed weights without, paths in node names."""

    def __init__(self, *, paths: bool = True, gemm: bool = False, merged: bool = False) -> None:
        self.paths, self.gemm, self.suffix = paths, gemm, "_merged_0" if merged else ""
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.n = 0

    def keep(self, name: str, value: np.ndarray) -> str:
        self.initializers.append(numpy_helper.from_array(value, name + self.suffix))
        return name + self.suffix

    def node(self, kind: str, inputs: list[str], path: str, **attributes: Any) -> str:
        self.n += 1
        name = f"{path}/{kind}" if self.paths else f"node_{kind}_{self.n}"
        self.nodes.append(helper.make_node(kind, inputs, [f"{name}_output_{self.n}"], name=name, **attributes))
        return str(self.nodes[-1].output[0])

    def add(self, name: str, value: np.ndarray, shared: dict[bytes, str]) -> None:
        """One parameter, stored and used as the exporter does it; `name` is its module's, e.g. layers.0.fc1.bias."""
        module, _, part = name.rpartition(".")
        path = "/" + module.replace("layers.", "layers#").replace(".", "/").replace("#", ".")
        if value.ndim == 2 and "embed_" not in name and self.gemm:
            self.node("Gemm", ["x", self.keep(f"onnx::Gemm_{self.n}", value)], path, transB=1)
        elif value.ndim == 2 and "embed_" not in name:
            weight = self.keep(f"onnx::MatMul_{self.n}", np.ascontiguousarray(value.T))
            product = self.node("MatMul", ["x", weight], path)
            if not module.endswith(("k_proj", "proj_out")):
                self.node("Add", [f"{name.removesuffix('weight')}bias{self.suffix}", product], path)
        elif value.tobytes() in shared:  # equal parameters are stored once
            twin = shared[value.tobytes()]
            self.nodes.append(helper.make_node("Identity", [twin], [name], name=f"Identity_{len(self.nodes)}"))
        else:
            shared[value.tobytes()] = self.keep(name, value)

    def model(self) -> Any:
        kinds = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
        self.nodes.append(helper.make_node("Identity", ["x"], ["y"], name="Identity_last"))
        if not self.suffix:
            return helper.make_model(helper.make_graph(self.nodes, "main", kinds[:1], kinds[1:], self.initializers))
        branches = {
            "then_branch": helper.make_graph(self.nodes[-1:], "with_past", [], kinds[1:]),
            "else_branch": helper.make_graph(self.nodes, "no_past", [], kinds[1:]),
        }
        switch = helper.make_node("If", ["use_cache_branch"], ["y"], name="optimum::if", **branches)
        return helper.make_model(helper.make_graph([switch], "merged", kinds[:1], kinds[1:], self.initializers))


def export_by_hand(
    source: Path, folder: Path, *, decoder: str = "decoder_model.onnx", external: bool = False, **habits: Any
) -> Path:
    """What `optimum-cli export onnx` leaves behind, without its arithmetic."""
    folder.mkdir(parents=True, exist_ok=True)
    encoder = Exported(**{k: v for k, v in habits.items() if k != "merged"})
    decoder_graph, shared = Exported(**habits), ({}, {})
    with open_checkpoint(source) as checkpoint:
        for name, _ in checkpoint.spec.shapes():
            value = checkpoint.tensor(name)
            if name == "model.encoder.embed_positions.weight":
                encoder.node("Add", ["x", encoder.keep("onnx::Add_241", value[None])], "")
            elif ".encoder." in name:
                encoder.add(name.removeprefix("model.encoder."), value, shared[0])
            else:
                decoder_graph.add(name, value, shared[1])
    for file, graph in (("encoder_model.onnx", encoder), (decoder, decoder_graph)):
        onnx.save(graph.model(), str(folder / file), save_as_external_data=external, location=f"{file}_data")
    root = folder.parent if folder.name == "onnx" else folder
    for name in ("config.json", "generation_config.json", "preprocessor_config.json"):
        (root / name).write_bytes((source / name).read_bytes())
    return folder


def assert_same_weights(found: Checkpoint, source: Path) -> None:
    with open_checkpoint(source) as checkpoint:
        assert found.spec.dims == checkpoint.spec.dims
        for name, _ in checkpoint.spec.shapes():
            np.testing.assert_array_equal(found.tensor(name), checkpoint.tensor(name), err_msg=name)


@pytest.mark.parametrize(
    "habits",
    [
        {},
        {"gemm": True},
        {"external": True},
        {"merged": True, "decoder": "decoder_model_merged.onnx"},
    ],
    ids=["plain", "gemm", "external", "merged"],
)
@pytest.mark.parametrize("subfolder", ["", "onnx"])
def test_the_weights_come_back(habits: dict[str, Any], subfolder: str, source: Path, tmp_path: Path) -> None:
    export_by_hand(source, tmp_path / "my-whisper" / subfolder, **habits)
    with open_optimum(tmp_path / "my-whisper") as found:
        assert (found.spec.source.kind, found.spec.source.id) == ("optimum", "my-whisper")
        assert_same_weights(found, source)
    if subfolder:
        with open_optimum(tmp_path / "my-whisper" / "onnx") as found:
            assert_same_weights(found, source)


def test_an_untied_head_comes_back(source: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = make_checkpoint(tmp_path / "untied", dtype="float32", tokenizer=False)
    values = load_file(folder / "model.safetensors")
    values["proj_out.weight"] = 2 * values["model.decoder.embed_tokens.weight"]
    save_file(values, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    with open_optimum(export_by_hand(folder, tmp_path / "onnx")) as found:
        assert found.has("proj_out.weight")
        assert_same_weights(found, folder)


@pytest.mark.parametrize("kind", ["DynamicQuantizeLinear", "MatMulNBits", "QLinearMatMul", "DequantizeLinear"])
def test_a_quantised_graph_is_refused(kind: str, source: Path, tmp_path: Path) -> None:
    export_by_hand(source, tmp_path)
    model = onnx.load(tmp_path / "decoder_model.onnx")
    model.graph.node.append(helper.make_node(kind, ["x"], ["q"]))
    onnx.save(model, tmp_path / "decoder_model.onnx")
    with pytest.raises(CheckpointError, match=rf"decoder_model\.onnx: is quantised \({kind}\); give the fp32 export"):
        open_optimum(tmp_path)


def test_files_that_are_not_there(source: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no encoder_model\.onnx"):
        open_optimum(tmp_path)
    with pytest.raises(CheckpointError, match=r"holds no encoder_model\.onnx"):
        open_optimum(tmp_path / "none")
    (tmp_path / "encoder_model_quantized.onnx").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"only quantised ONNX files; expected the fp32 encoder_model\.onnx"):
        open_optimum(tmp_path)
    export_by_hand(source, tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError, match="is no checkpoint folder"):
        open_optimum(tmp_path)


@pytest.mark.parametrize("content", [b"\xff" * 40, b"not onnx at all", b""])
def test_a_damaged_file_is_named(content: bytes, source: Path, tmp_path: Path) -> None:
    export_by_hand(source, tmp_path)
    (tmp_path / "encoder_model.onnx").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"encoder_model\.onnx"):
        open_optimum(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("location", "../secret"),
        ("location", "/etc/passwd"),
        ("location", "none"),
        ("offset", "999999999"),
        ("offset", "-4"),
        ("length", "4"),
        ("offset", "x"),
    ],
)
def test_external_data_stays_in_its_folder(key: str, value: str, source: Path, tmp_path: Path) -> None:
    export_by_hand(source, tmp_path, external=True)
    model = onnx.load(tmp_path / "decoder_model.onnx", load_external_data=False)
    tensor = next(t for t in model.graph.initializer if t.name == "model.decoder.embed_tokens.weight")
    next(item for item in tensor.external_data if item.key == key).value = value
    onnx.save(model, tmp_path / "decoder_model.onnx")
    with open_optimum(tmp_path) as found, pytest.raises(CheckpointError, match="cannot be read"):
        found.tensor("model.decoder.embed_tokens.weight")


@pytest.mark.slow
def test_a_real_optimum_export_gives_back_its_weights(tmp_path: Path) -> None:
    """With Optimum here, or in the interpreter that SPECEDGE_OPTIMUM_PYTHON names (its pins conflict with ours)."""
    python = os.environ.get("SPECEDGE_OPTIMUM_PYTHON")
    if python is None and importlib.util.find_spec("optimum") is None:
        pytest.skip("optimum-onnx is not installed and SPECEDGE_OPTIMUM_PYTHON names no interpreter that has it")
    folder = make_checkpoint(
        tmp_path / "hf", n_audio_ctx=1500, n_text_ctx=448, n_vocab=51865, dtype="float32", tokenizer=False
    )
    code = (
        "import sys; from optimum.exporters.onnx import main_export\n"
        "main_export(sys.argv[1], sys.argv[2], task='automatic-speech-recognition-with-past', do_validation=False)"
    )
    out = tmp_path / "onnx"
    subprocess.run([python or sys.executable, "-c", code, str(folder), str(out)], check=True, capture_output=True)
    files = {path.name for path in out.glob("*.onnx")}
    assert "decoder_model_merged.onnx" in files and json.loads((out / "config.json").read_text())["d_model"] == 64
    with open_optimum(out) as found:
        assert_same_weights(found, folder)
    (out / "decoder_model.onnx").unlink()  # transformers.js ships the merged one only
    with open_optimum(out) as found:
        assert_same_weights(found, folder)
    (out / "decoder_model_merged.onnx").unlink()
    with pytest.raises(CheckpointError, match=r"encoder_attn\.k_proj\.weight cannot be found"):
        open_optimum(out)
