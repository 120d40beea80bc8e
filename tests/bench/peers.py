"""specedge beside other CPU runtimes with the same weights: encoder, plain decoding, a window end to end, memory, load.

With --speech FOLDER instead: recordings from file to text, drafters of ours and word errors among it (peers_on_speech).

Every peer runs in a process of its own, under its own Python, and works only while the others are idle. A round times
each operation once in every peer, A B A B; a ratio is ours over theirs in the same round, and the table shows the
median of the rounds and their spread. Greedy, no beam, end of text suppressed, so that all decode the same number of
tokens: the run ends if a peer does not. A sample of features (or logits) is compared first: other weights or other
audio end the run, and so does a decoder of ours that disagrees with itself loaded without its cache.

Metrics, in ms unless they say otherwise:
  mel              samples to log-mel of one window
  encode           ours: encoder and cross-attention keys and values (so whisper.cpp); CTranslate2: encoder only
  encoder alone    ours: the encoder graph; CTranslate2: encode once more, it has nothing else in it
  T(1)             from the features to the first token: prompt, and for CTranslate2 the keys and values too
  encode + T(1)    their sum: the same work on both sides
  per token        (T(100) - T(10)) / 90: plain decoding, neither prompt nor keys and values
  encode + T(100)  everything after log-mel
  end to end       samples to mel to features to 100 tokens (to text, but not whisper.cpp)
  pass of 1, 8     one decoder pass of 1 or 8 rows after 64, all logits (against Optimum's decoder with past)
  load             opening the model until it could run, imports done, files in the page cache
  peak MB          of a fresh process that imports, loads and does one window with 100 tokens, libraries included
  peak MB over imports   the same less what the process held after its imports

Not measured: accuracy (int8 is a different rounding in each), beams, long audio, decoding of files, faster-whisper's
`transcribe` around CTranslate2, Optimum's classes around its graphs, energy. Random weights are as good as others here.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peers_on_speech
from jobs import Job, check_shape, cosine, make_job
from rounds import BenchError, Peer, Running, Series, print_json, report

TARGETS = {
    "ct2": {"encode": 0.75, "encoder alone": 0.75, "per token": 0.6, "end to end": 0.65, "peak MB": 0.6},
    "optimum": {"pass of 1": 0.9, "pass of 8": 0.9},
    "whisper.cpp": {"per token": 1.0, "encode": 0.5},
}
METRICS = (
    *("mel", "encode", "encoder alone", "T(1)", "encode + T(1)", "per token", "encode + T(100)", "end to end"),
    *("pass of 1", "pass of 8", "load", "peak MB", "peak MB over imports"),
)
LEAST_LIKENESS = 0.9
SAMPLE_KINDS = {"ct2": "features", "optimum": "features", "whisper.cpp": "logits"}


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Sizes of the work: tokens of the short and the long decoding, rows committed before a pass is timed."""

    n_short: int = 10
    n_long: int = 100
    n_past: int = 64


def timed_round(running: Mapping[str, Running], counts: Counts, series: Mapping[str, Series]) -> None:
    """Time every operation once in every peer that has it, operation by operation."""
    operations: tuple[tuple[str, str, dict[str, int]], ...] = (
        ("mel", "mel", {"warm": 1, "repeat": 3}),
        ("encode", "encode", {}),
        ("encoder alone", "encode_alone", {}),
        ("T(1)", "decode", {"n_tokens": 1, "warm": 1, "repeat": 3}),
        ("T(10)", "decode", {"n_tokens": counts.n_short, "repeat": 3}),
        ("T(100)", "decode", {"n_tokens": counts.n_long}),
        ("end to end", "end_to_end", {"n_tokens": counts.n_long}),
        ("pass of 1", "rows", {"n_rows": 1, "n_past": counts.n_past, "warm": 5, "repeat": 25}),
        ("pass of 8", "rows", {"n_rows": 8, "n_past": counts.n_past, "warm": 5, "repeat": 25}),
    )
    for metric, op, arguments in operations:
        for name, peer in running.items():
            if op == "encode_alone" and op not in peer.operations and name == "ct2":
                time_ms, value = peer.ask("encode", **arguments)
            elif op in peer.operations:
                time_ms, value = peer.ask(op, **arguments)
            else:
                continue
            wanted = arguments.get("n_tokens", arguments.get("n_rows"))
            if wanted is not None and value != wanted:
                raise BenchError(f"{name}: {metric} gave {value} tokens instead of {wanted}")
            series[name].setdefault(metric, []).append(time_ms)


