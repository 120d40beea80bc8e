"""`specedge disk`: all that specedge keeps on this machine, shown, exported and removed."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import click

from specedge.errors import ResourceError, UsageError
from specedge.models import catalogue, store

from ..console import aligned, is_terminal, notify
from ..device import device_folder
from .describe import format_size
from .options import JSON, ModelOptions, installed_models

KINDS = ("models", "downloads", "compiled", "measured", "learned")


@click.command()
@JSON
@click.option(
    "--clear", "what", multiple=True, type=click.Choice([*KINDS, "all"]), help="Remove this, or all (repeatable)."
)
@click.option("--yes", is_flag=True, help="With --clear: do not ask.")
@click.option("--learned", is_flag=True, help="Print what was learned from your text as JSON lines instead.")
@click.option(
    "-m", "--model", metavar="MODEL", shell_complete=installed_models, help="With --learned: this model's text of ids."
)
def disk(as_json: bool, what: tuple[str, ...], yes: bool, learned: bool, model: str | None) -> None:
    """Show or remove what specedge keeps on this machine: models, measurements, learned text.

    Nothing is learned beyond a run unless you ask for it. Encoders that OpenVINO compiled are made again when a model
    is loaded, measurements by `specedge doctor --calibrate` and `specedge bench`. A line of --learned is a vocabulary,
    a key, an id and its count. To uninstall, clear all and then `pip uninstall specedge`.

    \b
    Examples:
      specedge disk
      specedge disk --clear measured --clear learned
      specedge disk --clear all --yes
      specedge disk --learned > learned.jsonl
    """
    kept = _kept()
    if what:
        _clear({one: kept[one][1] for one in kept if one in what or "all" in what}, asks=not yes)
    elif learned:
        _print_learned(model)
    elif as_json:
        rows = [
            {"what": one, "where": str(where), "paths": list(map(str, paths)), "size_bytes": store.size_bytes(*paths)}
            for one, (where, paths) in kept.items()
        ]
        click.echo(json.dumps(rows, indent=1))
    else:
        lines = [(one, _size(paths), str(where)) for one, (where, paths) in kept.items() if paths]
        total = _size([path for _, paths in kept.values() for path in paths])
        click.echo("\n".join(aligned([("WHAT", "SIZE", "WHERE"), *lines, ("all", total, "")], has_figures=False)))
        if lines:
            notify("remove with `specedge disk --clear WHAT`; one model with `specedge models rm NAME`")


def _kept() -> dict[str, tuple[Path, list[Path]]]:
    """By the kind of what is kept, its place, and the files and folders of it that are there."""
    files = [path for name in catalogue.FILES if (path := store.file_path(name)).exists()]
    cache, learned = store.cache_home(), store.user_cache_path()
    folders = {"downloads": cache / "downloads", "compiled": cache / "compiled", "measured": device_folder()}
    return {
        "models": (store.folder(), [*store.installed(), *files]),
        **{what: (where, sorted(where.glob("*"))) for what, where in folders.items()},
        "learned": (store.home(), [learned] if learned.exists() else []),
    }


def _size(paths: list[Path]) -> str:
    return format_size(store.size_bytes(*paths))


def _clear(asked: dict[str, list[Path]], *, asks: bool) -> None:
    """Raises ResourceError."""
    from specedge.maps.ngram_cache import erase

    kept = {what: paths for what, paths in asked.items() if paths}
    if not kept:
        notify(f"{', '.join(asked)}: nothing was there")
    elif asks:
        named = ", ".join(f"{what} ({_size(paths)})" for what, paths in kept.items())
        if not is_terminal(sys.stdin):
            raise UsageError(f"this removes {named} for good: add --yes")
        click.confirm(f"Remove {named} for good?", abort=True, err=True)
    for what, paths in kept.items():
        size = _size(paths)
        for path in paths:
            try:
                if what == "models" and path.is_dir():
                    store.remove(path.name)
                elif path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    erase(path)  # with what SQLite keeps beside it
            except OSError as error:
                raise ResourceError(f"{error.filename or path}: cannot be removed: {error.strerror or error}") from None
        notify(f"{what}: {size} removed")


def _print_learned(model: str | None) -> None:
    from specedge.maps.ngram_cache import export as export_cache

    tokenizer, fingerprint = None, b""
    if model is not None:
        from specedge.maps.tmap_format import text_fingerprint

        tokenizer = ModelOptions(model=model).open(verify=False).tokenizer
        fingerprint = text_fingerprint(tokenizer.ranks, tokenizer.special.eot)
    for vocabulary, key, id_, count in export_cache(store.user_cache_path()):
        row: dict[str, object] = {"vocabulary": vocabulary.hex(), "key": key, "id": id_, "count": count}
        if tokenizer is not None and vocabulary == fingerprint and max(*key, id_) < tokenizer.special.n_vocab:
            row |= {"key_text": tokenizer.decode(key), "text": tokenizer.decode([id_])}
        click.echo(json.dumps(row))
