"""The demo checkpoint for faster-whisper and for specedge: the same float32 weights, converted and exported once.

    python tests/support/converted.py OUT [CHECKPOINT]

writes the checkpoint, or one that was grown from it, with a tokenizer into the new folder OUT, which other programs'
converters take.
"""

from __future__ import annotations

import functools
import json
import shutil
import sys
from pathlib import Path

# Run as a program, Python puts this file's folder, not tests/, in front of its path.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from specedge.export.bundling import write_bundle  # noqa: E402
from specedge.export.checkpoint import open_checkpoint  # noqa: E402
from support.checkpoints import Layout  # noqa: E402
from support.exported import made_folder  # noqa: E402
from support.tree import ROOT  # noqa: E402
from support.vocab import write_hf_tokenizer  # noqa: E402

DEMO = ROOT / "models" / "checkpoints" / "demo"
N_VOCAB = 51_866
PUBLISHED_LIMIT = 50  # steps of 0.02 s


def with_tokenizer(checkpoint: Path, out: Path) -> Path:
    """A checkpoint of the demo's family in the new folder `out`, with the tokenizer that ours does not need.

    Settings that are null are left out: transformers before 5 refuses some of them.
    """
    shutil.copytree(checkpoint, out)
    generation = out / "generation_config.json"
    said = json.loads(generation.read_text(encoding="utf-8"))
    generation.write_text(json.dumps({key: value for key, value in said.items() if value is not None}, indent=1))
    write_hf_tokenizer(out, Layout.of(N_VOCAB, n_audio_ctx=500, en=False))
    return out


@functools.cache
def demo_for_faster_whisper() -> Path:
    """A CTranslate2 folder in float32, with the tokenizer and the window length that faster-whisper reads there."""
    import ctranslate2

    source = with_tokenizer(DEMO, made_folder("converted", "source"))
    out = made_folder("converted", "demo-ct2")
    converter = ctranslate2.converters.TransformersConverter(
        str(source), copy_files=["tokenizer.json", "preprocessor_config.json"], load_as_float16=False
    )
    converter.convert(str(out), quantization="float32")
    return out


def with_published_limit(checkpoint: Path, out: Path) -> Path:
    """A checkpoint in the new folder `out`, with the limit of a window's first timestamp that published ones have.

    Neither openai-whisper nor faster-whisper reads one from a checkpoint. The demo's own is later, and changes where
    its segments may begin and its windows end.
    """
    shutil.copytree(checkpoint, out)
    generation = out / "generation_config.json"
    said = json.loads(generation.read_text(encoding="utf-8"))
    generation.write_text(json.dumps(said | {"max_initial_timestamp_index": PUBLISHED_LIMIT}))
    return out


@functools.cache
def demo_for_specedge() -> Path:
    """An fp32 bundle of the demo, `with_published_limit`."""
    with open_checkpoint(with_published_limit(DEMO, made_folder("converted", "published-limit"))) as source:
        return write_bundle(
            source, made_folder("converted", "demo-fp32"), precision="fp32", name="demo", version="0.1.0"
        ).path


if __name__ == "__main__":
    with_tokenizer(Path(sys.argv[2]) if len(sys.argv) > 2 else DEMO, Path(sys.argv[1]))
