"""The demo checkpoint for faster-whisper and for specedge: the same float32 weights, converted and exported once."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

from specedge.export.bundling import write_bundle
from specedge.export.checkpoint import open_checkpoint
from support.checkpoints import Layout
from support.exported import made_folder
from support.tree import ROOT
from support.vocab import write_hf_tokenizer

DEMO = ROOT / "models" / "checkpoints" / "demo"
N_VOCAB = 51_866


@functools.cache
def demo_for_faster_whisper() -> Path:
    """A CTranslate2 folder in float32, with the tokenizer and the window length that faster-whisper reads there."""
    import ctranslate2

    source = shutil.copytree(DEMO, made_folder("converted", "source"))
    write_hf_tokenizer(source, Layout.of(N_VOCAB, n_audio_ctx=500, en=False))
    out = made_folder("converted", "demo-ct2")
    converter = ctranslate2.converters.TransformersConverter(
        str(source), copy_files=["tokenizer.json", "preprocessor_config.json"], load_as_float16=False
    )
    converter.convert(str(out), quantization="float32")
    return out


@functools.cache
def demo_for_specedge() -> Path:
    """An fp32 bundle."""
    with open_checkpoint(DEMO) as source:
        return write_bundle(
            source, made_folder("converted", "demo-fp32"), precision="fp32", name="demo", version="0.1.0"
        ).path
