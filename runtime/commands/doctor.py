"""`specedge doctor`: whether this machine keeps a bundle's promises."""

from __future__ import annotations

import click

from specedge.runtime.commands.completing import installed_models
from specedge.runtime.errors import SpecedgeError


@click.command()
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    shell_complete=installed_models,
    help="Model name or bundle folder.  [default: the bundled demo]",
)
@click.option("-t", "--threads", type=click.IntRange(1, 256), multiple=True, help="Threads to probe (repeatable).")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def doctor(model: str | None, threads: tuple[int, ...], as_json: bool) -> int:
    """Check that this machine keeps a bundle's promises: kernels right, rows bit-identical for every pass width.

    Exits with 1 when a promise does not hold, and says what to do.

    \b
    Examples:
      specedge doctor
      specedge doctor -m whisper-small
      specedge doctor -m ./bundle --json
    """
    import json

    from specedge.models import store
    from specedge.runtime.bundles.bundle import Bundle
    from specedge.runtime.doctor import examine, render

    report = examine(Bundle.open(store.default() if model is None else store.find(model)), threads=threads or None)
    click.echo(json.dumps(report.to_json(), indent=2) if as_json else render(report))
    return 0 if report.healthy else SpecedgeError.exit_code
