"""The self-check of a new bundle: its graphs against plain NumPy on the same weights, and the row-invariance probe.

Runs on made-up audio of about 2.5 s, so it costs a few passes of the model. Says that the graphs compute what the
weights say; accuracy on speech is measured elsewhere. Rows that are not exact here are noted, not refused: they may be
exact where the bundle will run, and the runtime asks there before it drafts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.export import reference
from specedge.export.layers import Weights
from specedge.export.precision import Precision
from specedge.runtime.bundles.bundle import Bundle
from specedge.runtime.bundles.manifest import Manifest
from specedge.runtime.cpu import isa
from specedge.runtime.doctor import golden_logits
from specedge.runtime.errors import ExactnessError
from specedge.runtime.passes.aligner import Aligner
from specedge.runtime.passes.engine import AudioEncoder, TextDecoder
from specedge.runtime.passes.exactness import Invariance, RowResult, one_row_logits, probe_paths, probe_rows
from specedge.runtime.passes.probe import probe_ids, probe_mel
from specedge.runtime.passes.session import RUNTIME_VERSION, Canceller

PROBE_THREADS = (1, 2)
N_COMPARED_ROWS = 12


def check_bundle(bundle: Bundle, weights: Weights, precision: Precision) -> dict[str, Any]:
    """Numbers for the manifest's `selfcheck`.

    Raises
    ------
    ExactnessError
        when the graphs do not compute what the weights say.
    """
    canceller = Canceller()
    with canceller.on_sigint():
        return _check(bundle, weights, precision, canceller)


def _check(bundle: Bundle, weights: Weights, precision: Precision, canceller: Canceller) -> dict[str, Any]:
    dims = bundle.manifest.dims
    mel, ids = probe_mel(dims), probe_ids(dims, N_COMPARED_ROWS)
    # One session at a time and the reference last, so that the largest models stay within the export's memory.
    (features,) = AudioEncoder(bundle, canceller, folder=bundle.path, threads=PROBE_THREADS[0]).encode([mel])
    results: list[RowResult] = []
    tree_results: list[RowResult] = []
    references: dict[int, NDArray[np.float32]] = {}
    golden: list[list[float]] = []
    for threads in PROBE_THREADS:
        decoder = TextDecoder(bundle, canceller, folder=bundle.path, threads=threads)
        if not references:
            references = one_row_logits(decoder, features)
            golden = golden_logits(decoder, features)
        results += probe_rows(decoder, features, references)
        tree_results += probe_paths(decoder, features, references, alone=True)
        del decoder
    invariance = Invariance(results=tuple(results))
    logits = bundle.token_rows.of_tokens(references[0][: len(ids)])
    aligner = Aligner(bundle, canceller, threads=PROBE_THREADS[0])
    measured = _Measured(hidden=features.hidden, logits=logits, scores=aligner.scores(features, ids))
    del aligner
    numbers = _compare(measured, mel, ids, bundle.manifest, weights)
    _check_errors(numbers, precision)
    return {
        "onnxruntime": RUNTIME_VERSION,
        "isa": " ".join((isa().machine, *isa().features)),
        **{key: round(value, 9) for key, value in numbers.items()},
        "row_invariance": invariance.to_json(),
        "tree_invariance": Invariance(results=tuple(tree_results)).to_json(),
        "golden": golden,
    }


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """What the bundle's graphs gave: encoder output, logits of each row, scores of each alignment head."""

    hidden: NDArray[np.float32]
    logits: NDArray[np.float32]
    scores: NDArray[np.float32]


def _compare(
    measured: _Measured, mel: NDArray[np.float32], ids: list[int], manifest: Manifest, weights: Weights
) -> dict[str, float]:
    hidden, logits = measured.hidden, measured.logits
    by_layer: dict[int, NDArray[np.float32]] = {}
    expected_features = reference.encode(mel, manifest.dims, weights)
    expected_logits = reference.decode(ids, expected_features, manifest.dims, weights, by_layer)
    expected_scores = np.stack([by_layer[layer][head] for layer, head in manifest.alignment_heads])
    return {
        "features_relative_error": relative_error(hidden, expected_features),
        "features_max_error": float(np.abs(hidden - expected_features).max()),
        "logits_relative_error": relative_error(logits, expected_logits),
        "logits_max_error": float(np.abs(logits - expected_logits).max()),
        "scores_relative_error": relative_error(measured.scores, expected_scores),
        "argmax_agreement": float((logits.argmax(-1) == expected_logits.argmax(-1)).mean()),
    }


def _check_errors(numbers: dict[str, float], precision: Precision) -> None:
    for part, bound in (
        ("features", precision.max_features_error),
        ("logits", precision.max_logits_error),
        ("scores", precision.max_logits_error),
    ):
        error = numbers[f"{part}_relative_error"]
        if not error <= bound:  # NaN fails too
            raise ExactnessError(
                f"the {precision.name} graphs do not compute what the checkpoint's weights say: {part} are off by "
                f"{error:.3g} of their size, expected at most {bound:g}; nothing was written; try --precision fp32, "
                "and report the checkpoint if that fails too"
            )


def relative_error(measured: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Frobenius norm of the difference over that of `expected`."""
    return float(np.linalg.norm(measured - expected) / max(float(np.linalg.norm(expected)), 1e-20))
