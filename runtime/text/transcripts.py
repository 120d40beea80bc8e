"""Sentences from transcripts: txt, srt, vtt, tsv, json, jsonl, folders of them and standard input, as a stream.

A token map counts nothing across sentences. A line of txt is one. In timed formats a segment often ends inside a
sentence, so segments are joined until one ends as sentences do. Cues in brackets, which Whisper's suppressed tokens
cannot write, are left out.

A file that is wrong is one line to `report` and the others go on. Files up to 32 MiB are checked whole before their
first sentence is used; of a larger one, what came before the fault is used.
"""

from __future__ import annotations

import codecs
import html
import itertools
import json
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any

from specedge.errors import UsageError, refuse

from .tokenizer import Tokenizer

STDIN = "-"
EXTENSIONS = (".json", ".tsv", ".srt", ".vtt", ".txt", ".jsonl", ".ndjson")  # of one transcript in several, the first
_WHOLE_BYTES = 32 << 20
_LINE_BYTES = 1 << 20
_JSON_BYTES = 64 << 20
_JOINED_CHARACTERS = 400  # a text without punctuation has no end of its own
_SNIFF_BYTES = 4096
_TIMES = re.compile(r"(?:\d+:)?\d+:\d\d[.,]\d{1,3}\s*-->\s*(?:\d+:)?\d+:\d\d[.,]\d{1,3}")
_TAGS = re.compile(r"</?[A-Za-z0-9][^<>]*>|\{\\[^{}]*\}")
_NOT_SPEECH = re.compile(r"[\[(*♪♫#].*[\])*♪♫#]|[\W_]*", re.DOTALL)
_SENTENCE_ENDS = tuple(".?!…。！？।؟") + tuple(end + quote for end in ".?!…。！？" for quote in '"”’»」』)')
_TEXT_KEYS = ("text", "sentence", "transcript", "transcription")

# How Unicode names the characters of scripts that put no spaces between words.
_UNSPACED = tuple("CJK ,HIRAGANA,KATAKANA,THAI ,LAO ,KHMER ,MYANMAR ,TIBETAN ,IDEOGRAPHIC,FULLWIDTH".split(","))


def token_sentences(sentences: Iterable[str], tokenizer: Tokenizer) -> Iterator[list[int]]:
    """The ids of each sentence as Whisper writes it: with a space before it, except in scripts without spaces.

    A bare one, such as a line of commands, begins with a capital and ends with a full stop.
    """
    for sentence in sentences:
        if sentence[:1].islower() and sentence[-1:].isalnum():
            sentence = f"{sentence[0].upper()}{sentence[1:]}."
        yield tokenizer.encode(sentence if is_unspaced(sentence[:1]) else " " + sentence)


def find_transcripts(sources: Sequence[str]) -> list[str]:
    """The files of `sources`, folders replaced by the transcripts in them and below, sorted.

    In a folder, files that differ only in their extension are one transcript in several formats: one of them is taken.
    Raises UsageError for a source that is missing and for a folder without transcripts.
    """
    files: list[str] = []
    for source in sources:
        found = _in_folder(Path(source)) if os.path.isdir(source) else [source]
        if not found:
            raise UsageError(f"{source}: no transcript in this folder, expected {', '.join(EXTENSIONS)}")
        if source != STDIN and not os.path.exists(source):
            raise UsageError(f"{source}: no such file or folder")
        files += found
    return files


def _in_folder(folder: Path) -> list[str]:
    best: dict[Path, Path] = {}
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(root, name) for name in sorted(names) if not name.startswith(".")):
            if path.suffix.lower() in EXTENSIONS:
                stem = path.with_suffix("")
                best[stem] = min(best.get(stem, path), path, key=lambda one: EXTENSIONS.index(one.suffix.lower()))
    return [str(path) for path in best.values()]


def read_sentences(
    files: Sequence[str],
    *,
    report: Callable[[Exception], None] = refuse,
    on_bytes: Callable[[int], None] = lambda n_bytes: None,
) -> Iterator[str]:
    """The sentences of all files, without blanks at their ends; on_bytes is told how much more was read.

    A file that cannot be read or is malformed goes to `report` as a UsageError; it is raised where it is the only one.
    """
    for name in files:
        try:
            if name == STDIN:
                yield from _sentences(_stdin(), "standard input", "", on_bytes)
                continue
            with open(name, "rb") as file:
                found = _sentences(file, name, Path(name).suffix.lower(), on_bytes)
                yield from list(found) if os.fstat(file.fileno()).st_size <= _WHOLE_BYTES else found
        except (UsageError, OSError) as error:
            if isinstance(error, OSError):
                error = UsageError(f"cannot read {name}: {error.strerror or error}")
            if len(files) == 1:
                raise error from None
            report(error)


def _sentences(file: BufferedReader, where: str, extension: str, on_bytes: Callable[[int], None]) -> Iterator[str]:
    head = file.peek(_SNIFF_BYTES)[:_SNIFF_BYTES]
    if b"\0" in head:
        raise UsageError(f"{where}: this is no text in UTF-8: convert the file first")
    kind = extension if extension in EXTENSIONS else _sniffed(head)
    lines = _lines(file, where, on_bytes, _JSON_BYTES if "json" in kind else _LINE_BYTES)
    if "json" in kind:
        return _from_json(lines, where)
    if kind == ".txt":
        return filter(None, map(_clean, lines))
    return joined(_from_tsv(lines, where) if kind == ".tsv" else _from_cues(lines, where))


