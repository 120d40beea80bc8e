"""`specedge cache`: what was learned from the user's own text, shown, exported and removed."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ..console import notify
from .options import installed_models


def cache_path() -> Path:
    """Where the cache of this user is, whether there is one or not."""
    from specedge.models import store

    return store.user_cache_path()


def words_path() -> Path:
    """Where the words of draft models with other vocabularies are, whether there are any or not."""
    from specedge.models import store

    return store.word_cache_path()


def learned_path() -> Path:
    """The folder of what draft models have learned, whether there is any or not."""
    from specedge.models import store

    return store.learned_folder()


@click.group()
def cache() -> None:
    """Show, export or clear what was learned from your own text to guess the next words.

    Nothing is learned beyond a run unless you ask for it.

    \b
    Examples:
      specedge cache show
      specedge cache export > learned.jsonl
      specedge cache clear
    """


@cache.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(as_json: bool) -> None:
    """Show where the caches are, their size and how much they hold.

    \b
    Examples:
      specedge cache show
      specedge cache show --json
    """
    from specedge.maps.ngram_cache import show as show_cache
    from specedge.maps.word_cache import everything

    found = show_cache(cache_path())
    words = words_path()
    n_words = sum(1 for _ in everything(words))
    n_bytes = words.stat().st_size if words.exists() else 0
    learned = learned_path()
    factors = list(learned.glob("*.factors"))
    n_factor_bytes = sum(path.stat().st_size for path in factors)
    found["learned"] = {"path": str(learned), "size_bytes": n_factor_bytes, "entries": len(factors)}
    found["words"] = {"path": str(words), "size_bytes": n_bytes, "entries": n_words}
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    n_entries = sum(found["entries"].values())
    click.echo(
        f"{found['path']}: {n_entries} entries, {found['size_bytes']} bytes" if n_entries else "nothing was learned"
    )
    if n_words:
        click.echo(f"{words}: {n_words} words of draft models, {n_bytes} bytes")
    if factors:
        click.echo(f"{learned}: {len(factors)} times that a draft model has learned, {n_factor_bytes} bytes")


@cache.command()
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    shell_complete=installed_models,
    help="Add the text of ids, for entries of this model's vocabulary.",
)
def export(model: str | None) -> None:
    """Print all of the cache as lines of JSON: vocabulary, key, id and count, or the words of two vocabularies.

    \b
    Examples:
      specedge cache export > learned.jsonl
      specedge cache export -m small
    """
    from specedge.maps.ngram_cache import export as export_cache
    from specedge.maps.word_cache import everything

    tokenizer, fingerprint = None, b""
    if model is not None:
        from specedge.maps.tmap_format import text_fingerprint
        from specedge.models import store

        from ..bundle.bundle import Bundle

        tokenizer = Bundle.open(store.find(model), verify=False).tokenizer
        fingerprint = text_fingerprint(tokenizer.ranks, tokenizer.special.eot)
    for vocabulary, key, id_, count in export_cache(cache_path()):
        row: dict[str, object] = {"vocabulary": vocabulary.hex(), "key": key, "id": id_, "count": count}
        if tokenizer is not None and vocabulary == fingerprint and max(*key, id_) < tokenizer.special.n_vocab:
            row |= {"key_text": tokenizer.decode(key), "text": tokenizer.decode([id_])}
        click.echo(json.dumps(row))
    for pair, source, target in everything(words_path()):
        click.echo(json.dumps({"vocabularies": pair.hex(), "draft": source, "target": target}))


@cache.command()
def clear() -> None:
    """Remove all that was learned.

    \b
    Examples:
      specedge cache clear
    """
    from specedge.maps.ngram_cache import erase

    removed = [erase(path) for path in (cache_path(), words_path(), *learned_path().glob("*.factors"))]
    notify("the cache is removed" if any(removed) else "there was no cache")
