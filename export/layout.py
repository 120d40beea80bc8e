"""The special-token layout of a checkpoint, read from its own files.

What the tokenizer's added tokens and `generation_config.json` say is taken together and must agree; `config.json` may
only add to it. What none of them says is filled in from the published layout (openai-whisper `tokenizer.py`) that
fits everything that was said; if none fits or several do, that is an error. Knows nothing of byte tables, and never
looks at a model's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specedge.runtime.errors import CheckpointError, ModelError
from specedge.runtime.text.languages import LANGUAGE_NAMES
from specedge.runtime.text.special import SpecialTokens

__all__ = ["read_layout", "standard_layout"]

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
_LANGUAGE_TOKEN = re.compile(r"<\|([a-z]{2,3})\|>")


@dataclass(frozen=True, kw_only=True)
class _Published:
    """One of the three layouts of the published checkpoints."""

    n_vocab: int
    multilingual: bool
    roles: Mapping[str, int]
    languages: Mapping[str, int]  # also those an English-only vocabulary reserves ids for


def _published(n_text: int, n_languages: int, multilingual: bool) -> _Published:
    ids = iter(range(n_text, n_text + 2 + n_languages + 6 + 1))
    roles = {"eot": next(ids), "sot": next(ids)}
    languages = {code: next(ids) for code in list(LANGUAGE_NAMES)[:n_languages]}
    for role in ("translate", "transcribe", "sot_lm", "sot_prev", "no_speech", "no_timestamps", "timestamp_begin"):
        roles[role] = next(ids)
    return _Published(
        n_vocab=roles["timestamp_begin"] + N_TIMESTAMPS, multilingual=multilingual, roles=roles, languages=languages
    )


_PUBLISHED = {
    layout.n_vocab: layout
    for layout in (_published(50256, 99, False), _published(50257, 99, True), _published(50257, 100, True))
}


def standard_layout(n_vocab: int) -> SpecialTokens:
    """The layout of the published checkpoints with this vocabulary size.

    Raises `CheckpointError` if `n_vocab` is none of 51864 (English), 51865 (multilingual) and 51866 (large-v3 and its
    kin).
    """
    published = _PUBLISHED.get(n_vocab)
    if published is None:
        sizes = ", ".join(map(str, _PUBLISHED))
        raise CheckpointError(
            f"a vocabulary of {n_vocab} is no published Whisper size ({sizes}) and the checkpoint has no "
            "tokenizer files; put its tokenizer.json, or vocab.json and merges.txt, beside the weights"
        )
    return SpecialTokens(
        n_vocab=n_vocab,
        **published.roles,
        languages=published.languages if published.multilingual else {},
        n_timestamps=N_TIMESTAMPS,
        time_precision_s=TIME_PRECISION_S,
    )


class _Claims:
    """What the files say so far: role or language -> id and who says so."""

    def __init__(self) -> None:
        self.roles: dict[str, int] = {}
        self.languages: dict[str, int] = {}
        self._sources: dict[str, str] = {}

    def add(self, kind: str, name: str, id_: object, source: str) -> None:
        if not isinstance(id_, int) or isinstance(id_, bool):
            raise CheckpointError(f"{source} is {id_!r}, expected a token id")
        known = self.languages if kind == "language" else self.roles
        if known.setdefault(name, id_) != id_:
            raise CheckpointError(
                f"{source} says token {id_} and {self._sources[kind + name]} says {known[name]}: the checkpoint's "
                "files contradict each other; take them all from one model"
            )
        self._sources.setdefault(kind + name, source)

    def fit(self, layout: _Published) -> bool:
        """Whether nothing said contradicts `layout`; a language it does not have counts only if its id is taken."""
        taken = {*layout.roles.values(), *layout.languages.values()}
        return all(layout.roles[role] == id_ for role, id_ in self.roles.items()) and all(
            layout.languages[code] == id_ if code in layout.languages else id_ not in taken
            for code, id_ in self.languages.items()
        )


def _settings(settings: Mapping[str, Any], file: str) -> Iterator[tuple[str, Any, str]]:
    """(role, id, source) of the settings of a configuration file that name a token."""
    for key, role in _ROLE_OF_SETTING.items():
        value = settings.get(key)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if value is not None and not isinstance(value, list) and value != _UNSET.get(key):
            yield role, value, f"{key} of {file}"


def _table(settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = settings.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise CheckpointError(f"{key} of generation_config.json is no table of names and token ids")
    return value


def _collect(added: Mapping[str, int], config: Mapping[str, Any], generation: Mapping[str, Any]) -> _Claims:
    claims = _Claims()
    for content, id_ in added.items():
        source = f"the tokenizer's added token {content}"
        language = _LANGUAGE_TOKEN.fullmatch(content)
        if content in _ROLE_OF_TOKEN:
            claims.add("role", _ROLE_OF_TOKEN[content], id_, source)
        elif language is not None and language[1] in LANGUAGE_NAMES:
            claims.add("language", language[1], id_, source)
    for role, id_, source in _settings(generation, "generation_config.json"):
        claims.add("role", role, id_, source)
    for task, id_ in _table(generation, "task_to_id").items():
        if task in ("translate", "transcribe"):
            claims.add("role", task, id_, f"task_to_id of generation_config.json for {task}")
    for token, id_ in _table(generation, "lang_to_id").items():
        code = token.removeprefix("<|").removesuffix("|>")
        claims.add("language", code, id_, f"lang_to_id of generation_config.json for {code}")
    for role, id_, source in _settings(config, "config.json"):
        claims.add("role", role, id_, source)
    return claims


def _fitting(claims: _Claims, n_vocab: int) -> _Published | None:
    """The published layout that fits what is said: the one of this very size, else the only smaller one."""
    exact = _PUBLISHED.get(n_vocab)
    if exact is not None and claims.fit(exact):
        return exact
    fitting = [layout for layout in _PUBLISHED.values() if layout.n_vocab < n_vocab and claims.fit(layout)]
    return fitting[0] if len(fitting) == 1 else None


def _languages(claims: _Claims, published: _Published | None, generation: Mapping[str, Any]) -> dict[str, int]:
    """Language codes and ids; none for an English-only model, whose vocabulary reserves the ids all the same."""
    flag = generation.get("is_multilingual")
    if not isinstance(flag, bool):
        if generation.get("lang_to_id") or published is None:
            flag = bool(claims.languages)
        else:
            flag = published.multilingual
    if not flag:
        return {}
    languages = claims.languages or (published.languages if published is not None else {})
    if not languages:
        raise CheckpointError(
            "generation_config.json says the model is multilingual, but no file says which tokens are its languages; "
            "add lang_to_id to generation_config.json"
        )
    return dict(sorted(languages.items(), key=lambda item: item[1]))


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

    `added` maps the tokenizer's added tokens to their ids ({} without tokenizer files); `config` and `generation` are
    the parsed config.json and generation_config.json ({} where missing).

    Raises `CheckpointError` if the files contradict each other, name impossible ids, or leave a role open that no
    published layout fills.
    """
    claims = _collect(added, config, generation)
    published = _fitting(claims, n_vocab)
    if published is None and not added and not claims.roles:
        return standard_layout(n_vocab)  # raises: neither a published size nor anything said
    roles = {**(published.roles if published is not None else {}), **claims.roles}
    if "no_timestamps" in roles:
        roles.setdefault("timestamp_begin", roles["no_timestamps"] + 1)
    missing = [role for role in _REQUIRED if role not in roles]
    if missing:
        raise CheckpointError(
            f"the checkpoint's files do not say which token is {', '.join(missing)}, and what they say fits no "
            f"published layout within a vocabulary of {n_vocab}; put the model's own tokenizer files beside its weights"
        )
    try:
        return SpecialTokens(
            n_vocab=n_vocab,
            **roles,
            languages=_languages(claims, published, generation),
            n_timestamps=_count_timestamps(added, roles["timestamp_begin"])
            or (N_TIMESTAMPS if published is not None else 0),
            time_precision_s=TIME_PRECISION_S,
        )
    except CheckpointError:
        raise
    except ModelError as error:
        raise CheckpointError(f"the checkpoint's tokenizer files: {error}") from None
