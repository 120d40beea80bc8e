"""`specedge map`: token maps built from transcripts, looked into, tried out, merged and compared."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from specedge.errors import AudioError, MapError, SpecedgeError, UsageError

from ..console import notify
from .errors import fail
from .options import installed_models

if TYPE_CHECKING:
    from specedge.maps.merge import Change

    from ..bench.map_eval import Replay, Watched
    from ..bundle.bundle import Bundle
    from ..device import CostTable
    from ..engine.engine import Engine
    from ..options import TranscribeOptions
    from ..text.tokenizer import Tokenizer

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_Report = Callable[[Exception], None]
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?b?", re.IGNORECASE)


class _Size(click.ParamType[int]):
    """A number of bytes, such as 10MB or 512KiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(value.strip())
        size = int(float(match[1]) * _UNITS[(match[2] or "").lower()]) if match else 0
        if size < 1:
            self.fail(f"{value!r} is no size, expected one such as 10MB or 512KiB", param, ctx)
        return size


_MODEL = click.option(
    "-m",
    "--model",
    metavar="MODEL",
    shell_complete=installed_models,
    help="Model whose vocabulary is used.  [default: the bundled demo]",
)

_OUTPUT = click.option(
    "-o", "--output", required=True, metavar="X.tmap", type=click.Path(dir_okay=False), help="The map."
)
_BUDGET = click.option("--budget", type=_Size(), metavar="SIZE", help="Largest file, such as 10MB.  [default: none]")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("map")
def token_map() -> None:
    """Build and inspect token maps: what tends to follow in your own transcripts, for faster decoding.

    \b
    Examples:
      specedge map build transcripts/ -o plant.tmap
      specedge map eval plant.tmap --text heldout.txt
      specedge map eval plant.tmap --audio heldout.wav
      specedge transcribe shift.wav --drafter tokenmap --token-map plant.tmap
    """


@token_map.command()
@click.argument("transcripts", nargs=-1, required=True, metavar="TRANSCRIPTS...", type=click.Path())
@_OUTPUT
@_MODEL
@click.option("-n", "--order", type=click.IntRange(1, 5), default=4, show_default=True, help="Longest key, in tokens.")
@click.option("--candidates", type=click.IntRange(1, 8), default=3, show_default=True, help="At most, for each key.")
@click.option("--max-length", type=click.IntRange(1, 64), default=32, show_default=True, help="Tokens of a candidate.")
@click.option(
    "--min-count", type=click.IntRange(min=1), default=2, show_default=True, help="Occurrences a candidate needs."
)
@_BUDGET
@click.pass_context
def build(ctx: click.Context, /, transcripts: tuple[str, ...], output: str, model: str | None, **given: Any) -> None:
    """Make a token map from TRANSCRIPTS: txt, srt, vtt, tsv, json, jsonl, folders, or `-` for standard input.

    A line of txt is a sentence; segments of timed formats are joined up to the end of a sentence. The map fits every
    model with the vocabulary of MODEL: one made for a multilingual Whisper serves v1, v2 and v3.

    \b
    Examples:
      specedge map build transcripts/ -o plant.tmap
      specedge map build a.srt b.vtt talks.jsonl -o talks.tmap --budget 10MB
      zcat corpus.txt.gz | specedge map build - -o corpus.tmap -n 3 --min-count 5
    """
    from specedge.maps.build import BuildOptions
    from specedge.maps.build import build as build_map

    options = BuildOptions(
        n_orders=given["order"],
        n_candidates=given["candidates"],
        max_length=given["max_length"],
        min_count=given["min_count"],
        budget_bytes=given["budget"],
    )
    tokenizer, fingerprint = _vocabulary(model)
    failures: list[Exception] = []
    with ExitStack() as stack:
        sentences = _token_sentences(stack, transcripts, tokenizer, _reporter(ctx, failures), output)
        report = build_map(sentences, output, n_text=tokenizer.special.eot, fingerprint=fingerprint, options=options)
    notify(f"{output}: {report.n_sentences} sentences, {report.n_tokens} tokens")
    _finish(ctx, failures)


