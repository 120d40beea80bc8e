"""Temperatures, one after another, until a window's text passes the tests (`whisper/transcribe.py`).

A text fails when it repeats itself (compression ratio) or the model was unsure of it (average log-probability); one
that is unsure because nobody speaks is left as it is, since a higher temperature would only invent something. When all
fail the last one counts, as in openai-whisper (faster-whisper would take the surest).

With `rules="hf"` the two figures are those of transformers' generate (`_retrieve_compression_ratio`,
`_retrieve_avg_logprobs`): ids are compressed instead of text, the end of text among them, each in as many bytes as the
vocabulary needs; and a text that the length limit ended is not divided by one more than its tokens.
Does not know: engines, prompts, segments.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from specedge.runtime.decoding.decode import Speculation, WindowResult
from specedge.runtime.longform.options import TranscribeOptions
from specedge.runtime.text.tokenizer import Tokenizer

__all__ = ["Attempt", "compression_ratio", "decode_with_fallback", "is_silence", "spoken_text"]


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The decoding that counts, its compression ratio (of text or ids), and what all attempts together cost."""

    result: WindowResult
    compression_ratio: float
    speculation: Speculation


def decode_with_fallback(
    decode: Callable[[float], WindowResult],
    options: TranscribeOptions,
    tokenizer: Tokenizer,
    *,
    thrown_away: Callable[[], None],
) -> Attempt:
    """Call `decode(temperature)` until its text passes, or temperatures end; `thrown_away` after each that failed."""
    speculation: Speculation | None = None
    last = len(options.temperature) - 1
    for i, temperature in enumerate(options.temperature):
        result = decode(temperature)
        speculation = result.speculation if speculation is None else speculation.plus(result.speculation)
        ratio = _ratio(result, options, tokenizer)
        if i == last or not _fails(result, ratio, options):
            return Attempt(result=result, compression_ratio=ratio, speculation=speculation)
        thrown_away()
    raise AssertionError("TranscribeOptions has one temperature or more")


def is_silence(result: WindowResult, options: TranscribeOptions) -> bool:
    """Whether nobody speaks: the no-speech probability is high, and the text not likely enough to outweigh it."""
    threshold, log_prob = options.no_speech_threshold, options.log_prob_threshold
    if threshold is None or not result.no_speech_prob > threshold:
        return False
    return log_prob is None or not _average(result, options) > log_prob


def compression_ratio(text: str) -> float:
    """Bytes of UTF-8 over bytes after zlib: high for text that repeats itself (`whisper/utils.py`)."""
    data = text.encode("utf-8")
    return len(data) / len(zlib.compress(data))


def compression_ratio_of_ids(tokens: Sequence[int], n_vocab: int) -> float:
    """The same of ids, little-endian, in the bytes that ids below `n_vocab` need."""
    n_bytes = int(math.log2(n_vocab) / 8) + 1
    data = b"".join(token.to_bytes(n_bytes, "little") for token in tokens)
    return len(data) / len(zlib.compress(data))


def spoken_text(tokens: Iterable[int], tokenizer: Tokenizer) -> str:
    """A window's text as the compression ratio sees it: stripped, and control tokens, if any, by their names.

    openai-whisper's tokenizer decodes everything below the timestamps. Of the control tokens only languages and
    <|notimestamps|> can be sampled at all.
    """
    special = tokenizer.special
    names = {token: f"<|{code}|>".encode() for code, token in special.languages.items()}
    names[special.no_timestamps] = b"<|notimestamps|>"
    parts = [names[token] if token in names else tokenizer.decode_bytes([token]) for token in tokens]
    return b"".join(parts).decode("utf-8", errors="replace").strip()


def _ratio(result: WindowResult, options: TranscribeOptions, tokenizer: Tokenizer) -> float:
    if options.rules != "hf":
        return compression_ratio(spoken_text(result.tokens, tokenizer))
    special = tokenizer.special
    ended = (special.eot,) if result.finished else ()
    return compression_ratio_of_ids([*result.tokens, *ended], special.n_vocab)


def _average(result: WindowResult, options: TranscribeOptions) -> float:
    if options.rules != "hf" or result.finished or not result.tokens:
        return result.avg_logprob
    return result.sum_logprob / len(result.tokens)


def _fails(result: WindowResult, ratio: float, options: TranscribeOptions) -> bool:
    log_prob, silent = options.log_prob_threshold, options.no_speech_threshold
    is_unsure = log_prob is not None and _average(result, options) < log_prob
    if is_unsure and silent is not None and result.no_speech_prob > silent:
        return False
    repeats = options.compression_ratio_threshold is not None and ratio > options.compression_ratio_threshold
    return repeats or is_unsure
