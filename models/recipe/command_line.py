"""How the recipe's commands end: an error is one line on stderr, with its exit code."""

from __future__ import annotations

import click

from specedge.errors import SpecedgeError

__all__ = ["run_command"]


def run_command(command: click.Command) -> None:
    """Run `command` with the arguments of this process. Raises SystemExit."""
    try:
        command()
    except SpecedgeError as error:
        click.echo(f"specedge: {error}", err=True)
        raise SystemExit(error.exit_code) from None
