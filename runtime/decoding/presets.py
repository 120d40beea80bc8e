"""The rules of a transcription's windows: openai-whisper's, or with `rules="hf"` those of transformers' generate.

openai: -1 is the list computed from the vocabulary, a lone space and the end are forbidden first, and the first
timestamp is limited by `max_initial_timestamp` (0 and None: no limit), by default 1.0 s as in openai-whisper unless the
checkpoint's config allows later ones.

hf (`transformers/models/whisper/generation_whisper.py`): the checkpoint's own `suppress_tokens`,
`begin_suppress_tokens` and `max_initial_timestamp_index` take their places. Elsewhere the preset changes the audio of
short recordings and the tests of a text (longform/transcribe.py), the length limit of a text (all of the model's
positions), prompts (longform/prompts.py), and ids and end of a window's last segment (longform/windows.py).

Differences from generate that remain: its option defaults; text without timestamps where none are asked for in a short
recording (set `without_timestamps`); the task's token is always given; noise above temperature 0 is keyed and not cut
to the 50 likeliest tokens; segments without text or duration are left out of the result; the last two frames of long
audio see silence instead of mirrored samples; a `no_speech_threshold` without a `log_prob_threshold` works.
"""

from __future__ import annotations

from specedge.errors import UsageError

from ..bundle.manifest import SPEECH, Manifest
from ..options import TranscribeOptions
from ..text.special import TokenLayout
from ..text.tokenizer import Tokenizer
from .rules import RuleSet, build_rules, non_speech_tokens, suppressed_tokens

__all__ = ["cuts_at_pauses", "sets_late_starts", "window_rules"]


def window_rules(options: TranscribeOptions, manifest: Manifest, tokenizer: Tokenizer) -> RuleSet:
    """Return the rules that `options` ask for."""
    special = manifest.tokens
    if manifest.kind == SPEECH:
        return _speech_rules(options, special)
    if options.rules == "hf":
        begin, limit = manifest.suppress_begin, manifest.max_initial_timestamp_index
        suppressed = suppressed_tokens(options.suppress_tokens, manifest.suppress_tokens)
    else:
        begin = (tokenizer.ranks.index(b" "),)  # as encode(" ") gives it, without its index
        limit = _latest_start(options, manifest)
        suppressed = suppressed_tokens(options.suppress_tokens, non_speech_tokens(tokenizer))
    return build_rules(
        special,
        space_ids=begin,
        suppressed=suppressed,
        timestamps=not options.without_timestamps,
        max_initial_timestamp_index=limit,
        suppress_blank=options.suppress_blank and bool(begin),
        repetition_penalty=options.repetition_penalty,
        no_repeat_ngram_size=options.no_repeat_ngram_size,
        length_decay=options.length_decay,
    )


def _speech_rules(options: TranscribeOptions, special: TokenLayout) -> RuleSet:
    """Those of a speech LLM, as its own generate has them: nothing is suppressed but control tokens and what is asked.

    Raises UsageError for the preset of a Whisper.
    """
    if options.rules != "openai":
        raise UsageError(f"rules {options.rules!r}: these are rules of Whisper's; leave them out for a speech LLM")
    return build_rules(
        special,
        space_ids=(),
        suppressed=suppressed_tokens(options.suppress_tokens, ()),
        timestamps=False,
        max_initial_timestamp_index=None,
        suppress_blank=False,
        repetition_penalty=options.repetition_penalty,
        no_repeat_ngram_size=options.no_repeat_ngram_size,
        length_decay=options.length_decay,
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
    """Return whether windows end with pauses; the default for speech LLMs and where windows were short in training."""
    if options.window_end is None and manifest.kind == SPEECH:
        return True  # without timestamps no window could end between two words but in a pause
    if options.window_end is None:
        return options.rules == "openai" and manifest.short_windows and sets_late_starts(options, manifest)
    return options.window_end == "pause"


def _latest_start(options: TranscribeOptions, manifest: Manifest) -> int | None:
    """The latest first timestamp, in steps; None for no limit."""
    if sets_late_starts(options, manifest):
        return manifest.max_initial_timestamp_index
    limit_s = options.max_initial_timestamp
    return round(limit_s / manifest.tokens.time_precision_s) if limit_s else None
