"""The experiments run on little input and end in JSON; a replay counts what the decode loop does."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from bench.ctc_drafts import half_replaced, half_wrong
from bench.domain_transfer import crossing, mix
from bench.head_sweep import two_pass_calls
from bench.merged_paths import merged
from bench.ngram_perplexity import NgramModel
from bench.noise_sweep import spoken
from bench.replay import Setting, copied_rows, path_rows, replay, trie_rows
from bench.row_thresholds import COPY_FIXED, COPY_ROW, least_length
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.export.export import export_to
from specedge.maps.build import BuildOptions
from specedge.maps.token_map import TokenMap
from specedge.runtime.bench.plots import Panel, svg
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.decoding.decode import DecodeOptions, WindowResult, decode_window
from specedge.runtime.decoding.drafter import Drafter, Guard
from specedge.runtime.decoding.rules import build_rules
from specedge.runtime.device import CostTable
from specedge.runtime.drafters.ngram import NgramDrafter
from specedge.runtime.drafters.tokenmap import PAPER, TokenMapDrafter, TokenMapOptions
from support.checkpoints import SIZES as SHAPES
from support.checkpoints import make_checkpoint
from support.fake_engine import HashEngine, special_tokens
from support.paths import DEMO
from support.token_maps import make_map
from support.tree import ROOT

SPECIAL = special_tokens(n_timestamps=4)
FREE = CostTable((1, 2, 4, 8, 16), (1.0, 1.0, 1.01, 1.02, 1.04))  # rows for nothing, so that drafts are made
SIZES = ("--dev-lines", "4", "--train-lines", "60", "--utterances", "2")
_FOLD = 39


class _Narrow(HashEngine):
    """A hash of the last two ids of 39 alone, so that what it says repeats itself."""

    def logits(self, features: Any, prefix: tuple[int, ...]) -> Any:
        row = super().logits(features, prefix[-2:]).copy()
        row[_FOLD : self.special.eot] -= 50
        return row


def _texts(engine: _Narrow, options: DecodeOptions, prompt: tuple[int, ...], n: int) -> list[WindowResult]:
    return [decode_window(engine, str(i).encode(), prompt, options) for i in range(n)]


@pytest.fixture(scope="module")
def map_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("map")


@settings(max_examples=25)
@given(
    seed=st.integers(0, 50),
    n_paths=st.integers(1, 4),
    n_sample=st.sampled_from([3, 9, 30]),
    max_draft=st.sampled_from([0, 2, 5, 64]),
    timestamps=st.booleans(),
    kind=st.sampled_from(["tokenmap", "paper", "ungated", "ngram"]),
)
def test_a_replay_counts_what_the_decode_loop_does(
    map_path: Path, seed: int, n_paths: int, n_sample: int, max_draft: int, timestamps: bool, kind: str
) -> None:
    engine = _Narrow(SPECIAL, seed=seed % 3, eot_bias=1.5, timestamp_bias=-3.0)
    engine.n_paths = n_paths
    prompt = tuple(SPECIAL.prompt("en", "transcribe", timestamps))
    rules = build_rules(
        SPECIAL, space_ids=[32], suppressed=[7, 11], timestamps=timestamps, max_initial_timestamp_index=2
    )
    options = DecodeOptions(rules=rules, n_text_ctx=engine.n_text_ctx, n_sample=n_sample, max_draft=max_draft)
    learned = [[token for token in one.tokens if token < _FOLD] for one in _texts(engine, options, prompt, 6)]
    kept = BuildOptions(n_orders=4, min_count=1, n_candidates=4)
    path = make_map(map_path / "x.tmap", [*learned, [1, 2]], kept)

    def run(ask: Any) -> Any:
        if kind == "ngram":
            return ask(NgramDrafter(FREE))
        preset = {"paper": PAPER, "ungated": TokenMapOptions(candidates=4, gated=False)}.get(kind, TokenMapOptions())
        with TokenMap.open(path) as opened:
            return ask(TokenMapDrafter([opened], FREE, ends=lambda token: token == 5, options=preset))

    def decode(drafter: Drafter) -> list[WindowResult]:
        guard, found = Guard(drafter), []
        for i in range(seed % 2, 6):
            found.append(decode_window(engine, str(i).encode(), prompt, options, guard))
            guard.end(found[-1].tokens)
        assert guard.error is None, guard.error
        return found

    ran = run(decode)
    setting = Setting(
        special=SPECIAL,
        prompt=prompt,
        n_text_ctx=engine.n_text_ctx,
        n_sample=n_sample,
        n_paths=n_paths,
        max_draft=max_draft,
        useless=rules.forbidden,
    )
    texts = [[*one.tokens, *[SPECIAL.eot] * one.finished] for one in ran]
    counts = run(lambda drafter: replay(drafter, texts, path_rows(FREE), setting))
    for name, counted in (("tokens", counts.tokens), ("passes", counts.passes), ("proposed", counts.proposed)):
        assert counted == sum(getattr(one.speculation, name) for one in ran), name
    assert counts.evaluated == sum(one.speculation.evaluated for one in ran)
    assert counts.accepted == sum(one.speculation.accepted for one in ran)
    assert counts.whole == sum(one.speculation.bonus for one in ran)


def test_prices_of_a_pass() -> None:
    costs = CostTable((1, 2, 4, 8), (1.0, 1.0, 1.5, 2.5))
    twins = [(1, 2, 3), (1, 2, 4)]
    assert path_rows(costs)(1, []) == 1.0
    assert path_rows(costs)(1, twins[:1]) == 1.5
    assert path_rows(costs)(1, twins) == 2.5  # two of four rows
    assert trie_rows(costs)(1, twins) == costs.cost(6)  # five nodes and their even neighbour
    assert copied_rows(costs, 5.5, 0.25)(1, twins) == 5.5 + 0.25 * 8


def test_the_copied_batch_has_the_thresholds_of_the_paper() -> None:
    costs = CostTable((1, 2, 8), (1.0, 1.0, 1.5))
    price = copied_rows(costs, COPY_FIXED, COPY_ROW)
    # The two constants are rounded, so the second threshold comes out a token off.
    assert [least_length(price, c, 1.0) for c in (2, 3)] == [10, 17]
    assert least_length(price, 4, 0.8) is None
    assert least_length(path_rows(costs), 2, 1.0) == 1


@pytest.mark.parametrize(
    ("mode", "left"),
    [("none", [(1, 2, 3), (4,), (1, 2, 5)]), ("lcp", [(1, 2)]), ("drop", [(1, 2, 3)])],
)
def test_short_candidates_are_merged(mode: str, left: list[tuple[int, ...]]) -> None:
    assert merged([(1, 2, 3), (4,), (1, 2, 5)], mode, (9, 16)) == left
    assert merged([(1, 2, 3), (4, 5, 6)], mode, (3, 4)) == [(1, 2, 3), (4, 5, 6)]


def test_perplexity_is_of_a_distribution_and_rises_with_surprise() -> None:
    model = NgramModel([[1, 2, 3], [1, 2, 4]], end=9, n_ids=10)
    for context in ((), (1,), (1, 2), (7, 7)):
        assert math.isclose(sum(model.probability(context, id_) for id_ in range(10)), 1.0)
    assert 1 < model.perplexity([[1, 2, 3]]) < model.perplexity([[3, 1, 2]]) < model.perplexity([[7, 8, 7]])


def test_mixtures_are_nested_and_curves_cross() -> None:
    own, other = [[i] for i in range(20)], [[100 + i] for i in range(20)]
    assert mix(own, other, 0.0) == own and mix(own, other, 1.0) == other
    few, more = ({at for at, text in enumerate(mix(own, other, share)) if text[0] >= 100} for share in (0.2, 0.6))
    assert few < more and len(more) == 12
    assert crossing([(10.0, 1.5), (20.0, 0.5)]) == 15.0
    assert crossing([(10.0, 1.5), (20.0, 1.2)]) is None


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), max_size=5))
def test_plots_are_xml_and_hold_all_points(points: list[tuple[float, float]]) -> None:
    found = ET.fromstring(svg([Panel(title="a < b", x="x", y="y", series={"one": points, "two": []}, level=1.0)]))
    assert len(list(found.iter("{http://www.w3.org/2000/svg}circle"))) == len(points)


def _run(name: str, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.bench.experiments", name, *SIZES, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["benchmark"] == name and found["prices"]["from"] == "built-in table"
    return found["figures"]


def _is_row(figures: dict[str, float]) -> bool:
    return set(figures) >= {"speed_up", "tokens_per_pass", "acceptance"} and figures["tokens_per_pass"] >= 1


@pytest.mark.slow
def test_e1(tmp_path: Path) -> None:
    figures = _run("e1", "--plot", tmp_path / "plot.svg")
    for domain in ("maintenance", "notes"):
        assert list(figures[domain]["orders"]) == ["1", "2", "3", "4", "5"]
        assert list(figures[domain]["candidates"]) == ["1", "2", "3", "4"]
        assert all(_is_row(cell) for part in figures[domain].values() for row in part.values() for cell in row.values())
    ET.parse(tmp_path / "plot.svg")


def test_e2() -> None:
    figures = _run("e2")
    assert figures["thresholds"]["shared K/V, batch rows"]["1.0"][0] == 1
    assert all(
        len(values) == len(figures["lengths"]) for curve in figures["curves"].values() for values in curve.values()
    )


@pytest.mark.slow
def test_e4() -> None:
    figures = _run("e4")
    for domain in ("maintenance", "notes"):
        rows = figures[domain]["rows"]
        assert [row["rho"] for row in rows][:2] == [0.0, 0.1] and all(_is_row(row["paper"]) for row in rows)
        assert rows[0]["perplexity"] < rows[-1]["perplexity"]


@pytest.mark.slow
def test_e15() -> None:
    figures = _run("e15", "--threads", "1")
    assert list(figures) == ["maps of both", "map of maintenance", "map of notes"]
    for ways in figures.values():
        alone = [ways[name] for name in ("tokenmap", "ctc", "mtp-latent", "medusa-block")]
        assert max(row["of_best_alone"] for row in alone) == 1 and all(_is_row(row) for row in ways.values())
        assert ways["best of a window"]["of_best_alone"] >= 1 <= ways["best draft"]["of_best_alone"]
        assert ways["best draft"]["acceptance"] == 1, "what comes is known"


def test_without_shards_and_synthesizer_the_bundled_samples_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    sounds, source = spoken(None, "notes", 5)
    assert [text for _, text in sounds] == ["Ask Maria about the letter and the wheel."] * 2 and "sample" in source


@pytest.mark.slow
def test_e3() -> None:
    figures = _run("e3")
    for domain in ("maintenance", "notes"):
        assert figures[domain]["replay_is_the_run"] is True
        assert [row["snr_db"] for row in figures[domain]["rows"]] == [None, 30, 20, 15, 10, 5, 0]
        assert all(_is_row(row["own output"]) for row in figures[domain]["rows"])


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random draft of the bundled model's windows and of English alone, which can learn."""
    n_audio_ctx = Bundle.open(DEMO).manifest.dims.n_audio_ctx
    shape = replace(SHAPES["micro"], n_audio_layer=1, n_text_layer=1, n_vocab=51864, n_audio_ctx=n_audio_ctx)
    folder = tmp_path_factory.mktemp("draft")
    with mock.patch.dict(SHAPES, {"variant": replace(shape, n_text_ctx=448)}):
        make_checkpoint(folder / "checkpoint", size="variant", en=True)
    return export_to(str(folder / "checkpoint"), folder / "bundle", learnable=True).path


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings_"), [("e6", "words"), ("e9", "adaptive")])
def test_experiments_with_a_draft_model(name: str, settings_: str, draft: Path, tmp_path: Path) -> None:
    figures = _run(name, "--draft-model", draft, "--threads", "1", "--plot", tmp_path / "plot.svg")
    for domain in ("maintenance", "notes"):
        assert {"speed_up", "tokens_per_pass", "acceptance"} <= figures[domain]["rows"][settings_].keys()
    ET.parse(tmp_path / "plot.svg")


