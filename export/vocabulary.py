"""The byte table and the special-token layout of a checkpoint, from whichever files it has.

The table, in this order: `tokenizer.json`; `vocab.json`; CTranslate2's `vocabulary.json` or `vocabulary.txt`; else the
built-in table that ends where the layout's text does (models/vocabularies). Merges are not read: text is made of bytes,
and prompts are merged by id, as tiktoken merges openai-whisper's own vocabularies. So files whose merges are missing,
doubled or in another order, as in faster-whisper's conversion of base, give what openai-whisper gives.

The layout: what the tokenizer's added tokens and `generation_config.json` say is taken together and must agree;
`config.json` may only add to it. What none of them says is filled in from the published layout (openai-whisper
`tokenizer.py`) that fits everything that was said; if none fits or several do, that is an error.
"""

from __future__ import annotations

import importlib.resources
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from specedge.errors import CheckpointError, ModelError
from specedge.runtime.decoding.rules import non_speech_tokens
from specedge.runtime.text.special import LANGUAGE_NAMES, SpecialTokens
from specedge.runtime.text.tokenizer import PATTERNS, Tokenizer, unpack_table

from .spec import read_json, read_optional, read_text

TIME_PRECISION_S = 0.02
N_TIMESTAMPS = 1501  # <|0.00|> to <|30.00|>

_ROLE_OF_TOKEN = {
    "<|endoftext|>": "eot",
    "<|startoftranscript|>": "sot",
    "<|translate|>": "translate",
    "<|transcribe|>": "transcribe",
    "<|startoflm|>": "sot_lm",
    "<|startofprev|>": "sot_prev",
    "<|nospeech|>": "no_speech",
    "<|nocaptions|>": "no_speech",
    "<|notimestamps|>": "no_timestamps",
    "<|0.00|>": "timestamp_begin",
}

_ROLE_OF_SETTING = {
    "eos_token_id": "eot",
    "decoder_start_token_id": "sot",
    "no_timestamps_token_id": "no_timestamps",
    "prev_sot_token_id": "sot_prev",
}

# transformers' WhisperConfig writes these where nobody set anything, also for multilingual models with other ids.
_UNSET = {"eos_token_id": 50256, "decoder_start_token_id": 50257}
_REQUIRED = ("eot", "sot", "sot_lm", "sot_prev", "no_speech", "no_timestamps", "timestamp_begin")
_ROLES = {*_ROLE_OF_TOKEN.values()}
_LANGUAGE_TOKEN = re.compile(r"<\|([a-z]{2,3})\|>")


def _published(n_text: int, n_languages: int) -> dict[str, int]:
    """Id by role and language of a published layout; an English one reserves ids for languages all the same."""
    roles = ("translate", "transcribe", "sot_lm", "sot_prev", "no_speech", "no_timestamps", "timestamp_begin")
    names = ["eot", "sot", *list(LANGUAGE_NAMES)[:n_languages], *roles]
    return {name: n_text + at for at, name in enumerate(names)}


_PUBLISHED = {
    ids["timestamp_begin"] + N_TIMESTAMPS: ids
    for ids in (_published(50256, 99), _published(50257, 99), _published(50257, 100))
}
_ENGLISH = 51864
_TABLES = {50256: "gpt2", 50257: "multilingual"}  # by the end of text


def standard_layout(n_vocab: int) -> SpecialTokens:
    """The layout of the published checkpoints with this vocabulary size. Raises `CheckpointError` for another size."""
    if n_vocab not in _PUBLISHED:
        sizes = ", ".join(map(str, _PUBLISHED))
        raise CheckpointError(
            f"a vocabulary of {n_vocab} is no published Whisper size ({sizes}) and the checkpoint has no "
            "tokenizer files; put its tokenizer.json, or its vocab.json, beside the weights"
        )
    return _layout(n_vocab, _PUBLISHED[n_vocab], n_vocab != _ENGLISH, N_TIMESTAMPS)


def _layout(n_vocab: int, ids: Mapping[str, int], is_multilingual: bool, n_timestamps: int) -> SpecialTokens:
    """ids: of roles and languages. Raises ModelError."""
    found = {code: id_ for code, id_ in ids.items() if code not in _ROLES}
    return SpecialTokens(
        n_vocab=n_vocab,
        **{role: id_ for role, id_ in ids.items() if role in _ROLES},
        languages=dict(sorted(found.items(), key=lambda item: item[1])) if is_multilingual else {},
        n_timestamps=n_timestamps,
        time_precision_s=TIME_PRECISION_S,
    )


