"""`specedge cache`: what was learned from the user's own text, shown, exported and removed."""

from __future__ import annotations

import json
from pathlib import Path

import click

from specedge.runtime.commands.console import notify

FILE_NAME = "learned.sqlite"


def cache_path() -> Path:
    """Where the cache of this user is, whether there is one or not."""
    from specedge.models import store

    return store.home() / FILE_NAME


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
    """Show where the cache is, its size and how much it holds.

    \b
    Examples:
      specedge cache show
      specedge cache show --json
    """
    from specedge.maps.user_cache import show as show_cache

    found = show_cache(cache_path())
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    n_entries = sum(found["entries"].values())
    click.echo(
        f"{found['path']}: {n_entries} entries, {found['size_bytes']} bytes" if n_entries else "nothing was learned"
    )


@cache.command()
@click.option("-m", "--model", metavar="MODEL", help="Add the text of ids, for entries of this model's vocabulary.")
def export(model: str | None) -> None:
    """Print all of the cache as lines of JSON: vocabulary, key, id and count.

    \b
    Examples:
      specedge cache export > learned.jsonl
      specedge cache export -m small
    """
    from specedge.maps.user_cache import export as export_cache

    tokenizer, fingerprint = None, b""
    if model is not None:
        from specedge.maps.tmap_format import text_fingerprint
        from specedge.models import store
        from specedge.runtime.bundle import Bundle

        tokenizer = Bundle.open(store.find(model), verify=False).tokenizer
        fingerprint = text_fingerprint(tokenizer.ranks, tokenizer.special.eot)
    for vocabulary, key, id_, count in export_cache(cache_path()):
        row: dict[str, object] = {"vocabulary": vocabulary.hex(), "key": key, "id": id_, "count": count}
        if tokenizer is not None and vocabulary == fingerprint and max(*key, id_) < tokenizer.special.n_vocab:
            row |= {"key_text": tokenizer.decode(key), "text": tokenizer.decode([id_])}
        click.echo(json.dumps(row))


@cache.command()
def clear() -> None:
    """Remove all that was learned.

    \b
    Examples:
      specedge cache clear
    """
    from specedge.maps.user_cache import erase

    notify("the cache is removed" if erase(cache_path()) else "there was no cache")
