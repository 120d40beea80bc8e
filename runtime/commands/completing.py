"""What a shell offers behind an option whose value is the name of a model or a language.

A model may also be a folder, so where no name fits the shell completes folders. Does not know: which options there are.
"""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

from specedge.models import catalogue, store
from specedge.runtime.text.languages import LANGUAGE_NAMES

__all__ = ["installed_models", "known_models", "languages"]


def installed_models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The models of the store, also without "whisper-", else folders."""
    names = [model.name for model in store.installed()]
    found = _beginning(incomplete, names) or _beginning(incomplete, [name.removeprefix("whisper-") for name in names])
    return found or [CompletionItem(incomplete, type="dir")]


def known_models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What `specedge models pull` knows by a short name."""
    return _beginning(incomplete, [*store.available_models(), *catalogue.FILES])


def languages(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Codes, or English names where no code fits."""
    return _beginning(incomplete, LANGUAGE_NAMES) or _beginning(incomplete, LANGUAGE_NAMES.values())


def _beginning(incomplete: str, names: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