def _fits(ids: Mapping[str, int], published: Mapping[str, int]) -> bool:
    """Whether nothing said contradicts a layout; a language that it does not have counts only if its id is taken."""
    taken = set(published.values())
    return all(published[name] == id_ if name in published else id_ not in taken for name, id_ in ids.items())


def _said(added: Mapping[str, int], config: Mapping[str, Any], generation: Mapping[str, Any]) -> dict[str, int]:
    """The ids of roles and languages that files say, which must agree. Raises CheckpointError."""
    found: list[tuple[str, object, str]] = []
    for content, id_ in added.items():
        language = _LANGUAGE_TOKEN.fullmatch(content)
        code = language[1] if language is not None and language[1] in LANGUAGE_NAMES else None
        if content in _ROLE_OF_TOKEN or code is not None:
            found.append((_ROLE_OF_TOKEN.get(content) or str(code), id_, f"the tokenizer's added token {content}"))
    for file, settings in (("generation_config.json", generation), ("config.json", config)):
        for key, role in _ROLE_OF_SETTING.items():
            value = settings.get(key)
            value = value[0] if isinstance(value, list) and len(value) == 1 else value
            if value is not None and not isinstance(value, list) and value != _UNSET.get(key):
                found.append((role, value, f"{key} of {file}"))
    for key in ("task_to_id", "lang_to_id"):
        table = generation.get(key) or {}
        if not isinstance(table, dict):
            raise CheckpointError(f"{key} of generation_config.json is no table of names and token ids")
        for token, id_ in table.items():
            name = token.removeprefix("<|").removesuffix("|>")
            if key == "lang_to_id" or name in ("translate", "transcribe"):
                found.append((name, id_, f"{key} of generation_config.json for {name}"))
    ids, sources = dict[str, int](), dict[str, str]()
    for name, value, source in found:
        if not isinstance(value, int) or isinstance(value, bool):
            raise CheckpointError(f"{source} is {value!r}, expected a token id")
        if ids.setdefault(name, value) != value:
            raise CheckpointError(
                f"{source} says token {value} and {sources[name]} says {ids[name]}: the checkpoint's files contradict "
                "each other; take them all from one model"
            )
        sources.setdefault(name, source)
    return ids


def _check_size(ids: Mapping[str, int], added: Mapping[str, int], published: int | None, n_vocab: int) -> None:
    """Raises CheckpointError for the files of one published model beside the weights of another.

    Rows that no file names are padding, unless there are as many as in another published model.
    """
    if published is not None:
        theirs = published
        is_other = n_vocab in _PUBLISHED and theirs < n_vocab and max([0, *added.values(), *ids.values()]) < theirs
    else:
        says_roles = not _ROLES.isdisjoint(ids)
        theirs = next((size for size, layout in _PUBLISHED.items() if says_roles and _fits(ids, layout)), 0)
        begin = ids.get("timestamp_begin", n_vocab)
        is_other = theirs > n_vocab and begin + (_count_timestamps(added, begin) or n_vocab) > n_vocab
    if is_other:
        raise CheckpointError(
            f"the checkpoint's tokenizer files and configs are those of a Whisper of {theirs} tokens, its weights have "
            f"{n_vocab} rows; put the model's own tokenizer files beside its weights"
        )


def _count_timestamps(added: Mapping[str, int], begin: int) -> int:
    """Number of added tokens <|0.00|>, <|0.02|>, ... with consecutive ids from `begin` on."""
    n = 0
    while added.get(f"<|{n * TIME_PRECISION_S:.2f}|>") == begin + n:
        n += 1
    return n


