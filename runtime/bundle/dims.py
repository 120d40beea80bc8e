"""The dimensions of a model: Whisper's, and those of a speech LLM, a decoder without cross-attention that reads audio.

They are read from a manifest strictly: every one is there, whole and in range.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

from .strict_json import Field

__all__ = ["Dims", "SpeechDims"]

FRAMES_PER_POSITION = 2  # the encoder's second convolution halves the frames
# By the last part of a dimension's name.
_LIMITS = {
    "mels": 512, "ctx": 1 << 16, "state": 1 << 15, "head": 1024, "layer": 256, "vocab": 1 << 20,
    "size": 1024, "rows": 1 << 16,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Dims:
    """Whisper's dimensions under openai-whisper's names (model.py, ModelDimensions), all counts."""

    n_mels: int
    n_audio_ctx: int
    n_audio_state: int
    n_audio_head: int
    n_audio_layer: int
    n_text_ctx: int
    n_text_state: int
    n_text_head: int
    n_text_layer: int
    n_vocab: int

    @property
    def n_frames(self) -> int:
        """Mel frames of one window."""
        return FRAMES_PER_POSITION * self.n_audio_ctx

    @property
    def n_kv_head(self) -> int:
        """Heads of the decoder's keys and values."""
        return self.n_text_head

    @property
    def head_dim(self) -> int:
        """Of the decoder."""
        return self.n_text_state // self.n_text_head

    @classmethod
    def read(cls, field: Field) -> Self:
        """Parse and range-check. Raises BundleError."""
        read = field.members(*(dim.name for dim in fields(cls)))
        dims = cls(**{name: item.integer(1, _LIMITS[name.rsplit("_", 1)[1]]) for name, item in read.items()})
        dims._check(read)
        return dims

    def _check(self, read: dict[str, Field]) -> None:
        """Raises BundleError where a width is no multiple of its heads."""
        for side in ("audio", "text"):
            state, head = getattr(self, f"n_{side}_state"), getattr(self, f"n_{side}_head")
            if state % head:
                raise read[f"n_{side}_state"].error(f"a multiple of n_{side}_head, {head}")


@dataclass(frozen=True, kw_only=True)
class SpeechDims(Dims):
    """Those of a speech LLM: `n_text_*` are the LLM's, `n_text_ctx` its positions, audio and prompt included.

    n_text_kv_head: heads of keys and values; head_size: of one head, whatever the width; n_audio_rows: rows of the
    LLM that a whole window becomes, each from as many positions of the encoder.
    """

    n_text_kv_head: int
    head_size: int
    n_audio_rows: int

    @property
    def n_kv_head(self) -> int:
        """See `Dims.n_kv_head`."""
        return self.n_text_kv_head

    @property
    def head_dim(self) -> int:
        """See `Dims.head_dim`."""
        return self.head_size

    @property
    def n_stacked(self) -> int:
        """Positions of the encoder that become one row."""
        return self.n_audio_ctx // self.n_audio_rows

    def _check(self, read: dict[str, Field]) -> None:
        for name, size, of in (
            ("n_audio_state", self.n_audio_state, "n_audio_head"),
            ("n_text_head", self.n_text_head, "n_text_kv_head"),
            ("n_audio_ctx", self.n_audio_ctx, "n_audio_rows"),
        ):
            if size % getattr(self, of):
                raise read[name].error(f"a multiple of {of}, {getattr(self, of)}")
        if self.head_size % 2:
            raise read["head_size"].error("an even number")
        if self.n_audio_rows >= self.n_text_ctx:
            raise read["n_text_ctx"].error(f"more than n_audio_rows, {self.n_audio_rows}")
