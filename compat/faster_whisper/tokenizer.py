"""`faster_whisper.tokenizer`: a model's tokenizer for one language and task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import groupby
from types import SimpleNamespace
from typing import Any

from specedge.runtime.decoding.rules import non_speech_tokens
from specedge.runtime.text.special import LANGUAGE_NAMES
from specedge.runtime.text.tokenizer import Tokenizer as Vocabulary
from specedge.runtime.text.words import split_words

_TASKS = ("transcribe", "translate")
_LANGUAGE_CODES = tuple(sorted(LANGUAGE_NAMES, key=lambda code: (code == "yue", code)))


class HFTokenizer:
    """A model's vocabulary with the calls of `tokenizers.Tokenizer` that programs make."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        special = vocabulary.whisper_special
        named = {
            "endoftext": special.eot,
            "startoftranscript": special.sot,
            "translate": special.translate,
            "transcribe": special.transcribe,
            "startoflm": special.sot_lm,
            "startofprev": special.sot_prev,
            "nospeech": special.no_speech,
            "notimestamps": special.no_timestamps,
            **special.languages,
        }
        self._special = {f"<|{name}|>": id_ for name, id_ in named.items() if id_ is not None}

    def token_to_id(self, token: str) -> int | None:
        """The id of a special token such as "<|en|>", or of a text token by its text; None if there is none."""
        if token in self._special:
            return self._special[token]
        ids = self.vocabulary.encode(token)
        return ids[0] if len(ids) == 1 else None

    def encode(self, sequence: str, add_special_tokens: bool = False) -> Any:
        """An object whose `ids` are the text's."""
        return SimpleNamespace(ids=self.vocabulary.encode(sequence))

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`, without special tokens."""
        return self.vocabulary.decode(ids)

    def decode_batch(self, sequences: Iterable[Iterable[int]], skip_special_tokens: bool = True) -> list[str]:
        """The text of each sequence of ids."""
        return [self.decode(ids) for ids in sequences]

    def get_vocab_size(self, with_added_tokens: bool = True) -> int:
        """How many ids there are."""
        special = self.vocabulary.whisper_special
        return special.n_vocab if with_added_tokens else special.eot


class Tokenizer:
    """The tokenizer of one language and task. Raises ValueError for one that there is not."""

    def __init__(
        self, tokenizer: HFTokenizer, multilingual: bool, task: str | None = None, language: str | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self._special = tokenizer.vocabulary.whisper_special
        self.task: int | None = None
        self.language: int | None = None
        self.language_code = "en"
        if multilingual:
            if task not in _TASKS:
                raise ValueError(f"{task!r} is not a valid task (accepted tasks: {', '.join(_TASKS)})")
            if language not in _LANGUAGE_CODES:
                raise ValueError(f"{language!r} is not a valid language code (accepted: {', '.join(_LANGUAGE_CODES)})")
            self.task = tokenizer.token_to_id(f"<|{task}|>")
            self.language = tokenizer.token_to_id(f"<|{language}|>")
            self.language_code = language
        self.transcribe, self.translate = self._special.transcribe, self._special.translate
        self.sot, self.sot_lm, self.sot_prev = self._special.sot, self._special.sot_lm, self._special.sot_prev
        self.eot, self.no_speech = self._special.eot, self._special.no_speech
        self.no_timestamps, self.timestamp_begin = self._special.no_timestamps, self._special.timestamp_begin

    @property
    def sot_sequence(self) -> list[int]:
        """The ids that a text begins with: start, language and task, as far as the model has them."""
        return [self.sot, *(id_ for id_ in (self.language, self.task) if id_ is not None)]

    @cached_property
    def non_speech_tokens(self) -> tuple[int, ...]:
        """The ids of signs that nobody speaks, sorted."""
        return non_speech_tokens(self.tokenizer.vocabulary)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`."""
        return self.tokenizer.vocabulary.encode(text)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of `tokens`, without special ones."""
        return self.tokenizer.decode(token for token in tokens if token < self.eot)

    def decode_with_timestamps(self, tokens: Iterable[int]) -> str:
        """The text of `tokens` with times such as <|0.00|> in it."""
        runs = groupby(tokens, key=lambda token: token >= self.timestamp_begin)
        begin, step_s = self.timestamp_begin, self._special.time_precision_s
        return "".join(
            "".join(f"<|{(token - begin) * step_s:.2f}|>" for token in run) if are_times else self.tokenizer.decode(run)
            for are_times, run in runs
        )

    def split_to_word_tokens(self, tokens: Sequence[int]) -> tuple[list[str], list[list[int]]]:
        """The words of `tokens`, punctuation and special tokens apart, and the ids of each."""
        return self._split(tokens, self.language_code)

    def split_tokens_on_unicode(self, tokens: Sequence[int]) -> tuple[list[str], list[list[int]]]:
        """The shortest runs of `tokens` that are whole characters."""
        return self._split(tokens, "zh")

    def split_tokens_on_spaces(self, tokens: Sequence[int]) -> tuple[list[str], list[list[int]]]:
        """The words of `tokens`, where spaces divide them."""
        return self._split(tokens, "en")

    def _split(self, tokens: Sequence[int], code: str) -> tuple[list[str], list[list[int]]]:
        texts, ids = [], []
        for are_special, run in groupby(tokens, key=lambda token: token >= self.eot):
            if are_special:
                alone = list(run)
                texts += [self.decode_with_timestamps([token]) for token in alone]
                ids += [[token] for token in alone]
            else:
                words = split_words(list(run), self.tokenizer.vocabulary, code)
                texts += [word.text for word in words]
                ids += [word.ids for word in words]
        return texts, ids
