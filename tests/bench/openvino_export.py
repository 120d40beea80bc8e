"""A checkpoint as OpenVINO's own Whisper pipeline loads it, weights in int8: for peers.py --openvino.

    PYTHON tests/bench/openvino_export.py CHECKPOINT OUT

PYTHON has optimum-intel and openvino-genai; CHECKPOINT is a folder with weights and tokenizer, such as hf/ of a grown
model. It does what `optimum-cli export openvino --weight-format int8` does, which traces the encoder with windows of 30
s alone: here with the checkpoint's own. It does not check that the pipeline likes the result.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import openvino
from openvino_tokenizers import convert_tokenizer
from optimum.utils import input_generators
from transformers import AutoTokenizer

checkpoint, out = Path(sys.argv[1]), Path(sys.argv[2])
n_frames = 2 * json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["max_source_positions"]
usual = input_generators.DEFAULT_DUMMY_SHAPES["nb_max_frames"]
input_generators.DEFAULT_DUMMY_SHAPES["nb_max_frames"] = n_frames
begin = input_generators.DummyAudioInputGenerator.__init__
begin.__defaults__ = tuple(n_frames if value == usual else value for value in begin.__defaults__ or ())

from optimum.exporters.openvino import main_export  # noqa: E402 - it copies the shapes
from optimum.intel import OVWeightQuantizationConfig  # noqa: E402
from optimum.intel.openvino import OVConfig  # noqa: E402

config = OVConfig(quantization_config=OVWeightQuantizationConfig(bits=8))
main_export(str(checkpoint), out, task="automatic-speech-recognition-with-past", ov_config=config)
models = convert_tokenizer(AutoTokenizer.from_pretrained(checkpoint), with_detokenizer=True)
for model, name in zip(models, ("openvino_tokenizer", "openvino_detokenizer"), strict=True):
    openvino.save_model(model, out / f"{name}.xml")
