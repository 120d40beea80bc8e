"""Whether one model can draft for another, by what their manifests say.

Does not know: weights, vocabularies, where models are.
"""

from __future__ import annotations

from specedge.runtime.bundles.manifest import Dims, Manifest
from specedge.runtime.errors import UsageError

__all__ = ["DRAFT_FOLDER", "check_fit", "check_share", "decoder_weights", "graph_bytes"]

DRAFT_FOLDER = "draft"
"""Where in a bundle its own draft lies, a bundle too."""

_MIN_SHARE = 0.3  # of the published vocabularies 58 % are alike


def check_fit(draft: Manifest, target: Manifest, option: str = "draft_model") -> None:
    """Raises UsageError, which begins with the `option` that named the draft, when it cannot draft for `target`."""
    if decoder_weights(draft.dims) > decoder_weights(target.dims):
        raise UsageError(
            f"{option}: the decoder of {draft.name} is larger than that of {target.name}, so it cannot save time; "
            "give a smaller model, or swap the two"
        )
    if draft.n_frames < target.n_frames:
        raise UsageError(
            f"{option}: {draft.name} hears windows of {draft.window_s:g} s, expected {target.window_s:g} s or more, "
            f"as {target.name} does"
        )
    here, there = (set(manifest.tokens.languages) or {"en"} for manifest in (draft, target))
    if not (here <= there or there <= here):
        raise UsageError(
            f"{option}: {draft.name} knows other languages than {target.name} ({', '.join(sorted(here - there)[:4])}"
            f" but not {', '.join(sorted(there - here)[:4])}); give a draft of the same languages, or of English alone"
        )


def check_share(share: float, draft: Manifest, target: Manifest, option: str = "draft_model") -> None:
    """Raises UsageError when too small a share of the draft's text tokens are tokens of `target`."""
    if share < _MIN_SHARE:
        raise UsageError(
            f"{option}: only {share:.0%} of the tokens of {draft.name} are tokens of {target.name} too, expected "
            f"{_MIN_SHARE:.0%} or more: give a draft of a Whisper vocabulary"
        )


def decoder_weights(dims: Dims) -> int:
    """Weights of the decoder that a pass reads."""
    return dims.n_text_layer * 16 * dims.n_text_state**2 + dims.n_vocab * dims.n_text_state


def graph_bytes(manifest: Manifest, graph: str) -> int:
    """Bytes of a graph's files, 1 at least: about what a pass reads."""
    stem = manifest.graphs[graph].file.removesuffix(".onnx")
    return max(1, sum(manifest.files[name].size for name in (f"{stem}.onnx", f"{stem}.data") if name in manifest.files))
