"""A float32 bundle against transformers on the same weights: features, logits, and greedy tokens window by window.

    python tests/bench/parity.py CHECKPOINT [--windows 20] [--tokens 200] [--audio FILE] [--distinct]

Exports the checkpoint into a temporary folder. Both sides get the same windows (of FILE, or made up) and the same
tokens: transformers' likeliest, rules left out, for a fixed number of steps. With `--distinct` a token is taken once
only, since random weights soon repeat themselves. The last line of output is JSON; the exit
code is 1 when an output is off by more than 1e-3 or a token differs. A token that differs where transformers itself
sees two within `TIE` of each other is counted as a tie, not as a difference: no float32 sum can decide it.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from specedge.export.export import export_to  # noqa: E402
from specedge.runtime.bundle.bundle import Bundle  # noqa: E402
from specedge.runtime.engine.engine import Engine  # noqa: E402
from support.exported import load_transformers, noise_mel  # noqa: E402

TOLERANCE = 1e-3
TIE = 1e-4
BATCH = 10  # windows at once: transformers reads its weights once for all of them

Mels = NDArray[np.float32]


@dataclass(kw_only=True)
class Parity:
    """What was found: greatest absolute differences, and tokens compared, different, and tied."""

    checkpoint: str
    windows: int = 0
    tokens: int = 0
    features_max_error: float = 0.0
    logits_max_error: float = 0.0
    different: int = 0
    ties: int = 0

    @property
    def holds(self) -> bool:
        return max(self.features_max_error, self.logits_max_error) <= TOLERANCE and self.different == 0


def made_up(bundle: Bundle, n_windows: int) -> Mels:
    """Windows of noise: float32 [n_windows, n_mels, n_frames]."""
    dims = bundle.manifest.dims
    return np.stack([noise_mel(dims.n_mels, bundle.manifest.n_frames, seed) for seed in range(n_windows)])


def windows_of(audio: str, bundle: Bundle, n_windows: int) -> Mels:
    """Consecutive windows of an audio file, from its beginning again where it ends."""
    from specedge.runtime.audio.audio import open_audio
    from specedge.runtime.audio.mel import log_mel

    manifest = bundle.manifest
    mels = []
    with open_audio(audio) as stream:
        while len(mels) < n_windows and (samples := stream.read(manifest.n_samples)).size:
            mels.append(log_mel(samples, manifest.dims.n_mels, manifest.n_frames))
    return np.stack([mels[i % len(mels)] for i in range(n_windows)])


def compare(checkpoint: Path, bundle: Bundle, mels: Mels, n_tokens: int, *, distinct: bool = False) -> Parity:
    """Run transformers over a few windows at a time, then the bundle over the same windows and tokens."""
    model, engine = load_transformers(checkpoint), Engine(bundle, cache=False)
    tokens = bundle.manifest.tokens
    prompt = tokens.prompt(next(iter(tokens.languages), None), timestamps=False)
    found = Parity(checkpoint=checkpoint.name)
    for start in range(0, len(mels), BATCH):
        batch = mels[start : start + BATCH]
        # One side after the other: threads that wait busily for their next pass would take the other's time.
        theirs = _run_theirs(model, batch, prompt, n_tokens, distinct=distinct)
        for i, mel in enumerate(batch):
            _judge(found, theirs, i, _run_ours(engine, mel, prompt, theirs.tokens[i]), distinct=distinct)
        found.windows += len(batch)
    return found


@dataclass(frozen=True, kw_only=True)
class Run:
    """Features [n_windows, n_ctx, n_state], logits [n_windows, n_steps, n_vocab] and tokens [n_windows, n_steps]."""

    features: NDArray[np.float32]
    logits: NDArray[np.float32]
    tokens: NDArray[np.int64]


def _likeliest(logits: NDArray[np.float32], said: NDArray[np.int64], *, distinct: bool) -> int:
    if not distinct:
        return int(logits.argmax())
    left = logits.copy()
    left[said] = -np.inf
    return int(left.argmax())


def _empty_cache(decoder: Any) -> dict[str, Any]:
    """The argument that gives `decoder` an empty key/value cache, which its passes then fill.

    transformers 5.24 renamed it from `past_key_values` to `cache`.
    """
    from transformers import DynamicCache, EncoderDecoderCache

    name = "cache" if "cache" in inspect.signature(decoder.forward).parameters else "past_key_values"
    return {name: EncoderDecoderCache(DynamicCache(), DynamicCache())}


def _run_theirs(model: Any, mels: Mels, prompt: list[int], n_tokens: int, *, distinct: bool) -> Run:
    import torch

    tokens = np.empty((len(mels), n_tokens), np.int64)
    logits = np.empty((len(mels), n_tokens, model.config.vocab_size), np.float32)
    with torch.no_grad():
        # One at a time: the encoder's activations of a batch take gigabytes and no time less.
        encoded = torch.cat([model.model.encoder(torch.from_numpy(mel)[None])[0] for mel in mels])
        cache, rows = _empty_cache(model.model.decoder), torch.tensor([prompt] * len(mels))
        for step in range(n_tokens):
            out = model.model.decoder(input_ids=rows, encoder_hidden_states=encoded, use_cache=True, **cache)
            logits[:, step] = model.proj_out(out.last_hidden_state[:, -1]).numpy()
            for i in range(len(mels)):
                tokens[i, step] = _likeliest(logits[i, step], tokens[i, :step], distinct=distinct)
            rows = torch.from_numpy(tokens[:, step : step + 1])
    return Run(features=encoded.numpy(), logits=logits, tokens=tokens)


def _run_ours(engine: Engine, mel: NDArray[np.float32], prompt: list[int], tokens: NDArray[np.int64]) -> Run:
    features = engine.encode(mel)
    state = engine.start(features)
    logits = []
    for ids in [prompt, *([int(token)] for token in tokens[:-1])]:
        logits.append(engine.forward(state, ids, [len(ids) - 1])[0].copy())
        engine.commit(state, len(ids))
    engine.release(state)
    return Run(features=features.hidden[None], logits=np.stack(logits)[None], tokens=tokens[None])


def _judge(found: Parity, theirs: Run, i: int, ours: Run, *, distinct: bool) -> None:
    """Count window `i`."""
    features = float(np.abs(theirs.features[i] - ours.features[0]).max())
    found.features_max_error = max(found.features_max_error, features)
    for step, token in enumerate(theirs.tokens[i]):
        expected, got = theirs.logits[i, step], ours.logits[0, step]
        found.logits_max_error = max(found.logits_max_error, float(np.abs(expected - got).max()))
        chosen = _likeliest(got, theirs.tokens[i, :step], distinct=distinct)
        if chosen != token:
            margin = float(expected[token] - expected[chosen])
            found.ties += margin <= TIE
            found.different += margin > TIE
        found.tokens += 1


def measure(
    checkpoint: Path, *, n_windows: int, n_tokens: int, audio: str | None = None, distinct: bool = False
) -> Parity:
    """Export and compare; the bundle is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = export_to(str(checkpoint), Path(folder) / "bundle", precision="fp32", name="parity")
        mels = made_up(bundle, n_windows) if audio is None else windows_of(audio, bundle, n_windows)
        return compare(checkpoint, bundle, mels, n_tokens, distinct=distinct)


def _lines(found: Parity) -> Iterator[str]:
    yield f"{found.windows} windows, {found.tokens} greedy tokens: {found.different} differ, {found.ties} ties"
    yield f"largest differences: features {found.features_max_error:.3g}, logits {found.logits_max_error:.3g}"
    yield "parity holds" if found.holds else "PARITY DOES NOT HOLD"


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare a float32 bundle with transformers on the same weights.")
    parser.add_argument("checkpoint", type=Path, help="a folder in Hugging Face layout")
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--audio", help="take the windows from this file")
    parser.add_argument("--distinct", action="store_true", help="take no token twice")
    given = parser.parse_args()
    found = measure(
        given.checkpoint,
        n_windows=given.windows,
        n_tokens=given.tokens,
        audio=given.audio,
        distinct=given.distinct,
    )
    print("\n".join(_lines(found)))
    print(json.dumps({**asdict(found), "holds": found.holds}))
    return 0 if found.holds else 1


if __name__ == "__main__":
    sys.exit(main())
