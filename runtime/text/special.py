"""The special tokens of a model, from its manifest, and the languages of Whisper: codes, English names, aliases.

The order of a prompt is openai-whisper's (`tokenizer.py`, sot_sequence); a model without language tokens is
English-only.
"""

from __future__ import annotations

import copy
import difflib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from specedge.errors import ModelError, UsageError

# In the order of the language tokens in every published vocabulary; Cantonese came with v3. ISO 639-1 says "jv", not
# "jw".
LANGUAGE_NAMES: Mapping[str, str] = {
    "en": "english", "zh": "chinese", "de": "german", "es": "spanish", "ru": "russian",
    "ko": "korean", "fr": "french", "ja": "japanese", "pt": "portuguese", "tr": "turkish",
    "pl": "polish", "ca": "catalan", "nl": "dutch", "ar": "arabic", "sv": "swedish",
    "it": "italian", "id": "indonesian", "hi": "hindi", "fi": "finnish", "vi": "vietnamese",
    "he": "hebrew", "uk": "ukrainian", "el": "greek", "ms": "malay", "cs": "czech",
    "ro": "romanian", "da": "danish", "hu": "hungarian", "ta": "tamil", "no": "norwegian",
    "th": "thai", "ur": "urdu", "hr": "croatian", "bg": "bulgarian", "lt": "lithuanian",
    "la": "latin", "mi": "maori", "ml": "malayalam", "cy": "welsh", "sk": "slovak",
    "te": "telugu", "fa": "persian", "lv": "latvian", "bn": "bengali", "sr": "serbian",
    "az": "azerbaijani", "sl": "slovenian", "kn": "kannada", "et": "estonian", "mk": "macedonian",
    "br": "breton", "eu": "basque", "is": "icelandic", "hy": "armenian", "ne": "nepali",
    "mn": "mongolian", "bs": "bosnian", "kk": "kazakh", "sq": "albanian", "sw": "swahili",
    "gl": "galician", "mr": "marathi", "pa": "punjabi", "si": "sinhala", "km": "khmer",
    "sn": "shona", "yo": "yoruba", "so": "somali", "af": "afrikaans", "oc": "occitan",
    "ka": "georgian", "be": "belarusian", "tg": "tajik", "sd": "sindhi", "gu": "gujarati",
    "am": "amharic", "yi": "yiddish", "lo": "lao", "uz": "uzbek", "fo": "faroese",
    "ht": "haitian creole", "ps": "pashto", "tk": "turkmen", "nn": "nynorsk", "mt": "maltese",
    "sa": "sanskrit", "lb": "luxembourgish", "my": "myanmar", "bo": "tibetan", "tl": "tagalog",
    "mg": "malagasy", "as": "assamese", "tt": "tatar", "haw": "hawaiian", "ln": "lingala",
    "ha": "hausa", "ba": "bashkir", "jw": "javanese", "su": "sundanese", "yue": "cantonese",
}  # fmt: skip

LANGUAGE_ALIASES: Mapping[str, str] = {
    # other names
    "bahasa indonesia": "id", "bahasa melayu": "ms", "bangla": "bn", "bokmål": "no", "burmese": "my",
    "castilian": "es", "farsi": "fa", "filipino": "tl", "flemish": "nl",
    "haitian": "ht", "letzeburgesch": "lb", "mandarin": "zh", "moldavian": "ro", "moldovan": "ro",
    "nynorsk norwegian": "nn", "panjabi": "pa", "pushto": "ps", "sinhalese": "si", "valencian": "ca",
    # other codes for the same language
    "cmn": "zh", "fil": "tl", "in": "id", "iw": "he", "ji": "yi", "jv": "jw", "mo": "ro", "nb": "no",
}  # fmt: skip

_CODE_OF_NAME = {name: code for code, name in LANGUAGE_NAMES.items()} | dict(LANGUAGE_ALIASES)


