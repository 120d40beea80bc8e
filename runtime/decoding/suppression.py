"""The tokens that are never written: the model's own list of non-speech symbols, and what the user asks for.

openai-whisper's and faster-whisper's -1 stands for a list that they compute from the vocabulary; so does this module,
and does not trust a checkpoint's list, which fine-tunes often leave empty. The `hf` preset uses the checkpoint's list,
as transformers does.
Does not know: logits, what other rules forbid.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from specedge.runtime.text.bpe import Encoder
from specedge.runtime.text.tokenizer import Tokenizer

__all__ = ["non_speech_tokens", "suppressed_tokens"]

_SYMBOLS = (
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))", "[[", "]]", "{{", "}}"),
    *("♪♪", "♪♪♪"),
)
# Music signs may be several tokens; then their first one goes, which other signs of that block share.
_MUSIC = tuple("♩♪♫♬♭♮♯")
_found: weakref.WeakKeyDictionary[Tokenizer, list[int]] = weakref.WeakKeyDictionary()


def suppressed_tokens(asked: Sequence[int] | None, model_list: Sequence[int]) -> list[int]:
    """The ids asked for, with `model_list` in the place of -1. None and () ask for none."""
    ids = [token for token in asked or () if token >= 0]
    return [*ids, *model_list] if -1 in (asked or ()) else ids


def non_speech_tokens(tokenizer: Tokenizer) -> list[int]:
    """Ids of brackets, notes and other signs that nobody speaks, sorted (`whisper/tokenizer.py: non_speech_tokens`).

    A hyphen or an apostrophe is kept within words and goes at the beginning of one.
    """
    # Looking through a whole vocabulary takes milliseconds, which a short recording would notice.
    if tokenizer not in _found:
        _found[tokenizer] = _find_non_speech(tokenizer)
    return list(_found[tokenizer])


def _find_non_speech(tokenizer: Tokenizer) -> list[int]:
    texts = [space + symbol for symbol in (*_SYMBOLS, *_MUSIC) for space in ("", " ")]
    encode = _encoder_of([*texts, " -", " '"], tokenizer).encode
    found = {encode(" -")[0], encode(" '")[0]}
    for text in texts:
        ids = encode(text)
        if len(ids) == 1 or text.strip() in _MUSIC:
            found.add(ids[0])
    return sorted(found)


def _encoder_of(texts: Sequence[str], tokenizer: Tokenizer) -> Encoder:
    """An encoder for these texts alone: the whole vocabulary's index takes megabytes that nothing else may need."""
    parts = set()
    for data in (text.encode() for text in texts):
        parts |= {data[i:j] for i in range(len(data)) for j in range(i + 1, len(data) + 1)}
    texts_below_eot = tokenizer.ranks[: tokenizer.special.eot]
    return Encoder({token: id_ for id_, token in enumerate(texts_below_eot) if token in parts})
