"""`specedge map`: token maps built from transcripts, merged, and inspected."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from specedge.errors import SpecedgeError, UsageError

from ..console import notify
from .errors import fail
from .next_step import say_next
from .options import JSON, ModelOptions, fields_of, options_of

if TYPE_CHECKING:
    from specedge.maps.token_map import Candidate, TokenMap

    from ..text.tokenizer import Tokenizer

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_CUTS = 16  # places at which the same words may be cut into key and continuation
_MULTILINGUAL_SIZE = 51865
# The vocabularies of OpenAI's models (maps.tmap_format.text_fingerprint): whose it is, whose it is not, one of them.
_KNOWN = {
    "71fe4e1f8cf3dd9c62a9d6fe743246dd2959634e9a1667b9c235cfc6b7601a79": ("multilingual", "English-only", "tiny"),
    "3b27ee95684e28911415c6bcd8537b0d5b950f05a84053d4e6c63a26990f9617": ("English-only", "multilingual", "tiny.en"),
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?b?", re.IGNORECASE)


def _size(value: str) -> int:
    """A number of bytes, such as 10MB or 512KiB."""
    match = _SIZE.fullmatch(value.strip())
    size = int(float(match[1]) * _UNITS[(match[2] or "").lower()]) if match else 0
    if size < 1:
        raise click.BadParameter(f"{value!r} is no size, expected one such as 10MB or 512KiB")
    return size


_MODEL = options_of(fields_of(ModelOptions, "model"))


@click.group("map")
def token_map() -> None:
    """Build and inspect token maps: the word sequences of your own transcripts, for faster decoding.

    \b
    Examples:
      specedge map build transcripts/ -o plant.tmap
      specedge map show plant.tmap
      specedge transcribe shift.wav --drafter tokenmap --token-map plant.tmap
    """


@token_map.command()
@click.argument("transcripts", nargs=-1, required=True, metavar="TRANSCRIPTS...", type=click.Path())
@click.option("-o", "--output", required=True, metavar="X.tmap", type=click.Path(dir_okay=False), help="File to write.")
@_MODEL
@click.option("-n", "--order", type=click.IntRange(1, 5), default=4, show_default=True, help="Longest key, in tokens.")
@click.option("--candidates", type=click.IntRange(1, 8), default=3, show_default=True, help="Most candidates of a key.")
@click.option("--max-length", type=click.IntRange(1, 64), default=32, show_default=True, help="Longest candidate.")
@click.option(
    "--min-count", type=click.IntRange(min=1), default=2, show_default=True, help="Occurrences that a candidate needs."
)
@click.option("--budget", type=_size, metavar="SIZE", help="Largest size, such as 10MB.")
@click.pass_context
def build(ctx: click.Context, /, transcripts: tuple[str, ...], output: str, model: str | None, **given: Any) -> None:
    """Make a token map from TRANSCRIPTS.

    They are txt, srt, vtt, tsv, json, jsonl, folders, or `-` for standard input. A line of txt is a sentence;
    segments of timed formats are joined up to the end of a sentence. A line with neither a capital at its beginning
    nor a mark at its end, such as a command, gets both, as Whisper writes it. The map fits every model that has the
    vocabulary of MODEL: all multilingual Whispers, v1, v2 and v3, have the same, and all English-only ones (tiny.en
    and so on) have another. Without -m it is that of the model that transcribes by default, or the multilingual one
    where none is installed. Token maps of one vocabulary in the place of TRANSCRIPTS become one map, their counts
    added.

    \b
    Examples:
      specedge map build transcripts/ -o plant.tmap
      specedge map build a.srt b.vtt talks.jsonl -o talks.tmap --budget 10MB
      specedge map build january.tmap february.tmap -o year.tmap
      zcat corpus.txt.gz | specedge map build - -o corpus.tmap -n 3 --min-count 5
    """
    n_maps = sum(name.endswith(".tmap") for name in transcripts)
    if n_maps:
        if n_maps < len(transcripts):
            raise UsageError("map build: expected transcripts, or token maps of one vocabulary, not both")
        from specedge.maps.merge import merge
        from specedge.maps.token_map import TokenMap

        with ExitStack() as stack:
            opened = [stack.enter_context(TokenMap.open(path)) for path in transcripts]
            merge(opened, output, budget_bytes=given["budget"])
        return
    from specedge.maps.build import BuildOptions
    from specedge.maps.build import build as build_map

    names = {"order": "n_orders", "candidates": "n_candidates", "budget": "budget_bytes"}
    options = BuildOptions(**{names.get(name, name): value for name, value in given.items()})
    tokenizer, fingerprint = _vocabulary(model)
    failures: list[Exception] = []

    def report_failure(error: Exception) -> None:
        failures.append(error)
        fail(error, debug=bool(ctx.find_root().obj))

    with ExitStack() as stack:
        sentences = _token_sentences(stack, transcripts, tokenizer, report_failure, output)
        report = build_map(sentences, output, n_text=tokenizer.special.eot, fingerprint=fingerprint, options=options)
    kind, other, example = _KNOWN.get(fingerprint.hex(), ("", "", "MODEL"))
    fits = f"every {kind} Whisper and its fine-tunes, no {other} one" if kind else "models with this vocabulary alone"
    notify(f"{output}: {report.n_sentences:,} sentences, {report.n_tokens:,} tokens; fits {fits}")
    say_next("transcribe", "talk.wav", "-m", model or example, "--drafter", "tokenmap", "--token-map", output)
    if failures:
        notify(f"{len(failures)} of the transcripts could not be used")
        ctx.exit(SpecedgeError.exit_code)


@token_map.command()
@click.argument("path", metavar="X.tmap", type=click.Path())
@click.argument("text", required=False)
@click.option("--top", type=click.IntRange(min=0), default=20, show_default=True, metavar="N", help="Lines, at most.")
@_MODEL
@JSON
def show(path: str, text: str | None, top: int, model: str | None, as_json: bool) -> None:
    """Show how a token map was built and what it says.

    Its rows are keys, what follows them, how often, and how surely. Those that save most come first. With TEXT:
    what the map would draft behind it.

    \b
    Examples:
      specedge map show plant.tmap
      specedge map show plant.tmap "check the oil level of"
      specedge map show plant.tmap --top 0 --json
    """
    from specedge.maps.token_map import TokenMap

    tokenizer, fingerprint = _vocabulary(model) if top else (None, None)
    with TokenMap.open(path, fingerprint=fingerprint) as opened:
        facts, rows = opened.info(), []
        if tokenizer is not None:
            if text is None:
                found = _said_most(opened, top)
            else:
                ids = tokenizer.encode(f" {text.strip()}")
                n, candidates = opened.longest(ids)
                found = [(tuple(ids[len(ids) - n :]), candidate) for candidate in candidates[:top]]
            rows = [_shown_candidate(key, candidate, tokenizer) for key, candidate in found]
    if as_json:
        click.echo(json.dumps({**facts, "rows": rows}, ensure_ascii=False))
        return
    if text is None:
        _print_facts(path, facts)
    if tokenizer is not None:
        _print_rows(rows, "the map has nothing that follows this text" if text is not None else "the map is empty")


def _print_facts(path: str, facts: dict[str, Any]) -> None:
    keys = ", ".join(f"{count} of {n}" for n, count in facts["keys"].items())
    click.echo(f"{path}: {facts['size_bytes']} bytes")
    click.echo(f"vocabulary  {facts['n_text']} text tokens, {facts['vocabulary'][:16]}")
    click.echo(f"keys        {keys} tokens")
    click.echo(f"candidates  {facts['candidates']}, from a pool of {facts['pool_tokens']} tokens")
    for name, value in facts["build"].items():
        click.echo(f"{name:<11} {json.dumps(value)}")


def _print_rows(rows: list[dict[str, Any]], nothing: str) -> None:
    import shutil

    if not rows:
        notify(nothing)
        return
    width = shutil.get_terminal_size().columns
    click.echo(f"{'count':>7} {'sure':>5}  key > what follows")
    for row in rows:
        end = " (end)" if row["ends"] else ""
        line = f"{row['count']:7d} {row['sure']:5.0%}  {row['key']} > {row['follows'].strip()}{end}"
        click.echo(line if len(line) <= width else line[: width - 3] + "...")


def _said_most(opened: TokenMap, top: int) -> list[tuple[tuple[int, ...], Candidate]]:
    """The best candidates of the keys that save most, by count and by tokens that are likely to come true.

    Of keys that say the same words, cut at different places, the first.
    """
    import heapq

    every = (
        (key, opened.candidate(numbers[0]))
        for n in range(1, opened.n_orders + 1)
        for key, numbers in opened.items(n)
        if numbers
    )
    best = heapq.nlargest(_CUTS * top, every, key=lambda pair: pair[1].count * len(pair[1].tokens) * _sure(pair[1]))
    kept: dict[tuple[int, ...], tuple[tuple[int, ...], Candidate]] = {}
    for key, candidate in best:
        words = (*key, *candidate.tokens)
        if not any(words[-len(other) :] == other[-len(words) :] for other in kept):
            kept[words] = key, candidate
    return list(kept.values())[:top]


def _sure(candidate: Candidate) -> float:
    """The share of occurrences in which all of it came."""
    return math.prod(candidate.confidences)


def _shown_candidate(key: tuple[int, ...], candidate: Candidate, tokenizer: Tokenizer) -> dict[str, Any]:
    n_text = tokenizer.special.eot
    start = "(start)" if any(id_ >= n_text for id_ in key) else ""
    said = f"{start}{tokenizer.decode([id_ for id_ in key if id_ < n_text])}".strip()
    return {
        "key": said,
        "follows": tokenizer.decode(candidate.tokens),
        "ends": candidate.ends,
        "count": candidate.count,
        "sure": round(_sure(candidate), 4),
    }


def _vocabulary(model: str | None) -> tuple[Tokenizer, bytes]:
    """The tokenizer of a model and the fingerprint of its text tokens; the weights need no hashing. Where none is named
    or installed, those of the multilingual models, so that a map needs no model."""
    from specedge.export.default_model import installed_default
    from specedge.export.vocabulary import published_tokenizer
    from specedge.maps.tmap_format import text_fingerprint

    path = installed_default() if model is None else None
    if model is None and path is None:
        tokenizer = published_tokenizer(_MULTILINGUAL_SIZE)
    else:
        tokenizer = ModelOptions(model=model or str(path)).open(verify=False).tokenizer
    return tokenizer, text_fingerprint(tokenizer.ranks, tokenizer.special.eot)


def _token_sentences(
    stack: ExitStack,
    sources: tuple[str, ...],
    tokenizer: Tokenizer,
    report: Callable[[Exception], None],
    output: str,
) -> Iterator[list[int]]:
    """The ids of all sentences, with a progress line. Raises UsageError for an `output` that is one of the sources."""
    import os

    from specedge.files import check_output, identities
    from specedge.maps.tmap_format import TOKEN_MAP

    from ..console import Progress
    from ..text.transcripts import STDIN, find_transcripts, read_sentences, token_sentences

    files = find_transcripts(sources)
    check_output(output, TOKEN_MAP, inputs=identities(files))
    total = None if STDIN in files else sum(os.path.getsize(name) for name in files) / 1e6
    progress = stack.enter_context(Progress(total, "MB", "reading"))
    sentences = read_sentences(files, report=report, on_bytes=lambda n_bytes: progress.update(n_bytes / 1e6))
    return token_sentences(sentences, tokenizer)
