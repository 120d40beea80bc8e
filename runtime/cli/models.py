"""The command group `specedge models`: what is installed, where it is, get one, remove one.

Text goes to stdout, remarks to stderr. Errors are raised as `SpecedgeError`; the main command turns them into one line
and an exit code.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from specedge.errors import BundleError, UsageError
from specedge.models import catalogue, store

from .options import installed_models, known_models

PRECISIONS = ("fp32", "int8", "int4")


@click.group()
def models() -> None:
    """List, find, get and remove models.

    A model is a bundle: a folder made by `specedge export`. Those named here are kept in $SPECEDGE_HOME/models, or
    come with specedge.

    \b
    Examples:
      specedge models list
      specedge models pull small
      specedge transcribe talk.wav -m small
    """


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.option("--known", is_flag=True, help="List the checkpoints that `pull` knows by a short name instead.")
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
    help="Of the weights: int8 is fastest, int4 smallest and less accurate, fp32 the reference.",
)
@click.option("--revision", help="Branch, tag or commit on the hub.  [default: the catalogue's commit, else main]")
def pull(name: str, precision: str, revision: str | None) -> None:
    """Download the checkpoint NAME from the Hugging Face hub and export it into the store.

    NAME is a short name (`specedge models list --known`, which shows the commit that is fetched) or a hub id, whose
    commit is not pinned. Needs `pip install 'specedge[export]'`; honours HF_ENDPOINT (https) and HF_HUB_OFFLINE.
    Another precision than int8 is added to the name it is stored under. silero-vad, the neural detector of speech, is
    one small file and needs nothing else.

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
    return [
        {
            "name": item.name,
            "size_bytes": item.size_bytes,
            **_facts(item.path),
            "bundled": item.bundled,
            "path": str(item.path),
        }
        for item in store.installed()
    ]


def _facts(path: Path) -> dict[str, str | None]:
    # Only here, so that `specedge models --help` does not pay for it.
    from ..bundle.bundle import read_manifest

    try:
        return {"precision": read_manifest(path)[0].precision, "problem": None}
    except BundleError as error:
        return {"precision": None, "problem": str(error)}


def _installed_table(rows: list[dict[str, Any]]) -> list[str]:
    from .doctor import format_size, table

    lines = [("NAME", "SIZE", "PRECISION", "FROM", "PATH")]
    for row in rows:
        origin = "package" if row["bundled"] else "store"
        lines.append((row["name"], format_size(row["size_bytes"]), row["precision"] or "broken", origin, row["path"]))
    return table(lines)


def _known() -> list[dict[str, Any]]:
    return [
        {
            "name": c.name,
            "hub_id": c.hub_id,
            "n_params_m": c.n_params_m,
            "languages": c.languages,
            "revision": c.revision,
            "note": c.note,
        }
        for c in catalogue.CHECKPOINTS.values()
    ]


def _known_table(rows: list[dict[str, Any]]) -> list[str]:
    from .doctor import table

    lines = [("NAME", "PARAMETERS", "LANGUAGES", "HUB", "COMMIT", "NOTE")]
    for r in rows:
        commit = r["revision"][:12] if r["revision"] else "not pinned"
        lines.append((r["name"], f"{r['n_params_m']} M", str(r["languages"]), r["hub_id"], commit, r["note"]))
    return table(lines)
