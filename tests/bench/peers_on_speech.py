"""specedge beside other runtimes on recordings: the same checkpoint, files and threads, from file to text.

Contenders are the peers that are given and ours with every drafter of `--ours`, over whole windows and over what holds
audio (`--audio-context`). Each is a process with the model loaded, or a setting of one; a file goes to one after
another, in an order that turns with each file, and all files again in each round, the first of which warms up. A figure
is a sum over the files of a round: the median of the rounds; a ratio is the base's time over the contender's in the
same round, with the least and the greatest. The base is faster-whisper where it is given, else our plain decoding.

Peak memory is that of a process which did nothing but load and transcribe the longest file with this setting, the
second time that it starts, libraries included.

"same words" counts the files in which a contender says, after normalisation, what our plain decoding says. "as plain"
says whether the ids of every file in every round were those of our plain decoding over the same context.
Word errors are against the texts that were spoken, after normalisation. What else a peer does (timestamps, retries, six
tokens a second at most in sherpa-onnx, no more than a window there) is as its users get it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import statistics
import sys
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs import SAMPLE_RATE_HZ, SpeechJob
from rounds import BenchError, Peer, Running, commit

CONTEXTS = ("full", "auto")
OURS = "specedge"
BASE = "faster-whisper"


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A file of one domain, the text spoken in it, and its length."""

    domain: str
    file: Path
    text: str
    duration_s: float


@dataclass(frozen=True)
class Contender:
    """A row of the table: the process that is asked, and with what. `plain` is the row that ours must equal."""

    name: str
    peer: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    plain: str | None = None


@dataclass
class Row:
    """What one contender did on one domain: a sum of milliseconds for each round, what it said in the last one, and how
    many texts of all rounds were not plain decoding's."""

    rounds_ms: list[float] = field(default_factory=list)
    encoder_ms: list[float] = field(default_factory=list)
    decoder_ms: list[float] = field(default_factory=list)
    said: list[dict[str, Any]] = field(default_factory=list)
    n_different: int = 0


