"""The dimensions of a model: Whisper's, and those of a speech LLM, a decoder without cross-attention that reads audio.

A manifest has every one of them, whole and in range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

GROUP_POSITIONS = 20  # of silence that are one state behind a short window's audio (export/encoder_graph.py)
FRAMES_PER_POSITION = 2  # the encoder's second convolution halves the frames
_FRAMES_PER_CHUNK_POSITION = 8  # of an encoder that works on chunks: three convolutions halve them
_Mels = Annotated[int, 1, 512]
_Ctx = Annotated[int, 1, 1 << 16]
_State = Annotated[int, 1, 1 << 15]
_Head = Annotated[int, 1, 1024]
_Layer = Annotated[int, 1, 256]
_Vocab = Annotated[int, 1, 1 << 20]
_Frames = Annotated[int, 1, 1 << 17]


@dataclass(frozen=True, kw_only=True)
class Dims:
    """Whisper's dimensions under openai-whisper's names (model.py, ModelDimensions), all counts."""

    n_mels: _Mels
    n_audio_ctx: _Ctx
    n_audio_state: _State
    n_audio_head: _Head
    n_audio_layer: _Layer
    n_text_ctx: _Ctx
    n_text_state: _State
    n_text_head: _Head
    n_text_layer: _Layer
    n_vocab: _Vocab

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

    def problem(self) -> tuple[str, str] | None:
        """A dimension that does not fit the others, and what was expected; None if all do."""
        for side in ("audio", "text"):
            state, head = getattr(self, f"n_{side}_state"), getattr(self, f"n_{side}_head")
            if state % head:
                return f"n_{side}_state", f"a multiple of n_{side}_head, {head}"
        return None


@dataclass(frozen=True, kw_only=True)
class SpeechDims(Dims):
    """Those of a speech LLM: `n_text_*` are the LLM's, `n_text_ctx` its positions, audio and prompt included.

    n_text_kv_head: heads of keys and values; head_size: of one head, whatever the width; n_audio_rows: rows of the
    LLM that a whole window becomes, each from as many positions of the encoder.
    """

    n_text_kv_head: _Head
    head_size: _Head
    n_audio_rows: _Ctx

    @property
    def n_kv_head(self) -> int:
        return self.n_text_kv_head

    @property
    def head_dim(self) -> int:
        return self.head_size

    @property
    def n_stacked(self) -> int:
        """Positions of the encoder that become one row."""
        return self.n_audio_ctx // self.n_audio_rows

    @property
    def frames_per_row(self) -> int:
        """Mel frames of which the encoder needs a whole number."""
        return self.n_frames // self.n_audio_rows

    def problem(self) -> tuple[str, str] | None:
        for name, of in (("n_audio_state", "n_audio_head"), ("n_text_head", "n_text_kv_head")):
            if getattr(self, name) % getattr(self, of):
                return name, f"a multiple of {of}, {getattr(self, of)}"
        if self.n_audio_ctx % self.n_audio_rows:
            return "n_audio_ctx", f"a multiple of n_audio_rows, {self.n_audio_rows}"
        if self.head_size % 2:
            return "head_size", "an even number"
        if self.n_audio_rows >= self.n_text_ctx:
            return "n_text_ctx", f"more than n_audio_rows, {self.n_audio_rows}"
        return None


@dataclass(frozen=True, kw_only=True)
class ChunkDims(SpeechDims):
    """Those of a speech LLM whose encoder works on chunks of the audio (Qwen3-ASR): each position becomes a row.

    n_chunk_frames: mel frames that the convolutions see at once; n_window_frames: those whose positions see each other,
    a whole number of chunks.
    """

    n_chunk_frames: _Frames
    n_window_frames: _Frames

    @property
    def n_chunk_positions(self) -> int:
        """Positions of the encoder that a whole chunk becomes."""
        return -(-self.n_chunk_frames // _FRAMES_PER_CHUNK_POSITION)

    @property
    def n_frames(self) -> int:
        return self.n_audio_ctx // self.n_chunk_positions * self.n_chunk_frames

    def positions(self, n_frames: int) -> int:
        """See `Dims.positions`: the last chunk may be a part of one."""
        n_chunks, n_left = divmod(n_frames, self.n_chunk_frames)
        return n_chunks * self.n_chunk_positions - (-n_left // _FRAMES_PER_CHUNK_POSITION)

    @property
    def frames_per_row(self) -> int:
        """See `SpeechDims.frames_per_row`: the graph fills the last chunk."""
        return 1

    def problem(self) -> tuple[str, str] | None:
        if self.n_audio_ctx != self.n_audio_rows or self.n_audio_ctx % self.n_chunk_positions:
            return "n_audio_ctx", f"n_audio_rows, and a multiple of {self.n_chunk_positions} positions"
        if self.n_window_frames % self.n_chunk_frames:
            return "n_window_frames", f"a multiple of n_chunk_frames, {self.n_chunk_frames}"
        return super().problem()
