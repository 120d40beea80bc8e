"""`specedge disk`: all that specedge keeps on this machine, shown, exported and removed."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from specedge.errors import ResourceError
from specedge.models import catalogue, store

from ..console import notify
from .options import JSON, ModelOptions, installed_models

KINDS = ("models", "downloads", "packed", "measured", "learned")


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """One kind of what is kept. paths: the files and folders of it that are there; where: the place for people."""

    what: str
    where: Path
    paths: tuple[Path, ...]
    about: str

    @property
    def size_bytes(self) -> int:
        return sum(map(_size_bytes, self.paths))


@click.group(invoke_without_command=True)
@click.pass_context
def disk(ctx: click.Context) -> None:
    """Show, export or remove what specedge keeps on this machine: models, packed weights, measurements, learned text.

    Nothing is learned beyond a run unless you ask for it. To uninstall, clear everything and then `pip uninstall
    specedge`.

    \b
    Examples:
      specedge disk
      specedge disk clear packed learned
      specedge disk clear all
      specedge disk export > learned.jsonl
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(show, as_json=False)


@disk.command()
@JSON
def show(as_json: bool) -> None:
    """Show what is kept, how much, and where.

    \b
    Examples:
      specedge disk show
      specedge disk show --json
    """
    from .doctor import format_size, table

    kept = [_KEPT[what]() for what in KINDS]
    if as_json:
        rows = [asdict(one) | {"size_bytes": one.size_bytes} for one in kept]
        click.echo(json.dumps(rows, default=str, indent=1))
        return
    lines = [(one.what, format_size(one.size_bytes), one.about, _for_people(one.where)) for one in kept if one.paths]
    total = sum(one.size_bytes for one in kept)
    click.echo("\n".join(table([("WHAT", "SIZE", "", "WHERE"), *lines, ("all", format_size(total), "", "")])))
    if lines:
        notify("remove with `specedge disk clear WHAT`; one model with `specedge models rm NAME`")


@disk.command()
@click.argument("what", nargs=-1, required=True, type=click.Choice([*KINDS, "all"]))
def clear(what: tuple[str, ...]) -> None:
    """Remove what is kept: models, downloads, packed, measured, learned, or all.

    Packed weights are made again when a model is loaded; measurements by `specedge calibrate`
    and `specedge bench`.

    \b
    Examples:
      specedge disk clear packed
      specedge disk clear learned measured
      specedge disk clear all
    """
    from .doctor import format_size

    asked = [_KEPT[name]() for name in KINDS if name in what or "all" in what]
    kept = [one for one in asked if one.paths]
    if not kept:
        notify(f"{', '.join(one.what for one in asked)}: nothing was there")
    for one in kept:
        size_bytes = one.size_bytes
        if one.what == "models":
            for item in store.installed():
                if not item.bundled:
                    store.remove(item.name)
        for path in one.paths:
            _remove(path)
        notify(f"{one.what}: {format_size(size_bytes)} removed")


@disk.command()
@click.option(
    "-m", "--model", metavar="MODEL", shell_complete=installed_models, help="Add the text of this model's ids."
)
def export(model: str | None) -> None:
    """Print what was learned from your text as JSON lines.

    A line is a vocabulary, a key, an id and its count.

    \b
    Examples:
      specedge disk export > learned.jsonl
      specedge disk export -m small
    """
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


def _models() -> _Kept:
    found = [item for item in store.installed() if not item.bundled]
    files = [path for name in catalogue.FILES if (path := store.file_path(name)).exists()]
    names = ", ".join([item.name for item in found] + [path.name for path in files])
    return _Kept(what="models", where=store.folder(), paths=(*(item.path for item in found), *files), about=names)


def _downloads() -> _Kept:
    from ..device import downloads_folder

    where = downloads_folder()
    return _Kept(what="downloads", where=where, paths=_inside(where), about="checkpoints that are not exported yet")


def _packed() -> _Kept:
    from ..device import packed_folder

    where = packed_folder()
    return _Kept(what="packed", where=where, paths=_inside(where), about="weights as this CPU wants them")


def _measured() -> _Kept:
    from ..device import device_folder

    where = device_folder()
    return _Kept(what="measured", where=where, paths=_inside(where), about="by calibrate, bench and checks of rows")


def _learned() -> _Kept:
    from specedge.maps.ngram_cache import show as show_cache

    grams, words = store.user_cache_path(), store.home() / "words.sqlite"  # the second is of older versions
    factors = tuple(store.learned_folder().glob("*.factors"))
    counts = {
        "n-grams": lambda: sum(show_cache(grams)["entries"].values()),
        "sessions of a draft model": lambda: len(factors),
    }
    said = [f"{n} {what}" for what, count in counts.items() if (n := _counted(count))]
    paths = tuple(path for path in (grams, words) if path.exists())
    return _Kept(what="learned", where=store.home(), paths=(*paths, *factors), about=", ".join(said))


_KEPT: dict[str, Callable[[], _Kept]] = {
    "models": _models,
    "downloads": _downloads,
    "packed": _packed,
    "measured": _measured,
    "learned": _learned,
}


def _counted(count: Callable[[], int]) -> int | str:
    try:
        return count()
    except ResourceError:
        return "unreadable"


def _inside(folder: Path) -> tuple[Path, ...]:
    try:
        return tuple(sorted(folder.iterdir()))
    except OSError:  # there is none, or none that can be read
        return ()


def _size_bytes(path: Path) -> int:
    paths = [Path(place, name) for place, _, names in os.walk(path) for name in names] if path.is_dir() else [path]
    total = 0
    for one in paths:
        with contextlib.suppress(OSError):
            total += one.lstat().st_size
    return total


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