def recordings(speech: Path, domains: Sequence[str], limit: int, folder: Path) -> list[Recording]:
    """Up to `limit` utterances of each shard, spread over it, as wav files in `folder`. Raises BenchError.

    A domain for which `speech` has NAME.jsonl, whose rows name `audio` and `text`, is a set of recorded speech.
    """
    from specedge.export.training.corpus import load_shards

    if all((speech / f"{domain}.jsonl").is_file() for domain in domains):
        return [one for domain in domains for one in _of_set(speech, domain, limit, folder)]
    found = []
    for domain, utterances in load_shards(speech):
        if domain not in domains:
            continue
        step = max(1, len(utterances) // limit)  # voices lie one after another in a shard
        for i, one in enumerate(utterances[::step][:limit]):
            path = folder / f"{domain}-{i}.wav"
            with wave.open(str(path), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(SAMPLE_RATE_HZ)
                file.writeframes(one.samples.astype("<i2").tobytes())
            seconds = len(one.samples) / SAMPLE_RATE_HZ
            found.append(Recording(domain=domain, file=path, text=one.text, duration_s=seconds))
    if not found:
        raise BenchError(f"{speech}: none of the shards {', '.join(domains)}")
    return found


def _of_set(speech: Path, domain: str, limit: int, folder: Path) -> list[Recording]:
    from specedge import decode_audio

    rows = [json.loads(line) for line in (speech / f"{domain}.jsonl").read_text(encoding="utf-8").splitlines()]
    found = []
    for i, row in enumerate(rows[:: max(1, len(rows) // limit)][:limit]):
        samples, path = decode_audio(str(speech / row["audio"])), folder / f"{domain}-{i}.wav"
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(SAMPLE_RATE_HZ)
            file.writeframes((samples.clip(-1, 1) * 32767).round().astype("<i2").tobytes())
        found.append(Recording(domain=domain, file=path, text=row["text"], duration_s=len(samples) / SAMPLE_RATE_HZ))
    return found


def peers(given: argparse.Namespace, job: str) -> list[Peer]:
    """The processes, ours first."""
    found = [
        Peer(
            name=OURS,
            python=sys.executable,
            script="peer_whisper_model.py",
            arguments=(job, str(given.bundle), *map(str, given.token_map or [])),
        )
    ]
    assistant = [] if given.assistant is None else [str(given.assistant)]
    for name, python, script, folder, before, after in (
        (BASE, given.ct2_python, "peer_ct2.py", given.ct2, ["speech"], [given.ct2_compute_type]),
        ("transformers", given.hf_python, "peer_hf.py", given.model if given.hf_python else None, ["torch"], assistant),
        ("Optimum", given.optimum_python, "peer_hf.py", given.optimum, ["optimum"], []),
        ("sherpa-onnx", given.sherpa_python, "peer_sherpa.py", given.sherpa, [], []),
        ("OpenVINO", given.openvino_python, "peer_openvino.py", given.openvino, [], []),
        ("whisper.cpp", given.whispercpp_python, "peer_pywhispercpp.py", given.whispercpp, [], []),
    ):
        if folder is not None:
            arguments = (*before, job, str(folder), *after)
            found.append(Peer(name=name, python=python or sys.executable, script=script, arguments=arguments))
    return found


def contenders(given: argparse.Namespace, names: Sequence[str]) -> list[Contender]:
    """The rows of the table."""
    found = []
    drafters = tuple(dict.fromkeys(["none", *(given.ours.split(",") if given.ours else ())]))
    for context in given.contexts.split(","):
        for drafter in drafters:
            arguments = {"drafter": drafter, "audio_context": context}
            plain = f"{OURS} none, {context}"
            found.append(Contender(f"{OURS} {drafter}, {context}", OURS, arguments, plain))
    for name in names:
        if name != OURS:
            found.append(Contender(name, name))
        if name == "transformers":
            found.append(Contender("transformers, prompt lookup", name, {"how": "lookup"}))
            if given.assistant is not None:
                found.append(Contender("transformers, assisted", name, {"how": "assisted"}))
    return found


def timed_round(
    running: Mapping[str, Running], rows: Mapping[tuple[str, str], Row], asked: Sequence[Contender],
    files: Sequence[Recording], turn: int,
) -> None:  # fmt: skip
    """All files by all contenders; the rows get this round's sums."""
    running[OURS].ask("begin")
    for row in rows.values():
        row.said = []
        for sums in (row.rounds_ms, row.encoder_ms, row.decoder_ms):
            sums.append(0.0)
    for at, one in enumerate(files):
        first = (at + turn) % len(asked)
        for contender in (*asked[first:], *asked[:first]):
            ms, value = running[contender.peer].ask("transcribe", file=str(one.file), **contender.arguments)
            row = rows[contender.name, one.domain]
            row.rounds_ms[-1] += value.get("ms", ms)
            row.encoder_ms[-1] += value.get("encoder_ms", 0.0)
            row.decoder_ms[-1] += value.get("decoder_ms", 0.0)
            row.said.append(value)
    for contender in asked:
        for domain in {one.domain for one in files} if contender.plain is not None else ():
            row, plain = rows[contender.name, domain], rows[contender.plain or "", domain]
            row.n_different += sum(a["tokens"] != b["tokens"] for a, b in zip(row.said, plain.said, strict=True))


def peak_mb(peer: Peer, contender: Contender, files: Sequence[Recording], threads: int) -> float:
    """The peak memory of a fresh process over the longest file, in MB (10^6 bytes)."""
    longest = max(files, key=lambda one: one.duration_s)
    with Running(peer, threads=threads) as running:
        running.ask("transcribe", file=str(longest.file), **contender.arguments)
        return float(running.ask("memory")[1]["peak"])


def figures(
    contender: Contender, rows: Mapping[tuple[str, str], Row], files: Sequence[Recording], base: str
) -> dict[str, Any]:
    """What the table and the JSON have of a contender on the domain of `files`."""
    from specedge.runtime.text.words import character_error_rate, word_errors

    domain = files[0].domain
    row, theirs = rows[contender.name, domain], rows[base, domain]
    pairs_said = [(one.text, said["text"]) for one, said in zip(files, row.said, strict=True)]
    errors = word_errors(pairs_said)
    ratios = [b / a for a, b in zip(row.rounds_ms, theirs.rounds_ms, strict=True)]
    plain = rows[f"{OURS} none, full", domain]
    pairs = zip(plain.said, row.said, strict=True)
    median_ms = statistics.median(row.rounds_ms)
    found: dict[str, Any] = {
        "word_error_rate": round(errors.rate, 4),
        "character_error_rate": round(character_error_rate(pairs_said), 4),
        "same_words": sum(not word_errors([(ours["text"], said["text"])]).rate for ours, said in pairs),
        "ms_a_file": round(median_ms / len(files), 2),
        "real_time_factor": round(median_ms / 1e3 / sum(one.duration_s for one in files), 4),
        "times_base": round(statistics.median(ratios), 3),
        "least": round(min(ratios), 3),
        "greatest": round(max(ratios), 3),
    }
    if contender.plain is not None:
        found["encoder_ms_a_file"] = round(statistics.median(row.encoder_ms) / len(files), 2)
        found["decoder_ms_a_file"] = round(statistics.median(row.decoder_ms) / len(files), 2)
        passes = sum(said["passes"] for said in row.said)
        found["tokens_a_pass"] = round(sum(said["n_tokens"] for said in row.said) / max(1, passes), 2)
        found["different"] = row.n_different
        found["dropped"] = sum(said["dropped"] for said in row.said)
    return found


def markdown(domain: str, found: Mapping[str, dict[str, Any]], n_files: int, base: str) -> list[str]:
    """The table of one domain."""
    lines = [
        f"**{domain}**, {n_files} recordings",
        "",
        f"| | word errors | character errors | ms a file | encoder + decoder | real-time factor | times {base} | "
        "peak MB | same words | as plain | tokens a pass |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in found.items():
        parts = equal = tokens = ""
        if "different" in row:
            parts = f"{row['encoder_ms_a_file']:.1f} + {row['decoder_ms_a_file']:.1f}"
            equal = f"{row['different']} differ" if row["different"] else "yes"
            tokens = f"{row['tokens_a_pass']:.2f}"
        lines.append(
            f"| {name} | {row['word_error_rate']:.1%} | {row['character_error_rate']:.1%} | {row['ms_a_file']:.1f} | "
            f"{parts} | {row['real_time_factor']:.3f} | "
            f"{row['times_base']:.2f} ({row['least']:.2f}-{row['greatest']:.2f}) | "
            f"{row['peak_mb']:.0f} | {row['same_words']} | {equal} | {tokens} |"
        )
    return [*lines, ""]


def conditions(threads: int, rounds: int, versions: Mapping[str, str], waited: Mapping[str, float | None]) -> list[str]:
    """Machine, threads, versions and commit, as the README wants them beside figures."""
    from specedge.runtime.device import isa

    shares = ", ".join(f"{name} {share:.1%}" for name, share in waited.items() if share is not None)
    return [
        f"{isa().model or platform.machine()}, {threads} threads, {rounds} interleaved rounds after one to warm up, "
        f"commit {commit()}.",
        f"{'; '.join(versions.values())}.",
        f"Runnable but waiting for a CPU: {shares}; above a few percent the figures are of a busy machine.",
    ]


def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All rounds and the tables of shards of speech; the figures."""
    return compare(given, recordings(given.speech, given.domains.split(","), given.limit, folder), folder)


def compare(given: argparse.Namespace, files: Sequence[Recording], folder: Path) -> dict[str, Any]:
    """All rounds and the tables of these files; the figures."""
    manifest = json.loads((given.bundle / "specedge.json").read_text(encoding="utf-8"))
    n_frames = 2 * manifest["dims"]["n_audio_ctx"]
    job = SpeechJob(threads=given.threads, language="en", n_frames=n_frames, encoder_provider=given.encoder_provider)
    processes = {peer.name: peer for peer in peers(given, str(job.save(folder / "job.json")))}
    asked = contenders(given, list(processes))
    base = BASE if any(one.name == BASE for one in asked) else f"{OURS} none, full"
    domains = list(dict.fromkeys(one.domain for one in files))
    rows = {(one.name, domain): Row() for one in asked for domain in domains}
    with contextlib.ExitStack() as stack:
        running = {name: stack.enter_context(Running(peer, threads=job.threads)) for name, peer in processes.items()}
        versions = {name: peer.ask("start")[1]["version"] for name, peer in running.items()}
        for turn in range(given.rounds + 1):
            print(f"round {turn} of {given.rounds}" if turn else "warm-up", file=sys.stderr, flush=True)
            timed_round(running, rows, asked, files, turn)
        waited = {name: peer.ask("waited")[1] for name, peer in running.items()}
    for row in rows.values():  # the warm-up's
        del row.rounds_ms[0], row.encoder_ms[0], row.decoder_ms[0]
    peaks = {one.name: peak_mb(processes[one.peer], one, files, job.threads) for one in asked}
    found: dict[str, Any] = {}
    lines = conditions(job.threads, given.rounds, versions, waited)
    for domain in domains:
        of_domain = [one for one in files if one.domain == domain]
        found[domain] = {one.name: figures(one, rows, of_domain, base) for one in asked}
        for name, row in found[domain].items():
            row["peak_mb"] = round(peaks[name], 1)
        lines += ["", *markdown(domain, found[domain], len(of_domain), base)]
    print("\n".join(lines))
    n_different = sum(row.n_different for row in rows.values())
    print(f"{n_different} texts of ours differ from plain decoding\n")
    fields = {"threads": given.threads, "rounds": given.rounds, "base": base, "versions": versions}
    return {**fields, "waited": waited, "domains": found, "different": n_different}
