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

    n_text_kv_head: heads of keys and values; head_size: of one head, whatever the width. Each position of the encoder,
    which works on chunks of the audio, becomes a row of the LLM. n_chunk_frames: mel frames that the convolutions see
    at once; n_window_frames: those whose positions see each other, a whole number of chunks.
    """

    n_text_kv_head: _Head
    head_size: _Head
    n_chunk_frames: _Frames
    n_window_frames: _Frames

    @property
    def n_kv_head(self) -> int:
        return self.n_text_kv_head

    @property
    def head_dim(self) -> int:
        return self.head_size

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

    def problem(self) -> tuple[str, str] | None:
        for name, is_right, expected in (
            ("n_audio_state", self.n_audio_state % self.n_audio_head == 0, f"a multiple of {self.n_audio_head} heads"),
            ("n_text_head", self.n_text_head % self.n_text_kv_head == 0, f"a multiple of {self.n_text_kv_head}"),
            ("n_audio_ctx", self.n_audio_ctx % self.n_chunk_positions == 0, f"a multiple of {self.n_chunk_positions}"),
            (
                "n_window_frames",
                self.n_window_frames % self.n_chunk_frames == 0,
                f"a multiple of {self.n_chunk_frames}",
            ),
            ("head_size", self.head_size % 2 == 0, "an even number"),
            ("n_text_ctx", self.n_text_ctx > self.n_audio_ctx, f"more than n_audio_ctx, {self.n_audio_ctx}"),
        ):
            if not is_right:
                return name, expected
        return None
