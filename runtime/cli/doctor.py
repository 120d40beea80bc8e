"""`specedge doctor`: whether this machine keeps a bundle's promises.

`specedge inspect`: what a bundle holds.

`specedge calibrate`: time this model's passes on this device, and keep the result for the drafters.

Does not know: what is measured and how (`calibrate`), what drafters make of it (`costs`).

`specedge completion`: the script with which a shell completes commands and options.
"""

from __future__ import annotations

import click

from specedge.errors import SpecedgeError

from .options import installed_models


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

    from ..bundle.bundle import Bundle
    from ..engine.doctor import examine, render

    report = examine(Bundle.open(store.default() if model is None else store.find(model)), threads=threads or None)
    click.echo(json.dumps(report.to_json(), indent=2) if as_json else render(report))
    return 0 if report.healthy else SpecedgeError.exit_code


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

    from ..bundle.bundle import Bundle
    from ..bundle.inspect import describe, describe_json

    opened = Bundle.open(store.find(bundle), verify=not no_verify)
    click.echo(json.dumps(describe_json(opened), indent=1) if as_json else describe(opened))


@click.command()
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    shell_complete=installed_models,
    help="Model name or bundle folder.  [default: the bundled demo]",
)
@click.option("-t", "--threads", type=click.IntRange(min=0), metavar="N", help="CPU threads.  [default: by machine]")
@click.option("--json", "as_json", is_flag=True, help="Print the profile as JSON.")
def calibrate(model: str | None, threads: int | None, as_json: bool) -> None:
    """Measure what a pass of k rows costs here, in under a minute, and keep it for the drafters.

    Close other programs first: a busy machine makes long drafts look cheaper than they are. The profile belongs to this
    model, CPU, number of threads and version of ONNX Runtime; without one, drafters use a built-in table.

    \b
    Examples:
      specedge calibrate
      specedge calibrate -m whisper-small -t 4
    """
    import json

    from specedge.models import store

    from ..bundle.bundle import Bundle
    from ..console import Progress
    from ..device import save_profile
    from ..engine.calibrate import measure, usual_frames
    from ..engine.engine import Engine

    bundle = Bundle.open(store.default() if model is None else store.find(model))
    engine = Engine(bundle, threads=threads or None)
    with engine.interruptible(), Progress(1.0, "", "calibrating") as progress:
        profile = measure(engine, on_progress=progress.update_to)
    path = save_profile(bundle.digest, profile)
    if as_json:
        click.echo(json.dumps(profile.to_json()))
        return
    click.echo(f"{bundle.manifest.name}, {profile.threads} threads, {profile.rounds} rounds")
    click.echo(f"{usual_frames(bundle.manifest) / 100:.1f} s of audio encoded in {profile.encode_s * 1e3:.1f} ms")
    click.echo("rows a pass      ms  of one row")
    one_s = profile.pass_s[1]
    for n_rows, seconds in profile.pass_s.items():
        click.echo(f"{n_rows:11d}  {seconds * 1e3:6.2f}  {seconds / one_s:10.2f}")
    if profile.paths_s:
        click.echo(f"several paths in a pass: {profile.paths_s * 1e3:.2f} ms more than as many rows of one")
    click.echo(f"kept in {path}")


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
