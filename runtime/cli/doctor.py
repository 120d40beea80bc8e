"""`specedge doctor`: whether kernels are right on this machine, and what passes cost here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from specedge.errors import ResourceError, SpecedgeError

from ..console import notify
from ..options import CPU
from .options import JSON, GroupedCommand, ModelOptions, fields_of, options_of

if TYPE_CHECKING:
    from ..bundle.bundle import Bundle


@click.command(cls=GroupedCommand)
@options_of(fields_of(ModelOptions, "model"))
@click.option("-t", "--threads", type=click.IntRange(1, 256), multiple=True, help="Threads to try (repeatable).")
@JSON
@click.option("--calibrate", is_flag=True, help="Time passes here instead, and keep the result for the drafters.")
@options_of(fields_of(ModelOptions, "encoder_provider", is_usual=True, group="Options"))
@click.option("--force", is_flag=True, help="With --calibrate: keep the result of a busy machine too.")
def doctor(
    model: str | None, threads: tuple[int, ...], as_json: bool, calibrate: bool, encoder_provider: str, force: bool
) -> int:
    """Check that a row's bits do not depend on the rows beside it here, and that numbers are the exporting machine's.

    Also says whether several texts share passes: beams, batches and several callers are quicker then.
    Exits with 1 where a check fails, and says what to do.

    With --calibrate passes of different widths are timed, in under a minute. Close other programs first: on a busy
    machine long drafts look cheaper than they are. If the rounds disagree, they are measured once more, and nothing is
    kept if those disagree too. The profile belongs to this model, CPU, number of threads and version of ONNX Runtime;
    without one, drafters use a built-in table.

    \b
    Examples:
      specedge doctor
      specedge doctor -m ./bundle --json
      specedge doctor --calibrate -m whisper-small -t 4
    """
    bundle = ModelOptions(model=model).open()
    if calibrate:
        for n_threads in threads or (None,):
            _calibrate(bundle, n_threads, encoder_provider, force=force, as_json=as_json)
        return 0
    from ..engine.doctor import examine, render

    report = examine(bundle, threads=threads or None)
    click.echo(json.dumps(report.to_json(), indent=2) if as_json else render(report))
    return 0 if report.healthy else SpecedgeError.exit_code


def _calibrate(bundle: Bundle, threads: int | None, encoder_provider: str, *, force: bool, as_json: bool) -> None:
    """Time passes with so many threads and keep the profile. Raises ResourceError on a busy machine."""
    from ..console import Progress
    from ..device import BUSY, save_profile
    from ..engine.calibrate import measure
    from ..engine.speech import open_engine

    engine = open_engine(bundle, threads=threads, encoder_provider=encoder_provider)
    bundle = bundle if engine.encoder_provider == CPU else bundle.behind(engine.encoder_provider)
    for is_last in (False, True):
        with engine.interruptible(), Progress(1.0, "", "calibrating") as progress:
            profile = measure(engine, on_progress=progress.update_to)
        if profile.scatter <= BUSY or force:
            break
        said = f"this machine is busy: like rounds took up to {profile.scatter:.2f} times as long"
        if is_last:
            raise ResourceError(f"{said}; nothing is kept: close other programs and try again, or give --force")
        notify(f"{said}; measuring once more")
    path = save_profile(bundle.timed_digest, profile)
    if as_json:
        click.echo(json.dumps(profile.to_json()))
        return
    click.echo(f"{bundle.manifest.name}, {profile.threads} threads, {profile.rounds} rounds")
    click.echo(f"{bundle.manifest.window_s:.1f} s of audio encoded in {profile.encode_s * 1e3:.1f} ms")
    click.echo("rows a pass      ms  of one row")
    one_s = profile.pass_s[1]
    for n_rows, seconds in profile.pass_s.items():
        click.echo(f"{n_rows:11d}  {seconds * 1e3:6.2f}  {seconds / one_s:10.2f}")
    if profile.paths_s:
        click.echo(f"several paths in a pass: {profile.paths_s * 1e3:.2f} ms more than as many rows of one")
    click.echo(f"kept in {path}")
