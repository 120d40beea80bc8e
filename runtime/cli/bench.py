"""`specedge bench`: drafters, short audio encoded alone, and peers beside plain decoding on the user's own audio."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specedge.errors import SpecedgeError, UsageError

from ..console import is_terminal, notify
from ..options import CPU, TranscribeOptions
from .options import JSON, ModelOptions, fields_of, installed_models, made, options_of

if TYPE_CHECKING:
    from ..bench.measure import Findings, Plan
    from ..bench.peers import Peer
    from ..bench.rounds import Timer
    from ..bundle.bundle import Bundle
    from ..decoding.drafter import Drafter

_FILE = click.Path(path_type=Path)
_DRAFTERS = (
    click.option("--drafters", metavar="NAMES", help="Drafters to measure, with commas.  [default: all]"),
    click.option(
        "--token-map", "token_maps", multiple=True, metavar="FILE", type=_FILE, help="Token map (repeatable)."
    ),
    click.option("--draft-model", metavar="MODEL", shell_complete=installed_models, help="Smaller model that drafts."),
)


class _WithUsual(click.Group):
    """A group whose command `drafters` needs no name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named else ["drafters", *args])


@click.group(cls=_WithUsual)
def bench() -> None:
    """Measure the drafters on your own audio, or a model and other programs on recordings with texts.

    \b
    Examples:
      specedge bench talk.wav             which drafter to use: `drafters` need not be said
      specedge bench suite recordings/    errors, speed, memory and energy
    """


@bench.command()
@click.argument("files", nargs=-1, required=True, metavar="AUDIO...", type=click.Path(path_type=str))
@options_of(fields_of(ModelOptions, without=("downloads", "packs")), fields_of(TranscribeOptions, "language"))
@options_of(_DRAFTERS)
@click.option(
    "--reference",
    "references",
    multiple=True,
    metavar="FILE",
    type=_FILE,
    help="Transcript of each AUDIO, for word error rates.",
)
@click.option(
    "--rounds", type=click.IntRange(min=1), metavar="N", help="Rounds, at most.  [default: 5; 25 for short audio]"
)
@click.option(
    "--budget",
    "budget_s",
    type=click.FloatRange(min=1),
    default=150,
    show_default=True,
    metavar="SECONDS",
    help="Time for everything.",
)
@click.option(
    "--audio-context",
    is_flag=True,
    help="Measure short AUDIO encoded alone instead: files or folders, with NAME.txt beside NAME.wav, or a .jsonl file "
    "of audio, text and language.",
)
@JSON
@click.pass_context
def drafters(ctx: click.Context, /, files: tuple[str, ...], **given: Any) -> None:
    """Measure each drafter, and say which to use.

    Give a minute or so of your own AUDIO. Each window is decoded once, at temperature 0, also where `transcribe` would
    fall back to others. Close other programs, and run `specedge doctor --calibrate` first: drafters use its profile.
    If --budget is too short for everything, less is measured, and the report says so.

    With --json, or into a file or a pipe, standard output is one JSON object and the table goes to standard error. The
    exit code is 1 where a text differs from plain decoding's.

    \b
    Examples:
      specedge bench talk.wav
      specedge bench shift1.wav shift2.wav -m whisper-base --draft-model whisper-tiny
      specedge bench talk.wav --reference talk.txt --drafters ctc,ngram
      specedge bench talk.wav --json | jq .recommendation
      specedge bench --audio-context commands/ -l en
    """
    if given["audio_context"]:
        _compare_contexts(files, given)
        return
    from ..audio.audio import open_audio
    from ..bench.rounds import Timer
    from ..drafters.registry import threads_here

    timer = Timer(given["budget_s"])
    for file in files:  # fail before minutes are spent
        if file == "-":
            raise UsageError("-: audio is read several times, and standard input can be read once: give a file")
        with open_audio(file):
            pass
    bundle = made(ModelOptions, given).open(given["language"])
    threads = given["threads"] or threads_here(bundle)
    findings = _measured(bundle, _plan(files, bundle, given), threads, timer, given["encoder_provider"])
    _report(findings, as_json=given["as_json"] or not is_terminal(sys.stdout))
    if not findings.lossless:
        ctx.exit(SpecedgeError.exit_code)


