"""faster-whisper on a Hugging Face checkpoint folder, with that checkpoint's window.

CTranslate2 takes published vocabulary sizes only, and samples with noise of its own: nothing above temperature 0 can be
compared.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from support.checkpoints import Layout
from support.vocab import write_hf_tokenizer


class FasterPeer:
    """The checkpoint `folder` converted into `work` as float32. Needs faster-whisper, transformers and torch."""

    def __init__(self, folder: Path, work: Path, *, n_vocab: int, n_audio_ctx: int) -> None:
        from ctranslate2.converters import TransformersConverter
        from faster_whisper import WhisperModel

        source, converted = work / "source", work / "converted"
        shutil.copytree(folder, source)
        if not (source / "tokenizer.json").exists():
            write_hf_tokenizer(source, Layout.of(n_vocab, n_audio_ctx, en=False))
        TransformersConverter(str(source), copy_files=["tokenizer.json", "preprocessor_config.json"]).convert(
            str(converted), quantization="float32"
        )
        self.model = WhisperModel(str(converted), device="cpu", compute_type="float32", cpu_threads=1)
        self._n_frames = 2 * n_audio_ctx

    def transcribe(self, samples: NDArray[np.float32], **options: Any) -> tuple[list[Any], Any]:
        """The segments and the information of `WhisperModel.transcribe`."""
        with self._patched():
            segments, info = self.model.transcribe(samples, **options)
            return list(segments), info

    @contextmanager
    def _patched(self) -> Iterator[None]:
        module = sys.modules["faster_whisper.transcribe"]
        own = sys.modules["faster_whisper.audio"].pad_or_trim
        with mock.patch.object(module, "pad_or_trim", lambda array: own(array, self._n_frames)):
            yield