def read_layout(
    added: Mapping[str, int], config: Mapping[str, Any], generation: Mapping[str, Any], n_vocab: int
) -> SpecialTokens:
    """The layout of a checkpoint whose embedding has `n_vocab` rows.

    `added` maps the tokenizer's added tokens to their ids, `config` and `generation` are config.json and
    generation_config.json; each is {} where it is missing. Raises `CheckpointError` if the files contradict each other,
    name impossible ids, or leave a role open that no published layout fills.
    """
    ids = _said(added, config, generation)
    # The published layout that fits what is said: the one of this very size, else the only smaller one.
    fitting = [size for size, layout in _PUBLISHED.items() if size <= n_vocab and _fits(ids, layout)]
    published = n_vocab if n_vocab in fitting else fitting[0] if len(fitting) == 1 else None
    _check_size(ids, added, published, n_vocab)
    if published is None and not added and _ROLES.isdisjoint(ids):
        return standard_layout(n_vocab)  # raises: neither a published size nor anything said
    layout = {} if published is None else _PUBLISHED[published]
    says_languages = not _ROLES.issuperset(ids)
    known = {name: id_ for name, id_ in layout.items() if name in _ROLES or not says_languages} | ids
    if "no_timestamps" in known:
        known.setdefault("timestamp_begin", known["no_timestamps"] + 1)
    missing = [role for role in _REQUIRED if role not in known]
    if missing:
        raise CheckpointError(
            f"the checkpoint's files do not say which token is {', '.join(missing)}, and what they say fits no "
            f"published layout within a vocabulary of {n_vocab}; put the model's own tokenizer files beside its weights"
        )
    is_multilingual = generation.get("is_multilingual")
    if not isinstance(is_multilingual, bool):
        is_named = generation.get("lang_to_id") or published is None
        is_multilingual = says_languages if is_named else published != _ENGLISH
    if is_multilingual and _ROLES.issuperset(known):
        raise CheckpointError(
            "generation_config.json says the model is multilingual, but no file says which tokens are its languages; "
            "add lang_to_id to generation_config.json"
        )
    n_timestamps = _count_timestamps(added, known["timestamp_begin"]) or (0 if published is None else N_TIMESTAMPS)
    try:
        return _layout(n_vocab, known, is_multilingual, n_timestamps)
    except ModelError as error:
        raise CheckpointError(f"the checkpoint's tokenizer files: {error}") from None


_END_OF_TEXT = "<|endoftext|>"
_OWN_FILES = "put the model's own tokenizer.json beside its weights"
_SPECIAL_TOKEN = re.compile(r"<\|[^|]+\|>")


def _gpt2_alphabet() -> dict[str, int]:
    """Character -> byte of GPT-2's printable spelling of bytes (openai/gpt-2 `encoder.py`, bytes_to_unicode).

    Printable Latin-1 stands for itself, the other bytes for U+0100 and up, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _gpt2_alphabet()
_LATIN_1 = str.maketrans({character: chr(byte) for character, byte in _BYTE_OF.items()})


@dataclass(kw_only=True)
class _Files:
    """What tokenizer files hold: `vocab` spelled in GPT-2's alphabet, `added` by content, `silent` ids without text."""

    where: str
    vocab: dict[str, int] = field(default_factory=dict)
    added: dict[str, int] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    regexes: list[str] = field(default_factory=list)  # that text is cut by, where tokenizer.json says it

    def add(self, content: object, id_: object, special: bool) -> None:
        if not isinstance(content, str) or not isinstance(id_, int) or isinstance(id_, bool):
            raise CheckpointError(f"{self.where}: added token {content!r} has id {id_!r}, expected text and an integer")
        if self.added.setdefault(content, id_) != id_:
            raise CheckpointError(f"{self.where}: added token {content!r} has two ids, {self.added[content]} and {id_}")
        if special or _SPECIAL_TOKEN.fullmatch(content):
            self.silent.add(id_)


def read_vocabulary(
    folder: Path | None, config: dict[str, Any], generation: dict[str, Any], n_vocab: int
) -> tuple[list[bytes], SpecialTokens]:
    """Byte table (index = id) and layout of a checkpoint, as `Tokenizer` takes them.

    `folder` holds the tokenizer files, if there are any; `n_vocab` is the number of rows of the token embedding, which
    may be more than the tokenizer names; `config` and `generation` as in `read_layout`. Raises `CheckpointError` for
    unreadable or contradicting files.
    """
    files = _read_files(folder) if folder is not None else _Files(where="checkpoint")
    if folder is not None and not files.vocab and (folder / "model.bin").is_file():
        _read_list(folder, files)
    try:
        special = read_layout(files.added, config, generation, n_vocab)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}" if folder is not None else str(error)) from None
    if files.vocab:
        return _table_of(files, n_vocab, special.eot, special.timestamp_end), special
    if special.eot not in _TABLES:
        raise CheckpointError(
            f"{folder or 'checkpoint'}: has no tokenizer files, and its text ends at token {special.eot}, as in no "
            f"published Whisper; {_OWN_FILES}"
        )
    return built_in_table(_TABLES[special.eot]), special