@token_map.command()
@click.argument("path", metavar="X.tmap", type=click.Path())
@_JSON
@click.option("--verify", is_flag=True, help="Check all checksums and contents first.")
def info(path: str, as_json: bool, verify: bool) -> None:
    """Show what a token map holds and how it was built.

    \b
    Examples:
      specedge map info plant.tmap
      specedge map info plant.tmap --json --verify
    """
    from specedge.maps.token_map import TokenMap

    with TokenMap.open(path) as opened:
        if verify:
            opened.verify()
        found = opened.info()
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    keys = ", ".join(f"{count} of {n}" for n, count in found["keys"].items())
    click.echo(f"{path}: {found['size_bytes']} bytes")
    click.echo(f"vocabulary  {found['n_text']} text tokens, {found['vocabulary'][:16]}")
    click.echo(f"keys        {keys} tokens")
    click.echo(f"candidates  {found['candidates']}, from a pool of {found['pool_tokens']} tokens")
    for name, value in found["build"].items():
        click.echo(f"{name:<11} {json.dumps(value)}")


@token_map.command("eval")
@click.argument("path", metavar="X.tmap", type=click.Path())
@click.option("--text", "texts", multiple=True, metavar="FILE", type=click.Path(), help="Transcript (repeatable).")
@click.option("--audio", "audios", multiple=True, metavar="FILE", type=click.Path(), help="Audio (repeatable).")
@click.option("-l", "--language", metavar="LANG", help="Spoken language of the audio.  [default: detected]")
@_MODEL
@_JSON
@click.pass_context
def evaluate(ctx: click.Context, /, path: str, texts: tuple[str, ...], audios: tuple[str, ...], **given: Any) -> None:
    """Try a token map on held-out transcripts, without running a model, or on audio, with MODEL.

    Replays each text as if the model said it, or transcribes the audio with the drafter tokenmap, and prices the passes
    with a table of decoder costs: what `specedge calibrate` measured here if it did, else a usual device's. It
    judges the decoder alone; the encoder takes its time as before.

    \b
    Examples:
      specedge map eval plant.tmap --text heldout.txt
      specedge map eval plant.tmap --text a.srt --text more/ --json
      specedge map eval plant.tmap --audio shift.wav -m small
    """
    if bool(texts) == bool(audios):
        raise UsageError("map eval: expected --text or --audio, one of them")
    failures: list[Exception] = []
    report = _reporter(ctx, failures)
    if audios:
        rows = _evaluated_audio(path, audios, given["model"], given["language"], report)
    else:
        rows = _evaluated_text(path, texts, given["model"], report)
    if given["as_json"]:
        click.echo(json.dumps(rows))
    else:
        for name, value in rows.items():
            click.echo(f"{name.replace('_', ' '):<26} {value if not isinstance(value, dict) else json.dumps(value)}")
    _finish(ctx, failures, "transcripts" if texts else "recordings")


def _evaluated_text(path: str, texts: tuple[str, ...], model: str | None, report: _Report) -> dict[str, Any]:
    """The figures of a replay."""
    from specedge.maps.token_map import TokenMap

    from ..bench.map_eval import replay
    from ..device import threads_allowed
    from ..drafters.registry import costs_here

    bundle = _vocabulary_bundle(model)
    costs = costs_here(bundle, threads_allowed())
    with ExitStack() as stack:
        opened = stack.enter_context(TokenMap.open(path, fingerprint=_fingerprint(bundle.tokenizer)))
        found = replay(opened, _token_sentences(stack, texts, bundle.tokenizer, report), costs)
    if not found.sentences:
        raise UsageError("there is no text in these files to try the map on")
    return {"sentences": found.sentences, **_figures(found, costs)}