def find_language(text: str) -> str:
    """The Whisper code of a language given as a code, an English name or an alias, in any case, with a region or not.

    Raises UsageError for anything else, with the nearest names.
    """
    wanted = " ".join(text.split()).casefold()
    for candidate in (wanted, wanted.replace("_", "-").partition("-")[0]):
        if candidate in LANGUAGE_NAMES or candidate in _CODE_OF_NAME:
            return _CODE_OF_NAME.get(candidate, candidate)
    near = difflib.get_close_matches(wanted, list(_CODE_OF_NAME), n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise UsageError(f"unknown language {text[:40]!r}: expected a code such as 'en' or a name such as 'english'{hint}")


_REQUIRED = ("eot", "sot", "sot_prev", "sot_lm", "no_speech", "no_timestamps", "timestamp_begin")
_TASKS = ("translate", "transcribe")
_CODE = re.compile(r"[a-z][a-z0-9_-]{0,15}")


class TokenLayout(ABC):
    """What every vocabulary says of itself, a Whisper's or a speech LLM's.

    Text tokens are the ids below `eot`, the end of a text; `languages` has the codes of the languages that the model
    can be told. Where there are no timestamps, `n_timestamps` is 0 and `timestamp_begin` is `n_vocab`.
    other_ends: ids that end a text too; no_speech: the id whose probability says that nobody speaks, if there is one.
    """

    n_vocab: int
    eot: int
    timestamp_begin: int
    n_timestamps: int
    time_precision_s: float
    no_speech: int | None
    languages: Mapping[str, Any]
    other_ends: tuple[int, ...] = ()
    begins_with_space = True
    """Whether a window's text begins with a space, as Whisper's does."""

    @property
    def is_multilingual(self) -> bool:
        return bool(self.languages)

    @property
    def timestamp_end(self) -> int:
        return self.timestamp_begin + self.n_timestamps

    def is_timestamp(self, id_: int) -> bool:
        return self.timestamp_begin <= id_ < self.timestamp_end

    def asks_times(self, prompt: Sequence[int]) -> bool:
        """Whether timestamps are asked for by a prompt."""
        return False

    def silence_row(self, prompt: Sequence[int]) -> int | None:
        """The index in a prompt of the row that `no_speech` is read from; None without one."""
        return None

    def never_sampled(self, *, timestamps: bool) -> Iterable[int]:
        """Ids of control tokens that no text may have; timestamps: whether times may be sampled."""
        return range(self.eot + 1, self.n_vocab)

    def control_names(self) -> Mapping[int, str]:
        """Names of control tokens that may be sampled all the same, by id."""
        return {}

    @abstractmethod
    def check_request(self, language: str | None, task: str) -> None:
        """Raises UsageError for a language, None for any, or a task that this model does not have."""

    def to_json(self) -> dict[str, Any]:
        """Everything but `n_vocab`, which the manifest keeps among the dimensions."""
        layout: Any = self  # a dataclass
        said = {one.name: getattr(self, one.name) for one in fields(layout) if one.init and one.name != "n_vocab"}
        return copy.deepcopy(said)  # the caller's to change

    def find_code(self, language: str) -> str:
        """The code of a language that this model can be told, from a code or a name. Raises UsageError."""
        code = language if language in self.languages else find_language(language)
        if code not in self.languages:
            known = list(self.languages)
            more = f" and {len(known) - 8} more" if len(known) > 8 else ""
            raise UsageError(f"this model does not know {language!r}; it knows {', '.join(known[:8])}{more}")
        return code


@dataclass(frozen=True, kw_only=True)
class SpecialTokens(TokenLayout):
    """Ids of the special tokens, all in [0, n_vocab), all different. Raises ModelError for a layout that cannot be.

    Text tokens are the ids below `eot`; timestamps are the `n_timestamps` ids from `timestamp_begin` on,
    `time_precision_s` apart, and come after every other special token. `n_timestamps=0` means all ids up to
    `n_vocab`. Ids after the timestamps are a fine-tune's own. `languages` maps Whisper codes to ids.
    """

    n_vocab: int
    eot: int
    sot: int
    sot_prev: int
    sot_lm: int
    no_speech: int
    no_timestamps: int
    timestamp_begin: int
    translate: int | None = None
    transcribe: int | None = None
    languages: Mapping[str, int] = field(default_factory=dict, hash=False)
    n_timestamps: int = 0
    time_precision_s: float = 0.02

    def __post_init__(self) -> None:
        object.__setattr__(self, "languages", dict(self.languages))
        problem = self._problem()
        if problem is not None:
            raise ModelError(f"special tokens: {problem}")
        if self.n_timestamps == 0:
            object.__setattr__(self, "n_timestamps", self.n_vocab - self.timestamp_begin)

    def _problem(self) -> str | None:
        tasks = [name for name in _TASKS if getattr(self, name) is not None]
        ids = {name: getattr(self, name) for name in (*_REQUIRED, *tasks)}
        ids |= {f"language {code!r}": id_ for code, id_ in self.languages.items()}
        if strange := [name for name, id_ in ids.items() if type(id_) is not int]:
            return f"{strange[0]} has id {ids[strange[0]]!r}, expected an integer"
        first, last = max(self.eot, 0), min(self.timestamp_begin, self.n_vocab - 1)
        seen: dict[int, str] = {}
        for name, id_ in ids.items():
            if not first <= id_ <= last:
                return f"{name} has id {id_!r}, expected one from eot ({first}) to the timestamps ({last})"
            if id_ in seen:
                return f"{name} and {seen[id_]} have the same id {id_}"
            seen[id_] = name
        for code in self.languages:
            if not isinstance(code, str) or not _CODE.fullmatch(code):
                return f"language code {code!r}, expected up to 16 small letters"
        if type(self.n_timestamps) is not int or not 0 <= self.n_timestamps <= self.n_vocab - self.timestamp_begin:
            return f"n_timestamps is {self.n_timestamps!r}, expected 0 to {self.n_vocab - self.timestamp_begin}"
        if not 0 < self.time_precision_s < math.inf:
            return f"time_precision_s is {self.time_precision_s!r}, expected a positive number of seconds"
        return None

    def asks_times(self, prompt: Sequence[int]) -> bool:
        return self.no_timestamps not in prompt

    def silence_row(self, prompt: Sequence[int]) -> int | None:
        """That of the start token. Raises UsageError without one."""
        if self.sot not in prompt:
            raise UsageError(f"a prompt of {len(prompt)} tokens without the start token cannot be decoded")
        return prompt.index(self.sot)

    def never_sampled(self, *, timestamps: bool) -> Iterable[int]:
        """The ids that openai-whisper never samples."""
        control = (self.transcribe, self.translate, self.sot, self.sot_prev, self.sot_lm, self.no_speech)
        return [*(id_ for id_ in control if id_ is not None), *([self.no_timestamps] if timestamps else [])]

    def control_names(self) -> Mapping[int, str]:
        names = {id_: f"<|{code}|>" for code, id_ in self.languages.items()}
        return {**names, self.no_timestamps: "<|notimestamps|>"}

    def check_request(self, language: str | None, task: str) -> None:
        if self.is_multilingual:
            language = language or next(iter(self.languages))
        self.prompt(language, task)

    def language_of(self, id_: int) -> str | None:
        """None for a token of no language."""
        return next((code for code, token in self.languages.items() if token == id_), None)

    def prompt(self, language: str | None = None, task: str = "transcribe", timestamps: bool = True) -> list[int]:
        """The ids a window's decoding starts with: [sot, language, task], and no_timestamps without `timestamps`.

        `language` is a code or a name; an English-only model takes None or English and leaves language and task out.
        Raises UsageError for a language or a task that this model has no token for.
        """
        if task not in _TASKS:
            raise UsageError(f"unknown task {task!r}: expected 'transcribe' or 'translate'")
        ids = [self.sot]
        if self.is_multilingual:
            task_id = self.transcribe if task == "transcribe" else self.translate
            if task_id is None:
                raise UsageError(f"this model has no token for the task {task!r}")
            if language is None:
                raise UsageError("this model is multilingual: its prompt needs a language such as 'en'")
            ids += [self.languages[self.find_code(language)], task_id]
        elif task != "transcribe" or (language is not None and find_language(language) != "en"):
            raise UsageError(f"this model only transcribes English: no {task!r} in language {language!r}")
        return ids if timestamps else [*ids, self.no_timestamps]

    @classmethod
    def from_json(cls, data: Any, n_vocab: int) -> SpecialTokens:
        """The inverse of `to_json`. Raises ModelError for impossible ids, TypeError or ValueError for what is none."""
        return cls(n_vocab=n_vocab, **data)
