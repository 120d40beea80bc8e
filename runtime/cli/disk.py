"""`specedge disk`: all that specedge keeps on this machine, shown, exported and removed."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from specedge.errors import ResourceError, UsageError
from specedge.models import catalogue, store

from ..console import is_terminal, notify
from .describe import format_size, table
from .options import JSON, ModelOptions, installed_models

KINDS = ("models", "downloads", "compiled", "measured", "learned")


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """One kind of what is kept. paths: the files and folders of it that are there; where: the place for people."""

    what: str
    where: Path
    paths: tuple[Path, ...]
    about: str

    @property
    def size_bytes(self) -> int:
        return store.size_bytes(*self.paths)


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
    if what:
        _clear([one for one in _kept() if one.what in what or "all" in what], asks=not yes)
    elif learned:
        _print_learned(model)
    else:
        _show(_kept(), as_json=as_json)


def _show(kept: list[_Kept], *, as_json: bool) -> None:
    """Print what is kept, how much, and where."""
    if as_json:
        rows = [asdict(one) | {"size_bytes": one.size_bytes} for one in kept]
        click.echo(json.dumps(rows, default=str, indent=1))
        return
    lines = [(one.what, format_size(one.size_bytes), one.about, _for_people(one.where)) for one in kept if one.paths]
    total = store.size_bytes(*(path for one in kept for path in one.paths))
    click.echo("\n".join(table([("WHAT", "SIZE", "", "WHERE"), *lines, ("all", format_size(total), "", "")])))
    if lines:
        notify("remove with `specedge disk --clear WHAT`; one model with `specedge models rm NAME`")


def _clear(asked: list[_Kept], *, asks: bool) -> None:
    kept = [one for one in asked if one.paths]
    if not kept:
        notify(f"{', '.join(one.what for one in asked)}: nothing was there")
    elif asks:
        what = ", ".join(f"{one.what} ({format_size(one.size_bytes)})" for one in kept)
        if not is_terminal(sys.stdin):
            raise UsageError(f"this removes {what} for good: add --yes")
        click.confirm(f"Remove {what} for good?", abort=True, err=True)
    for one in kept:
        size_bytes = one.size_bytes
        if one.what == "models":
            for item in store.installed():
                store.remove(item.name)
        for path in one.paths:
            _remove(path)
        notify(f"{one.what}: {format_size(size_bytes)} removed")


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


def _kept() -> list[_Kept]:
    """What there is of each kind."""
    from specedge.maps.ngram_cache import entries

    from .. import device

    models, learned = store.installed(), store.user_cache_path()
    files = [path for name in catalogue.FILES if (path := store.file_path(name)).exists()]
    names = ", ".join([item.name for item in models] + [path.name for path in files])
    try:
        n_grams = f"{sum(entries(learned).values())} n-grams"
    except ResourceError:
        n_grams = "unreadable n-grams"
    folders = (
        ("downloads", store.cache_home() / "downloads", "checkpoints that are not exported yet"),
        ("compiled", store.cache_home() / "compiled", "encoders for OpenVINO"),
        ("measured", device.device_folder(), "by doctor, bench and checks of rows"),
    )
    return [
        _Kept(what="models", where=store.folder(), paths=(*(item.path for item in models), *files), about=names),
        *(_Kept(what=what, where=where, paths=_inside(where), about=about) for what, where, about in folders),
        _Kept(what="learned", where=store.home(), paths=(learned,) if learned.exists() else (), about=n_grams),
    ]


def _inside(folder: Path) -> tuple[Path, ...]:
    try:
        return tuple(sorted(folder.iterdir()))
    except OSError:  # there is none, or none that can be read
        return ()


def _remove(path: Path) -> None:
    """Raises ResourceError."""
    import shutil

    from specedge.maps.ngram_cache import erase

    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.exists():
            erase(path)  # with what SQLite keeps beside it
    except OSError as error:
        raise ResourceError(f"{error.filename or path}: cannot be removed: {error.strerror or error}") from None


def _for_people(path: Path) -> str:
    """With ~ for the home folder, as shells take it."""
    with contextlib.suppress(RuntimeError, ValueError):
        return os.path.join("~", path.relative_to(Path.home()))
    return str(path)