@pytest.mark.slow
def test_e5(draft: Path, tmp_path: Path) -> None:
    figures = _run("e5", "--draft-model", draft, "--threads", "1", "--plot", tmp_path / "plot.svg")
    for domain in ("maintenance", "notes"):
        rows = figures[domain]["rows"]
        assert [row["rho"] for row in rows] == [0.0, 0.25, 0.5, 0.75, 1.0]
        for row in rows:
            assert all(_is_row(row[way]) for way in ("map", "draft", "map, then draft", "most gain"))
            assert row["map"]["model_passes"] == 0 < row["draft"]["model_passes"]
            # A random model is never right: a hybrid proposes what the map does, and the model less often than alone.
            assert row["most gain"]["model_passes"] <= row["draft"]["model_passes"]
    ET.parse(tmp_path / "plot.svg")


@pytest.mark.slow
def test_e8(tmp_path: Path) -> None:
    folder = DEMO
    same, other = folder.parent / "demo-draft-same", folder.parent / "demo-draft"
    figures = _run("e8", "--draft-model", other, "--draft-same", same, "--plot", tmp_path / "plot.svg")
    for domain in ("maintenance", "notes"):
        rows = figures[domain]["rows"]
        assert list(rows) == ["same version", "shift", "relaid", "text", "prompt", "no bonus", "prefix lost"]
        assert rows["no bonus"]["changed"] == 0 and rows["no bonus"]["passes"] >= rows["shift"]["passes"]
        counts = ("proposed", "tokens", "passes", "acceptance")
        assert [rows["relaid"][name] for name in counts] == [rows["shift"][name] for name in counts]
        # Timestamps become ends, so that a window's first draft is empty.
        assert rows["text"]["proposed"] < rows["shift"]["proposed"]
    lost = [figures[domain]["rows"]["prefix lost"] for domain in ("maintenance", "notes")]
    assert sum(row["changed"] for row in lost) > 0 and sum(row["wrong_percent"] for row in lost) > 0
    ET.parse(tmp_path / "plot.svg")