def read_llm_vocabulary(folder: Path, n_vocab: int, *, end: str, pattern: str) -> tuple[list[bytes], dict[str, int]]:
    """Byte table (index = id) and added tokens by content of a model of `n_vocab` tokens, by Hugging Face's files.

    Text tokens are those before the added token `end`; pattern: of tokenizer.PATTERNS, by which the model's text is
    split. Raises `CheckpointError` for missing, unreadable or contradicting files, and for another pattern.
    """
    files = _read_files(folder)
    if not files.vocab:
        raise CheckpointError(
            f"{folder}: there is no vocabulary; put the model's own tokenizer.json, or its vocab.json, there"
        )
    if any(regex != PATTERNS[pattern] for regex in files.regexes):
        raise CheckpointError(f"{files.where}: its pre_tokenizer does not cut text as {pattern} does; ids would differ")
    eot = files.added.get(end)
    if eot is None:
        raise CheckpointError(f"{files.where}: no added token {end}, before which text tokens lie")
    last = max(files.added, key=files.added.__getitem__)
    if files.added[last] >= n_vocab:
        raise CheckpointError(
            f"{files.where}: the added token {last} has id {files.added[last]}, but the model has only {n_vocab} tokens"
        )
    return _table_of(files, n_vocab, eot, n_vocab)[:eot], files.added


def built_in_table(name: str) -> list[bytes]:
    """The table "gpt2" (50,256 tokens) or "multilingual" (50,257), index = id.

    Raises `CheckpointError` if it is not installed.
    """
    file = importlib.resources.files("specedge.models").joinpath("vocabularies", f"{name}.bin.z")
    try:
        return unpack_table(zlib.decompress(file.read_bytes()), f"{name}.bin.z")[0]
    except (OSError, zlib.error, ModelError) as error:
        raise CheckpointError(f"the built-in {name} vocabulary cannot be read ({error}); reinstall specedge") from None


@cache
def published_tokenizer(n_vocab: int) -> Tokenizer:
    """The tokenizer of the published checkpoints with this vocabulary size. Raises as `standard_layout`."""
    special = standard_layout(n_vocab)
    return Tokenizer(built_in_table(_TABLES[special.eot]), special)


def suppressed_tokens(n_vocab: int) -> list[int]:
    """`suppress_tokens` of a published generation_config.json, rising: special tokens that are never predicted, and
    symbols that are no speech. Raises as `standard_layout`."""
    tokenizer = published_tokenizer(n_vocab)
    special = tokenizer.whisper_special
    tasks = {special.sot_lm - 1, special.sot_lm - 2}  # English-only vocabularies keep ids for them too
    never = {special.sot, *tasks, special.sot_lm, special.sot_prev, special.no_speech}
    return sorted(never | set(non_speech_tokens(tokenizer)))


def _read_files(folder: Path) -> _Files:
    """The Hugging Face tokenizer files of `folder`, as far as there are any."""
    whole, vocab = folder / "tokenizer.json", folder / "vocab.json"
    files = _Files(where=str(whole if whole.is_file() else vocab))
    if whole.is_file():
        _read_tokenizer_json(whole, files)
    else:
        files.vocab = read_optional(vocab)
    for content, id_ in read_optional(folder / "added_tokens.json").items():
        files.add(content, id_, special=False)
    decoder = read_optional(folder / "tokenizer_config.json").get("added_tokens_decoder")
    for key, token in (decoder if isinstance(decoder, dict) else {}).items():
        if isinstance(token, dict) and key.isdecimal() and len(key) < 10:
            files.add(token.get("content"), int(key), special=token.get("special") is True)
    for token in [token for token in files.vocab if token[:2] == "<|"]:
        if _SPECIAL_TOKEN.fullmatch(token):
            files.add(token, files.vocab[token], special=True)
    return files