def derive(values: Series, counts: Counts) -> None:
    """Add the metrics that are computed from others of the same round."""
    if "T(100)" not in values:
        return
    n_steady = counts.n_long - counts.n_short
    pairs = zip(values["T(100)"], values["T(10)"], strict=True)
    values["per token"] = [(long - short) / n_steady for long, short in pairs]
    for metric in ("T(1)", "T(100)"):
        pairs = zip(values["encode"], values[metric], strict=True)
        values[f"encode + {metric}"] = [encode + decode for encode, decode in pairs]


def fresh_round(peers: Sequence[Peer], job: Job, counts: Counts, series: Mapping[str, Series] | None) -> dict[str, Any]:
    """Start every peer anew for one window: load time and peak memory. Returns what the peers say of themselves."""
    said = {}
    for peer in peers:
        with Running(peer, threads=job.threads) as running:
            _, start = running.ask("start")
            if "end_to_end" in running.operations:
                running.ask("end_to_end", n_tokens=counts.n_long)
            else:
                running.ask("encode")
            _, memory = running.ask("memory")
        said[peer.name] = {key: value for key, value in start.items() if key in ("version", "compute_type", "system")}
        if series is None:
            continue
        values = series[peer.name]
        values.setdefault("load", []).append(start["load_ms"])
        if "end_to_end" in running.operations:
            values.setdefault("peak MB", []).append(memory["peak"])
            before = start["after_imports"].get("now", start["after_imports"]["peak"])
            values.setdefault("peak MB over imports", []).append(memory["peak"] - before)
    return said


def check_likeness(running: Mapping[str, Running]) -> dict[str, float]:
    """Compare what the peers compute from the same audio with what we do."""
    ours, *others = running.values()
    if not ours.ask("cache_agrees")[1]:
        raise BenchError("specedge: logits from the cache of packed weights differ from those without; nothing to time")
    found = {}
    for other in others:
        kind = SAMPLE_KINDS[other.name]
        found[other.name] = cosine(ours.ask("sample", kind=kind)[1], other.ask("sample", kind=kind)[1])
        if found[other.name] < LEAST_LIKENESS:
            raise BenchError(f"{other.name}: its {kind} have cosine {found[other.name]:.3f} with ours: other weights?")
    return found


def make_peers(options: argparse.Namespace, job_file: Path) -> list[Peer]:
    """Ours first, then those that were asked for."""
    bundle: Path = options.bundle
    peers = [
        Peer(
            name="specedge",
            python=sys.executable,
            script="peer_specedge.py",
            arguments=(str(job_file), str(bundle)),
        )
    ]
    for name, script, folder, python, extra in (
        ("ct2", "peer_ct2.py", options.ct2, options.ct2_python, (options.ct2_compute_type,)),
        ("optimum", "peer_optimum.py", options.optimum, options.optimum_python, ()),
        ("whisper.cpp", "peer_whispercpp.py", options.whispercpp, options.whispercpp_python, (options.libwhisper,)),
    ):
        if folder is not None:
            arguments = (str(job_file), str(folder), *(str(item) for item in extra))
            peers.append(Peer(name=name, python=python, script=script, arguments=arguments))
    return peers


def measure(options: argparse.Namespace, folder: Path) -> None:
    """All rounds, the table and the JSON."""
    job = make_job(options.bundle, folder, threads=options.threads, audio=options.audio)
    job_file = job.save(folder / "job.json")
    peers = make_peers(options, job_file)
    counts = Counts(n_short=options.short, n_long=options.long, n_past=options.past)
    series: dict[str, Series] = {peer.name: {} for peer in peers}
    with Running(peers[0], threads=job.threads) as ours:  # also fills the cache of packed weights
        ours.ask("save_mel")
    said = fresh_round(peers, job, counts, None)  # files into the page cache
    for i in range(options.fresh_rounds):
        print(f"fresh processes {i + 1}/{options.fresh_rounds}", file=sys.stderr)
        fresh_round(peers, job, counts, series)
    with contextlib.ExitStack() as stack:
        running = {peer.name: stack.enter_context(Running(peer, threads=job.threads)) for peer in peers}
        likeness = check_likeness(running)
        timed_round(running, counts, {name: {} for name in running})  # warm-up
        for i in range(options.rounds):
            print(f"round {i + 1}/{options.rounds}", file=sys.stderr)
            timed_round(running, counts, series)
        waited = {name: peer.ask("waited")[1] for name, peer in running.items()}
    for values in series.values():
        derive(values, counts)
    for name, value in likeness.items():
        print(f"{name}: {SAMPLE_KINDS[name]} have cosine {value:.4f} with ours; {said[name]}")
    result = report(METRICS, series, TARGETS)
    shares = ", ".join(f"{name} {value:.1%}" for name, value in waited.items() if value is not None)
    print(f"runnable but waiting for a CPU: {shares}; above a few percent the figures are of a busy machine")
    fields = {"model": options.model.name, "threads": job.threads, "rounds": options.rounds}
    print_json("peers", **fields, likeness=likeness, waited=waited, peers=said, **result)


