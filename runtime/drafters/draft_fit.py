"""Whether one model can draft for another, by what their manifests say.

Does not know: weights, vocabularies, where models are.
"""

from __future__ import annotations

from specedge.runtime.bundles.manifest import Dims, Manifest
from specedge.runtime.errors import UsageError

__all__ = ["DRAFT_FOLDER", "check_fit", "decoder_weights"]

DRAFT_FOLDER = "draft"
"""Where in a bundle its own draft lies, a bundle too."""


def check_fit(draft: Manifest, target: Manifest) -> None:
    """Raises UsageError when `draft` cannot draft for `target`."""
    if decoder_weights(draft.dims) > decoder_weights(target.dims):
        raise UsageError(
            f"draft_model: the decoder of {draft.name} is larger than that of {target.name}, so it cannot save time; "
            "give a smaller model, or swap the two"
        )
    if draft.n_frames < target.n_frames:
        raise UsageError(
            f"draft_model: {draft.name} hears windows of {draft.window_s:g} s, expected {target.window_s:g} s or more, "
            f"as {target.name} does"
        )
    here, there = (set(manifest.tokens.languages) or {"en"} for manifest in (draft, target))
    if not (here <= there or there <= here):
        raise UsageError(
            f"draft_model: {draft.name} knows other languages than {target.name} ({', '.join(sorted(here - there)[:4])}"
            f" but not {', '.join(sorted(there - here)[:4])}); give a draft of the same languages, or of English alone"
        )


def decoder_weights(dims: Dims) -> int:
    """Weights of the decoder that a pass reads."""
    return dims.n_text_layer * 16 * dims.n_text_state**2 + dims.n_vocab * dims.n_text_state
