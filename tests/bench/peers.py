"""specedge beside other runtimes on recordings: the same checkpoint, files and threads, from file to text.

    python tests/bench/peers.py BUNDLE SET.jsonl... --peer faster-whisper=FOLDER --peer openvino=FOLDER,PYTHON
                                [--ours none,auto] [--contexts full,auto] [--limit 12] [--rounds 3] [--threads 2]

Contenders are the peers that are given (peer.py has their names), each under its own PYTHON, and ours with every
drafter of --ours, over whole windows and over what holds audio. Each is a process with the model loaded, or a setting
of one; a file goes to one after another, in an order that turns with each file, and all files again in each round, the
first of which warms up. A process begins when all others are idle. A figure is a sum over the files of a round: the
median of the rounds; a ratio is the base's time over the contender's in the same round, with the least and the
greatest. The base is the first peer, else our plain decoding. Peak memory is that of a fresh process which did nothing
but load and transcribe the longest file.

"same words" counts the files in which a contender has, after normalisation, the words of our plain decoding; "as plain"
whether the ids of every file in every round were those of our plain decoding over the same context. It does not measure
loading, beams, or a busy machine. The last line is JSON; the exit code is 1 where ids of ours differ.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from bench.common import RATE_HZ, BenchError, print_json, print_table, recordings  # noqa: E402

from specedge import decode_audio  # noqa: E402
from specedge.runtime.bench.errors import word_errors  # noqa: E402
from specedge.runtime.bench.recordings import Recording  # noqa: E402

OURS = "specedge"
SETTLE_STEP_S, SETTLE_LIMIT_S = 0.05, 3.0


@dataclass(frozen=True)
class Contender:
    """A row of the table: the process that is asked, and with what. `plain` is the row that ours must equal."""

    name: str
    peer: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    plain: str | None = None


@dataclass
class Row:
    """Of a contender on a set: for each round the answers to all files, and how many were not plain decoding's."""

    rounds: list[list[dict[str, Any]]] = field(default_factory=list)
    n_different: int = 0

    def sums(self, name: str) -> list[float]:
        return [sum(answer[name] for answer in answers) for answers in self.rounds]