def _add_speech_options(parser: argparse.ArgumentParser) -> None:
    speech = parser.add_argument_group("recordings")
    speech.add_argument("--speech", type=Path, metavar="FOLDER", help="shards of spoken utterances")
    speech.add_argument("--domains", default="maintenance-dev,notes-dev", help="which shards, with commas")
    speech.add_argument("--limit", type=int, default=16, metavar="N", help="utterances of a shard")
    speech.add_argument("--ours", metavar="DRAFTERS", help="with commas; draft=MODEL names a draft model")
    speech.add_argument("--contexts", default=",".join(peers_on_speech.CONTEXTS), help="ours: full, auto  [both]")
    speech.add_argument("--encoder-provider", default="cpu", metavar="NAME", help="what our encoder runs on  [cpu]")
    speech.add_argument("--token-map", type=Path, action="append", metavar="FILE", help="  [the bundle's own]")
    speech.add_argument("--hf-python", metavar="PYTHON", help="a Python that has transformers, torch and soundfile")
    speech.add_argument("--assistant", type=Path, metavar="FOLDER", help="a smaller checkpoint for transformers")
    speech.add_argument("--sherpa", type=Path, metavar="FOLDER", help="its export for sherpa-onnx")
    speech.add_argument("--sherpa-python", default=sys.executable, help="a Python that has sherpa-onnx and soundfile")
    speech.add_argument("--openvino", type=Path, metavar="FOLDER", help="its export for OpenVINO's own pipeline")
    speech.add_argument("--openvino-python", default=sys.executable, help="a Python that has openvino-genai, soundfile")


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the checkpoint in Hugging Face layout that all were made from")
    parser.add_argument("bundle", type=Path, help="its export by `specedge export`")
    parser.add_argument("--ct2", type=Path, help="its CTranslate2 conversion")
    parser.add_argument("--ct2-python", default=sys.executable, help="a Python that has faster-whisper")
    parser.add_argument("--ct2-compute-type", default="int8")
    parser.add_argument("--optimum", type=Path, help="folder of its ONNX files")
    parser.add_argument("--optimum-python", default=sys.executable, help="a Python that has onnxruntime")
    parser.add_argument("--whispercpp", type=Path, help="its whisper.cpp file")
    parser.add_argument(
        "--whispercpp-python", default=sys.executable, help="a Python that has numpy (and pywhispercpp)"
    )
    parser.add_argument("--libwhisper", type=Path, help="whisper.cpp's shared library")
    parser.add_argument("--audio", type=Path, help="16-bit mono wav at 16 kHz, repeated to a window  [synthetic]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--fresh-rounds", type=int, default=3, help="for load time and peak memory")
    parser.add_argument("--short", type=int, default=10, help="tokens of T(10)")
    parser.add_argument("--long", type=int, default=100, help="tokens of T(100)")
    parser.add_argument("--past", type=int, default=64, help="rows before the passes of 1 and 8")
    _add_speech_options(parser)
    options = parser.parse_args()
    if options.whispercpp is not None and options.libwhisper is None and options.speech is None:
        parser.error("--whispercpp needs --libwhisper")
    try:
        check_shape(options.model, options.bundle)
        with tempfile.TemporaryDirectory(prefix="specedge-bench-") as folder:
            if options.speech is not None:
                found = peers_on_speech.measure(options, Path(folder))
                print_json("peers", mode="speech", model=options.model.name, **found)
                sys.exit(1 if found["different"] else 0)
            else:
                measure(options, Path(folder))
    except (BenchError, ValueError, OSError) as error:
        raise SystemExit(f"peers: {error}") from None


if __name__ == "__main__":
    main()
