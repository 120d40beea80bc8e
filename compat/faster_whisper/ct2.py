"""The calls of `ctranslate2.models.Whisper` that programs make on `WhisperModel.model`, on specedge's engine.

They decode without drafts: a program that drives the decoder itself gets the same text, and no speed-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.decoding.decode import DecodeOptions, decode_window
from specedge.runtime.decoding.languages import detect_language
from specedge.runtime.decoding.presets import window_rules
from specedge.runtime.engine.engine import Engine, Features
from specedge.runtime.longform.words import token_steps
from specedge.runtime.options import TranscribeOptions

_STEP_S = 0.02


class Encoded(list[Features]):
    """The encoder's output of several windows."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.stack([features.hidden for features in self]).astype(dtype or np.float32)


@dataclass(frozen=True, kw_only=True)
class GenerationResult:
    """Texts of one window, the best first."""

    sequences: list[list[str]]
    sequences_ids: list[list[int]]
    scores: list[float]
    no_speech_prob: float


@dataclass(frozen=True, kw_only=True)
class AlignmentResult:
    """Pairs of a token's and a step's index (50 steps a second), and the probability of each token."""

    alignments: list[tuple[int, int]]
    text_token_probs: list[float]


class Whisper:
    """One model."""

    device, device_index, num_active_batches = "cpu", [0], 0

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._manifest, self._tokenizer = engine.bundle.manifest, engine.bundle.tokenizer
        special = self._manifest.whisper_tokens
        self.is_multilingual, self.num_languages = special.is_multilingual, max(1, len(special.languages))
        self.n_mels, self.compute_type = self._manifest.dims.n_mels, self._manifest.precision

    def encode(self, features: Any, to_cpu: bool = False) -> Encoded:
        """Encode log-mels float32 [n_windows, n_mels, n_frames], or one without the first axis.

        Raises ValueError where more than a window holds sound.
        """
        windows = np.asarray(features, np.float32)
        return Encoded(self._engine.encode(self._whole(mel)) for mel in (windows if windows.ndim == 3 else [windows]))

    def detect_language(self, features: Any) -> list[list[tuple[str, float]]]:
        """The languages of each window, likeliest first, as tokens such as "<|en|>"."""
        special = self._manifest.whisper_tokens
        heard = (detect_language(self._engine, one, special) for one in self._encoded(features))
        return [[(f"<|{code}|>", share) for code, share in shares.items()] for shares in heard]

    def generate(
        self,
        features: Any,
        prompts: Sequence[Sequence[int]],
        *,
        beam_size: int = 5,
        patience: float = 1,
        num_hypotheses: int = 1,
        length_penalty: float = 1,
        repetition_penalty: float = 1,
        no_repeat_ngram_size: int = 0,
        max_length: int = 448,
        return_scores: bool = False,
        return_no_speech_prob: bool = False,
        max_initial_timestamp_index: int = 50,
        suppress_blank: bool = True,
        suppress_tokens: Sequence[int] | None = (-1,),
        sampling_topk: int = 1,
        sampling_temperature: float = 1,
        **_: Any,
    ) -> list[GenerationResult]:
        """The likeliest text of each window behind its prompt; one text a window."""
        n_text_ctx = self._manifest.dims.n_text_ctx
        results = []
        for one, prompt in zip(self._encoded(features), prompts, strict=True):
            options = TranscribeOptions(
                without_timestamps=self._manifest.whisper_tokens.no_timestamps in prompt,
                suppress_blank=suppress_blank,
                suppress_tokens=tuple(suppress_tokens or ()),
                repetition_penalty=repetition_penalty,
                no_repeat_ngram_size=no_repeat_ngram_size,
                max_initial_timestamp=max_initial_timestamp_index * _STEP_S,
                temperature=(0.0 if sampling_topk == 1 else sampling_temperature,),
                best_of=num_hypotheses,
                beam_size=beam_size,
                patience=patience,
            )
            chosen = DecodeOptions(
                rules=window_rules(options, self._manifest, self._tokenizer),
                n_text_ctx=n_text_ctx,
                n_sample=max(1, min(max_length, n_text_ctx) - len(prompt)),
                temperature=options.temperature[0],
                best_of=num_hypotheses,
                beam_size=beam_size,
                patience=patience,
                length_penalty=None if length_penalty == 1 else length_penalty,
            )
            found = decode_window(self._engine, one, prompt, chosen)
            tokens = list(found.tokens)
            results.append(
                GenerationResult(
                    sequences=[[self._tokenizer.decode([token]) for token in tokens]],
                    sequences_ids=[tokens],
                    scores=[found.sum_logprob / max(1, len(tokens)) ** length_penalty] if return_scores else [],
                    no_speech_prob=found.no_speech_prob if return_no_speech_prob else 0.0,
                )
            )
        return results

    def align(
        self,
        features: Any,
        start_sequence: Sequence[int],
        text_tokens: Sequence[Sequence[int]],
        num_frames: int | Sequence[int],
        *,
        median_filter_width: int = 7,
    ) -> list[AlignmentResult]:
        """When each token of a text is said in its window, of which `num_frames` mel frames are audio."""
        encoded = self._encoded(features)
        frames = [num_frames] * len(encoded) if isinstance(num_frames, int) else list(num_frames)
        special, results = self._manifest.whisper_tokens, []
        for one, ids, n_frames in zip(encoded, text_tokens, frames, strict=True):
            prompt = [*start_sequence, special.no_timestamps]
            rows = [*prompt, *ids, special.eot][: self._engine.dims.n_text_ctx]
            found, first = self._engine.align(one, rows), len(prompt) - 1
            tokens, steps = token_steps(
                found, len(ids), first=first, n_content_frames=n_frames, median_width=median_filter_width
            )
            results.append(
                AlignmentResult(
                    alignments=list(zip(tokens.tolist(), steps.tolist(), strict=True)),
                    text_token_probs=found.token_probs[first : first + len(ids)].tolist(),
                )
            )
        return results

    def _encoded(self, features: Any) -> Encoded:
        return features if isinstance(features, Encoded) else self.encode(features)

    def _whole(self, mel: NDArray[np.float32]) -> NDArray[np.float32]:
        """`mel` as long as the model's window; what is cut off must be silence."""
        n_frames = self._manifest.n_frames
        rest = mel[:, n_frames:]
        if rest.size and rest.max() > mel.min():
            raise ValueError(
                f"features of {mel.shape[1] / 100:g} s with sound to the end: this model's windows are "
                f"{self._manifest.window_s:g} s long"
            )
        return np.pad(mel[:, :n_frames], ((0, 0), (0, max(0, n_frames - mel.shape[1]))))
