"""The dimensions of a model: Whisper's, and those of a speech LLM, a decoder without cross-attention that reads audio.

They are read from a manifest strictly: every one is there, whole and in range.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

from .strict_json import Field

__all__ = ["ChunkDims", "Dims", "SpeechDims", "read_speech_dims"]

FRAMES_PER_POSITION = 2  # the encoder's second convolution halves the frames
_FRAMES_PER_CHUNK_POSITION = 8  # of an encoder that works on chunks: three convolutions halve them
# By the last part of a dimension's name.
_LIMITS = {
    "mels": 512, "ctx": 1 << 16, "state": 1 << 15, "head": 1024, "layer": 256, "vocab": 1 << 20,
    "size": 1024, "rows": 1 << 16, "frames": 1 << 17,
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

    def positions(self, n_frames: int) -> int:
        """Positions of the encoder that `n_frames` mel frames become."""
        return -(-n_frames // FRAMES_PER_POSITION)

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

    @property
    def frames_per_row(self) -> int:
        """Mel frames of which the encoder needs a whole number."""
        return self.n_frames // self.n_audio_rows

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


@dataclass(frozen=True, kw_only=True)
class ChunkDims(SpeechDims):
    """Those of a speech LLM whose encoder works on chunks of the audio (Qwen3-ASR): each position becomes a row.

    n_chunk_frames: mel frames that the convolutions see at once; n_window_frames: those whose positions see each other,
    a whole number of chunks.
    """

    n_chunk_frames: int
    n_window_frames: int

    @property
    def n_chunk_positions(self) -> int:
        """Positions of the encoder that a whole chunk becomes."""
        return -(-self.n_chunk_frames // _FRAMES_PER_CHUNK_POSITION)

    @property
    def n_frames(self) -> int:
        """See `Dims.n_frames`."""
        return self.n_audio_ctx // self.n_chunk_positions * self.n_chunk_frames

    def positions(self, n_frames: int) -> int:
        """See `Dims.positions`: the last chunk may be a part of one."""
        n_chunks, n_left = divmod(n_frames, self.n_chunk_frames)
        return n_chunks * self.n_chunk_positions - (-n_left // _FRAMES_PER_CHUNK_POSITION)

    @property
    def frames_per_row(self) -> int:
        """See `SpeechDims.frames_per_row`: the graph fills the last chunk."""
        return 1

    def _check(self, read: dict[str, Field]) -> None:
        super()._check(read)
        if self.n_audio_ctx != self.n_audio_rows or self.n_audio_ctx % self.n_chunk_positions:
            raise read["n_audio_ctx"].error(f"n_audio_rows, and a multiple of {self.n_chunk_positions} positions")
        if self.n_window_frames % self.n_chunk_frames:
            raise read["n_window_frames"].error(f"a multiple of n_chunk_frames, {self.n_chunk_frames}")


def read_speech_dims(field: Field) -> SpeechDims:
    """Parse and range-check those of a speech LLM of either kind. Raises BundleError."""
    has_chunks = isinstance(field.value, dict) and "n_chunk_frames" in field.value
    return (ChunkDims if has_chunks else SpeechDims).read(field)
