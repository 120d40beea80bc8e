"""One runtime at work on files, under a Python that has it: python peer.py NAME MODEL JOB.

JOB is JSON with `threads` and `language`. A request is a line on stdin with the arguments of `transcribe`, or
{"memory": true}; the answer is a line, {"ms": TIME, ...}. Between requests the process does nothing. What libraries
print goes to stderr. Each runtime decodes greedily, its other settings as its users get them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

Transcribe = Callable[..., dict[str, Any]]


def specedge(model: str, job: dict[str, Any]) -> tuple[str, Transcribe]:
    """Drafters live until a file comes again, as over those of one command; draft=MODEL is draft with that model."""
    import specedge
    from specedge.runtime.decoding.drafter import TargetModel

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from bench.common import made

    ours = specedge.WhisperModel(model, cpu_threads=job["threads"], encoder_provider=job.get("encoder_provider", "cpu"))
    drafters: dict[tuple[str, str], tuple[Any, set[str]]] = {}

    def transcribe(file: str, drafter: str, audio_context: str) -> dict[str, Any]:
        key = drafter, audio_context
        if key not in drafters or file in drafters[key][1]:  # it would draft what it has heard
            drafters[key] = made(drafter, TargetModel(ours.bundle, threads=ours.threads), job["maps"]), set()
        drafters[key][1].add(file)
        segments, info = ours.transcribe(file, job["language"], drafter=drafters[key][0], audio_context=audio_context)
        found = list(segments)
        counted = info.speculation
        return {
            "text": "".join(segment.text for segment in found),
            "tokens": [segment.tokens for segment in found],
            "encoder_ms": 1e3 * counted["encoder_s"],
            "decoder_ms": 1e3 * (counted["decoder_s"] + counted["draft_s"]),
            "n_tokens": counted["tokens"],
            "passes": counted["passes"],
        }

    return f"specedge {specedge.__version__}, {ours.bundle.manifest.precision}", transcribe


def faster_whisper(model: str, job: dict[str, Any]) -> tuple[str, Transcribe]:
    """CTranslate2's conversion."""
    from faster_whisper import WhisperModel

    kind = job.get("compute_type", "int8")
    theirs = WhisperModel(model, device="cpu", compute_type=kind, cpu_threads=job["threads"])

    def transcribe(file: str) -> dict[str, Any]:
        segments, _ = theirs.transcribe(file, language=job["language"], beam_size=1)
        return {"text": "".join(segment.text for segment in segments)}

    versions = f"faster-whisper {version('faster-whisper')}, CTranslate2 {version('ctranslate2')}"
    return f"{versions}, {theirs.model.compute_type}", transcribe


def openai_whisper(model: str, job: dict[str, Any]) -> tuple[str, Transcribe]:
    """A checkpoint of openai-whisper, in float32."""
    import torch
    import whisper

    torch.set_num_threads(job["threads"])
    theirs = whisper.load_model(model, device="cpu")

    def transcribe(file: str) -> dict[str, Any]:
        found = theirs.transcribe(_samples(file), language=job["language"], fp16=False)
        return {"text": found["text"]}

    return f"openai-whisper {version('openai-whisper')}, float32", transcribe


def transformers(model: str, job: dict[str, Any]) -> tuple[str, Transcribe]:
    """A checkpoint on torch in float32."""
    import torch
    import transformers

    torch.set_num_threads(job["threads"])
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(model, dtype=torch.float32).eval()
    return f"transformers {version('transformers')}, float32", _generating(model, theirs, job)


def optimum(model: str, job: dict[str, Any]) -> tuple[str, Transcribe]:
    """A folder of ONNX files with config, tokenizer and preprocessor, run by Optimum's own classes."""
    import onnxruntime
    from optimum.onnxruntime import ORTModelForSpeechSeq2Seq

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job["threads"]
    theirs = ORTModelForSpeechSeq2Seq.from_pretrained(model, session_options=options, use_merged=False)
    return f"optimum-onnx {version('optimum-onnx')}", _generating(model, theirs, job)


def whisper_cpp(model: str, job: dict[str, Any]) -> tuple[str, Transcribe]:
    """A ggml file, by the binding pywhispercpp."""
    from pywhispercpp.model import Model

    theirs = Model(
        model,
        n_threads=job["threads"],
        language=job["language"],
        print_progress=False,
        redirect_whispercpp_logs_to=None,
    )

    def transcribe(file: str) -> dict[str, Any]:
        return {"text": "".join(segment.text for segment in theirs.transcribe(_samples(file)))}

    return f"whisper.cpp by pywhispercpp {version('pywhispercpp')}", transcribe


