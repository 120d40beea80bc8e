"""openai-whisper on a Hugging Face checkpoint folder, with that checkpoint's window and vocabulary.

openai-whisper knows 30 s windows, its own vocabularies and its own noise; here its module constants, its tokenizer and
its sampling are replaced while a recording is transcribed, and nothing else: `transcribe`, `decode` and the model are
its own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.decoding.sampling import Noise
from support.edits import read_tensors

PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_NAMES = (
    (r"^model\.", ""),
    (r"\.layers\.", ".blocks."),
    (r"encoder_attn_layer_norm", "cross_attn_ln"),
    (r"self_attn_layer_norm", "attn_ln"),
    (r"encoder_attn", "cross_attn"),
    (r"self_attn", "attn"),
    (r"\.q_proj", ".query"),
    (r"\.k_proj", ".key"),
    (r"\.v_proj", ".value"),
    (r"\.out_proj", ".out"),
    (r"\.fc1", ".mlp.0"),
    (r"\.fc2", ".mlp.2"),
    (r"final_layer_norm", "mlp_ln"),
    (r"encoder\.layer_norm", "encoder.ln_post"),
    (r"decoder\.layer_norm", "decoder.ln"),
    (r"embed_positions\.weight", "positional_embedding"),
    (r"embed_tokens", "token_embedding"),
)


def openai_name(name: str) -> str:
    """openai-whisper's name of one of transformers' tensors."""
    for pattern, replacement in _NAMES:
        name = re.sub(pattern, replacement, name)
    return name


class OpenaiPeer:
    """The checkpoint `folder` in openai-whisper's classes; `bundle` says its layout. Needs torch and openai-whisper."""

    def __init__(self, folder: Path, bundle: Bundle) -> None:
        import torch
        from whisper.model import ModelDimensions, Whisper

        manifest = bundle.manifest
        dims, special = manifest.dims, manifest.tokens

        class Model(Whisper):  # type: ignore[misc]
            is_multilingual = special.is_multilingual
            num_languages = len(special.languages)

        names = ("n_mels", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer", "n_vocab", "n_text_ctx")
        names += ("n_text_state", "n_text_head", "n_text_layer")
        self.model = Model(ModelDimensions(**{name: getattr(dims, name) for name in names}))
        tensors = {
            openai_name(name): torch.from_numpy(np.asarray(tensor, np.float32))
            for name, tensor in read_tensors(folder / "model.safetensors").items()
            if name != "proj_out.weight"
        }
        self.model.load_state_dict(tensors)
        self.model.eval()
        heads = torch.zeros(dims.n_text_layer, dims.n_text_head, dtype=torch.bool)
        for layer, head in manifest.alignment_heads:
            heads[layer, head] = True
        self.model.register_buffer("alignment_heads", heads.to_sparse(), persistent=False)
        self._bundle = bundle
        self._encoding = _encoding(bundle)

    def transcribe(self, samples: NDArray[np.float32], *, seed: int = 0, **options: Any) -> dict[str, Any]:
        """`whisper.transcribe` in float32; sampling uses the keyed noise of this project."""
        with self._patched(seed):
            result: dict[str, Any] = sys.modules["whisper.transcribe"].transcribe(
                self.model, samples, fp16=False, **options
            )
        return result

    @contextmanager
    def _patched(self, seed: int) -> Iterator[None]:
        manifest = self._bundle.manifest
        n_frames = manifest.n_frames
        n_samples = n_frames * 160
        audio, decoding = sys.modules["whisper.audio"], sys.modules["whisper.decoding"]
        long_form, timing = sys.modules["whisper.transcribe"], sys.modules["whisper.timing"]
        with (
            mock.patch.multiple(audio, N_FRAMES=n_frames, N_SAMPLES=n_samples),
            mock.patch.multiple(long_form, N_FRAMES=n_frames, N_SAMPLES=n_samples, get_tokenizer=self._tokenizer),
            mock.patch.multiple(
                decoding,
                CHUNK_LENGTH=n_frames / 100,
                get_tokenizer=self._tokenizer,
                Categorical=_keyed_sampling(seed),
            ),
            mock.patch.multiple(timing, TOKENS_PER_SECOND=50),
        ):
            yield

    def _tokenizer(
        self, multilingual: bool, *, num_languages: int = 99, language: str | None = None, task: str | None = None
    ) -> Any:
        from whisper.tokenizer import Tokenizer

        return Tokenizer(
            encoding=self._encoding,
            num_languages=num_languages,
            language=(language or "en") if multilingual else None,
            task=(task or "transcribe") if multilingual else None,
        )


def _encoding(bundle: Bundle) -> Any:
    """The bundle's byte table and special tokens as tiktoken has them."""
    import tiktoken

    special = bundle.manifest.tokens
    named = {f"<|{code}|>": id_ for code, id_ in special.languages.items()}
    named |= {"<|endoftext|>": special.eot, "<|startoftranscript|>": special.sot, "<|startofprev|>": special.sot_prev}
    named |= {"<|startoflm|>": special.sot_lm, "<|nospeech|>": special.no_speech}
    named |= {"<|notimestamps|>": special.no_timestamps}
    if special.translate is not None and special.transcribe is not None:
        named |= {"<|translate|>": special.translate, "<|transcribe|>": special.transcribe}
    named |= {f"<|{i * 0.02:.2f}|>": special.timestamp_begin + i for i in range(special.n_timestamps)}
    ranks = {token: id_ for id_, token in enumerate(bundle.tokenizer.ranks[: special.eot]) if token}
    return tiktoken.Encoding(name=bundle.digest, pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=named)


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
                chosen.append(int((row + noise.gumbel(position, len(row))).argmax()))
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
