"""`specedge completion`: the script with which a shell completes commands and options."""

from __future__ import annotations

import click

_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete specedge's commands and options.

    \b
    Examples:
      eval "$(specedge completion bash)"      in ~/.bashrc
      eval "$(specedge completion zsh)"       in ~/.zshrc
      specedge completion fish > ~/.config/fish/completions/specedge.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"this version of click knows no {shell}", ctx=ctx)
    made = kind(ctx.find_root().command, {}, "specedge", "_SPECEDGE_COMPLETE")
    # Not `made.source()`, which starts a bash to see its version, and answers with a remark on standard output.
    click.echo(made.source_template % made.source_vars())
