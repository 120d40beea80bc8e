"""A float32 bundle against transformers on the same weights: features, logits, and greedy tokens window by window.

    python tests/bench/parity.py CHECKPOINT [--windows 20] [--tokens 200] [--audio FILE]

Exports the checkpoint into a temporary folder. Both sides get the same windows (of FILE, or made up) and the same
tokens: transformers' likeliest, rules left out, for a fixed number of steps. The last line of output is JSON; the exit
code is 1 when an output is off by more than 1e-3 or a token differs. A token that differs where transformers itself
sees two within `TIE` of each other is counted as a tie, not as a difference: no float32 sum can decide it.
"""

from __future__ import annotations

import argparse
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

from specedge.export.cli import export_to  # noqa: E402
from specedge.runtime.bundle import Bundle  # noqa: E402
from specedge.runtime.engine import Engine  # noqa: E402
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
    smallest_margin: float = float("inf")

    @property
    def holds(self) -> bool:
        return max(self.features_max_error, self.logits_max_error) <= TOLERANCE and self.different == 0


def made_up(bundle: Bundle, n_windows: int) -> Mels:
    """Windows of noise: float32 [n_windows, n_mels, n_frames]."""
    dims = bundle.manifest.dims
    return np.stack([noise_mel(dims.n_mels, bundle.manifest.n_frames, seed) for seed in range(n_windows)])


def windows_of(audio: str, bundle: Bundle, n_windows: int) -> Mels:
    """Consecutive windows of an audio file, from its beginning again where it ends."""
    from specedge.runtime.audio import open_audio
    from specedge.runtime.mel import log_mel

    manifest = bundle.manifest
    mels = []
    with open_audio(audio) as stream:
        while len(mels) < n_windows and (samples := stream.read(manifest.n_samples)).size:
            mels.append(log_mel(samples, manifest.dims.n_mels, manifest.n_frames))
    return np.stack([mels[i % len(mels)] for i in range(n_windows)])


def compare(checkpoint: Path, bundle: Bundle, mels: Mels, n_tokens: int) -> Parity:
    """Run both sides over `mels` in step."""
    model, engine = load_transformers(checkpoint), Engine(bundle, cache=False)
    tokens = bundle.manifest.tokens
    prompt = tokens.prompt(next(iter(tokens.languages), None), timestamps=False)
    found = Parity(checkpoint=checkpoint.name)
    for start in range(0, len(mels), BATCH):
        batch = mels[start : start + BATCH]
        theirs = _Theirs(model, batch)
        ours = [engine.encode(mel) for mel in batch]
        for i, features in enumerate(ours):
            error = float(np.abs(features.hidden - theirs.features(i)).max())
            found.features_max_error = max(found.features_max_error, error)
        states = [engine.start(features) for features in ours]
        rows = [prompt] * len(batch)
        for _ in range(n_tokens):
            expected = theirs.step(rows)
            got = np.stack([_forward(engine, state, ids) for state, ids in zip(states, rows, strict=True)])
            rows = [[token] for token in _judge(found, expected, got)]
        for state in states:
            engine.release(state)
        found.windows += len(batch)
    return found


def _forward(engine: Engine, state: Any, ids: list[int]) -> NDArray[np.float32]:
    logits = engine.forward(state, ids, [len(ids) - 1])[0].copy()
    engine.commit(state, len(ids))
    return logits


def _judge(found: Parity, expected: NDArray[np.float32], got: NDArray[np.float32]) -> list[int]:
    """Count one step of all windows; returns the tokens to go on with."""
    found.logits_max_error = max(found.logits_max_error, float(np.abs(expected - got).max()))
    best, ours = expected.argmax(axis=1), got.argmax(axis=1)
    second, first = np.sort(np.partition(expected, -2, axis=1)[:, -2:], axis=1).T
    found.smallest_margin = min(found.smallest_margin, float((first - second).min()))
    for i in np.flatnonzero(best != ours):
        if expected[i, best[i]] - expected[i, ours[i]] <= TIE:
            found.ties += 1
        else:
            found.different += 1
    found.tokens += len(best)
    return [int(token) for token in best]


class _Theirs:
    """transformers over a batch of windows, with its key/value cache."""

    def __init__(self, model: Any, mels: Mels) -> None:
        import torch

        self._torch, self._model, self._cache = torch, model, None
        with torch.no_grad():
            # One at a time: the encoder's activations of a batch take gigabytes and no time less.
            encoded = [model.model.encoder(torch.from_numpy(mel)[None])[0] for mel in mels]
            self._encoded = torch.cat(encoded)

    def features(self, i: int) -> NDArray[np.float32]:
        value: NDArray[np.float32] = self._encoded[i].numpy()
        return value

    def step(self, rows: list[list[int]]) -> NDArray[np.float32]:
        """Logits [n_windows, n_vocab] after the given tokens."""
        torch = self._torch
        with torch.no_grad():
            out = self._model.model.decoder(
                input_ids=torch.tensor(rows),
                encoder_hidden_states=self._encoded,
                past_key_values=self._cache,
                use_cache=True,
            )
            self._cache = out.past_key_values
            logits: NDArray[np.float32] = self._model.proj_out(out.last_hidden_state[:, -1]).numpy()
        return logits


def measure(checkpoint: Path, *, n_windows: int, n_tokens: int, audio: str | None = None) -> Parity:
    """Export and compare; the bundle is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = export_to(str(checkpoint), Path(folder) / "bundle", precision="fp32", name="parity")
        mels = made_up(bundle, n_windows) if audio is None else windows_of(audio, bundle, n_windows)
        return compare(checkpoint, bundle, mels, n_tokens)


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
    given = parser.parse_args()
    found = measure(given.checkpoint, n_windows=given.windows, n_tokens=given.tokens, audio=given.audio)
    print("\n".join(_lines(found)))
    print(json.dumps({**asdict(found), "holds": found.holds}))
    return 0 if found.holds else 1


if __name__ == "__main__":
    sys.exit(main())
