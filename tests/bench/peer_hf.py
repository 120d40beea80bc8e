"""transformers at work on files, under its own Python: python peer_hf.py KIND JOB.json FOLDER [ASSISTANT].

KIND: "torch" for the checkpoint FOLDER on torch in float32, "optimum" for a folder of ONNX files run by Optimum's own
classes (with config, tokenizer and preprocessor in it). JOB is a SpeechJob. A file is read, turned into features,
decoded greedily with timestamps by `generate`, and its ids into text, as a program that uses transformers does it.
`lookup` has `generate` guess from the text so far (its prompt lookup), `assisted` by the smaller checkpoint ASSISTANT.
"""

from __future__ import annotations

import sys
from typing import Any

from jobs import SAMPLE_RATE_HZ, SpeechJob
from worker import serve

import soundfile  # isort: skip
import torch  # isort: skip
import transformers  # isort: skip

N_LOOKED_UP = 10


class Generating:
    """A model with transformers' `generate`."""

    def __init__(self, kind: str, job: SpeechJob, folder: str, assistant: str | None = None) -> None:
        transformers.logging.set_verbosity_error()
        torch.set_num_threads(job.threads)
        self._job, self._version = job, f"transformers {transformers.__version__}, torch {torch.__version__}, float32"
        self._features = transformers.WhisperFeatureExtractor.from_pretrained(folder)
        self._tokenizer = transformers.WhisperTokenizerFast.from_pretrained(folder)
        self._assistant = self._torch(assistant) if assistant else None
        self._model: Any = self._torch(folder) if kind == "torch" else self._optimum(folder)

    def start(self) -> dict[str, Any]:
        """What it is."""
        return {"version": self._version}

    def transcribe(self, file: str, how: str = "plain") -> dict[str, Any]:
        """The file's text."""
        samples, rate_hz = soundfile.read(file, dtype="float32")
        if rate_hz != SAMPLE_RATE_HZ:
            raise ValueError(f"{file}: {rate_hz} Hz, expected {SAMPLE_RATE_HZ}")
        heard = self._features(samples, sampling_rate=rate_hz, return_tensors="pt", return_attention_mask=True)
        more: dict[str, Any] = {}
        if how == "lookup":
            more["prompt_lookup_num_tokens"] = N_LOOKED_UP
        elif how == "assisted":
            more["assistant_model"] = self._assistant
        with torch.inference_mode():
            ids = self._model.generate(
                heard.input_features,
                attention_mask=heard.attention_mask,
                language=self._job.language,
                task="transcribe",
                return_timestamps=True,
                do_sample=False,
                num_beams=1,
                **more,
            )
        return {"text": self._tokenizer.decode(ids[0], skip_special_tokens=True)}

    def _torch(self, folder: str) -> Any:
        return transformers.WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()

    def _optimum(self, folder: str) -> Any:
        import onnxruntime
        from optimum.onnxruntime import ORTModelForSpeechSeq2Seq
        from optimum.version import __version__

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._job.threads
        self._version = f"Optimum {__version__}, ONNX Runtime {onnxruntime.__version__}, int8"
        return ORTModelForSpeechSeq2Seq.from_pretrained(folder, session_options=options, use_merged=False)


def main() -> None:
    """Load and serve."""
    peer = Generating(sys.argv[1], SpeechJob.load(sys.argv[2]), *sys.argv[3:])
    serve({"start": peer.start, "transcribe": peer.transcribe})


if __name__ == "__main__":
    main()
