"""The token ids of the demo speech LLM: a byte BPE of its own over the training texts, in Tekken's file and layout.

Special tokens come first and have the ids that Voxtral gives them; text tokens follow, the 256 bytes in order and then
the merges. A window is asked for as Voxtral asks for a transcription:

    <s> [INST] [BEGIN_AUDIO] [AUDIO] x rows [/INST] lang:en [TRANSCRIBE]     then the text and </s>
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from specedge.export.training.corpus import list_lines

from .speech import DIGITS

__all__ = ["LANGUAGE", "N_SPECIAL", "SPECIAL", "TOKENIZER_NAME", "Tokens", "learn", "training_texts"]

TOKENIZER_NAME = "tekken.json"
LANGUAGE = "en"
N_SPECIAL = 40
N_TEXT = 512
SPECIAL = {
    "<unk>": 0,
    "<s>": 1,
    "</s>": 2,
    "[INST]": 3,
    "[/INST]": 4,
    "[AUDIO]": 24,
    "[BEGIN_AUDIO]": 25,
    "[TRANSCRIBE]": 34,
}
# Tekken's pattern: a word may take one sign in front of it, and every digit stands alone.
PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TURN = 4000  # how often "lang:en" is among the texts, so that it is two tokens


class Tokens:
    """Text to ids of the model and back, out of a tokenizer file's content."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self.texts = [base64.b64decode(row["token_bytes"]) for row in content["vocab"]]
        self.n_vocab = N_SPECIAL + len(self.texts)
        self._bpe = _bpe({_printable(token): at for at, token in enumerate(self.texts)}, _merges(self.texts))
        self.suffix = [SPECIAL["[/INST]"], *self.encode(f"lang:{LANGUAGE}"), SPECIAL["[TRANSCRIBE]"]]
        self.prefix = [SPECIAL["<s>"], SPECIAL["[INST]"], SPECIAL["[BEGIN_AUDIO]"]]
        self.end = SPECIAL["</s>"]

    def encode(self, text: str) -> list[int]:
        """The ids of `text`."""
        return [N_SPECIAL + int(id_) for id_ in self._bpe.encode(text).ids]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the text tokens among `ids`."""
        return b"".join(self.texts[id_ - N_SPECIAL] for id_ in ids if id_ >= N_SPECIAL).decode("utf-8", "replace")


def training_texts() -> list[str]:
    """The sentences of the training lists, the digits' names, and the words of the prompt."""
    lines = [*list_lines("maintenance.train"), *list_lines("notes.train")]
    digits = [" ".join(DIGITS[at:] + DIGITS[:at]).capitalize() + "." for at in range(10)] * 20
    return [*lines, *digits, *[f"lang:{LANGUAGE}"] * _TURN]


def learn(texts: Sequence[str], n_text: int = N_TEXT) -> Tokens:
    """Merge the most frequent pairs of bytes of `texts` until there are `n_text` tokens."""
    bpe = _bpe({}, [])
    alphabet = [_printable(bytes([byte])) for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=n_text, initial_alphabet=alphabet, show_progress=False)
    # sentences follow one another: each is learned with a space in front of it too
    bpe.train_from_iterator([*texts, *(" " + text for text in texts)], trainer)
    merged = json.loads(bpe.to_str())["model"]["merges"]
    ranks = [bytes([byte]) for byte in range(256)]
    ranks += [_bytes("".join(pair)) for pair in merged]
    vocab = [{"rank": rank, "token_bytes": base64.b64encode(token).decode()} for rank, token in enumerate(ranks)]
    special = [{"rank": id_, "token_str": name, "is_control": True} for name, id_ in SPECIAL.items()]
    config = {
        "pattern": PATTERN,
        "num_vocab_tokens": len(ranks),
        "default_vocab_size": N_SPECIAL + len(ranks),
        "default_num_special_tokens": N_SPECIAL,
        "version": "v7",
    }
    return Tokens({"config": config, "vocab": vocab, "special_tokens": special})


def read(path: Path) -> Tokens:
    """The tokens of a file that `learn`'s content was written to."""
    return Tokens(json.loads(path.read_text(encoding="utf-8")))


def _bpe(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    bpe = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    return bpe


def _merges(tokens: Sequence[bytes]) -> list[tuple[str, str]]:
    """The pair that each merged token comes from: what its bytes become by the merges of lower rank."""
    ranks = {token: rank for rank, token in enumerate(tokens)}
    found = []
    for rank, token in enumerate(tokens):
        if rank < 256:
            continue
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            pairs = [(ranks.get(a + b, rank), at) for at, (a, b) in enumerate(zip(parts, parts[1:], strict=False))]
            lowest, at = min(pairs)
            if lowest >= rank:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        found.append((_printable(parts[0]), _printable(b"".join(parts[1:]))))
    return found


_PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
_LETTERS = {byte: chr(byte) for byte in _PRINTED} | {
    byte: chr(256 + at) for at, byte in enumerate(byte for byte in range(256) if byte not in _PRINTED)
}
_VALUES = {letter: byte for byte, letter in _LETTERS.items()}


def _printable(token: bytes) -> str:
    """Bytes as GPT-2 writes them in JSON: one printable letter each."""
    return "".join(_LETTERS[byte] for byte in token)


def _bytes(letters: str) -> bytes:
    return bytes(_VALUES[letter] for letter in letters)
