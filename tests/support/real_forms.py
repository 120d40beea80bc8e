"""A model in every form that people have it in, out of faster-whisper's folder of it: the same weights, other files.

    python -m tests.support.real_forms CT2_FOLDER OUT --form hf-half

writes the form to OUT: a folder, or the file that its name gives (.pt, .bin). The weights are those that the export
reads, so float16 stays what it is, and float32 is worth the same.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

# Run as a program, Python puts the folder above tests/ in front of its path, or this file's.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from specedge.export.checkpoint import Checkpoint, open_checkpoint  # noqa: E402
from support import checkpoints  # noqa: E402
from support.checkpoints import Layout, Shape  # noqa: E402
from support.edits import write_tensors  # noqa: E402
from support.foreign import write_ggml  # noqa: E402
from support.openai_model import openai_name  # noqa: E402

Tensors = dict[str, np.ndarray]
EMBEDDING, HEAD = "model.decoder.embed_tokens.weight", "proj_out.weight"
N_PUBLISHED = (51864, 51865, 51866)


def write_hugging_face(
    source: Path,
    out: Path,
    *,
    dtype: str = "float16",
    files: str = "one",
    generation: bool = True,
    preprocessor: bool = True,
    untied: bool = False,
    n_rows: int | None = None,
) -> Path:
    """A folder as transformers saves it.

    dtype: float16, float32 or bfloat16; files: "one", "sharded" or "bin". `generation` and `preprocessor` say whether
    the folder has those configs, `untied` whether the vocabulary matrix is stored a second time, and `n_rows` to how
    many rows of zeros the vocabulary is padded.
    """
    out.mkdir(parents=True)
    with open_checkpoint(source) as opened:
        shape, layout = shape_of(opened)
        config = checkpoints.config(shape, layout, dtype)
        said = checkpoints.generation_config(shape, layout) | {
            key: value for key, value in opened.spec.generation.items() if value is not None
        }
        values = {name: _as(value, dtype) for name, value in tensors_of(opened)}
    if untied:
        values[HEAD] = values[EMBEDDING].copy()
        config["tie_word_embeddings"] = False
    if n_rows is not None:
        config["vocab_size"] = n_rows
        for name in {EMBEDDING, HEAD} & values.keys():
            values[name] = np.pad(values[name], ((0, n_rows - shape.n_vocab), (0, 0)))
    _dump(out / "config.json", config)
    if generation:
        _dump(out / "generation_config.json", said)
    if preprocessor:
        _dump(out / "preprocessor_config.json", checkpoints.preprocessor_config(shape))
    if (source / "tokenizer.json").is_file():
        shutil.copyfile(source / "tokenizer.json", out / "tokenizer.json")
    {"one": _one_file, "sharded": _shards, "bin": _pickle}[files](out, values)
    return out


def shape_of(opened: Checkpoint) -> tuple[Shape, Layout]:
    """What `checkpoints` writes configs from. The vocabulary is one of the published ones."""
    dims = opened.spec.dims
    shape = Shape(
        n_state=dims.n_text_state,
        n_head=dims.n_text_head,
        n_audio_layer=dims.n_audio_layer,
        n_text_layer=dims.n_text_layer,
        n_mels=dims.n_mels,
        n_vocab=dims.n_vocab,
        n_audio_ctx=dims.n_audio_ctx,
        n_text_ctx=dims.n_text_ctx,
    )
    return shape, Layout.of(dims.n_vocab, dims.n_audio_ctx, dims.n_vocab == N_PUBLISHED[0])


def tensors_of(opened: Checkpoint) -> Iterator[tuple[str, np.ndarray]]:
    """Every weight that is stored, float32, by transformers' name."""
    for name, _ in opened.spec.shapes():
        yield name, opened.tensor(name)