def _evaluated_audio(
    path: str, audios: tuple[str, ...], model: str | None, language: str | None, report: _Report
) -> dict[str, Any]:
    """The figures of a transcription; audio that cannot be read is reported and passed over."""
    from pathlib import Path

    from specedge.maps.token_map import TokenMap
    from specedge.models import store

    from ..bench.map_eval import Watched
    from ..bundle.bundle import Bundle
    from ..decoding.drafter import DrafterOptions
    from ..drafters.registry import costs_here, make_drafter, threads_here
    from ..engine.engine import Engine
    from ..options import TranscribeOptions
    from ..text.words import ends_sentence

    bundle = Bundle.open(store.default() if model is None else store.find(model))
    engine = Engine(bundle, threads=threads_here(bundle))
    given = DrafterOptions(threads=engine.threads, token_maps=[Path(path)], engine=engine)
    made = make_drafter("tokenmap", bundle, given)
    costs = costs_here(bundle, engine.threads)
    options = TranscribeOptions(language=language)
    seconds = 0.0
    with TokenMap.open(path) as opened:
        watched = Watched(made, opened, costs, ends_sentence(bundle.tokenizer))
        for audio in audios:
            try:
                seconds += _listened(engine, bundle, audio, options, watched)
            except AudioError as error:
                report(error)
    if not watched.found.tokens:
        raise UsageError("there is no audio in these files to try the map on")
    return {"audio_s": round(seconds, 2), **_figures(watched.found, costs)}


def _listened(engine: Engine, bundle: Bundle, audio: str, options: TranscribeOptions, watched: Watched) -> float:
    """Transcribe a file; its seconds. Raises AudioError; MapError for a map that failed while it was used."""
    from ..audio.audio import open_audio
    from ..console import Progress
    from ..longform.transcribe import transcribe

    with open_audio(audio) as stream, Progress(stream.duration_s, "s", audio, is_time=True) as progress:
        made = transcribe(engine, bundle, stream, options, drafter=watched, on_progress=progress.update_to)
        for _ in made:
            pass
    if made.drafter_error is not None:
        raise MapError(f"{audio}: the map failed while it was used: {made.drafter_error}")
    return made.duration_s


def _figures(found: Replay, costs: CostTable) -> dict[str, Any]:
    return {
        "tokens": found.tokens,
        "hit_rate": round(found.hit_rate, 4),
        "hits_by_key_length": {str(n): found.hits_by_order[n] for n in sorted(found.hits_by_order)},
        "proposed": found.proposed,
        "accepted": found.accepted,
        "acceptance_rate": round(found.acceptance_rate, 4),
        "mean_accepted_length": round(found.mean_accepted, 3),
        "tokens_per_pass": round(found.tokens_per_pass, 3),
        "expected_decoder_speed_up": round(found.speed_up, 3),
        "costs": {"rows": costs.rows, "relative": [round(cost, 4) for cost in costs.relative]},
    }


@token_map.command()
@click.argument("paths", nargs=-1, required=True, metavar="A.tmap B.tmap...", type=click.Path())
@_OUTPUT
@_BUDGET
def merge(paths: tuple[str, ...], output: str, budget: int | None) -> None:
    """Make one token map of several of the same vocabulary, their counts added.

    \b
    Examples:
      specedge map merge january.tmap february.tmap -o year.tmap
      specedge map merge *.tmap -o all.tmap --budget 10MB
    """
    from specedge.maps.merge import merge as merge_maps
    from specedge.maps.token_map import TokenMap

    with ExitStack() as stack:
        opened = [stack.enter_context(TokenMap.open(path)) for path in paths]
        merge_maps(opened, output, budget_bytes=budget)