def _stdin() -> BufferedReader:
    stream = sys.stdin.buffer
    return stream if isinstance(stream, BufferedReader) else BufferedReader(stream)  # type: ignore[arg-type]


def _sniffed(head: bytes) -> str:
    """The format of a file whose name does not tell."""
    text = head.decode("utf-8", errors="replace").removeprefix("\ufeff").lstrip()
    first = text.split("\n", 1)[0].strip()
    if first.startswith(("{", "[")):
        return ".json"
    if "\t" in first and set(first.lower().split("\t")) & set(_TEXT_KEYS):
        return ".tsv"
    has_times = first.isdigit() and _TIMES.match(text.split("\n", 1)[-1].strip())
    return ".srt" if has_times or first.startswith("WEBVTT") else ".txt"


def _lines(file: BufferedReader, where: str, on_bytes: Callable[[int], None], limit: int) -> Iterator[str]:
    """Lines as text; one of more than `limit` bytes is cut."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    for number in itertools.count(1):
        data = file.readline(limit)
        on_bytes(len(data))
        try:
            yield decoder.decode(data, final=not data)
        except UnicodeDecodeError:
            raise UsageError(f"{where}: line {number} is not UTF-8: convert the file first") from None
        if not data:
            break


def _from_json(lines: Iterable[str], where: str) -> Iterator[str]:
    """openai-whisper's object, one of its segments' texts, or a list of either: over all lines, or one in each line.

    Each value is a transcript of its own.
    """
    placed = ((f"{where}: line {number}", line) for number, line in enumerate(lines, 1) if line.strip())
    begin, first = next(placed, (where, ""))
    try:
        json.loads(first)
    except (ValueError, RecursionError):  # it goes on in other lines, or is none
        begin = where
        for _, line in placed:
            first += line
            if len(first) > _JSON_BYTES:
                limit = f"{_JSON_BYTES >> 20} MiB"
                raise UsageError(f"{where}: JSON of more than {limit}, expected jsonl for so much") from None
    for here, text in itertools.chain([(begin, first)], placed):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{here}: no JSON ({getattr(error, 'msg', type(error).__name__)})") from None
        yield from joined(_texts(value, here))


def _texts(value: Any, where: str) -> list[str]:
    """The texts of segments in a JSON value, in order."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item, where)]
    if isinstance(value, dict):
        if isinstance(value.get("segments"), list):
            return _texts(value["segments"], where)
        text = next((value[key] for key in _TEXT_KEYS if isinstance(value.get(key), str)), None)
        if text is not None:
            return [text]
    raise UsageError(f"{where}: found no text, expected openai-whisper's JSON, or objects with a key 'text'")


def _from_tsv(lines: Iterator[str], where: str) -> Iterator[str]:
    """The column `text` of openai-whisper's table, or `sentence` or `transcript` of another."""
    header = [cell.strip().lower() for cell in next(lines, "").split("\t")]
    column = next((header.index(key) for key in _TEXT_KEYS if key in header), None)
    if column is None:
        raise UsageError(f"{where}: no column named text, sentence or transcript in the first line")
    for number, line in enumerate(lines, 2):
        cells = line.rstrip("\r\n").split("\t")
        if not line.strip():
            continue
        if len(cells) < len(header):
            raise UsageError(f"{where}: line {number} has {len(cells)} columns, expected {len(header)}")
        yield cells[column]


def _from_cues(lines: Iterable[str], where: str) -> Iterator[str]:
    """The texts of cues: what follows a line of times, up to an empty line."""
    cue: list[str] | None = None
    n_cues = 0
    for line in itertools.chain(map(str.strip, lines), [""]):
        has_times = _TIMES.match(line) is not None
        if has_times or not line:
            if cue:
                yield " ".join(cue)
            cue = [] if has_times else None
            n_cues += has_times
        elif cue is not None:
            cue.append(html.unescape(_TAGS.sub("", line)).strip())
    if not n_cues:
        raise UsageError(f"{where}: no cue in this file, expected lines such as 00:00:01,000 --> 00:00:02,500")


def joined(segments: Iterable[str]) -> Iterator[str]:
    """Sentences, each put together from the segments that it goes over."""
    sentence = ""
    for segment in map(_clean, segments):
        if segment:
            gap = "" if not sentence or is_unspaced(segment[:1]) else " "
            sentence += gap + segment
            if sentence.endswith(_SENTENCE_ENDS) or len(sentence) >= _JOINED_CHARACTERS:
                yield sentence
                sentence = ""
    if sentence:
        yield sentence


def _clean(text: str) -> str:
    """One line without blanks at its ends; empty for what is no speech."""
    text = " ".join(text.split())
    return "" if _NOT_SPEECH.fullmatch(text) and "|" not in text else text  # (yes|no) is a line of commands


def is_unspaced(character: str) -> bool:
    """Whether words of this script follow each other without spaces."""
    return not character.isascii() and unicodedata.name(character, "").startswith(_UNSPACED)
