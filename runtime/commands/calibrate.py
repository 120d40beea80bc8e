"""`specedge calibrate`: time this model's passes on this device, and keep the result for the drafters.

Does not know: what is measured and how (`calibrate`), what drafters make of it (`costs`).
"""

from __future__ import annotations

import click

from specedge.runtime.commands.completing import installed_models


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
    from specedge.runtime.bundles.bundle import Bundle
    from specedge.runtime.decoding.calibrate import measure, save_profile, usual_frames
    from specedge.runtime.passes.engine import Engine
    from specedge.runtime.progress import Progress

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
