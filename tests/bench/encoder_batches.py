"""The windows of a long recording: encoded one after another, together, apart, and while the decoder is at work.

    python tests/bench/encoder_batches.py [BUNDLE] --audio FILE [--windows 8] [--drafter none] [--rounds 7]

The first windows of FILE lie end to end. "Encoder" is log-mel to features, keys and values: a window after another on
all threads, as the engine does it; all in one pass; and by as many sessions of one thread as there are threads, each
with every other window. "Long form" is samples to tokens: a window after another; and with a second thread that makes
log-mel and features of the next window while the decoder works on this one, both on all threads, or each on one.

No window waits here for the text of the one before, which says where the next one begins: so the last two are what
pipelining can bring at most. Ways alternate in each round; figures are medians, ratios are over the first way of the
same round, with the least and the greatest. "busy" is CPU time over threads times time: the decoder's workers wait
busily, so that it tells of idle cores too little rather than too much. Features are compared bit for bit, and tokens
and log-probabilities with ==; the exit code is 1 when anything differs. It does not measure word errors, and times tell
nothing on a busy machine. The last line of output is JSON.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rounds import print_json, print_table

from specedge.models import store
from specedge.runtime.audio.audio import open_audio
from specedge.runtime.audio.mel import log_mel
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.decoding.decode import DecodeOptions, decode_window
from specedge.runtime.decoding.drafter import TargetModel
from specedge.runtime.decoding.presets import window_rules
from specedge.runtime.drafters.registry import make_drafter
from specedge.runtime.engine.engine import Engine, Features, cross_keys_values, encoder_output
from specedge.runtime.engine.session import Canceller, load_graph
from specedge.runtime.options import TranscribeOptions

Floats = NDArray[np.float32]
Way = Callable[[], list[Any]]


class Encoder:
    """Log-mel, encoder, keys and values, on sessions of its own of so many threads."""

    def __init__(self, bundle: Bundle, threads: int) -> None:
        self._manifest = bundle.manifest
        self._encoder, self._cross_kv = (
            load_graph(bundle, graph, Canceller(), folder=bundle.path, threads=threads)
            for graph in ("encoder", "cross_kv")
        )

    def hear(self, samples: Floats) -> Features:
        """The features of one window of samples."""
        return self.encode(log_mel(samples, self._manifest.dims.n_mels, self._manifest.n_frames)[None])[0]

    def encode(self, mels: Floats) -> list[Features]:
        """The features of log-mels [n_windows, n_mels, n_frames], in one pass."""
        hidden = encoder_output(self._encoder, mels, self._manifest.dims.n_audio_state)
        cross = cross_keys_values(self._cross_kv, hidden)
        return [
            Features(hidden=hidden[i], cross={name: array[i : i + 1] for name, array in cross.items()})
            for i in range(len(hidden))
        ]


class Decoder:
    """An engine of so many threads, and a drafter that begins anew in each `texts`."""

    def __init__(self, bundle: Bundle, threads: int, drafter: str) -> None:
        self._bundle, self._drafter, manifest = bundle, drafter, bundle.manifest
        self._engine = Engine(bundle, threads=threads)
        rules = window_rules(TranscribeOptions(language="en"), manifest, bundle.tokenizer)
        self._options = DecodeOptions(rules=rules, n_text_ctx=manifest.dims.n_text_ctx)
        tokens = manifest.whisper_tokens
        self._prompt = tokens.prompt("en" if tokens.is_multilingual else None, "transcribe", True)

    def texts(self, windows: Any) -> list[Any]:
        """Tokens and log-probabilities of windows, whose features may still be on their way."""
        target = TargetModel(self._bundle, threads=self._engine.threads, engine=self._engine)
        with closing(make_drafter(self._drafter, target)) as drafter:
            found = []
            for features in windows:
                done = decode_window(self._engine, features, self._prompt, self._options, drafter)
                found.append((done.tokens, done.token_logprobs))
            return found


def encoder_ways(bundle: Bundle, sounds: Sequence[Floats], threads: int) -> dict[str, Way]:
    """Each gives the features of all windows, as bytes."""
    manifest = bundle.manifest
    mels = np.stack([log_mel(sound, manifest.dims.n_mels, manifest.n_frames) for sound in sounds])
    whole, singles = Encoder(bundle, threads), [Encoder(bundle, 1) for _ in range(threads)]

    def apart() -> list[Features]:
        found: list[Any] = [None] * len(mels)

        def work(number: int) -> None:
            for i in range(number, len(mels), threads):
                (found[i],) = singles[number].encode(mels[i : i + 1])

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))
        return found

    return {
        "one after another": lambda: [one for mel in mels for one in whole.encode(mel[None])],
        "in one pass": lambda: whole.encode(mels),
        "apart, one thread each": apart,
    }


def long_form_ways(bundle: Bundle, sounds: Sequence[Floats], threads: int, drafter: str) -> dict[str, Way]:
    """Each gives tokens and log-probabilities of all windows."""
    whole, single = (Encoder(bundle, n) for n in (threads, 1))
    decoder, single_decoder = (Decoder(bundle, n, drafter) for n in (threads, 1))

    def ahead(encoder: Encoder, decoder: Decoder) -> list[Any]:
        with ThreadPoolExecutor(1) as pool:
            return decoder.texts(pool.map(encoder.hear, sounds))

    return {
        "one after another": lambda: decoder.texts(map(whole.hear, sounds)),
        "encoder ahead, all threads": lambda: ahead(whole, decoder),
        "encoder ahead, one thread each": lambda: ahead(single, single_decoder),
    }


def parts(bundle: Bundle, sounds: Sequence[Floats], threads: int, drafter: str) -> dict[str, Way]:
    """Log-mel and features alone, and the decoder alone, on all threads and on one."""
    found: dict[str, Way] = {}
    for n in dict.fromkeys((threads, 1)):
        encoder, decoder = Encoder(bundle, n), Decoder(bundle, n, drafter)
        heard = [encoder.hear(sound) for sound in sounds]
        found[f"encoder, threads {n}"] = lambda encoder=encoder: [encoder.hear(sound) for sound in sounds]  # type: ignore[misc]
        found[f"decoder, threads {n}"] = lambda decoder=decoder, heard=heard: decoder.texts(heard)  # type: ignore[misc]
    return found


def compare(ways: Mapping[str, Way], threads: int, n_windows: int, rounds: int) -> dict[str, Any]:
    """Time all ways in turn, after a round to warm up."""
    first = next(iter(ways))
    expected = {name: _plain(way()) for name, way in ways.items()}
    took: dict[str, list[float]] = {name: [] for name in ways}
    busy: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds):
        order = list(ways)
        for name in order[turn % len(order) :] + order[: turn % len(order)]:
            started_s, before_s = time.perf_counter(), time.process_time()
            ways[name]()
            took[name].append(time.perf_counter() - started_s)
            busy[name].append((time.process_time() - before_s) / (threads * took[name][-1]))
    found = {}
    for name, seconds in took.items():
        ratios = [theirs / mine for theirs, mine in zip(took[first], seconds, strict=True)]
        found[name] = {
            "ms_a_window": round(1e3 * statistics.median(seconds) / n_windows, 2),
            "times": round(statistics.median(ratios), 3),
            "least": round(min(ratios), 3),
            "greatest": round(max(ratios), 3),
            "busy": round(statistics.median(busy[name]), 2),
            "differing": sum(a != b for a, b in zip(expected[name], expected[first], strict=True)),
        }
    return found


def _plain(found: Sequence[Any]) -> list[Any]:
    """What can be compared with ==: features as bytes, in the order of their names."""
    return [
        (one.hidden.tobytes(), *(one.cross[name].tobytes() for name in sorted(one.cross)))
        if isinstance(one, Features)
        else one
        for one in found
    ]


def windows_of(path: str, manifest: Any, n_windows: int) -> list[Floats]:
    """The first windows of samples, whole ones."""
    with open_audio(path) as stream:
        found = [np.array(stream.read(manifest.n_samples), np.float32) for _ in range(n_windows)]
    whole = [samples for samples in found if len(samples) == manifest.n_samples]
    if len(whole) < 2:
        sys.exit(f"{path}: expected two windows of {manifest.window_s:g} s or more")
    return whole


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", nargs="?", default="demo", help="name or folder  [demo]")
    parser.add_argument("--audio", required=True, metavar="FILE")
    parser.add_argument("--windows", type=int, default=8, metavar="N")
    parser.add_argument("--drafter", default="none")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    bundle = Bundle.open(store.find(given.bundle))
    sounds = windows_of(given.audio, bundle.manifest, given.windows)
    shared = (given.threads, len(sounds), given.rounds)
    figures: dict[str, Any] = {}
    for title, ways in (
        ("encoder", encoder_ways(bundle, sounds, given.threads)),
        ("long form", long_form_ways(bundle, sounds, given.threads, given.drafter)),
    ):
        figures[title] = compare(ways, *shared)
    ways = parts(bundle, sounds, given.threads, given.drafter)
    alone = {name: compare({name: way}, *shared)[name] for name, way in ways.items()}
    for title, found in (*figures.items(), ("parts alone", alone)):
        rows = [[title, *next(iter(found.values()))]]
        print_table([*rows, *([name, *map(str, row.values())] for name, row in found.items())])
        print()
    spent = {name: row["ms_a_window"] for name, row in alone.items()}
    in_turn = spent[f"encoder, threads {given.threads}"] + spent[f"decoder, threads {given.threads}"]
    most = in_turn / max(spent["encoder, threads 1"], spent["decoder, threads 1"])
    print(f"one thread each, wholly overlapped: {most:.3f} times one after another on {given.threads} threads")
    fields = {"bundle": bundle.manifest.name, "windows": len(sounds), "threads": given.threads, "rounds": given.rounds}
    print_json("encoder_batches", **fields, drafter=given.drafter, **figures, alone=alone, most=round(most, 3))
    return int(any(row["differing"] for found in figures.values() for row in found.values()))


if __name__ == "__main__":
    sys.exit(main())
