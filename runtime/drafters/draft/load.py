"""From a draft bundle to a drafter for one target: what fits together, and where the draft lies.

A draft is named, or lies in the target's bundle as draft/, a bundle of its own. One that cannot help (larger than the
target, other languages, shorter windows, another way to spell) is refused in a line; where memory is too short for both
models the run goes on without drafts, with one warning.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specedge.errors import ResourceError, UsageError
from specedge.models import store

from ...bundle.bundle import MANIFEST_NAME, Bundle, encoder_fingerprint
from ...bundle.manifest import DRAFT_FOLDER, Manifest, check_fit, graph_bytes, is_larger
from ...console import warn
from ...decoding.drafter import Drafter, EmptyDrafter
from ...decoding.presets import window_rules
from ...device import CostTable, free_bytes
from ...engine.draft_model import DraftModel, load_draft
from ...options import DrafterOptions, TranscribeOptions
from ...registered import find
from ...text.speech_tokens import SpeechTokens
from .drafter import DraftModelDrafter
from .lookahead import WEIGHED, DraftCost, make_lookahead
from .translate import Remapped, Translation

if TYPE_CHECKING:
    from ...decoding.drafter import TargetModel

_NEEDED = 1.6  # bytes of memory for each byte of weights: copies packed for the kernels, buffers
log = logging.getLogger(__name__)


def open_draft(
    drafted: TargetModel, options: DrafterOptions, rows: CostTable, *, expected: Sequence[int] = ()
) -> Drafter:
    """Make the drafter "draft" for a target; `rows` is its T(k). The empty drafter where memory is too short.

    expected: text ids of the target that are likely to be said, for a draft with a shortlist.

    Raises UsageError for a draft that cannot serve this target, ModelError for one that is missing or broken.
    """
    target = drafted.bundle
    bundle = _opened(target, options.draft_model)
    manifest = bundle.manifest
    check_fit(manifest, target.manifest)
    if is_larger(manifest, target.manifest):
        warn(log, "the decoder of %s is larger than that of %s: expect no gain", manifest.name, target.manifest.name)
    n_free = free_bytes()
    n_needed = int(_NEEDED * bundle.size_bytes)
    if n_free is not None and n_free < n_needed:
        return _without(manifest, f"it needs about {n_needed >> 20} MB and {n_free >> 20} MB are free")
    try:
        model = load_draft(bundle, threads=drafted.threads, canceller=drafted.canceller, learns=options.learn)
        with model.working_for(drafted.canceller):
            model.warm(encoder_fingerprint(target.manifest))
    except (ResourceError, MemoryError) as error:
        return _without(manifest, str(error))
    # A pass reads the decoder's weights, so their bytes are the first guess of what a token of the draft takes.
    cost = DraftCost(model.pass_bytes / graph_bytes(target.manifest, "decoder"))
    translation = translation_between(model, target, options)
    with model.working_for(drafted.canceller):
        model.add_to_shortlist([mine for token in expected for mine in translation.text([token])])
    return DraftModelDrafter(
        model,
        translation,
        lambda: make_lookahead(str(options.lookahead), rows, cost),
        cost,
        target_encoder=encoder_fingerprint(target.manifest),
        rules_for=lambda timestamps: window_rules(
            TranscribeOptions(without_timestamps=not timestamps), manifest, bundle.tokenizer
        ),
        canceller=drafted.canceller,
        waits=drafted.weighs and options.lookahead in WEIGHED,
        warns=options.draft_model is not None,  # the model's own draft may know fewer languages
        draws=drafted.draws,
        student=find("learning", "student")(model, target, translation) if options.learn else None,
    )


def translation_between(model: DraftModel, target: Bundle, options: DrafterOptions) -> Translation:
    """Make the translation between two vocabularies. Raises UsageError where they spell too differently."""
    mine, theirs = model.bundle.tokenizer, target.tokenizer
    alike = Remapped.between(mine, theirs)
    if alike is not None:
        return alike
    if isinstance(mine.special, SpeechTokens):
        raise UsageError(
            f"draft_model: {model.bundle.manifest.name} is a speech LLM of another vocabulary than that of "
            f"{target.manifest.name}; give one of the same, or a Whisper model"
        )
    made: Translation = find("translation", "words")(model, target, options)
    return made


def _opened(target: Bundle, named: str | os.PathLike[str] | None) -> Bundle:
    if named is not None:
        return Bundle.open(store.find(named))
    if f"{DRAFT_FOLDER}/{MANIFEST_NAME}" in target.manifest.files:
        return Bundle.open(
            target.path / DRAFT_FOLDER, verify=False
        )  # the target's files were verified, these with them
    known = store.known_draft(target.manifest.name)
    if known is not None:
        return Bundle.open(known)
    raise UsageError(
        f"the drafter draft needs a smaller model, and {target.manifest.name} brings none: name one with --draft-model "
        "(draft_model), or export the model with --draft"
    )


def _without(draft: Manifest, reason: str) -> Drafter:
    log.warning("the draft %s is not loaded: %s; decoding goes on without drafts", draft.name, reason)
    return EmptyDrafter()
