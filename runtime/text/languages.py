"""The languages of Whisper: codes, English names, and the other names people type.

Knows nothing of token ids: which of these a model speaks is in its `SpecialTokens.languages`. The order is the order
of the language tokens in every published Whisper vocabulary (openai-whisper `tokenizer.py`); the first 99 are those
of v1 and v2, the hundredth (Cantonese) came with v3. "jw" for Javanese is Whisper's own code; ISO 639-1 says "jv".
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from specedge.errors import UsageError

__all__ = ["LANGUAGE_ALIASES", "LANGUAGE_NAMES", "find_language"]

LANGUAGE_NAMES: Mapping[str, str] = MappingProxyType(
    {
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
    }
)  # fmt: skip

LANGUAGE_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        # other names
        "bahasa indonesia": "id", "bahasa melayu": "ms", "bangla": "bn", "bokmål": "no", "burmese": "my",
        "castilian": "es", "farsi": "fa", "filipino": "tl", "flemish": "nl",
        "haitian": "ht", "letzeburgesch": "lb", "mandarin": "zh", "moldavian": "ro", "moldovan": "ro",
        "nynorsk norwegian": "nn", "panjabi": "pa", "pushto": "ps", "sinhalese": "si", "valencian": "ca",
        # other codes for the same language
        "cmn": "zh", "fil": "tl", "in": "id", "iw": "he", "ji": "yi", "jv": "jw", "mo": "ro", "nb": "no",
    }
)  # fmt: skip

_CODE_OF_NAME = {name: code for code, name in LANGUAGE_NAMES.items()} | dict(LANGUAGE_ALIASES)


def find_language(text: str) -> str:
    """The Whisper code of a language given as a code, an English name or an alias, in any case.

    A region is dropped: "en-US" and "pt_BR" are "en" and "pt".

    Raises `UsageError` for anything else, with the nearest names.
    """
    wanted = " ".join(text.split()).casefold()
    for candidate in (wanted, wanted.replace("_", "-").partition("-")[0]):
        if candidate in LANGUAGE_NAMES:
            return candidate
        if candidate in _CODE_OF_NAME:
            return _CODE_OF_NAME[candidate]
    near = difflib.get_close_matches(wanted, list(_CODE_OF_NAME), n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise UsageError(f"unknown language {text[:40]!r}: expected a code such as 'en' or a name such as 'english'{hint}")
