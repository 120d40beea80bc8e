"""specedge beside faster-whisper int8 on random weights of true shapes, with a trained model's acceptance replayed.

Speed depends on shapes, acceptance on training. So for each size the passes that each drafter of `--ours` saves on the
trained bundle, with the prices of that size, are written down on recordings, joined up to `--long` tokens, and played
on random weights of the size over one window of 30 s: real passes over as many rows, with tokens that a script decides.
The time of drafting is the one recorded beside the trained model: for what hears or reads hidden rows it would be
longer beside a larger one (the drafters ctc and the heads; head_costs.py measures heads, speculate.py counts them so).
faster-whisper decodes as many tokens of the same window, end of text suppressed. Drafters have speculate.py's names.

One process a runtime, in turns; a ratio is faster-whisper's time from samples to tokens over ours in the same round:
the median of the rounds, with the least and the greatest. Random weights say nothing about accuracy.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs import make_job
from peers_on_speech import BASE, OURS, conditions
from rounds import BenchError, Peer, Running, print_json

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def recorded(given: argparse.Namespace, large: Path) -> dict[str, dict[str, Any]]:
    """For each domain and drafter one window of `--long` tokens, as PASSES.json has them; "none" is plain decoding.

    Drafters go by the prices of the bundle `large`, which are measured here.
    """
    import speculate

    from specedge.runtime.bundle.bundle import Bundle
    from specedge.runtime.engine.calibrate import measure as calibrated
    from specedge.runtime.engine.engine import Engine
    from specedge.runtime.options import TranscribeOptions

    profile = calibrated(Engine(Bundle.open(large), threads=given.threads))
    costs = profile.costs()
    bundle = Bundle.open(given.bundle)
    engine = Engine(bundle, threads=given.threads)
    drafters = tuple(dict.fromkeys(["none", *(given.ours.split(",") if given.ours else ())]))
    with tempfile.TemporaryDirectory(prefix="specedge-bench-") as folder:
        asked = argparse.Namespace(
            token_map=given.token_map, speech=[given.speech] if given.speech else [], domains=given.domains,
            limit=given.limit, files=[], unrelated=[], made="",
        )  # fmt: skip
        found: dict[str, dict[str, Any]] = {}
        for domain in speculate.domains(asked, bundle, Path(folder)):
            windows = speculate.record(engine, bundle, domain, drafters, costs, TranscribeOptions(language="en"))
            for name in drafters:
                key = "none" if name == "none" else f"{name}, {domain.name}"
                found[key] = joined(windows[name], given.long)
    return found


def joined(windows: Sequence[Any], n_tokens: int) -> dict[str, Any]:
    """Passes of several windows as one of exactly `n_tokens` tokens. Raises BenchError where there are too few."""
    passes: list[Any] = []
    n_left, draft_s = n_tokens, 0.0
    for window in windows:
        for one in window.passes if n_left else ():
            n_right = min(len(one.accepted), n_left - 1) if n_left else 0
            if n_left:
                passes.append((list(one.parents), list(one.accepted[:n_right])))
                draft_s += window.draft_s / len(window.passes)
                n_left -= 1 + n_right
    if n_left:
        raise BenchError(f"the recordings have {n_tokens - n_left} tokens, {n_tokens} are wanted: raise --limit")
    return {"n_prompt": windows[0].n_prompt, "passes": passes, "draft_s": draft_s}


def prepared(size: str, work: Path, python: str) -> tuple[Path, Path]:
    """The bundle and the CTranslate2 folder of random weights of this size in `work`, made where they are not there."""
    from specedge.export.export import export_to
    from support.checkpoints import make_checkpoint

    checkpoint, bundle, ct2 = (work / f"{size}{part}" for part in ("", "-int8", "-ct2"))
    if not (checkpoint / "config.json").is_file():
        make_checkpoint(checkpoint, size=size)
    if not (bundle / "specedge.json").is_file():
        export_to(str(checkpoint), bundle, name=size)
    if not (ct2 / "config.json").is_file():
        converter = Path(python).parent / "ct2-transformers-converter"
        command = [str(converter), "--model", str(checkpoint), "--output_dir", str(ct2), "--quantization", "int8"]
        command += ["--copy_files", "tokenizer.json", "preprocessor_config.json"]
        if subprocess.run(command, check=False).returncode:
            raise BenchError(f"{converter} could not convert {checkpoint}; its reason is above")
    return bundle, ct2


def measure_size(
    given: argparse.Namespace, size: str, folder: Path
) -> tuple[dict[str, Any], dict[str, float | None], str]:
    """The figures of one size by drafter and domain, how long each runtime waited for a CPU, and theirs' version."""
    bundle, ct2 = prepared(size, given.work, given.ct2_python)
    passes = recorded(given, bundle)
    job = make_job(bundle, folder, threads=given.threads, audio=given.audio)
    job_file = str(job.save(folder / "job.json"))
    passes_file = folder / "passes.json"
    passes_file.write_text(json.dumps(passes), encoding="utf-8")
    arguments = (job_file, str(bundle), str(passes_file))
    ours = Peer(name=OURS, python=sys.executable, script="peer_replayed.py", arguments=arguments)
    arguments = (job_file, str(ct2), given.ct2_compute_type)
    theirs = Peer(name=BASE, python=given.ct2_python, script="peer_ct2.py", arguments=arguments)
    base_ms: list[float] = []
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in passes}
    with contextlib.ExitStack() as stack:
        running = {one.name: stack.enter_context(Running(one, threads=given.threads)) for one in (ours, theirs)}
        said = running[BASE].ask("start")[1]
        for turn in range(given.rounds + 1):
            ms, n_tokens = running[BASE].ask("end_to_end", n_tokens=given.long)
            if n_tokens != given.long:
                raise BenchError(f"{BASE}: {n_tokens} tokens instead of {given.long}")
            base_ms.append(ms)
            names = list(passes)
            for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
                ms, value = running[OURS].ask("end_to_end", name=name)
                if (value["tokens"], value["passes"]) != (given.long, n_passes(passes[name], given.long, name)):
                    raise BenchError(f"{size}, {name}: {value['passes']} passes, {value['tokens']} tokens: no replay")
                rows[name].append({**value, "ms": ms + (value["draft_ms"] if name != "none" else 0.0)})
            print(f"{size}: round {turn} of {given.rounds}", file=sys.stderr, flush=True)
        waited = {name: peer.ask("waited")[1] for name, peer in running.items()}
    figures = {name: row(values[1:], base_ms[1:], rows["none"][1:]) for name, values in rows.items()}
    return figures, waited, f"{BASE} on CTranslate2 {said['version']}, {said['compute_type']}"