def openvino(model: str, job: dict[str, Any]) -> tuple[str, Transcribe]:
    """A folder that `optimum-cli export openvino` made, run by OpenVINO GenAI's pipeline."""
    import openvino_genai

    theirs = openvino_genai.WhisperPipeline(model, "CPU", INFERENCE_NUM_THREADS=job["threads"])
    spoken = {"language": f"<|{job['language']}|>", "task": "transcribe"}
    asked = {"return_timestamps": True, **(spoken if theirs.get_generation_config().is_multilingual else {})}

    def transcribe(file: str) -> dict[str, Any]:
        return {"text": theirs.generate(_samples(file).tolist(), **asked).texts[0]}

    return f"openvino-genai {openvino_genai.__version__}", transcribe


def sherpa_onnx(model: str, job: dict[str, Any]) -> tuple[str, Transcribe]:
    """A folder that sherpa-onnx's export-onnx.py made. Six tokens a second of audio at most, and no more than 30 s."""
    import sherpa_onnx

    parts = {part: str(next(Path(model).glob(f"*-{part}"))) for part in ("encoder.int8.onnx", "decoder.int8.onnx")}
    theirs = sherpa_onnx.OfflineRecognizer.from_whisper(
        encoder=parts["encoder.int8.onnx"],
        decoder=parts["decoder.int8.onnx"],
        tokens=str(next(Path(model).glob("*-tokens.txt"))),
        language=job["language"],
        num_threads=job["threads"],
    )

    def transcribe(file: str) -> dict[str, Any]:
        stream = theirs.create_stream()
        stream.accept_waveform(16_000, _samples(file))
        theirs.decode_stream(stream)
        return {"text": stream.result.text}

    return f"sherpa-onnx {sherpa_onnx.__version__}, int8", transcribe


def moonshine(model: str, job: dict[str, Any]) -> tuple[str, Transcribe]:
    """A folder tiny or base of another model: encoder_model.onnx and decoder_model_merged.onnx. English alone."""
    import moonshine_onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job["threads"]
    theirs = moonshine_onnx.MoonshineOnnxModel(models_dir=model, model_name=Path(model).name)
    theirs.encoder, theirs.decoder = (
        onnxruntime.InferenceSession(f"{model}/{name}.onnx", options)
        for name in ("encoder_model", "decoder_model_merged")
    )
    tokenizer = moonshine_onnx.load_tokenizer()

    def transcribe(file: str) -> dict[str, Any]:
        return {"text": tokenizer.decode_batch(theirs.generate(_samples(file)[None]))[0]}

    return f"moonshine {version('useful-moonshine-onnx')}", transcribe


PEERS: dict[str, Callable[[str, dict[str, Any]], tuple[str, Transcribe]]] = {
    "specedge": specedge,
    "faster-whisper": faster_whisper,
    "openai-whisper": openai_whisper,
    "transformers": transformers,
    "optimum": optimum,
    "whisper.cpp": whisper_cpp,
    "openvino": openvino,
    "sherpa-onnx": sherpa_onnx,
    "moonshine": moonshine,
}


def _samples(file: str) -> Any:
    """A 16-bit mono WAV at 16 kHz, which `peers.py` wrote: float32 [n_samples]."""
    import wave

    import numpy as np

    with wave.open(file) as opened:
        return np.frombuffer(opened.readframes(opened.getnframes()), "<i2").astype(np.float32) / 32768


def _generating(model: str, theirs: Any, job: dict[str, Any]) -> Transcribe:
    """transformers' `generate`, as its users call it."""
    import torch
    import transformers

    extractor = transformers.WhisperFeatureExtractor.from_pretrained(model)
    tokenizer = transformers.WhisperTokenizerFast.from_pretrained(model)
    asked = {"return_timestamps": True, "do_sample": False, "num_beams": 1}
    if theirs.generation_config.is_multilingual:
        asked |= {"language": job["language"], "task": "transcribe"}

    def transcribe(file: str) -> dict[str, Any]:
        features = extractor(_samples(file), sampling_rate=16_000, return_tensors="pt", return_attention_mask=True)
        with torch.inference_mode():
            ids = theirs.generate(features.input_features, attention_mask=features.attention_mask, **asked)
        return {"text": tokenizer.decode(ids[0], skip_special_tokens=True)}

    return transcribe


def _peak_mb() -> float:
    """Most resident memory so far, in MB (10^6 bytes); Linux."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024 / 1e6


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    name, model, job = sys.argv[1:]
    told, transcribe = PEERS[name](model, json.loads(job))
    print(json.dumps({"version": told}), file=answers, flush=True)
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        started = time.perf_counter()
        answer = {"mb": _peak_mb()} if request.pop("memory", False) else transcribe(**request)
        print(json.dumps({"ms": 1e3 * (time.perf_counter() - started)} | answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
