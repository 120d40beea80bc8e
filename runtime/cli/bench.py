"""`specedge bench`: drafters, short audio encoded alone, and peers beside plain decoding on the user's own audio."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specedge.errors import SpecedgeError, UsageError

from ..console import is_terminal, notify
from ..options import HAS_MODEL, READS_MAPS, DrafterOptions, TranscribeOptions
from .options import JSON, ModelOptions, fields_of, made, options_of

if TYPE_CHECKING:
    from ..bench.measure import Findings
    from ..bench.rounds import Way
    from ..bundle.bundle import Bundle

_FILE = click.Path(path_type=Path)


class _Bench(click.Command):
    """The command, which may also be written `bench suite`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args[1:] if args[:1] == ["suite"] else args)


@click.command(cls=_Bench)
@click.argument("recordings", nargs=-1, required=True, metavar="RECORDINGS...", type=click.Path(path_type=str))
@options_of(fields_of(ModelOptions, without=("downloads",)), fields_of(TranscribeOptions, "language"))
@click.option("--drafters", metavar="NAMES", help="Drafters to measure, with commas.  [default: all]")
@options_of(fields_of(DrafterOptions, "token_maps", "draft_model"))
@click.option(
    "--rounds", type=click.IntRange(min=1), metavar="N", help="Timed rounds.  [default: a minute of them, 1 to 25]"
)
@click.option(
    "--audio-context",
    is_flag=True,
    help="Compare short audio encoded alone (auto) with whole windows (full), plainly or with --drafters.",
)
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="NAME=MODEL",
    help="faster-whisper with a CTranslate2 folder, openai-whisper with a .pt file (repeatable).  [default: those "
    "installed that have this model on disk]",
)
@click.option("--picture", type=_FILE, metavar="FILE.svg", help="Draw speed against word errors.")
@click.option("-f", "--format", "form", type=click.Choice(["table", "json"]), help="[default: table on a terminal]")
@JSON
@click.pass_context
def bench(ctx: click.Context, /, recordings: tuple[str, ...], **given: Any) -> None:
    """Measure each drafter on RECORDINGS, and say which to use: speed, errors, memory and energy.

    A minute or so of your own audio says which drafter is the fastest; where there are texts, errors are counted.
    RECORDINGS are audio files or folders, with NAME.txt beside NAME.wav, or .jsonl files (also in a folder) whose lines
    have audio, text and language. Every other program that is installed transcribes them, too.

    Texts, tokens and passes are the same each time. Times want a quiet machine: close other programs, and run `specedge
    doctor --calibrate` first, whose profile drafters use.

    With -f json, or into a file or a pipe, standard output is one JSON object (docs/bench.md has its keys) and the
    tables go to standard error. The exit code is 1 where a text differs from plain decoding's. `bench suite` is the
    same command.

    \b
    Examples:
      specedge bench talk.wav
      specedge bench shift1.wav shift2.wav -m whisper-base --draft-model whisper-tiny
      specedge bench talk.wav --json | jq .recommendation
      specedge bench --audio-context commands/ -l en
      specedge bench set.jsonl -m base --drafters none,auto --peer faster-whisper=FOLDER --picture base.svg
    """
    from ..audio.audio import open_audio
    from ..bench.measure import bench as measure
    from ..bench.recordings import read_recordings
    from ..console import Progress
    from ..model import load

    if "-" in recordings:
        raise UsageError("-: audio is read several times, and standard input can be read once: give a file")
    found = read_recordings(recordings, given["language"])
    for one in found:  # fail before minutes are spent
        with open_audio(one.file):
            pass
    path, n_rounds = made(ModelOptions, given).find(given["language"]), given["rounds"]
    engine, bundle = load(path, given["threads"], None, given["encoder_provider"])
    ways, peers = _ways(bundle, given), _peers(given["peers"], bundle)
    n_all = None if n_rounds is None else len(found) * len(ways) * (1 + n_rounds)
    with Progress(n_all, "transcriptions", "bench") as progress, engine.interruptible():
        findings = measure(engine, bundle, found, ways, n_rounds=n_rounds, peers=peers, on_heard=progress.update)
    _report(findings, given)
    if not findings.lossless:
        ctx.exit(SpecedgeError.exit_code)


def _ways(bundle: Bundle, given: dict[str, Any]) -> list[Way]:
    """What to compare, plain decoding first. Raises UsageError."""
    from specedge.models import store

    from ..bench.rounds import Way
    from ..drafters.registry import runnable

    token_maps, draft_model = given["token_maps"], given["draft_model"]
    able = runnable(bundle, DrafterOptions("auto", token_maps=token_maps, draft_model=draft_model))
    if "draft" not in able and store.known_draft(bundle.manifest.name) is not None:
        able = (*able, "draft")
    able = (*able, "auto")
    usual = ("none",) if given["audio_context"] else able
    asked = usual if given["drafters"] is None else tuple(name.strip() for name in given["drafters"].split(","))
    for name in asked:
        if name not in able:
            raise UsageError(
                f"--drafters {name}: {bundle.manifest.name} has {', '.join(able)}; draft needs --draft-model, tokenmap "
                "needs --token-map or a model that brings a map, the others a model that brings heads"
            )
    for option, readers in (("token_maps", READS_MAPS), ("draft_model", HAS_MODEL)):
        if given[option] and not set(readers) & set(asked):
            flag = "--" + option.rstrip("s").replace("_", "-")
            raise UsageError(f"{flag} has no effect without {' or '.join(readers)} among --drafters")
    drafters = [
        DrafterOptions(
            name,
            token_maps=token_maps if name in READS_MAPS else (),
            draft_model=draft_model if name in HAS_MODEL else None,
        )
        for name in dict.fromkeys(("none", *asked))
    ]
    if not given["audio_context"]:
        return [Way(drafter=each) for each in drafters]
    full_or_short = [(how, TranscribeOptions(audio_context=how)) for how in ("full", "auto")]
    return [Way(drafter=each, options=options, note=how) for how, options in full_or_short for each in drafters]


def _peers(given: tuple[str, ...], bundle: Bundle) -> list[tuple[str, str]]:
    """Names and models of the peers that are given, else of those that are here. Raises UsageError."""
    from ..bench.peers import PEERS, peers_here

    asked = [(name, model) for name, _, model in (peer.partition("=") for peer in given)]
    for name, _ in asked:
        if name not in PEERS:
            raise UsageError(f"--peer {name}: expected one of {', '.join(PEERS)}")
    return asked or peers_here(bundle.manifest.source.id.rpartition("whisper-")[2])


def _report(findings: Findings, given: dict[str, Any]) -> None:
    """The tables and the recommendation; for JSON on standard error, and one JSON object on the output."""
    import json
    import shutil

    from ..bench import report

    is_json = given["as_json"] or given["form"] == "json"
    as_json = is_json or (given["form"] is None and not is_terminal(sys.stdout))
    if given["picture"] is not None:
        given["picture"].write_text(report.picture(findings), encoding="utf-8")
    click.echo(report.conditions(findings) + "\n", err=as_json)
    for line in report.speed_ups(findings, shutil.get_terminal_size().columns):
        click.echo(line, err=as_json)
    click.echo(err=as_json)
    for line in report.costs(findings):
        click.echo(line, err=as_json)
    click.echo(err=as_json)
    for remark in report.remarks(findings):
        notify(remark)
    if not given["audio_context"]:
        click.secho(findings.recommendation.words(), bold=True, err=as_json)
    if as_json:
        click.echo(json.dumps(report.to_json(findings), ensure_ascii=False))
