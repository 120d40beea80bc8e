"""The rules of a transcription's windows: openai-whisper's, or with `rules="hf"` those of transformers' generate.

openai: -1 is the list computed from the vocabulary, a lone space and the end are forbidden first, and the first
timestamp is limited by `max_initial_timestamp` (0 and None: not at all). Its usual second is openai-whisper's; a
checkpoint that allows later ones itself, as no published one does, has its own limit.

hf (`transformers/models/whisper/generation_whisper.py`): the checkpoint's own `suppress_tokens`,
`begin_suppress_tokens` and `max_initial_timestamp_index` take their places. Elsewhere this preset changes

* the audio: what is no longer than a window is a whole window, followed by silence instead of zeros in the log-mel
  domain, as its feature extractor leaves it, and is decoded up to the window's end (transcribe.py);
* the length of a text: up to the model's last position instead of half of them;
* the tests of a text: ids are compressed instead of text (fallback.py), so that its advice for
  `compression_ratio_threshold` is 1.35;
* the text before a window (prompts_hf.py), and the ids and end of a window's last segment (windows.py).

Not followed, and why. Its options' defaults, for ours stand in the command's help: it neither conditions on the
previous text nor tests or falls back unless asked to. Text without timestamps where none are asked for in a short
recording: set `without_timestamps`. The task's token is always given; it leaves it out where neither language nor task
is. Above temperature 0 it draws from torch's generator among the 50 likeliest tokens, once; here noise is keyed, so
that drafters change nothing. Segments without text or duration are left out of the result, not of the text before a
window. In audio longer than a window its extractor mirrors the last samples where openai-whisper's has silence, which
its last two frames see. A `no_speech_threshold` without a `log_prob_threshold` fails there, and is openai-whisper's
test here.
Does not know: logits, windows.
"""

from __future__ import annotations

from ..bundle.manifest import Manifest
from ..options import TranscribeOptions
from ..text.tokenizer import Tokenizer
from .rules import RuleSet, build_rules, non_speech_tokens, suppressed_tokens

__all__ = ["cuts_at_pauses", "sets_late_starts", "window_rules"]


def window_rules(options: TranscribeOptions, manifest: Manifest, tokenizer: Tokenizer) -> RuleSet:
    """The rules that `options` ask for."""
    special = manifest.tokens
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


def sets_late_starts(options: TranscribeOptions, manifest: Manifest) -> bool:
    """Whether the model is trusted with first timestamps later than openai-whisper allows any model."""
    own, asked_s = manifest.max_initial_timestamp_index, options.max_initial_timestamp
    if own is None or asked_s is None or asked_s != TranscribeOptions.max_initial_timestamp:
        return False
    return own > round(asked_s / manifest.tokens.time_precision_s)


def cuts_at_pauses(options: TranscribeOptions, manifest: Manifest) -> bool:
    """Whether windows end with pauses (`pauses`); by default where the model was trained for windows of any length, in
    which speech starts at any time."""
    if options.window_end is None:
        return options.rules == "openai" and manifest.short_windows and sets_late_starts(options, manifest)
    return options.window_end == "pause"


def _latest_start(options: TranscribeOptions, manifest: Manifest) -> int | None:
    """The latest first timestamp, in steps; None for any."""
    if sets_late_starts(options, manifest):
        return manifest.max_initial_timestamp_index
    limit_s = options.max_initial_timestamp
    return round(limit_s / manifest.tokens.time_precision_s) if limit_s else None
