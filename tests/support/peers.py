"""One checkpoint in this runtime, in openai-whisper and in faster-whisper, all in float32, on whole recordings.

openai-whisper knows 30 s windows, its own vocabularies and its own noise; here its module constants, its tokenizer and
its sampling are replaced while a recording is transcribed, and nothing else. CTranslate2 takes published vocabulary
sizes only, and samples with noise of its own: nothing above temperature 0 can be compared with it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from specedge.export.bundling import write_bundle
from specedge.export.checkpoint import open_checkpoint
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.decoding.sampling import Noise, gumbel
from specedge.runtime.engine.engine import Engine
from support.longform import Case, Comparison, Line, compare, faster_options, openai_options, ours
from support.openai_model import model_of, tokenizer_over


class OpenaiPeer:
    """The checkpoint `folder` in openai-whisper's classes; `bundle` says its layout. Needs torch and openai-whisper."""

    def __init__(self, folder: Path, bundle: Bundle) -> None:
        special = bundle.manifest.tokens
        self._bundle, self.model = bundle, model_of(folder)
        layout = {"is_multilingual": special.is_multilingual, "num_languages": len(special.languages)}
        self.model.__class__ = type("Model", (type(self.model),), layout)

    def transcribe(self, samples: NDArray[np.float32], *, seed: int = 0, **options: Any) -> dict[str, Any]:
        """`whisper.transcribe` in float32; sampling uses the keyed noise of this project."""
        with self._patched(seed):
            result: dict[str, Any] = sys.modules["whisper.transcribe"].transcribe(
                self.model, samples, fp16=False, **options
            )
        return result

    @contextmanager
    def _patched(self, seed: int) -> Iterator[None]:
        n_frames = self._bundle.manifest.n_frames
        sizes = {"N_FRAMES": n_frames, "N_SAMPLES": n_frames * 160}
        audio, decoding = sys.modules["whisper.audio"], sys.modules["whisper.decoding"]
        long_form, timing = sys.modules["whisper.transcribe"], sys.modules["whisper.timing"]
        own = {"get_tokenizer": self._tokenizer, "Categorical": _keyed_sampling(seed)}
        with (
            mock.patch.multiple(audio, **sizes),
            mock.patch.multiple(long_form, **sizes, get_tokenizer=self._tokenizer),
            mock.patch.multiple(decoding, CHUNK_LENGTH=n_frames / 100, **own),
            mock.patch.multiple(timing, TOKENS_PER_SECOND=50),
        ):
            yield

    def _tokenizer(
        self, multilingual: bool, *, num_languages: int = 99, language: str | None = None, task: str | None = None
    ) -> Any:
        named = (language or "en", task or "transcribe") if multilingual else (None, None)
        return tokenizer_over(self._bundle.tokenizer, *named)


def _keyed_sampling(seed: int) -> type:
    """`torch.distributions.Categorical` as `GreedyDecoder` uses it, with our noise (runtime/decoding/sampling.py)."""
    import torch

    class Keyed:
        def __init__(self, logits: Any) -> None:
            self._logits = logits

        def sample(self) -> Any:
            decoder, tokens = caller("update", "self"), caller("update", "tokens")
            seek, position = caller("transcribe", "seek"), tokens.shape[1]
            chosen = []
            for sample, row in enumerate(self._logits.numpy().astype(np.float64)):
                noise = Noise(seed=seed, window_key=seek, temperature=decoder.temperature, sample=sample)
                chosen.append(int((row + gumbel(noise.numbers(position, len(row)))).argmax()))
            return torch.tensor(chosen)

    return Keyed


def caller(function: str, variable: str) -> Any:
    """A local variable of the nearest caller of that name: a peer's sampling is told neither seek nor position."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == function and variable in frame.f_locals:
            return frame.f_locals[variable]
        frame = frame.f_back  # type: ignore[assignment]
    raise LookupError(f"no caller {function} with a variable {variable}")


class FasterPeer:
    """The checkpoint `folder`, which has a tokenizer, converted into `work` as float32."""

    def __init__(self, folder: Path, work: Path, n_audio_ctx: int) -> None:
        from ctranslate2.converters import TransformersConverter
        from faster_whisper import WhisperModel

        files = ["tokenizer.json", "preprocessor_config.json"]
        converter = TransformersConverter(str(folder), copy_files=files)
        converter.convert(str(work / "converted"), quantization="float32")
        self.model = WhisperModel(str(work / "converted"), device="cpu", compute_type="float32", cpu_threads=1)
        self._n_frames = 2 * n_audio_ctx

    def transcribe(self, samples: NDArray[np.float32], **options: Any) -> tuple[list[Any], Any]:
        """The segments and the information of `WhisperModel.transcribe`, over this checkpoint's windows."""
        own = sys.modules["faster_whisper.audio"].pad_or_trim
        module = sys.modules["faster_whisper.transcribe"]
        with mock.patch.object(module, "pad_or_trim", lambda array: own(array, self._n_frames)):
            segments, info = self.model.transcribe(samples, **options)
            return list(segments), info


class Compared:
    """`checkpoint` in the three runtimes; `work` is an empty folder for what that takes."""

    def __init__(self, checkpoint: Path, work: Path, *, faster: bool) -> None:
        with open_checkpoint(checkpoint) as source:
            self.bundle = write_bundle(source, work / "bundle", precision="fp32", name="compared", version="0")
        self.engine = Engine(self.bundle, threads=1)
        self.openai = OpenaiPeer(checkpoint, self.bundle)
        self.faster = FasterPeer(checkpoint, work, self.bundle.manifest.dims.n_audio_ctx) if faster else None

    def compare(self, case: Case) -> list[Comparison]:
        """The case against every peer that has its semantics."""
        mine = ours(self.engine, self.bundle, case)
        found = []
        if case.openai:
            result = self.openai.transcribe(case.audio(), **openai_options(case))
            theirs = [Line.of(segment) for segment in result["segments"] if segment["text"] != ""]
            found.append(compare(case, "openai-whisper", mine, theirs))
        if case.faster and self.faster is not None:
            segments, _ = self.faster.transcribe(case.audio(), **faster_options(case))
            found.append(compare(case, "faster-whisper", mine, [Line.of(segment) for segment in segments]))
        return found