@pytest.mark.slow
def test_e8_wants_another_version(draft: Path) -> None:
    command = [sys.executable, "-m", "tests.bench.experiments", "e8", *SIZES, "--draft-model", str(draft)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1 and "e8 needs a draft of another version" in done.stderr


@pytest.mark.slow
def test_e7(draft: Path, tmp_path: Path) -> None:
    figures = _run("e7", "--draft-model", draft, "--threads", "1", "--plot", tmp_path / "plot.svg")
    assert figures["rows"]["no learning"]["updates"] == 0
    assert {"first_end", "second_begin", "second_end"} <= figures["rows"]["joint"].keys()


@pytest.mark.slow
def test_e17() -> None:
    figures = _run("e17", "--draft-model", "demo-draft-same", "--threads", "1", "--utterances", "4")
    assert figures["utterances"] == 8 and list(figures["drafts"]) == ["demo-draft-same", "2 layers of demo"]
    for ways in figures["drafts"].values():
        assert ways["last row"]["weights"] < ways["inside layers"]["weights"] < ways["all weights"]["weights"]
        assert all(0 <= row["right"] <= 1 for name, row in ways.items() if name == "nothing")


def test_low_rank_updates_begin_by_changing_nothing_and_learn_alone() -> None:
    import torch
    from bench.layer_updates import ALL, LAYERS, ROW, student_of

    from specedge.export.training.nets import DraftNet

    torch.manual_seed(0)
    ids, features = torch.tensor([[1, 2, 3]]), torch.randn(1, 5, 8)
    for way, n_learn in ((ROW, 2 * 8 * 32), (LAYERS, 8 * (8 * 16 + 2 * 24)), (ALL, None)):
        net = DraftNet(1, 2, 16, 4, torch.randn(7, 8))
        before = net(ids, features).detach()
        student = student_of(way, net)
        assert torch.equal(student.rows(ids, features), before), way
        n_found = sum(weight.numel() for weight in student.weights)
        assert n_found == (sum(weight.numel() for weight in net.parameters()) if n_learn is None else n_learn)
        frozen = {id(weight): weight.clone() for weight in net.parameters()}
        optimiser = torch.optim.SGD(student.weights, lr=1.0)
        student.rows(ids, features).square().sum().backward()
        optimiser.step()
        assert not torch.equal(student.rows(ids, features), before), way
        learned = {id(weight) for weight in student.weights}
        assert all(torch.equal(weight, frozen[id(weight)]) for weight in net.parameters() if id(weight) not in learned)


@pytest.mark.slow
def test_experiments_with_heads(tmp_path: Path) -> None:
    figures = _run("e10", "--threads", "1", "--plot", tmp_path / "plot.svg")
    for domain in ("maintenance", "notes"):
        rows = figures[domain]["kinds"]["mtp-latent"]["heads"]
        cut = [row["chain"]["calls_cut"] for row in rows.values()]
        assert cut == sorted(cut) and all(_is_row(row["gated"]) for row in rows.values())
        last = rows[max(rows, key=int)]
        assert last["tree"]["calls_cut"] >= last["chain"]["calls_cut"] >= last["two passes"]["calls_cut"]
    figures = _run("e11", "--threads", "1", "--rounds", "1", "--plot", tmp_path / "plot.svg")
    rows = figures["notes"]["rows"]
    assert rows["mtp-latent, exact"]["different"] == rows["plain"]["different"] == 0
    assert rows["mtp-latent, tau 0.5"]["calls_per_word"] <= rows["mtp-latent, exact"]["calls_per_word"]
    figures = _run("e12", "--threads", "1", "--plot", tmp_path / "plot.svg")
    for domain in ("maintenance", "notes"):
        exact = figures[domain]["exact"]
        assert exact["mtp-latent"]["different"] == 0
        assert exact["mtp-latent"]["passes"] < exact["no drafts"]["passes"]
    ET.parse(tmp_path / "plot.svg")


def test_two_passes_are_counted_as_the_published_loop_takes_them() -> None:
    ids = (5, 6, 7, 8, 9)
    right = np.array([[0, 0], [6, 7], [7, 8], [8, 9], [9, 0], [0, 0]])
    assert two_pass_calls(ids, right, 2, 2) == 4  # 5, 6, 7, then 8 and the end
    assert two_pass_calls(ids, right[:, ::-1], 2, 2) == 5  # always wrong: two tokens for a pair of passes


def test_a_folder_without_speech_is_refused_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bench.experiments", "e3", *SIZES, "--speech", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "maintenance-dev" in done.stderr


@pytest.mark.slow
def test_e13(tmp_path: Path) -> None:
    figures = _run("e13", "--threads", "1", "--plot", tmp_path / "plot.svg")
    for domain in ("maintenance", "notes"):
        for timestamps in ("with", "without"):
            found = figures[f"{domain}, {timestamps} timestamps"]
            assert all(_is_row(row) and row["wer"] >= 0 for row in found["ablation"].values())
            # A beam of another width is the only difference, and the default is one of them.
            assert found["ablation"]["map, beam 3"]["passes"] == found["ablation"]["map"]["passes"]
            heard = found["conditions"]["map and cache"]
            assert list(heard) == ["as spoken", "20 dB", "10 dB", "5 dB", "fast", "slow"]
            assert heard["as spoken"]["passes"] == found["ablation"]["map and cache"]["passes"]
    ET.parse(tmp_path / "plot.svg")


def test_a_map_is_made_half_wrong() -> None:
    own, other = ["a b", "c d", "e f"], ["u v", "w x", "y z"]
    assert sorted(half_replaced(own, other)) == ["a b", "e f", "w x"]
    words = " ".join(half_wrong(["one two three four five six seven eight"] * 40)).split()
    right = ["one", "two", "three", "four", "five", "six", "seven", "eight"] * 40
    kept = sum(a == b for a, b in zip(words, right, strict=True)) / len(right)
    assert 0.45 < kept < 0.7  # half, and what is drawn by chance