def _read_list(folder: Path, files: _Files) -> None:
    """CTranslate2's list of every token by id, where a folder has no other vocabulary.

    Text tokens come first, then special ones, then what a fine-tune has added. A vocabulary that was padded has the
    names of timestamps a second time.
    """
    path = next((folder / name for name in ("vocabulary.json", "vocabulary.txt") if (folder / name).is_file()), None)
    if path is None:
        return
    files.where = str(path)
    tokens = read_json(path, object) if path.suffix == ".json" else read_text(path).replace("\r\n", "\n").split("\n")
    if not isinstance(tokens, list) or set(map(type, tokens)) - {str} or _END_OF_TEXT not in tokens:
        raise CheckpointError(f"{path}: expected a list of tokens with {_END_OF_TEXT}; {_OWN_FILES}")
    n_text = tokens.index(_END_OF_TEXT)
    files.vocab = {token: id_ for id_, token in enumerate(tokens[:n_text])}
    for id_, content in enumerate(tokens[n_text:], n_text):
        if content and content not in files.added:
            files.add(content, id_, special=False)


def _read_tokenizer_json(path: Path, files: _Files) -> None:
    data = read_json(path)
    model, added = data.get("model"), data.get("added_tokens")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE" or not isinstance(model.get("vocab"), dict):
        raise CheckpointError(f"{path} is no byte-pair tokenizer, which every Whisper has; {_OWN_FILES}")
    if "ByteLevel" not in json.dumps([data.get("pre_tokenizer"), data.get("decoder")]):
        raise CheckpointError(
            f"{path} does not spell bytes as GPT-2 does (a pre_tokenizer or decoder ByteLevel); {_OWN_FILES}"
        )
    files.regexes = list(_regexes(data.get("pre_tokenizer")))
    files.vocab = model["vocab"]
    for token in added if isinstance(added, list) else []:
        if not isinstance(token, dict):
            raise CheckpointError(f"{path}: added token {token!r}, expected an object with content and id")
        files.add(token.get("content"), token.get("id"), special=token.get("special") is True)


def _regexes(value: object) -> Iterator[str]:
    """The regular expressions in a description of pre-tokenizers."""
    if isinstance(value, dict):
        if isinstance(value.get("Regex"), str):
            yield value["Regex"]
        value = list(value.values())
    for item in value if isinstance(value, list) else []:
        yield from _regexes(item)


def _to_bytes(spelled: Sequence[str], where: str) -> list[bytes]:
    """The bytes of tokens in GPT-2's alphabet. Each character is a byte, so they are looked up all at once."""
    whole = "".join(spelled)
    if strange := set(whole) - _BYTE_OF.keys():
        token, character = next((token, each) for token in spelled for each in token if each in strange)
        raise CheckpointError(
            f"{where}: token {token!r} has {character!r}, which stands for no byte; Whisper's vocabularies are spelled "
            "in the 256 characters of GPT-2's: take the model's own file"
        )
    data = whole.translate(_LATIN_1).encode("latin-1")
    return [data[start:end] for start, end in pairwise(accumulate(map(len, spelled), initial=0))]


def _table_of(files: _Files, n_vocab: int, eot: int, behind: int) -> list[bytes]:
    """The byte table: text tokens below `eot`, and from `behind` on, after the timestamps, what a fine-tune has added.

    Added tokens beyond the model's vocabulary are left out: it can never say them. Raises CheckpointError unless text
    tokens have ids of their own, and each below `eot` is there.
    """
    added = {content: id_ for content, id_ in files.added.items() if eot <= id_ < n_vocab}
    taken, text = set(added.values()), dict[int, str]()
    for spelled, id_ in files.vocab.items():
        if id_ == files.added.get(spelled) and id_ >= eot:
            continue
        if type(id_) is not int or not (0 <= id_ < eot or behind <= id_ < n_vocab) or id_ in taken:
            raise CheckpointError(
                f"{files.where}: text token {spelled!r} has id {id_!r}, expected one of its own, below {eot} or "
                f"behind the timestamps, of {n_vocab}; {_OWN_FILES}"
            )
        taken.add(id_)
        text[id_] = spelled
    holes = sorted({*range(eot - 1)} - taken)  # the multilingual 50256 has no text, and some files leave it out
    if holes:
        raise CheckpointError(
            f"{files.where}: no token has id {holes[0]}; {len(holes)} of {eot} are missing; {_OWN_FILES}"
        )
    table = dict(zip(text, _to_bytes([*text.values()], files.where), strict=True))
    for content, id_ in added.items():
        if id_ >= behind and id_ not in files.silent:
            table[id_] = content.encode("utf-8", "replace")
    last = max(eot - 1, *[id_ for id_, token in table.items() if token])
    return [table.get(id_, b"") for id_ in range(last + 1)]
