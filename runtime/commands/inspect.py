"""`specedge inspect`: what a bundle holds."""

from __future__ import annotations

import click

from specedge.runtime.commands.completing import installed_models


@click.command()
@click.argument("bundle", metavar="BUNDLE", shell_complete=installed_models)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--no-verify", is_flag=True, help="Do not hash the files, which takes a second for each few gigabytes.")
def inspect(bundle: str, as_json: bool, no_verify: bool) -> None:
    """Show what BUNDLE, a model's name or a bundle's folder, holds.

    \b
    Examples:
      specedge inspect demo
      specedge inspect out/whisper-small --json
    """
    import json

    from specedge.models import store
    from specedge.runtime.bundles.bundle import Bundle
    from specedge.runtime.bundles.inspect_bundle import describe, describe_json

    opened = Bundle.open(store.find(bundle), verify=not no_verify)
    click.echo(json.dumps(describe_json(opened), indent=1) if as_json else describe(opened))
