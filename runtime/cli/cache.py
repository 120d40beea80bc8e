"""`specedge cache`: what was learned from the user's own text, shown, exported and removed."""

from __future__ import annotations

import json

import click

from specedge.models import store

from ..console import notify
from .options import JSON, installed_models, open_model


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
@JSON
def show(as_json: bool) -> None:
    """Show where the caches are, and their sizes.

    \b
    Examples:
      specedge cache show
      specedge cache show --json
    """
    from specedge.maps.ngram_cache import show as show_cache
    from specedge.maps.word_cache import everything

    words, learned = store.word_cache_path(), store.learned_folder()
    factors = list(learned.glob("*.factors"))
    rows = {
        "words": (words, words.stat().st_size if words.exists() else 0, sum(1 for _ in everything(words))),
        "learned": (learned, sum(path.stat().st_size for path in factors), len(factors)),
    }
    found = show_cache(store.user_cache_path()) | {
        name: {"path": str(path), "size_bytes": n_bytes, "entries": n_entries}
        for name, (path, n_bytes, n_entries) in rows.items()
    }
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    n_entries = sum(found["entries"].values())
    click.echo(
        f"{found['path']}: {n_entries} entries, {found['size_bytes']} bytes" if n_entries else "nothing was learned"
    )
    kinds = {"words": "words of draft models", "learned": "sessions of a draft model's learning"}
    for name, (path, n_bytes, n_entries) in rows.items():
        if n_entries:
            click.echo(f"{path}: {n_entries} {kinds[name]}, {n_bytes} bytes")


@cache.command()
@click.option(
    "-m", "--model", metavar="MODEL", shell_complete=installed_models, help="Add the text of this model's ids."
)
def export(model: str | None) -> None:
    """Print the cache as JSON lines.

    A line is a vocabulary, a key, an id and its count, or the words of two vocabularies.

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

        tokenizer = open_model(model, verify=False).tokenizer
        fingerprint = text_fingerprint(tokenizer.ranks, tokenizer.special.eot)
    for vocabulary, key, id_, count in export_cache(store.user_cache_path()):
        row: dict[str, object] = {"vocabulary": vocabulary.hex(), "key": key, "id": id_, "count": count}
        if tokenizer is not None and vocabulary == fingerprint and max(*key, id_) < tokenizer.special.n_vocab:
            row |= {"key_text": tokenizer.decode(key), "text": tokenizer.decode([id_])}
        click.echo(json.dumps(row))
    for pair, source, target in everything(store.word_cache_path()):
        click.echo(json.dumps({"vocabularies": pair.hex(), "draft": source, "target": target}))


@cache.command()
def clear() -> None:
    """Remove all that was learned.

    \b
    Examples:
      specedge cache clear
    """
    from specedge.maps.ngram_cache import erase

    paths = [store.user_cache_path(), store.word_cache_path(), *store.learned_folder().glob("*.factors")]
    removed = [erase(path) for path in paths]
    notify("the cache is removed" if any(removed) else "there was no cache")
