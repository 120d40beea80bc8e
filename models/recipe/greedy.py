"""A checkpoint in Hugging Face layout run greedily in torch with openai-whisper's rules: the recipe's own yardstick.

One batch of filled-up windows at a time; no beam, no fallback. The logit rules and the seek rules are the runtime's,
the mel, the model and the loop are not: they are torch's and transformers', so that the two can be compared.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache, EncoderDecoderCache, WhisperForConditionalGeneration

from specedge.errors import UsageError
from specedge.export.training.corpus import mel_filters
from specedge.export.training.labels import Layout, layout_of, tokenizer_of
from specedge.runtime.decoding.rules import build_rules
from specedge.runtime.longform.windows import cut_window

from .network import LogMel

__all__ = ["Checkpoint", "Result", "Span", "empty_cache"]

Float = npt.NDArray[np.float32]
_RATE_HZ = 16000
_HOP = 160
_FIRST_STAMP = 50  # one second: openai-whisper's max_initial_timestamp


@dataclass(frozen=True, kw_only=True)
class Result:
    """One window: the ids after the prompt (with <|endoftext|>), mean log-probability, probability of no speech."""

    ids: tuple[int, ...]
    mean_logprob: float
    no_speech: float


@dataclass(frozen=True, kw_only=True)
class Span:
    """A segment of a long recording, in seconds."""

    start_s: float
    end_s: float
    text: str


def empty_cache(decoder: Any) -> dict[str, Any]:
    """The argument that gives `decoder` an empty key/value cache, which its passes then fill.

    transformers 5.24 renamed it from `past_key_values` to `cache`.
    """
    name = "cache" if "cache" in inspect.signature(decoder.forward).parameters else "past_key_values"
    return {name: EncoderDecoderCache(DynamicCache(), DynamicCache())}


class Checkpoint:
    """A Whisper checkpoint folder in float32, its layout and its tokenizer."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "model.safetensors").is_file():
            raise UsageError(f"{folder}: no model.safetensors; expected a folder in Hugging Face layout")
        self.model: Any = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        config = self.model.config
        self.layout: Layout = layout_of(config.vocab_size, folder)
        self.tokenizer = tokenizer_of(self.layout.name)
        self.n_samples = int(config.max_source_positions) * 320
        generation = json.loads((folder / "generation_config.json").read_text("utf-8"))
        self.suppress = [i for i in generation["suppress_tokens"] if i >= 0]
        self.mel = LogMel(mel_filters(int(config.num_mel_bins)))

    @torch.no_grad()
    def encode(self, windows: Sequence[Float]) -> torch.Tensor:
        """Recordings of float32 samples, each filled up or cut to the window -> features [B, n_ctx, d]."""
        padded = np.zeros((len(windows), self.n_samples), np.float32)
        for row, window in zip(padded, windows, strict=True):
            n = min(window.size, self.n_samples)
            row[:n] = window[:n]
        ends = torch.tensor([min(window.size, self.n_samples) // _HOP for window in windows])
        return self.features(self.mel(torch.from_numpy(padded), ends=ends))

    @torch.no_grad()
    def features(self, mel: torch.Tensor) -> torch.Tensor:
        """Mel [B, n_mels, n_frames] -> features [B, n_ctx, d]."""
        return self.model.model.encoder(mel).last_hidden_state

    def logits(self, features: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Logits float32 [B, L, n_vocab] of given ids [B, L], without a cache."""
        with torch.no_grad():
            hidden = self.model.model.decoder(ids, encoder_hidden_states=features, use_cache=False).last_hidden_state
            return self.model.proj_out(hidden)

    @torch.no_grad()
    def decode(
        self,
        windows: Sequence[Float] | torch.Tensor,
        *,
        timestamps: bool,
        previous: Sequence[int] = (),
        limit: int = 224,
    ) -> list[Result]:
        """Greedy decoding of a batch of windows (samples, or their mel), all behind the same previous ids."""
        layout = self.layout
        features = self.features(windows) if isinstance(windows, torch.Tensor) else self.encode(windows)
        prompt = layout.prompt(timestamps=timestamps)
        given = [layout.special.sot_prev, *previous, *prompt] if previous else prompt
        rules = build_rules(
            layout.special,
            space_ids=self.tokenizer.encode(" "),
            suppressed=self.suppress,
            timestamps=timestamps,
            max_initial_timestamp_index=_FIRST_STAMP,
        )
        ids = torch.tensor([given] * len(windows))
        cache = empty_cache(self.model.model.decoder)
        out: list[list[int]] = [[] for _ in windows]
        total = np.zeros(len(windows))
        no_speech = np.zeros(len(windows))
        for step in range(min(limit, self.model.config.max_target_positions - len(given))):
            result = self.model.model.decoder(ids, encoder_hidden_states=features, use_cache=True, **cache)
            if step == 0:
                at = len(given) - len(prompt)
                first = self.model.proj_out(result.last_hidden_state[:, at]).softmax(-1)
                no_speech = first[:, layout.special.no_speech].numpy()
            rows = self.model.proj_out(result.last_hidden_state[:, -1]).numpy()
            chosen = []
            for i, row in enumerate(rows):
                if out[i] and out[i][-1] == layout.special.eot:
                    chosen.append(layout.special.eot)
                    continue
                rules.apply(row, out[i])
                best = int(row.argmax())
                total[i] += float(row[best] - _log_sum(row))
                out[i].append(best)
                chosen.append(best)
            if all(sampled[-1] == layout.special.eot for sampled in out):
                break
            ids = torch.tensor(chosen)[:, None]
        return [
            Result(ids=tuple(sampled), mean_logprob=float(total[i]) / len(sampled), no_speech=float(no_speech[i]))
            for i, sampled in enumerate(out)
        ]

    def text(self, result: Result) -> str:
        """Text of a window, stripped."""
        return self.tokenizer.decode(result.ids).strip()

    def transcribe_long(self, samples: Float) -> list[Span]:
        """A whole recording, window after window, each decoded behind the text so far.

        The mel is the whole recording's, with its one maximum, and 0.0 behind its end, as in openai-whisper.
        """
        special = self.layout.special
        n_window, n_all = self.n_samples // _HOP, samples.size // _HOP
        padded = np.concatenate([samples, np.zeros(self.n_samples, np.float32)])
        mel = self.mel(torch.from_numpy(padded[None]), ends=torch.tensor([n_all]))
        seek, spans, history = 0, [], []  # type: int, list[Span], list[int]
        limit = self.model.config.max_target_positions // 2 - 1
        while seek < n_all:
            window = mel[:, :, seek : seek + n_window]
            result = self.decode(window, timestamps=True, previous=history[-limit:])[0]
            ids = [i for i in result.ids if i != special.eot]
            cut = cut_window(ids, min(n_window, n_all - seek), special)
            offset_s = seek * _HOP / _RATE_HZ
            for piece in cut.pieces:
                text = self.tokenizer.decode(piece.tokens).strip()
                if text:
                    spans.append(Span(start_s=offset_s + piece.start_s, end_s=offset_s + piece.end_s, text=text))
                    history += piece.tokens
            seek += cut.n_advance
        return spans


def _log_sum(row: Float) -> float:
    top = float(row.max())
    return top + float(np.log(np.exp(row - top).sum()))
