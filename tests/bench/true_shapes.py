"""What drafting gains at the shapes that people use, held to the project's targets: one command, the whole table.

    python tests/bench/true_shapes.py [--shapes base,small] [--speech FOLDER | --audio FOLDER [--texts FILE]]
                                      [--limit 10] [--rounds 3] [--threads 2] [--keep FOLDER [--minutes 4]]

Models are the demo grown to base, small, medium, large-v2 (models/recipe/grow.py), made where they are missing, into
--grown or the user's cache: they say what the demo says, at the price of the published model. Speech is --speech, a
folder of shards of the dev lists in held-out voices (models/recipe/speech.py), which are spoken first where they are
missing (espeak-ng, flite and festival are needed), or the recordings in --audio, with a map of --texts, sentences of
their domain, one a line; without --texts it is the maps of the training lists. --only names parts of the run:

  pass      the decoder's pass: one row (T(1)) beside the time in which as many threads read the decoder's weights from
            memory, T(8) and T(16) over T(1), what several paths cost beyond their rows, and the share of a plain pass
            that is not in ONNX Runtime
  drafters  plain decoding's time over each drafter's, decoder and drafting together, as `speculate.py` measures it, on
            each domain with its own map: medians of interleaved rounds, with the least and the greatest. "ctc alone"
            has no map; "draft" is the bundle's own, two layers on the same encoder; all but base also have one of
            base's shape, with an encoder of its own
  floor     the same where nothing can be gained: one domain with the other's map, silence, noise; and a mix of both
            domains with one map
  beside    faster-whisper int8 on the same weights, from file to text (`peers.py --speech`), and the peak memory; it is
            left out where --ct2-python has no faster-whisper

With --keep, what was measured is kept there and not measured again, so that a long run can be cut: after --minutes no
new part is begun, and the exit code is 3 until all is there. The last table holds the figures to the targets, each
"met" or "not met".

It does not measure accuracy, or a busy machine: nothing else may run, and what did is told. The last line of output is
JSON; the exit code is 1 when any text, time or log-probability differs from plain decoding's, or a target is not met.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(HERE))  # peers_on_speech is imported as peers.py imports it

import peers_on_speech  # noqa: E402
from bench.grown import ct2_of, folder_of, hf_of  # noqa: E402
from bench.speculate import LISTS, Domain, domains, made_sounds, map_of, measure, report  # noqa: E402
from bench.targets import BASE_DRAFT, MIX, OTHERS_MAP, QUIET, table, verdicts  # noqa: E402
from rounds import BenchError, print_json, print_table  # noqa: E402

from specedge.errors import SpecedgeError  # noqa: E402
from specedge.export.training.corpus import list_lines  # noqa: E402
from specedge.models.recipe.grow import FAMILY, bundle_at  # noqa: E402
from specedge.runtime.audio.audio import open_audio  # noqa: E402
from specedge.runtime.bench.rounds import hear  # noqa: E402
from specedge.runtime.bundle.bundle import Bundle  # noqa: E402
from specedge.runtime.bundle.manifest import graph_bytes  # noqa: E402
from specedge.runtime.decoding.drafter import EmptyDrafter  # noqa: E402
from specedge.runtime.device import cache_home, load_profile  # noqa: E402
from specedge.runtime.engine.calibrate import measure as calibrated  # noqa: E402
from specedge.runtime.engine.engine import Engine  # noqa: E402
from specedge.runtime.options import HEAD_KINDS, TranscribeOptions  # noqa: E402

PARTS = ("pass", "drafters", "floor", "beside")
DRAFTERS = ("tokenmap", "ctc", "ctc alone", *HEAD_KINDS, "draft", "cascade", "auto")
FLOOR_DRAFTERS = ("tokenmap", "ctc", "cascade", "auto")
SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a")
N_READS = 15
UNFINISHED = 3  # the exit code where --minutes were not enough


def read_s(n_bytes: int, threads: int) -> float:
    """Seconds in which `threads` threads read so many bytes from memory once, the median of several times."""
    parts = [np.ones(n_bytes // 8 // threads + 1, np.uint64) for _ in range(threads)]
    spent = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(N_READS):
            started = time.perf_counter()
            list(pool.map(np.bitwise_or.reduce, parts))  # of NumPy's reductions the quickest
            spent.append(time.perf_counter() - started)
    return statistics.median(spent)


def pass_figures(engine: Engine, bundle: Bundle, sounds: Sequence[Any]) -> dict[str, float]:
    """The decoder's pass: milliseconds, and ratios."""
    n_bytes = graph_bytes(bundle.manifest, "decoder")
    before = read_s(n_bytes, engine.threads)
    profile = calibrated(engine)
    reading_s = statistics.mean((before, read_s(n_bytes, engine.threads)))
    one_s = profile.pass_s[1]
    figures = {
        "weights_mb": n_bytes / 1e6,
        "read_ms": 1e3 * reading_s,
        "pass_ms": 1e3 * one_s,
        "pass_over_read": one_s / reading_s,
        "t8": profile.pass_s[8] / one_s,
        "t16": profile.pass_s[16] / one_s,
        "paths_ms": 1e3 * profile.paths_s,
        "paths_passes": profile.paths_s / one_s,
        "encode_ms": 1e3 * profile.encode_s,
        "python_share": python_share(engine, bundle, sounds),
    }
    return {name: round(value, 3) for name, value in figures.items()}


