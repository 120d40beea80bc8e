"""The bundle's CTC head: which bytes of the text each frame of the encoder's output may hold.

The graph `ctc` is a small trained model on the frozen encoder (`export.ctc_graph` writes it). Its metadata says for
which encoder and table of units it was trained; a head of another is refused before its first pass. It only ever
drafts, so its rows need not be invariant.

Units are the bytes of the text in UTF-8, so a head serves every vocabulary: column 0 is the blank of connectionist
temporal classification (Graves et al. 2006), column b + 1 is byte b. NaN in the posteriors is passed on.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specedge.errors import BundleError, UsageError

from ...bundle.bundle import Bundle, encoder_fingerprint
from ...bundle.manifest import CTC_GRAPH
from ...engine.session import Canceller, bind_array_input, load_graph, run_outputs

UNITS = "bytes-257"
N_UNITS = 257
BLANK = 0
# Keys of the graph's metadata.
UNITS_KEY = "specedge.units"
UNITS_SHA256_KEY = "specedge.units_sha256"
ENCODER_KEY = "specedge.encoder_sha256"
WEIGHTS_KEY = "specedge.encoder_weights_sha256"
REMEDY = "train a head for this model (`specedge train ctc`) and add it with `specedge export --ctc`"


@dataclass(frozen=True, kw_only=True)
class Posteriors:
    """What the head heard in a window.

    frames: int64 `[n_heard]`, rising indices of the frames that may hold a unit; at all others blank is nearly certain.
    log_probs: float32 `[n_heard, 257]`, natural logarithms that sum to 1 over a row, blank in column 0, byte b in
    column b + 1. n_ctx: frames that were looked at; n_parts: of each row of the encoder's output, one behind the other.
    times: float32 `[n_ctx, 2]`, for each frame the logits that a segment begins there, and that one ends there; None
    from a head that was not taught them.
    """

    frames: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    n_ctx: int
    times: NDArray[np.float32] | None = None
    n_parts: int = 1


class CtcHead:
    """The head of `bundle`. One call at a time.

    Raises BundleError when the bundle has none, for one that cannot be loaded, or of another encoder or other units.
    """

    def __init__(self, bundle: Bundle, canceller: Canceller, *, threads: int = 1) -> None:
        if CTC_GRAPH not in bundle.manifest.graphs:
            raise BundleError(f"{bundle.path}: this bundle has no CTC head; {REMEDY}")
        session = load_graph(bundle, CTC_GRAPH, canceller, threads=threads)
        where = bundle.path / bundle.manifest.graphs[CTC_GRAPH].file
        outputs = ("frames", "log_probs", *(["times"] if "times" in session.outputs else []))
        if set(session.outputs) != set(outputs) or session.outputs["log_probs"].shape[-1] != N_UNITS:
            raise BundleError(f"{where}: no CTC head of this specedge; {REMEDY}")
        check_units(session.metadata, where)
        if session.metadata.get(ENCODER_KEY) != encoder_fingerprint(bundle.manifest):
            raise BundleError(f"{where}: a CTC head for another encoder than this bundle's; {REMEDY}")
        self._n_state = bundle.manifest.dims.n_audio_state
        self._session, self._binding, self._outputs = session, session.binding(), outputs

    def hear(self, hidden: NDArray[np.float32]) -> Posteriors:
        """The posteriors of a window whose encoder output is `hidden`, float32 `[n_ctx, n_audio_state]`.

        Raises UsageError for a shape that is not the encoder's, Interrupted.
        """
        if hidden.ndim != 2 or not len(hidden) or hidden.shape[1] != self._n_state:
            raise UsageError(f"encoder output has shape {list(hidden.shape)}, expected frames of {self._n_state}")
        features = np.ascontiguousarray(hidden[None], np.float32)  # bound by its address: it must outlive the run
        bind_array_input(self._binding, "features", features)
        frames, log_probs, *times = run_outputs(self._session, self._binding, self._outputs)
        told = times[0] if times else None
        n_parts = 1 if told is None else max(1, len(told) // len(hidden))
        return Posteriors(frames=frames, log_probs=log_probs, n_ctx=n_parts * len(hidden), times=told, n_parts=n_parts)


def check_units(metadata: dict[str, str], where: object) -> None:
    """Raises BundleError when the head at `where` was trained for another table of units."""
    units = metadata.get(UNITS_KEY, "")
    if units != UNITS or metadata.get(UNITS_SHA256_KEY) != units_sha256():
        raise BundleError(f"{where}: a CTC head for the units {units[:40]!r}, expected {UNITS!r}; {REMEDY}")


def units_sha256() -> str:
    """The fingerprint of the table of units: sha256 of its entries' names in column order, one a line."""
    names = ["blank", *(f"{byte:02x}" for byte in range(256))]
    return hashlib.sha256("\n".join(names).encode("ascii")).hexdigest()
