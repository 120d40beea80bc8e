"""The rules of a transcription's windows, openai-whisper's.

Of the suppressed tokens -1 is the list computed from the vocabulary; a lone space and the end are forbidden first; the
first timestamp is limited by `max_initial_timestamp` (0 and None: no limit), by default 1.0 s unless the checkpoint's
config allows later ones.
"""

from __future__ import annotations

from specedge.errors import UsageError

from ..bundle.manifest import SPEECH, Manifest
from ..options import TranscribeOptions
from ..text.phrases import tree_of_pairs, tree_of_sentences
from ..text.tokenizer import Tokenizer
from .rules import RuleSet, non_speech_tokens, suppressed_tokens


def window_rules(options: TranscribeOptions, manifest: Manifest, tokenizer: Tokenizer) -> RuleSet:
    """Return the rules that `options` ask for; a speech LLM's are those of its own generate, where only control tokens
    and what is asked are suppressed. Raises UsageError."""
    is_speech = manifest.kind == SPEECH
    if options.only is not None and is_speech:
        raise UsageError("only: a speech LLM writes more than the text; give --bias or --hotwords")
    bias, only = options.bias, options.only
    return RuleSet(
        manifest.tokens,
        space_ids=(tokenizer.ranks.index(b" "),),  # as encode(" ") gives it, without its index
        suppressed=suppressed_tokens(options.suppress_tokens, () if is_speech else non_speech_tokens(tokenizer)),
        timestamps=not (is_speech or options.without_timestamps),
        max_initial_timestamp_index=_latest_start(options, manifest),
        suppress_blank=options.suppress_blank and not is_speech,
        repetition_penalty=options.repetition_penalty,
        no_repeat_ngram_size=options.no_repeat_ngram_size,
        length_decay=options.length_decay,
        bias=None if bias is None else tree_of_pairs(bias, tokenizer),
        bias_weight=0.0 if bias is None else bias.weight,
        only=None if only is None else tree_of_sentences(only, tokenizer, manifest.tokens.eot),
    )


def sets_late_starts(options: TranscribeOptions, manifest: Manifest) -> bool:
    """Return whether the model's first timestamps may be later than openai-whisper's default limit."""
    if manifest.kind == SPEECH:
        return False
    own, asked_s = manifest.max_initial_timestamp_index, options.max_initial_timestamp
    if own is None or asked_s is None or asked_s != TranscribeOptions.max_initial_timestamp:
        return False
    return own > round(asked_s / manifest.tokens.time_precision_s)


def cuts_at_pauses(options: TranscribeOptions, manifest: Manifest) -> bool:
    """Return whether windows end with pauses: by default those of speech LLMs, which have no timestamps to end with."""
    return options.window_end == "pause" or options.window_end is None and manifest.kind == SPEECH


def _latest_start(options: TranscribeOptions, manifest: Manifest) -> int | None:
    """The latest first timestamp, in steps; None for no limit."""
    if sets_late_starts(options, manifest):
        return manifest.max_initial_timestamp_index
    limit_s = options.max_initial_timestamp
    return round(limit_s / manifest.tokens.time_precision_s) if limit_s else None