def python_share(engine: Engine, bundle: Bundle, sounds: Sequence[Any]) -> float:
    """The share of plain decoding that is not spent in ONNX Runtime, over these sounds."""
    inside_s = decoder_s = 0.0
    options, session = TranscribeOptions(language="en"), engine._session("decoder")
    run = session.run

    def timed(binding: Any) -> None:
        nonlocal inside_s
        started = time.perf_counter()
        run(binding)
        inside_s += time.perf_counter() - started

    hear(engine, bundle, sounds[0], options, EmptyDrafter())
    vars(session)["run"] = timed
    try:
        for sound in sounds:
            decoder_s += hear(engine, bundle, sound, options, EmptyDrafter()).counted.decoder_s
    finally:
        del vars(session)["run"]
    return 1 - inside_s / decoder_s


class Others:
    """How busy everything but this process has kept the CPUs since this was made."""

    def __init__(self) -> None:
        self._begun = self._spent()

    def share(self) -> float | None:
        """Of the time of all CPUs, 0 to 1; None where the system does not tell."""
        if not self._begun:
            return None
        all_s, busy_s, own_s = (end - begin for end, begin in zip(self._spent(), self._begun, strict=True))
        return round(max(0.0, busy_s - own_s) / all_s, 3) if all_s else 0.0

    @staticmethod
    def _spent() -> tuple[float, ...]:
        """Seconds so far: of all CPUs, those in which they were busy, and this process's own."""
        try:
            ticks = [int(value) for value in Path("/proc/stat").read_text(encoding="ascii").split()[1:9]]
        except OSError:
            return ()
        idle = ticks[3] + ticks[4]
        hz = os.sysconf("SC_CLK_TCK")
        return sum(ticks) / hz, (sum(ticks) - idle) / hz, time.process_time()