@bench.command()
@click.argument("recordings", nargs=-1, required=True, metavar="RECORDINGS...", type=click.Path(path_type=str))
@options_of(
    fields_of(ModelOptions, without=("downloads", "packs")),
    fields_of(TranscribeOptions, "language", "audio_context"),
    _DRAFTERS,
)
@click.option("--rounds", type=click.IntRange(min=1), default=1, show_default=True, help="Timed rounds.")
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
@click.pass_context
def suite(ctx: click.Context, /, recordings: tuple[str, ...], **given: Any) -> None:
    """Measure errors, speed, memory and energy on RECORDINGS.

    Every drafter transcribes them, and so does every other program that is installed. RECORDINGS have texts: they are
    folders with NAME.txt beside NAME.wav, or .jsonl files (also in a folder) whose lines have audio,
    text and language. Texts, tokens and passes are the same each time; times want a quiet machine. docs/bench.md says
    what the keys of -f json mean. The exit code is 1 where a text differs from plain decoding's.

    \b
    Examples:
      specedge bench suite recordings/ -m base -l en
      specedge bench suite set.jsonl -m base -f json --picture base.svg
      specedge bench suite set.jsonl --drafters none,auto --peer faster-whisper=FOLDER --rounds 3
    """
    import json

    from ..audio.audio import open_audio
    from ..bench import suite_report
    from ..bench.recordings import read_recordings
    from ..bench.suite import run_suite
    from ..console import Progress
    from ..drafters.registry import threads_here
    from ..engine.packed import map_large_blocks
    from ..engine.speech import open_engine

    found = read_recordings(recordings, given["language"])
    for one in found:  # fail before minutes are spent
        with open_audio(one.file):
            pass
    bundle = made(ModelOptions, given).open(given["language"])
    plan = _plan(recordings, bundle, {**given, "references": ()})
    names, n_rounds = _with_auto(plan.drafters, given), given["rounds"]
    map_large_blocks()
    threads, provider = given["threads"] or threads_here(bundle), given["encoder_provider"]
    engine = open_engine(bundle, threads=threads, encoder_provider=provider)
    with (
        Progress(len(found) * len(names) * (1 + n_rounds), "transcriptions", "bench") as progress,
        engine.interruptible(),
    ):
        measured = run_suite(
            engine,
            bundle,
            found,
            names,
            _maker(bundle, engine, plan),
            audio_context=given["audio_context"],
            n_rounds=n_rounds,
            peers=_peers(given["peers"], bundle, engine.threads),
            on_heard=progress.update,
        )
    if given["picture"] is not None:
        given["picture"].write_text(suite_report.picture(measured), encoding="utf-8")
    as_json = given["form"] == "json" or (given["form"] is None and not is_terminal(sys.stdout))
    for line in suite_report.lines(measured):
        click.echo(line, err=as_json)
    if as_json:
        click.echo(json.dumps(suite_report.to_json(measured), ensure_ascii=False))
    if any(row.different for row in measured.drafters.values()):
        ctx.exit(SpecedgeError.exit_code)


def _with_auto(names: tuple[str, ...], given: dict[str, Any]) -> tuple[str, ...]:
    return names if given["drafters"] or "auto" in names else (*names, "auto")


def _maker(bundle: Bundle, engine: Any, plan: Plan) -> Callable[[str, bool], Drafter]:
    from ..decoding.drafter import TargetModel
    from ..drafters.registry import make_drafter

    def make(name: str, weighs: bool) -> Drafter:
        canceller = getattr(engine, "canceller", None)
        target = TargetModel(bundle, threads=engine.threads, canceller=canceller, weighs=weighs)
        return make_drafter(plan.options_for(name), target)

    return make


def _peers(given: tuple[str, ...], bundle: Bundle, threads: int) -> Callable[[], list[Peer]]:
    """What opens the peers that are given, else those that are here. Raises UsageError for one that there is not."""
    from ..bench.peers import PEERS, open_peer, peers_here

    asked = [(name, model) for name, _, model in (peer.partition("=") for peer in given)]
    for name, _ in asked:
        if name not in PEERS:
            raise UsageError(f"--peer {name}: expected one of {', '.join(PEERS)}")

    def opened() -> list[Peer]:
        found = []
        for name, model in asked or peers_here(bundle.manifest.source.id.rpartition("whisper-")[2]):
            try:
                found.append(open_peer(name, model, threads, bundle.manifest.precision))
            except UsageError as error:
                if asked:
                    notify(f"left out: {error}")
        return found

    return opened