def _as(value: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        import ml_dtypes

        return value.astype(ml_dtypes.bfloat16)
    return value.astype(dtype)


def _dump(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _one_file(out: Path, values: Tensors) -> None:
    write_tensors(out / "model.safetensors", values)


def _shards(out: Path, values: Tensors, n_shards: int = 3) -> None:
    names = list(values)
    places = {}
    for at in range(n_shards):
        file = f"model-{at + 1:05d}-of-{n_shards:05d}.safetensors"
        mine = names[at::n_shards]
        write_tensors(out / file, {name: values[name] for name in mine})
        places.update(dict.fromkeys(mine, file))
    total = sum(value.nbytes for value in values.values())
    _dump(out / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": places})


def _pickle(out: Path, values: Tensors) -> None:
    import torch

    torch.save({name: torch.from_numpy(value) for name, value in values.items()}, out / "pytorch_model.bin")


# --------------------------------------------------------------------------------------------------- other programs
def dims_of(source: Path) -> dict[str, int]:
    """openai-whisper's dimensions of a model."""
    with open_checkpoint(source) as opened:
        shape, _ = shape_of(opened)
    sides = {"n_mels": shape.n_mels, "n_audio_ctx": shape.n_audio_ctx, "n_audio_layer": shape.n_audio_layer}
    sides |= {"n_vocab": shape.n_vocab, "n_text_ctx": shape.n_text_ctx, "n_text_layer": shape.n_text_layer}
    widths = {f"n_{side}_state": shape.n_state for side in ("audio", "text")}
    return sides | widths | {f"n_{side}_head": shape.n_head for side in ("audio", "text")}


def write_pt(source: Path, out: Path, key: str | None = "model_state_dict", before: str = "") -> Path:
    """openai-whisper's file, in float16, or a trainer's: tensors under `key`, `before` before their names."""
    import torch

    with open_checkpoint(source) as opened:
        state = {
            before + openai_name(name): torch.from_numpy(value.astype(np.float16))
            for name, value in tensors_of(opened)
            if name != HEAD
        }
    out.parent.mkdir(parents=True, exist_ok=True)
    dims = {} if before else {"dims": dims_of(source)}
    torch.save(state if key is None else {**dims, key: state}, out)
    return out


def write_whisper_cpp(source: Path, out: Path, kind: str) -> Path:
    """whisper.cpp's file; kind: "f16" or one of `foreign.ROUNDED`."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with _temporary_folder() as made:
        write_ggml(write_hugging_face(source, made / "hf", dtype="float32"), out, kind, dims_of(source))
    return out


def write_ctranslate2(source: Path, out: Path, quantization: str) -> Path:
    """What ct2-transformers-converter makes of the Hugging Face form."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import ctranslate2

    with _temporary_folder() as made:
        folder = write_hugging_face(source, made / "hf")
        copied = [name for name in ("tokenizer.json", "preprocessor_config.json") if (folder / name).is_file()]
        converter = ctranslate2.converters.TransformersConverter(str(folder), copy_files=copied)
        converter.convert(str(out), quantization=quantization)
    return out


class _temporary_folder(tempfile.TemporaryDirectory[str]):
    def __enter__(self) -> Path:  # type: ignore[override]
        return Path(super().__enter__())


FORMS: dict[str, Callable[[Path, Path], Any]] = {
    "hf-half": write_hugging_face,
    "hf-float": lambda source, out: write_hugging_face(source, out, dtype="float32"),
    "hf-bfloat": lambda source, out: write_hugging_face(source, out, dtype="bfloat16"),
    "hf-sharded": lambda source, out: write_hugging_face(source, out, files="sharded"),
    "hf-bin": lambda source, out: write_hugging_face(source, out, files="bin"),
    "hf-bare": lambda source, out: write_hugging_face(source, out, generation=False, preprocessor=False),
    "hf-untied": lambda source, out: write_hugging_face(source, out, untied=True),
    "hf-padded": lambda source, out: write_hugging_face(source, out, n_rows=51968),
    "pt": write_pt,
    "lightning": lambda source, out: write_pt(source, out, key="state_dict", before="model."),
    "compiled": lambda source, out: write_pt(source, out, key=None, before="module._orig_mod."),
    "ggml-f16": lambda source, out: write_whisper_cpp(source, out, "f16"),
    "ggml-q5": lambda source, out: write_whisper_cpp(source, out, "q5_0"),
    "ggml-q8": lambda source, out: write_whisper_cpp(source, out, "q8_0"),
    "ct2-half": lambda source, out: write_ctranslate2(source, out, "float16"),
    "ct2-int8": lambda source, out: write_ctranslate2(source, out, "int8"),
}
SAME_WEIGHTS = (
    "hf-half",
    "hf-float",
    "hf-sharded",
    "hf-bin",
    "hf-bare",
    "pt",
    "lightning",
    "compiled",
    "ggml-f16",
    "ct2-half",
)
SUFFIXES = {
    "pt": ".pt",
    "lightning": ".ckpt",
    "compiled": ".bin",
    "ggml-f16": ".bin",
    "ggml-q5": ".bin",
    "ggml-q8": ".bin",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a faster-whisper folder's model in another form.")
    parser.add_argument("source", type=Path, metavar="CT2_FOLDER")
    parser.add_argument("out", type=Path)
    parser.add_argument("--form", choices=list(FORMS), required=True)
    given = parser.parse_args()
    print(FORMS[given.form](given.source, given.out))


if __name__ == "__main__":
    main()