class Running:
    """A peer's process (peer.py). Use as a context manager. Raises BenchError where it ends."""

    def __init__(self, name: str, python: str, model: str, job: Mapping[str, Any]) -> None:
        self.name = name
        pools = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        env = {**os.environ, **dict.fromkeys(pools, str(job["threads"])), "HF_HUB_OFFLINE": "1"}
        command = [python, str(HERE / "peer.py"), name, model, json.dumps(job)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.version = self._read()["version"]

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer; returns when the process is idle again."""
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._read()
        self._settle()
        return answer

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(f"{self.name}: ended with code {self._process.wait()}; its reason is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _settle(self) -> None:
        """Wait until the process uses no CPU: thread pools spin for a while after work, at the next peer's cost."""
        deadline, before = time.monotonic() + SETTLE_LIMIT_S, -1
        while time.monotonic() < deadline:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            now = int(fields[11]) + int(fields[12])
            if now == before:
                return
            before = now
            time.sleep(SETTLE_STEP_S)
        raise BenchError(f"{self.name}: still busy {SETTLE_LIMIT_S} s after its work; nothing beside it can be timed")


def contenders(peers: Sequence[str], drafters: str, contexts: str) -> list[Contender]:
    """The rows of the table, plain decoding first."""
    found = []
    for context in contexts.split(","):
        for drafter in dict.fromkeys(["none", *drafters.split(",")]):
            arguments = {"drafter": drafter, "audio_context": context}
            found.append(Contender(f"{OURS} {drafter}, {context}", OURS, arguments, f"{OURS} none, {context}"))
    return [*found, *(Contender(name, name) for name in peers)]


def written(found: Sequence[Recording], folder: Path) -> list[Path]:
    """The recordings as 16-bit WAV files, which all peers read."""
    paths = []
    for number, one in enumerate(found):
        paths.append(folder / f"{len(list(folder.iterdir()))}-{number}.wav")
        with wave.open(str(paths[-1]), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE_HZ)
            file.writeframes((decode_audio(one.file).clip(-1, 1) * 32767).round().astype("<i2").tobytes())
    return paths


def timed_round(
    running: Mapping[str, Running], asked: Sequence[Contender], rows: Mapping[str, Row], files: Sequence[Path]
) -> None:
    """All files by all contenders, into the rows."""
    for row in rows.values():
        row.rounds.append([])
    for at, file in enumerate(files):
        first = (at + len(rows[asked[0].name].rounds)) % len(asked)
        for one in (*asked[first:], *asked[:first]):
            rows[one.name].rounds[-1].append(running[one.peer].ask(file=str(file), **one.arguments))
    for one in asked:
        if one.plain is not None:
            pairs = zip(rows[one.name].rounds[-1], rows[one.plain].rounds[-1], strict=True)
            rows[one.name].n_different += sum(a["tokens"] != b["tokens"] for a, b in pairs)


def figures(
    one: Contender, rows: Mapping[str, Row], found: Sequence[Recording], seconds: float, base: str, plain: str
) -> dict[str, Any]:
    """What the table and the JSON have of a contender on a set."""
    row, last = rows[one.name], rows[one.name].rounds[-1]
    times_ms = row.sums("ms")
    ratios = [b / a for a, b in zip(times_ms, rows[base].sums("ms"), strict=True)]
    pairs = zip(rows[plain].rounds[-1], last, strict=True)
    texts = [(spoken.text, answer["text"]) for spoken, answer in zip(found, last, strict=True)]
    median_ms = statistics.median(times_ms)
    figure: dict[str, Any] = {
        "word_errors": round(word_errors(texts).rate, 4) if all(text for text, _ in texts) else None,
        "ms_a_file": round(median_ms / len(found), 1),
        "encoder": None,
        "decoder": None,
        "real_time_factor": round(median_ms / 1e3 / seconds, 4),
        "times_base": round(statistics.median(ratios), 3),
        "least": round(min(ratios), 3),
        "greatest": round(max(ratios), 3),
        "same_words": sum(not word_errors([(ours["text"], theirs["text"])]).rate for ours, theirs in pairs),
    }
    if one.plain is not None:
        figure["encoder"] = round(statistics.median(row.sums("encoder_ms")) / len(found), 1)
        figure["decoder"] = round(statistics.median(row.sums("decoder_ms")) / len(found), 1)
        n_passes = max(1, sum(answer["passes"] for answer in last))
        figure["tokens_a_pass"] = round(sum(answer["n_tokens"] for answer in last) / n_passes, 2)
        figure["different"] = row.n_different
    return figure


def measure(given: argparse.Namespace, folder: Path) -> int:
    """All sets; prints tables and JSON. Returns how many texts of ours differ from plain decoding."""
    job = {"threads": given.threads, "language": given.language, "encoder_provider": given.encoder_provider}
    job["maps"] = [str(path) for path in given.token_map]
    places = {OURS: (sys.executable, str(given.bundle))}
    for peer in given.peer:
        name, _, rest = peer.partition("=")
        model, _, python = rest.partition(",")
        places[name] = python or sys.executable, model
    asked = contenders([name for name in places if name != OURS], given.ours, given.contexts)
    plain = asked[0].name
    base = next((one.name for one in asked if one.peer != OURS), plain)
    sets = {name: recordings(name, given.limit) for name in given.sets}
    files = {name: written(found, folder) for name, found in sets.items()}
    rows = {name: {one.name: Row() for one in asked} for name in sets}
    with contextlib.ExitStack() as stack:
        running = {name: stack.enter_context(Running(name, *place, job)) for name, place in places.items()}
        versions = [one.version for one in running.values()]
        for number in range(given.rounds + 1):
            print(f"round {number} of {given.rounds}" if number else "warm-up", file=sys.stderr, flush=True)
            for name in sets:
                timed_round(running, asked, rows[name], files[name])
    longest = max((path for paths in files.values() for path in paths), key=lambda path: path.stat().st_size)
    result: dict[str, dict[str, Any]] = {}
    for name, found in sets.items():
        for row in rows[name].values():
            del row.rounds[0]  # the warm-up
        seconds = sum((path.stat().st_size - 44) / 2 / RATE_HZ for path in files[name])
        result[name] = {one.name: figures(one, rows[name], found, seconds, base, plain) for one in asked}
    for one in asked:
        with Running(one.peer, *places[one.peer], job) as fresh:
            fresh.ask(file=str(longest), **one.arguments)
            peak_mb = round(fresh.ask(memory=True)["mb"], 1)
        for of_set in result.values():
            of_set[one.name]["peak_mb"] = peak_mb
    print("; ".join(versions))
    for name, of_set in result.items():
        columns = list(next(iter(of_set.values())))
        print(f"\n{name}, {len(sets[name])} recordings, times {base}")
        print_table([["", *columns], *([row, *(of.get(c) for c in columns)] for row, of in of_set.items())])
    n_different = sum(row.n_different for of_set in rows.values() for row in of_set.values())
    print(f"\n{n_different} texts of ours differ from plain decoding")
    fields = {"threads": given.threads, "rounds": given.rounds, "base": base, "versions": versions}
    print_json("peers", **fields, sets=result, different=n_different)
    return n_different


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("sets", nargs="+", metavar="SET", help="a .jsonl file, a folder or an audio file")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=MODEL[,PYTHON]")
    parser.add_argument("--ours", default="none", metavar="DRAFTERS", help="with commas; draft=MODEL names a draft")
    parser.add_argument("--contexts", default="full", help="of ours: full, auto, with commas")
    parser.add_argument("--token-map", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--encoder-provider", default="cpu", metavar="NAME", help="what our encoder runs on")
    parser.add_argument("--language", default="en")
    parser.add_argument("--limit", type=int, default=12, metavar="N", help="recordings of a set")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="specedge-peers-") as folder:
        try:
            return 1 if measure(given, Path(folder)) else 0
        except (BenchError, OSError) as error:
            raise SystemExit(f"peers: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
