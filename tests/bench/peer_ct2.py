"""faster-whisper (CTranslate2) at work, under its own Python: python peer_ct2.py JOB.json CT2_FOLDER [COMPUTE_TYPE].

With `-` for CT2_FOLDER only the feature extractor is there. The folder needs tokenizer.json and
preprocessor_config.json. With `speech` before the job, a SpeechJob, files are transcribed by its own `transcribe`,
which pads to 30 s whatever the model: it is told the model's window.
Its decode is CTranslate2's `generate` at beam 1 without scores, the least work that gives the tokens; the
cross-attention keys and values are computed there, not in `encode`.
"""

from __future__ import annotations

import functools
import sys
import time
from typing import Any

from jobs import Job, SpeechJob
from worker import memory_mb, sampled, serve

started = time.perf_counter()
import ctranslate2  # noqa: E402
import faster_whisper  # noqa: E402
import numpy as np  # noqa: E402
from faster_whisper import WhisperModel  # noqa: E402
from faster_whisper.feature_extractor import FeatureExtractor  # noqa: E402

import_ms = (time.perf_counter() - started) * 1e3


class Extractor:
    """The feature extractor and one window of audio."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._samples = np.fromfile(job.samples, np.float32)
        self._extractor = FeatureExtractor(feature_size=job.n_mels)

    def mel(self) -> None:
        """Samples to log-mel of one window."""
        self._log_mel()

    def sample(self, kind: str) -> list[float]:
        """A few values of the mel."""
        return sampled(self._log_mel())

    def _log_mel(self) -> Any:
        n_frames = self._samples.size // 160
        return np.ascontiguousarray(self._extractor(self._samples)[:, :n_frames])


class FasterWhisper(Extractor):
    """The model and one window of audio."""

    def __init__(self, job: Job, folder: str, compute_type: str) -> None:
        self._after_imports = memory_mb()
        started = time.perf_counter()
        self._model = WhisperModel(folder, device="cpu", compute_type=compute_type, cpu_threads=job.threads)
        self._load_ms = (time.perf_counter() - started) * 1e3
        super().__init__(job)
        self._extractor = self._model.feature_extractor
        self._mel = self._log_mel()
        self._features: Any = None

    def start(self) -> dict[str, Any]:
        """What starting cost."""
        start = {"import_ms": import_ms, "load_ms": self._load_ms, "after_imports": self._after_imports}
        return {**start, "version": ctranslate2.__version__, "compute_type": self._model.model.compute_type}

    def encode(self) -> None:
        """Log-mel to the features."""
        view = ctranslate2.StorageView.from_array(self._mel[None])
        self._features = self._model.model.encode(view, to_cpu=False)

    def decode(self, n_tokens: int) -> int:
        """Greedy decoding of exactly `n_tokens` from the features."""
        return len(self._decode(n_tokens))

    def end_to_end(self, n_tokens: int) -> int:
        """Samples to mel to features to tokens to text."""
        self._mel = self._log_mel()
        self.encode()
        tokens = self._decode(n_tokens)
        self._model.hf_tokenizer.decode(tokens)
        return len(tokens)

    def sample(self, kind: str) -> list[float]:
        """A few values of the mel or of the features."""
        if kind == "mel":
            return super().sample(kind)
        self.encode()
        return sampled(np.array(self._features, dtype=np.float32)[0])

    def _decode(self, n_tokens: int) -> list[int]:
        prompt = list(self._job.prompt)
        # CTranslate2 halves the limit, and counts the prompt into what it then compares with.
        limit = max(2 * n_tokens, n_tokens + len(prompt) - 1)
        results = self._model.model.generate(
            self._features,
            [prompt],
            beam_size=1,
            max_length=limit,
            suppress_tokens=[self._job.eot],
            suppress_blank=False,
        )
        tokens: list[int] = results[0].sequences_ids[0]
        return tokens


class Speech:
    """`WhisperModel.transcribe` on files, greedily, its other options as they are."""

    def __init__(self, job: SpeechJob, folder: str, compute_type: str) -> None:
        self._job = job
        module = sys.modules["faster_whisper.transcribe"]
        vars(module)["pad_or_trim"] = functools.partial(vars(module)["pad_or_trim"], length=job.n_frames)
        self._model = WhisperModel(folder, device="cpu", compute_type=compute_type, cpu_threads=job.threads)

    def start(self) -> dict[str, Any]:
        """What it is."""
        version = f"faster-whisper {faster_whisper.__version__}, CTranslate2 {ctranslate2.__version__}"
        return {"version": f"{version}, {self._model.model.compute_type}"}

    def transcribe(self, file: str) -> dict[str, Any]:
        """The file's text."""
        segments, _ = self._model.transcribe(file, language=self._job.language, beam_size=1)
        return {"text": "".join(segment.text for segment in segments)}


def main() -> None:
    """Load and serve."""
    if sys.argv[1] == "speech":
        speech = Speech(SpeechJob.load(sys.argv[2]), sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else "int8")
        serve({"start": speech.start, "transcribe": speech.transcribe})
        return
    job, folder, *compute_type = Job.load(sys.argv[1]), *sys.argv[2:]
    if folder == "-":
        extractor = Extractor(job)
        serve({"mel": extractor.mel, "sample": extractor.sample})
        return
    peer = FasterWhisper(job, folder, compute_type[0] if compute_type else "int8")
    names = ("start", "mel", "encode", "decode", "end_to_end", "sample")
    serve({name: getattr(peer, name) for name in names})


if __name__ == "__main__":
    main()