@token_map.command()
@click.argument("left", metavar="A.tmap", type=click.Path())
@click.argument("right", metavar="B.tmap", type=click.Path())
@click.option("--top", type=click.IntRange(min=0), default=20, show_default=True, help="Differences to show.")
@_MODEL
@_JSON
def diff(left: str, right: str, top: int, model: str | None, as_json: bool) -> None:
    """Show what two token maps say differently, the most frequent first.

    \b
    Examples:
      specedge map diff old.tmap new.tmap
      specedge map diff old.tmap new.tmap --top 100 --json
    """
    from specedge.maps.merge import diff as diff_maps
    from specedge.maps.token_map import TokenMap

    tokenizer, fingerprint = _vocabulary(model)
    with TokenMap.open(left, fingerprint=fingerprint) as a, TokenMap.open(right, fingerprint=fingerprint) as b:
        found = diff_maps(a, b, n_top=top)
    counts = {name: getattr(found, name) for name in ("only_left", "only_right", "changed", "recounted", "same")}
    if as_json:
        shown = [_shown_change(change, tokenizer) for change in found.top]
        click.echo(json.dumps(counts | {"top": shown}))
        return
    click.echo(", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items()))
    for row in (_shown_change(change, tokenizer) for change in found.top):
        click.echo(f"{row['key']!r}: {row['left']!r} ({row['left_count']}) -> {row['right']!r} ({row['right_count']})")


def _shown_change(change: Change, tokenizer: Tokenizer) -> dict[str, Any]:
    def text(ids: tuple[int, ...] | None) -> str | None:
        return None if ids is None else tokenizer.decode([id_ for id_ in ids if id_ < tokenizer.special.eot])

    return {
        "key": text(change.key),
        "left": text(change.left),
        "right": text(change.right),
        "left_count": change.left_count,
        "right_count": change.right_count,
    }


def _vocabulary(model: str | None) -> tuple[Tokenizer, bytes]:
    """The tokenizer of a model and the fingerprint of its text tokens."""
    tokenizer = _vocabulary_bundle(model).tokenizer
    return tokenizer, _fingerprint(tokenizer)


def _vocabulary_bundle(model: str | None) -> Bundle:
    """A model's bundle, of which the tokenizer is used: its own fingerprint is checked, the weights need no hashing."""
    from specedge.models import store

    from ..bundle.bundle import Bundle

    return Bundle.open(store.default() if model is None else store.find(model), verify=False)


def _fingerprint(tokenizer: Tokenizer) -> bytes:
    from specedge.maps.tmap_format import text_fingerprint

    return text_fingerprint(tokenizer.ranks, tokenizer.special.eot)


def _token_sentences(
    stack: ExitStack, sources: tuple[str, ...], tokenizer: Tokenizer, report: _Report, output: str | None = None
) -> Iterator[list[int]]:
    """The ids of all sentences, with a progress line while they are read. Raises UsageError for an `output` of them."""
    import os

    from specedge.files import check_output, identities
    from specedge.maps.tmap_format import TOKEN_MAP

    from ..console import Progress
    from ..text.transcripts import STDIN, find_transcripts, read_sentences, token_sentences

    files = find_transcripts(sources)
    if output is not None:
        check_output(output, TOKEN_MAP, inputs=identities(files))
    total = None if STDIN in files else sum(os.path.getsize(name) for name in files) / 1e6
    progress = stack.enter_context(Progress(total, "MB", "reading"))
    sentences = read_sentences(files, report=report, on_bytes=lambda n_bytes: progress.update(n_bytes / 1e6))
    return token_sentences(sentences, tokenizer)


def _reporter(ctx: click.Context, failures: list[Exception]) -> _Report:
    def report(error: Exception) -> None:
        failures.append(error)
        fail(error, debug=bool(ctx.find_root().obj))

    return report


def _finish(ctx: click.Context, failures: list[Exception], what: str = "transcripts") -> None:
    if failures:
        notify(f"{len(failures)} of the {what} could not be used")
        ctx.exit(SpecedgeError.exit_code)