def _compare_contexts(files: tuple[str, ...], given: dict[str, Any]) -> None:
    """Report short audio encoded alone beside whole windows. Raises UsageError."""
    import json

    from ..bench import short_audio
    from ..bench.recordings import read_recordings
    from ..bench.rounds import Timer
    from ..console import Progress
    from ..engine.packed import map_large_blocks
    from ..engine.speech import open_engine

    for option in ("drafters", "token_maps", "draft_model", "references"):
        if given[option]:
            flag = "--" + option.removesuffix("s" if option != "drafters" else "").replace("_", "-")
            raise UsageError(f"{flag} has no effect with --audio-context")
    found = read_recordings(files, given["language"])
    bundle = made(ModelOptions, given).open(given["language"])
    n_rounds = given["rounds"] or short_audio.ROUNDS
    with Progress(len(found) * n_rounds, "recordings", "bench") as progress:
        map_large_blocks()
        engine = open_engine(bundle, threads=given["threads"] or None, encoder_provider=given["encoder_provider"])
        with engine.interruptible():
            compared = short_audio.compare_contexts(
                engine, bundle, found, n_rounds=n_rounds, timer=Timer(given["budget_s"]), on_heard=progress.update
            )
    as_json = given["as_json"] or not is_terminal(sys.stdout)
    for line in short_audio.lines(compared):
        click.echo(line, err=as_json)
    if compared.n_left_out:
        notify(f"{compared.n_left_out} recordings were left out: longer than a window, or behind the end of --budget")
    if as_json:
        click.echo(json.dumps(short_audio.to_json(compared)))


def _plan(files: tuple[str, ...], bundle: Bundle, given: dict[str, Any]) -> Plan:
    """What to measure. Raises UsageError."""
    from specedge.models import store

    from ..bench.measure import Plan, read_references
    from ..drafters.registry import runnable
    from ..options import DRAFTERS, HAS_MODEL, READS_MAPS, DrafterOptions
    from ..text.special import find_language

    options = DrafterOptions("auto", token_maps=given["token_maps"], draft_model=given["draft_model"])
    able = runnable(bundle, options)
    if "draft" not in able and store.known_draft(bundle.manifest.name) is not None:
        able = (*able, "draft")
    asked = able if given["drafters"] is None else tuple(name.strip() for name in given["drafters"].split(","))
    for name in asked:
        if name not in DRAFTERS:
            raise UsageError(f"--drafters {name}: expected some of {', '.join(DRAFTERS)}")
        if name not in (*able, "auto"):
            raise UsageError(
                f"--drafters {name}: {bundle.manifest.name} has {', '.join(able)}; draft needs --draft-model, tokenmap "
                "needs --token-map or a model that brings a map, the others a model that brings heads"
            )
    for option, readers in (("token_maps", READS_MAPS), ("draft_model", HAS_MODEL)):
        if given[option] and not set(readers) & set(asked):
            flag = "--" + option.rstrip("s").replace("_", "-")
            raise UsageError(f"{flag} has no effect without {' or '.join(readers)} among --drafters")
    return Plan(
        files=files,
        drafters=tuple(dict.fromkeys(("none", *asked))),
        token_maps=given["token_maps"],
        draft_model=given["draft_model"],
        language=None if given["language"] is None else find_language(given["language"]),
        references=read_references(given["references"], len(files)),
        rounds=given["rounds"],
    )


def _measured(bundle: Bundle, plan: Plan, threads: int | None, timer: Timer, provider: str) -> Findings:
    from ..bench.measure import bench as measure
    from ..console import Progress
    from ..engine.packed import map_large_blocks
    from ..engine.speech import open_engine

    n_drafters = len(plan.drafters)
    with Progress(n_drafters * len(plan.files) * (1 + plan.n_rounds), "transcriptions", "bench") as progress:
        map_large_blocks()
        engine = open_engine(bundle, threads=threads, encoder_provider=provider)
        known = bundle if provider == CPU else bundle.behind(engine.encoder_provider)
        with engine.interruptible():
            return measure(engine, known, plan, timer=timer, on_heard=progress.update)


def _report(findings: Findings, *, as_json: bool) -> None:
    """The table and the recommendation; with `as_json` on standard error, and one JSON object on the output."""
    import json
    import shutil

    from ..bench.report import conditions, remarks, table, to_json

    click.echo(conditions(findings) + "\n", err=as_json)
    for line in table(findings, shutil.get_terminal_size().columns, blocks=_has_blocks(as_json)):
        click.echo(line, err=as_json)
    click.echo(err=as_json)
    for remark in remarks(findings):
        notify(remark)
    click.secho(findings.recommendation.words(), bold=True, err=as_json)
    if as_json:
        click.echo(json.dumps(to_json(findings)))


def _has_blocks(err: bool) -> bool:
    """Whether the stream's encoding has block characters."""
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "ascii"
    try:
        "█░".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
