"""`specedge models`: what is installed and where, get a model, remove one."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from specedge.errors import BundleError, UsageError
from specedge.models import catalogue, store

from .export import PRECISIONS
from .options import JSON, installed_models, known_models


@click.group()
def models() -> None:
    """List, find, get and remove models.

    A model is a bundle: a folder made by `specedge export`, in $SPECEDGE_HOME/models or installed with specedge.

    \b
    Examples:
      specedge models list
      specedge models pull small
      specedge transcribe talk.wav -m small
    """


@models.command("list")
@JSON
@click.option("--known", is_flag=True, help="List the short names that `pull` knows.")
def list_models(as_json: bool, known: bool) -> None:
    """Show the installed models: name, size, precision, bundled or not, path.

    \b
    Examples:
      specedge models list
      specedge models list --json
      specedge models list --known
    """
    rows = _known() if known else _installed()
    if as_json:
        click.echo(json.dumps(rows, ensure_ascii=False, indent=1))
    elif rows:
        click.echo("\n".join(_known_table(rows) if known else _installed_table(rows)))
    else:
        click.echo("no models; get one with `specedge models pull tiny`", err=True)


@models.command()
@click.argument("name", shell_complete=installed_models)
def path(name: str) -> None:
    """Print the folder of the model NAME, or the file of silero-vad.

    \b
    Examples:
      specedge models path tiny
      du -sh "$(specedge models path demo)"
    """
    if name in catalogue.FILES:
        click.echo(store.find_file(name))
        return
    click.echo(os.path.abspath(store.find(name)))


@models.command()
@click.argument("name", shell_complete=known_models)
@click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="int8",
    show_default=True,
    help="Weights: int8 fastest, int4 smallest, fp32 reference.",
)
@click.option("--revision", help="Branch, tag or commit on the hub.  [default: the catalogue's commit, else main]")
def pull(name: str, precision: str, revision: str | None) -> None:
    """Download the checkpoint NAME from the Hugging Face hub and export it into the store.

    NAME is a short name (`specedge models list --known` shows the pinned commits) or a hub id, which has no pinned
    commit. Needs `pip install 'specedge[export]'`; honours HF_ENDPOINT (https) and HF_HUB_OFFLINE. Precisions other
    than int8 are added to the stored name. silero-vad, the neural speech detector, is one file and needs no extra.

    \b
    Examples:
      specedge models pull small
      specedge models pull silero-vad
      specedge models pull large-v3-turbo --precision int4
      specedge models pull someone/whisper-small-finetuned
    """
    if name in catalogue.FILES:
        if revision is not None:
            raise UsageError(f"--revision goes with a checkpoint of the hub; {name} is one published file")
        click.echo(store.fetch_file(name))
        return
    from specedge.export.export import pull_model

    target, is_new = pull_model(name, precision=precision, revision=revision)
    if not is_new:
        click.echo(f"{target.name} is installed already; remove it first to export it again", err=True)
    click.echo(target)


@models.command()
@click.argument("name", shell_complete=installed_models)
def rm(name: str) -> None:
    """Remove the model NAME from the store. The bundled model stays.

    \b
    Examples:
      specedge models rm small
    """
    removed = store.remove_file(name) if name in catalogue.FILES else store.remove(name)
    click.echo(f"removed {removed}", err=True)


def _installed() -> list[dict[str, Any]]:
    # Only here, so that `specedge models --help` does not pay for it.
    from ..bundle.bundle import read_manifest

    rows = []
    for item in store.installed():
        row: dict[str, Any] = {"name": item.name, "size_bytes": item.size_bytes, "precision": None, "problem": None}
        try:
            row["precision"] = read_manifest(item.path)[0].precision
        except BundleError as error:
            row["problem"] = str(error)
        rows.append(row | {"bundled": item.bundled, "path": str(item.path)})
    return rows


def _installed_table(rows: list[dict[str, Any]]) -> list[str]:
    from .doctor import format_size, table

    lines = [("NAME", "SIZE", "PRECISION", "FROM", "PATH")]
    for row in rows:
        origin = "package" if row["bundled"] else "store"
        lines.append((row["name"], format_size(row["size_bytes"]), row["precision"] or "broken", origin, row["path"]))
    return table(lines)


def _known() -> list[dict[str, Any]]:
    names = ("name", "hub_id", "n_params_m", "languages", "revision", "note")
    return [{name: getattr(known, name) for name in names} for known in catalogue.CHECKPOINTS.values()]


def _known_table(rows: list[dict[str, Any]]) -> list[str]:
    from .doctor import table

    lines = [("NAME", "PARAMETERS", "LANGUAGES", "HUB", "COMMIT", "NOTE")]
    for row in rows:
        commit, size = (row["revision"] or "not pinned")[:12], f"{row['n_params_m']} M"
        lines.append((row["name"], size, str(row["languages"]), row["hub_id"], commit, row["note"]))
    return table(lines)