def n_passes(window: Mapping[str, Any], n_tokens: int, name: str) -> int:
    """How many passes the replay must take."""
    return n_tokens if name == "none" else len(window["passes"])


def row(
    values: Sequence[Mapping[str, float]], base_ms: Sequence[float], plain: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """The figures of one row of the table."""
    ratios = [base / one["ms"] for one, base in zip(values, base_ms, strict=True)]

    def decoder(one: Mapping[str, float]) -> float:
        return one["decoder_ms"] + (one["draft_ms"] if one["passes"] < one["tokens"] else 0.0)

    faster = [decoder(a) / decoder(b) for a, b in zip(plain, values, strict=True)]
    return {
        "tokens_a_pass": round(values[0]["tokens"] / values[0]["passes"], 3),
        "encoder_ms": round(statistics.median(one["encoder_ms"] for one in values), 1),
        "decoder_ms": round(statistics.median(map(decoder, values)), 1),
        "decoder_speed_up": round(statistics.median(faster), 3),
        "end_to_end_ms": round(statistics.median(one["ms"] for one in values), 1),
        f"{BASE}_ms": round(statistics.median(base_ms), 1),
        "times_base": round(statistics.median(ratios), 3),
        "least": round(min(ratios), 3),
        "greatest": round(max(ratios), 3),
    }


def markdown(size: str, found: Mapping[str, Mapping[str, float]], n_tokens: int) -> list[str]:
    """The table of one size."""
    base_ms = next(iter(found.values()))[f"{BASE}_ms"]
    lines = [
        f"**{size}**, {n_tokens} tokens of one window; {BASE} int8: {base_ms:.0f} ms",
        "",
        f"| | tokens a pass | encoder + decoder ms | decoder, times plain | end to end ms | times {BASE} |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, one in found.items():
        lines.append(
            f"| {OURS} {name} | {one['tokens_a_pass']:.2f} | {one['encoder_ms']:.0f} + {one['decoder_ms']:.0f} | "
            f"{one['decoder_speed_up']:.2f} | {one['end_to_end_ms']:.0f} | "
            f"{one['times_base']:.2f} ({one['least']:.2f}-{one['greatest']:.2f}) |"
        )
    return [*lines, ""]


def measure(given: argparse.Namespace, folder: Path) -> None:
    """Every size, its table, and the JSON."""
    given.work.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    waited: dict[str, Any] = {}
    lines: list[str] = []
    for size in given.random.split(","):
        found[size], waited[size], version = measure_size(given, size, folder)
        lines += markdown(size, found[size], given.long)
    about = conditions(given.threads, given.rounds, {BASE: version}, waited[size])
    print("\n".join([*about, "", *lines]))
    fields = {"mode": "random", "model": given.bundle.name, "threads": given.threads, "rounds": given.rounds}
    print_json("peers", **fields, tokens=given.long, waited=waited, sizes=found)