def dev_speech() -> Path:
    """The dev lists in held-out voices, spoken once into the cache. Exits where the programs are missing."""
    folder = cache_home() / "grown" / "speech"
    done = subprocess.run(
        [sys.executable, "-m", "specedge.models.recipe.speech", "dev", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"no speech: {done.stderr.strip().splitlines()[-1]}; give --speech or --audio")
    return folder / "dev"


def audio_files(given: argparse.Namespace) -> list[Path]:
    """The recordings that the user brought, `--limit` of them. Exits where there are none."""
    files = sorted(path for path in given.audio.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not files:
        sys.exit(f"{given.audio}: holds no recordings; expected files that end in {', '.join(SUFFIXES)}")
    step = max(1, len(files) // given.limit)
    return files[::step][: given.limit]


class Shape:
    """A member of the family at work: its parts by name, each measured when it is called."""

    def __init__(self, name: str, given: argparse.Namespace, scratch: Path) -> None:
        self.name, self._given, self._scratch = name, given, scratch
        self._options = TranscribeOptions(language="en", without_timestamps=given.without_timestamps)
        drafters = given.drafters.split(",") if given.drafters else list(DRAFTERS)
        if name != "base" and not given.drafters:
            drafters.append(BASE_DRAFT)
        self._drafters = [one for one in drafters if one != "none"]

    @cached_property
    def bundle(self) -> Bundle:
        return bundle_at(self.name, "demo", folder_of(self.name, self._given.grown))

    @cached_property
    def engine(self) -> Engine:
        return Engine(self.bundle, threads=self._given.threads)

    @cached_property
    def domains(self) -> list[Domain]:
        """What is transcribed, with its maps."""
        given = self._given
        if not given.audio:
            return domains(given, self.bundle, self._scratch)
        names = [str(given.texts)] if given.texts else [f"{name}.train" for name in LISTS]
        maps = [map_of(list_lines(name), self.bundle, self._scratch / f"{i}.tmap") for i, name in enumerate(names)]
        return [Domain(given.audio.name, list(audio_files(given)), maps)]

    def parts(self) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
        """The parts that were asked for: the name under which it is kept, and how it is measured."""
        wanted = self._given.only.split(",")
        if "pass" in wanted:
            yield "pass", lambda: pass_figures(self.engine, self.bundle, self.domains[0].sources[:4])
        if "drafters" in wanted:
            for name in self._given.domains.split(",") if not self._given.audio else [self._given.audio.name]:
                yield from self._drafted(name, self._drafters, lambda name=name: self._domain(name))  # type: ignore[misc]
        if "floor" in wanted:
            for name in QUIET:
                yield from self._drafted(name, FLOOR_DRAFTERS, lambda name=name: self._quiet(name))  # type: ignore[misc]
            if not self._given.audio and "," in self._given.domains:
                yield from self._drafted(OTHERS_MAP, FLOOR_DRAFTERS, self._others_map)
                yield from self._drafted(MIX, ("tokenmap", "ctc", "mtp-latent", "cascade"), self._mix)
        if "beside" in wanted and self._has_peer():
            yield "beside", self._beside

    def _drafted(
        self, domain: str, drafters: Sequence[str], make: Callable[[], Domain]
    ) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
        at_once = self._given.at_once or len(drafters)
        for at in range(0, len(drafters), at_once):
            some = drafters[at : at + at_once]
            yield f"{domain}, {', '.join(some)}", lambda some=some: self._rounds(make(), some)  # type: ignore[misc]

    def _rounds(self, domain: Domain, drafters: Sequence[str]) -> dict[str, Any]:
        base = self._base_draft() if BASE_DRAFT in drafters else ""
        names = ["none", *(base if one == BASE_DRAFT else one for one in drafters)]
        rounds = measure(self.engine, self.bundle, domain, names, self._given.rounds, self._options)
        title = f"{self.name}, {self._given.threads} threads, {self._given.rounds} rounds, {len(domain.sources)} sounds"
        rows = report(title, {domain.name: rounds}, names)[domain.name]
        rows = {BASE_DRAFT if name == base else name: row for name, row in rows.items()}
        return {"domain": domain.name, "rows": rows, "different": sum(rounds.different.values())}

    def _base_draft(self) -> str:
        """A draft with an encoder of its own, of another version, in base's shape: as speculate.py names it."""
        return f"draft={bundle_at('base', 'demo-draft', folder_of('base', self._given.grown, 'demo-draft')).path}"

    def _domain(self, name: str) -> Domain:
        found = [domain for domain in self.domains if domain.name.startswith(name)]
        if not found:
            sys.exit(f"--domains: there is no shard {name!r}; there are {', '.join(one.name for one in self.domains)}")
        return found[0]

    def _quiet(self, name: str) -> Domain:
        return replace(self.domains[0], name=name, sources=made_sounds(name, self._given.limit))

    def _others_map(self) -> Domain:
        return replace(self.domains[0], name=OTHERS_MAP, maps=self.domains[1].maps)

    def _mix(self) -> Domain:
        pairs = zip(self.domains[0].sources, self.domains[1].sources, strict=False)
        sources = [one for pair in pairs for one in pair][: self._given.limit]
        return replace(self.domains[0], name=MIX, sources=sources)

    def _has_peer(self) -> bool:
        python = [self._given.ct2_python, "-c", "import faster_whisper, transformers"]
        is_there = subprocess.run(python, capture_output=True, check=False).returncode == 0
        if not is_there:
            print(f"{python[0]} has no faster-whisper and transformers: nothing is measured beside it", file=sys.stderr)
        return is_there

    def _beside(self) -> dict[str, Any]:
        given, folder = self._given, folder_of(self.name, self._given.grown)
        asked = argparse.Namespace(
            contexts="full,auto",
            model=hf_of(self.name, folder), bundle=self.bundle.path, threads=given.threads, rounds=given.rounds,
            ours="ctc,auto", token_map=[], ct2=ct2_of(self.name, folder, given.ct2_python), ct2_python=given.ct2_python,
            ct2_compute_type="int8", hf_python=None, assistant=None, optimum=None, optimum_python=None, sherpa=None,
            sherpa_python=None, openvino=None, openvino_python=None, whispercpp=None, whispercpp_python=None,
            encoder_provider="cpu",
        )  # fmt: skip
        if given.audio:
            files = [
                peers_on_speech.Recording(domain=given.audio.name, file=path, text="", duration_s=_duration_s(path))
                for path in audio_files(given)
            ]
        else:
            shards = given.domains.split(",")
            files = peers_on_speech.recordings(given.speech[0], shards, given.limit, self._scratch)
        return peers_on_speech.compare(asked, files, self._scratch)


def _duration_s(path: Path) -> float:
    with open_audio(path) as stream:
        return stream.duration_s or 0.0


class Results:
    """What was measured by shape and part; in files where `folder` is given."""

    def __init__(self, folder: Path | None, minutes: float | None) -> None:
        self._folder, self._until = folder, None if minutes is None else time.monotonic() + 60 * minutes
        self.n_left = 0

    def had(self, shape: str, part: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """The figures of a part: kept ones, else measured now, or None where the time is over."""
        kept = None if self._folder is None else self._folder / f"{shape}, {part}.json".replace("/", "-")
        if kept is not None and kept.is_file():
            found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
            return found
        if self._until is not None and time.monotonic() > self._until:
            self.n_left += 1
            return None
        others = Others()
        found = make()
        # Peers are other processes too; they tell how long they waited for a CPU.
        found["others"] = max(found["waited"].values()) if "waited" in found else others.share()
        print(f"other processes had {found['others']} of the CPUs; more than a few hundredths spoil the figures")
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(found), encoding="utf-8")
        return found


def measure_shape(shape: Shape, results: Results) -> dict[str, Any]:
    """Everything about one shape."""
    figures: dict[str, Any] = {"domains": {}, "different": 0, "others": {}}
    for part, make in shape.parts():
        found = results.had(shape.name, part, make)
        if found is None:
            continue
        figures["others"][part] = found.pop("others")
        if "rows" in found:
            figures["domains"].setdefault(found["domain"], {}).update(found["rows"])
        else:
            figures[part] = found
        figures["different"] += found.get("different", 0)
    return figures


def print_shape(shape: str, figures: dict[str, Any]) -> list[dict[str, Any]]:
    """The tables of a shape, and its verdicts for the JSON."""
    if "pass" in figures:
        print(f"\n{shape}: the decoder's pass")
        print_table([[name, f"{value:g}"] for name, value in figures["pass"].items()])
    head = ["decoder_speed_up", "least", "greatest", "tokens_per_pass", "acceptance", "end_to_end"]
    rows = [
        [domain, name, *(f"{row[key]:g}" for key in head)]
        for domain, by_name in figures["domains"].items()
        for name, row in by_name.items()
    ]
    if rows:
        print(f"\n{shape}: decoder and drafting over plain decoding")
        print_table([["domain", "drafter", *head], *rows])
    found = verdicts(shape, figures)
    print(f"\n{shape}: targets")
    print_table(table(found))
    return [one.figures() for one in found]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="base,small", help=f"of {', '.join(FAMILY)}, with commas")
    parser.add_argument("--speech", type=Path, nargs="+", metavar="FOLDER", help="shards of spoken utterances")
    parser.add_argument("--domains", default="maintenance-dev,notes-dev", help="which shards, with commas")
    parser.add_argument("--audio", type=Path, metavar="FOLDER", help="recordings")
    parser.add_argument("--texts", type=Path, metavar="FILE", help="sentences of their domain, for the map")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas  [all]")
    parser.add_argument("--drafters", help="with commas  [all]")
    parser.add_argument("--at-once", type=int, metavar="N", help="drafters that take turns in one part  [all]")
    parser.add_argument("--limit", type=int, default=10, help="utterances of a domain")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--without-timestamps", action="store_true")
    parser.add_argument("--grown", type=Path, metavar="FOLDER", help="where grown models are  [the cache]")
    parser.add_argument("--ct2-python", default=sys.executable, help="a Python that has faster-whisper, transformers")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where figures are kept, and read from")
    parser.add_argument("--minutes", type=float, help="begin no part after so many")
    given = parser.parse_args()
    for option, names, known in (("--shapes", given.shapes, FAMILY), ("--only", given.only, PARTS)):
        wrong = [name for name in names.split(",") if name not in known]
        if wrong:
            parser.error(f"{option}: got {wrong[0]!r}, expected {', '.join(known)}")
    if given.minutes is not None and given.keep is None:
        parser.error("--minutes needs --keep, or what was measured is lost")
    if given.audio is not None and not given.audio.is_dir():
        parser.error(f"--audio: {given.audio} is no folder of recordings")
    # What else `speculate.domains` is told of.
    given.files, given.made, given.unrelated, given.token_map = [], None, [], None
    if given.speech is None and given.audio is None:
        given.speech = [dev_speech()]
    return given


def main() -> int:
    given = _arguments()
    results = Results(given.keep, given.minutes)
    shapes: dict[str, Any] = {}
    try:
        for name in given.shapes.split(","):
            with tempfile.TemporaryDirectory(prefix="specedge-shapes-") as folder:
                shape = Shape(name, given, Path(folder))
                shapes[name] = measure_shape(shape, results)
                profile = load_profile(shape.bundle.digest, given.threads)
                shapes[name]["calibrated"] = profile is not None
    except BenchError as error:
        sys.exit(f"true_shapes: {error}")
    except SpecedgeError as error:
        print(f"true_shapes: {error}", file=sys.stderr)
        return error.exit_code
    for name, figures in shapes.items():
        figures["targets"] = print_shape(name, figures)
    different = sum(figures["different"] for figures in shapes.values())
    missed = sum(one["verdict"] == "not met" for figures in shapes.values() for one in figures["targets"])
    print(f"\n{different} transcriptions differ from plain decoding's; {missed} targets are not met")
    if results.n_left:
        print(f"{results.n_left} parts are left: run it again", file=sys.stderr)
    fields = {"threads": given.threads, "rounds": given.rounds, "limit": given.limit, "unfinished": results.n_left}
    print_json("true_shapes", **fields, shapes=shapes, different=different, missed=missed)
    return UNFINISHED if results.n_left else int(bool(different or missed))


if __name__ == "__main__":
    sys.exit(main())
