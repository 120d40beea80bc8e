"""The papers' tables are filled from results as they are, whatever is missing, and hold no figure of ours."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from bench import papers
from bench.published.claim import Answer, Claim, answered, held_to

from support.paths import DEMO

E2 = {"thresholds": {name: {"1.0": [1, *rest]} for name, rest in (
    ("copied K/V", [10, 17, 20]), ("shared K/V, batch rows", [1, 2, 2]),
)}}  # fmt: skip


def _kept(folder: Path, name: str, figures: dict[str, Any]) -> None:
    found = {"benchmark": name, "machine": {"load_average": 0.5}, "bundle": "b", "prices": {"from": "built-in table"}}
    (folder / f"{name}.txt").write_text(f"a table\n{json.dumps({**found, 'figures': figures})}\n", encoding="utf-8")


def _e8(shift: float, prompt: float) -> dict[str, Any]:
    row = {"tokens_per_pass": 2.0, "changed": 0.0, "wrong_percent": 0.0}
    rates = {
        "same version": 0.9,
        "shift": shift,
        "relaid": shift,
        "text": prompt,
        "prompt": prompt,
        "no bonus": shift,
        "prefix lost": 0.8,
    }
    rows = {way: {**row, "acceptance": rate} for way, rate in rates.items()}
    rows["no bonus"]["tokens_per_pass"] = 1.5
    return {domain: {"rows": rows} for domain in ("maintenance", "notes")}


def _lines(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[str, dict[str, Any]]:
    papers.main([str(argument) for argument in arguments])
    printed = capsys.readouterr().out
    return printed, json.loads(printed.splitlines()[-1])


def test_without_results_all_is_not_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    printed, found = _lines(capsys, "--only-results", "--results", tmp_path)
    assert set(found["verdicts"]) == {"not run", "not compared"}
    assert list(found["papers"]) == list(papers.PAPERS) and printed.count("\n## ") == len(papers.PAPERS) - 1
    assert all(line["where"] and line["published"] for lines in found["papers"].values() for line in lines)
    assert all(line["why"] for lines in found["papers"].values() for line in lines if line["verdict"] == "not compared")


def test_a_verdict_follows_the_results(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Crossing versions costs nothing: published otherwise. It costs much: as published, and by no mistake."""
    for shift, prompt, expected in ((0.88, 0.5, ("not matched", "matched")), (0.6, 0.5, ("matched", "not matched"))):
        _kept(tmp_path, "e8", _e8(shift, prompt))
        _, found = _lines(capsys, "--papers", "cross-version", "--only-results", "--results", tmp_path)
        lines = {line["what"]: line for line in found["papers"]["cross-version"]}
        falls = lines["acceptance falls from one version to another"]
        assert (falls["verdict"], lines["that loss is the code's, not the tokenizers'"]["verdict"]) == expected
        reasons = falls["why"].split("; ")
        assert f"shift {shift:.2f}" in falls["ours"] and len(reasons) == 1 + (falls["verdict"] != "matched")


def test_a_table_is_markdown_with_its_conditions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _kept(tmp_path, "e2", E2)
    printed, _ = _lines(capsys, "--papers", "token-map", "--only-results", "--results", tmp_path)
    rows = [line for line in printed.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {7}
    assert any("| 9 and 16 | Fig. 3 | 1 and 2 | not matched |" in row for row in rows)
    assert "Ours from e2: bundle b, prices: built-in table, load 0.5." in printed


def test_what_is_missing_is_run_once_and_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], *, env: dict[str, str]) -> str:
        ran.append(command)
        name = command[command.index("tests.bench.experiments") + 1]
        return json.dumps({"benchmark": name, "figures": _e8(0.9, 0.5) if name == "e8" else {}}) + "\n"

    monkeypatch.setattr(papers, "run_text", run)
    arguments = ("--papers", "cross-version", "--results", tmp_path / "new", "--limit", 3, "--draft-same", "own")
    _, found = _lines(capsys, *arguments)
    assert [command[3] for command in ran] == ["e8", "e9"]  # true shapes are run on demand alone
    assert ran[0][4:] == "--threads 2 --utterances 3 --draft-model demo-draft --draft-same own".split()
    assert found["verdicts"]["not in the results"] == 1  # what the empty e9 should have had
    assert _lines(capsys, *arguments)[1]["papers"] == found["papers"] and len(ran) == 2


@pytest.mark.parametrize("text", ["", "half a table\n", '{"benchmark": "e9"}\n', "[1]\n"])
def test_a_result_that_is_none_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "e8.txt").write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit, match=r"e8\.txt: its last line is not the JSON of e8"):
        papers.main(["--papers", "cross-version", "--only-results", "--results", str(tmp_path)])
    with pytest.raises(SystemExit, match="'none' is none of token-map"):
        papers.main(["--papers", "none"])


def _ask(paper: str, what: str, *results: Any) -> str:
    (claim,) = (claim for claim in papers.PAPERS[paper].claims if claim.what.startswith(what))
    assert claim.ask is not None
    return claim.ask(*results).verdict


def test_thresholds_are_those_of_measured_passes() -> None:
    """The price of copied rows was solved from 9 and 16, so what it gives says nothing."""
    what = "least length"
    assert _ask("token-map", what, E2) == "not matched"
    shared: dict[str, Any] = {"1.0": [1, 8, 17, 30]}
    copied: dict[str, Any] = {"1.0": [1, 2, 3, 4]}
    found = {"thresholds": {"shared K/V, batch rows": shared, "copied K/V": copied}}
    assert _ask("token-map", what, found) == "matched"
    shared["1.0"][1] = None
    assert _ask("token-map", what, found) == "not matched"


def _e1(best: int) -> dict[str, Any]:
    orders = {str(n): {"alone": {"speed_up": 1.5 if n == best else 1.1}} for n in range(1, 6)}
    return {domain: {"orders": orders} for domain in ("maintenance", "notes")}


def test_only_keys_of_three_are_keys_of_three() -> None:
    assert [_ask("token-map", "best length", _e1(n)) for n in (2, 3, 4)] == ["not matched", "matched", "not matched"]


def _e10(kind: str, values: dict[int, float], of: str) -> dict[str, Any]:
    heads = {str(n): {"chain": {of: value}, "typical": {"wer": value}} for n, value in values.items()}
    return {domain: {"kinds": {kind: {"heads": heads}}} for domain in ("maintenance", "notes")}


@pytest.mark.parametrize(
    ("speeds", "verdict"),
    [
        ({5: 1.42, 10: 1.49, 15: 1.37, 20: 1.27}, "matched"),
        ({1: 2.0, 5: 1.8, 10: 1.5, 15: 1.1}, "not matched"),  # falls from the first on
        ({1: 1.1, 5: 1.2, 10: 1.3, 15: 1.4}, "not matched"),  # never falls
        ({5: 1.3, 8: 1.2, 10: 1.5, 15: 1.1}, "not matched"),  # falls twice
        ({1: 1.34, 3: 1.35, 15: 0.9}, "not matched"),  # rises by no more than the scatter
        ({1: 1.4, 2: 1.39, 3: 1.45, 15: 0.9}, "matched"),  # dips by no more
        ({1: 1.2, 3: 1.4, 5: 1.3}, "not compared"),
    ],
)
def test_a_peak_needs_two_sides_and_enough_heads(speeds: dict[int, float], verdict: str) -> None:
    e10 = _e10("medusa-linear", speeds, "speed_up")
    assert _ask("whisper-medusa", "more heads pay", e10) == verdict


@pytest.mark.parametrize(
    ("calls", "verdict"),
    [
        ({1: 0.9, 5: 0.5, 15: 0.45}, "matched"),  # 0.1 a head, then 0.005
        ({1: 0.9, 5: 0.5, 15: 0.2}, "not matched"),  # then 0.03
        ({1: 0.9, 2: 0.7, 5: 0.69}, "not compared"),
    ],
)
def test_saturation_behind_five_heads_is_of_those_behind_five(calls: dict[int, float], verdict: str) -> None:
    three = _e10("mtp-latent", {1: 0.9, 3: 0.4}, "calls_per_word")
    found = _e10("mtp-latent", calls, "calls_per_word")
    assert _ask("multi-token", "calls per word saturate", found, three) == verdict


@pytest.mark.parametrize(
    ("cut", "top", "verdicts"),
    [
        (0.43, 4.0, ("matched", "matched")),
        (0.3, 6.0, ("cuts more", "not matched")),
        (0.6, 4.4, ("cuts less", "matched")),
    ],
)
def test_latent_heads_are_judged_on_the_papers_architecture(cut: float, top: float, verdicts: tuple[str, str]) -> None:
    """The demo's own heads, which did not learn with their trunk, stand beside and decide nothing."""
    kinds = ("mtp-latent", "mtp-projection")

    def e11(cut: float, top: float) -> dict[str, Any]:
        rows = {"plain": {"wer": 4.0, "calls_per_word": 2.0}}
        rows |= {f"{kind}, exact": {"wer": 4.0, "calls_per_word": 2.0 * cut} for kind in kinds}
        rows |= {f"{kind}, top-5": {"wer": top, "calls_per_word": 2.0 * cut} for kind in kinds}
        return {domain: {"rows": rows} for domain in ("maintenance", "notes")}

    results = (e11(cut, top), e11(1.0, 20.0))
    asked = ("latent, exact", "accepting what is among the 5")
    assert tuple(_ask("multi-token", what, *results) for what in asked) == verdicts


@pytest.mark.parametrize(("inside", "verdict"), [(0.76, "matched"), (0.7, "not matched")])
def test_updates_inside_layers_are_held_to_all_weights(inside: float, verdict: str) -> None:
    learned = {"last row": 0.6, "inside layers": inside, "all weights": 0.8}
    ways = {"nothing": {"right": 0.55}, **{way: {"times 1": share} for way, share in learned.items()}}
    assert _ask("omnidraft", "low-rank updates", {"drafts": {"one": ways}}) == verdict


@pytest.mark.parametrize(("after", "verdict"), [(9.8, "matched"), (10.0, "not matched"), (13.0, "not matched")])
def test_fine_tuning_must_lower_the_errors(after: float, verdict: str) -> None:
    def e12(wer: float) -> dict[str, Any]:
        believed = {"mtp-latent, 0.9": {"wer": wer}, "medusa-linear, 0.9": {"wer": 50.0}}
        return {domain: {"believed": believed} for domain in ("maintenance", "notes")}

    assert _ask("multi-token", "fine-tuning", e12(10.0), e12(after)) == verdict


def test_other_bundles_have_results_of_their_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def run(command: list[str], *, env: dict[str, str]) -> str:
        ran.append(" ".join(command[3:]))
        return json.dumps({"benchmark": command[3], "figures": {}}) + "\n"

    monkeypatch.setattr(papers, "run_text", run)
    arguments = ("--papers", "multi-token", "--limit", 3, "--threads", 1, "--bundle", "own")
    _lines(capsys, *arguments)
    more = [f"{name} --threads 1 --bundle models/bundled/demo-llm --utterances 3" for name in ("e10", "e11", "e12")]
    assert set(ran) == {
        "e11 --threads 1 --bundle own --utterances 3",
        "e12 --threads 1 --bundle own --utterances 3",
        *more,
    }
    ran.clear()
    _lines(capsys, *arguments, "--heads", tmp_path)
    price = f"--guess-price {papers.FIFTEEN}"
    assert {f"e10 --threads 1 --bundle {tmp_path}/many --utterances 3 {price}"} == {one for one in ran if price in one}
    german = next(one for one in ran if f"{tmp_path}/german" in one)
    assert (
        german == f"e10 --threads 1 --bundle {tmp_path}/german --utterances 3 --guess-price {papers.FIVE} --language de"
    )
    assert f"e12 --threads 1 --bundle {tmp_path / 'mwer'} --utterances 3" in ran


def test_a_clocks_figure_is_held_to_a_clocks() -> None:
    row = {"decoder_speed_up": 1.3, "least": 1.2, "greatest": 1.4, "acceptance": 0.5}
    rows = {"paper": row, "tokenmap": row}
    timed = {"domains": {f"{domain}-dev": rows for domain in ("maintenance", "notes")}}
    claim = "decoding speed-up and acceptance, CI-AVSR"
    assert _ask("token-map", claim, timed) == "matched"
    row["decoder_speed_up"] = 1.0
    assert _ask("token-map", claim, timed) == "smaller"


def test_a_busy_machine_has_no_clock(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    row = {"times_greedy": 1.67, "decoder_times_greedy": 1.67, "wer": 1.0, "cer": 0.5}
    e16 = {domain: {"beams": {str(n): row for n in range(1, 6)}} for domain in ("maintenance", "notes")}
    for load, verdict in ((0.5, "matched"), (papers.BUSY + 0.1, "not run")):
        found = {"benchmark": "e16", "machine": {"load_average": load}, "figures": e16}
        (tmp_path / "e16.txt").write_text(json.dumps(found), encoding="utf-8")
        _, printed = _lines(capsys, "--papers", "cross-version", "--only-results", "--results", tmp_path)
        lines = {line["what"]: line["verdict"] for line in printed["papers"]["cross-version"]}
        assert lines["time of beams 1 to 5"] == verdict
        assert lines["no beam makes fewer errors (WER/CER %)"] == "matched", "errors are counted"


def test_a_busy_machine_has_no_real_time_factors(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = {"plain": {"wer": 1.0, "calls_per_word": 1.2, "decoder_rtf": 0.5}}
    e11 = {domain: {"rows": rows} for domain in ("maintenance", "notes")}
    for load, factor in ((0.5, "0.5000"), (papers.BUSY + 0.1, "-")):
        found = {"benchmark": "e11", "machine": {"load_average": load}, "figures": e11}
        for name in ("e11", "llm-e11"):
            (tmp_path / f"{name}.txt").write_text(json.dumps(found), encoding="utf-8")
        _, printed = _lines(capsys, "--papers", "multi-token", "--only-results", "--results", tmp_path)
        row = f"maintenance 1.0/1.20/{factor}; notes 1.0/1.20/{factor}"
        assert printed["papers"]["multi-token"][0]["ours"] == f"{row}; demo-llm {row}"


def test_beams_are_held_to_the_published_times() -> None:
    for times, verdict in ((1.67, "matched"), (4.0, "larger")):
        row = {"times_greedy": times, "decoder_times_greedy": times, "wer": 1.0, "cer": 0.5}
        e16 = {domain: {"beams": {str(n): row for n in range(1, 6)}} for domain in ("maintenance", "notes")}
        assert _ask("cross-version", "time of beams", e16) == verdict
        assert _ask("cross-version", "no beam makes fewer", e16) == "matched"
        e16["notes"]["beams"] = {**e16["notes"]["beams"], "5": {**row, "wer": 2.0}}
        assert _ask("cross-version", "no beam makes fewer", e16) == "not matched"


def test_tables_go_between_the_marks_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{papers.MARKS[0]}\nold\n{papers.MARKS[1]}\n\nend\n", encoding="utf-8")
    arguments = ["--papers", "omnidraft", "--only-results", "--page", str(page)]
    papers.main(arguments)
    once = page.read_text(encoding="utf-8")
    papers.main(arguments)
    assert page.read_text(encoding="utf-8") == once
    assert once.startswith("# Title\n") and once.endswith(f"{papers.MARKS[1]}\n\nend\n") and "old" not in once
    assert "## OmniDraft" in once
    page.write_text("# Title\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="has no lines"):
        papers.main(arguments)


def test_ratios_are_held_to_the_published_one() -> None:
    assert [held_to(1.5, ours) for ours in (1.4, 1.2, 2.0, 0.9)] == ["matched", "smaller", "larger", "the other way"]
    assert held_to(0.4, 1.2) == "the other way"
    assert held_to(1.43, 0.998) == "smaller", "no change is not the other way"


def test_results_of_other_settings_are_no_error() -> None:
    claim = Claim(
        what="w",
        published="p",
        where="q",
        why="y",
        needs=["e1"],
        ask=lambda e1: Answer(ours=e1["x"][3], verdict="matched"),
    )
    assert answered(claim, {"e1": {"x": []}}).verdict == answered(claim, {"e1": {}}).verdict == "not in the results"
    assert answered(claim, {}).verdict == "not run"


@pytest.mark.slow
@pytest.mark.skipif(not (DEMO).is_dir(), reason="the bundled model is not in this tree")
def test_the_experiments_print_what_every_line_asks_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(papers, "BUSY", math.inf)  # what a clock says here is not asked
    _, found = _lines(capsys, "--results", tmp_path, "--limit", 2, "--lines", 60, "--threads", 1)
    lines = [line for lines in found["papers"].values() for line in lines]
    assert not [line["what"] for line in lines if line["verdict"] == "not in the results"]
    # Clocks, minutes of a shape, heads that are to be trained.
    trained = {"many-e10", "many-e12, mwer-e12", "frozen-e10, unfrozen-e10", "frozen-e10, german-e10"}
    left_out = {*papers.TIMED, "large-v2", *trained}
    assert {line["ours"] for line in lines if line["verdict"] == "not run"} == {f"not run: {name}" for name in left_out}


def test_two_runs_agree_where_both_have_a_verdict(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A day on which a version costs acceptance, and one on which it does not; what the first did not run is no matter.

    The command says which verdicts differ, and ends with 1.
    """
    page, results = tmp_path / "page.md", tmp_path / "results"
    results.mkdir()
    page.write_text(f"{papers.MARKS[0]}\n{papers.MARKS[1]}\n", encoding="utf-8")
    asked = ["--papers", "cross-version", "--only-results", "--results", str(results)]
    _kept(results, "e8", _e8(0.88, 0.5))
    papers.main([*asked, "--page", str(page)])
    papers.main([*asked, "--agree", str(page)])
    _kept(results, "e8", _e8(0.6, 0.5))
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        papers.main([*asked, "--agree", str(page)])
    differing = json.loads(capsys.readouterr().out.splitlines()[-1])["differing"]
    falls = "Cross-version Whisper speculation (Chheda 2025): acceptance falls from one version to another"
    assert ended.value.code == 1 and f"{falls}: not matched, now matched" in differing and len(differing) == 2
    (results / "e8.txt").unlink()
    papers.main([*asked, "--agree", str(page)])


def test_what_was_not_run_stays_on_the_page(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "results"
    results.mkdir()
    page.write_text(f"{papers.MARKS[0]}\n{papers.MARKS[1]}\n", encoding="utf-8")
    asked = ["--papers", "cross-version,token-map", "--only-results", "--results", str(results), "--page", str(page)]
    _kept(results, "e8", _e8(0.88, 0.5))
    papers.main(asked)
    (results / "e8.txt").unlink()
    _kept(results, "e2", E2)
    papers.main(["--papers", "token-map", *asked[2:]])
    found = papers.page_of(page.read_text(encoding="utf-8"))
    versions = "Cross-version Whisper speculation (Chheda 2025)"
    assert found.rows[versions, "acceptance falls from one version to another"][1] == "not matched"
    assert found.rows["Token Map Drafting (arXiv 2507.21522)", "least length of 2 and of 3 candidates"][0] == "1 and 2"
    assert list(found.conditions[versions]) == ["e8"] and "load 0.5" in found.conditions[versions]["e8"]


def test_the_page_that_is_kept_has_a_row_for_every_claim() -> None:
    kept = papers.page_of((papers.ROOT / "docs" / "papers.md").read_text(encoding="utf-8"))
    claims = {(paper.title, claim.what) for paper in papers.PAPERS.values() for claim in paper.claims}
    assert set(kept.rows) == claims and {verdict for _, verdict, _ in kept.rows.values()} > {"matched", "answered"}


def _heads(cut: float, wer: float = 1.0, plain: float = 2.0) -> dict[str, Any]:
    """A kind of five heads in E10, of which `cut` saves that share of the `plain` calls per word."""
    chain = {"calls_cut": cut, "calls_per_word": plain * (1 - cut), "speed_up": 1.0}
    return {"heads": {"5": {"chain": chain}}, "rules": {"exact": {"wer": wer}}}


@pytest.mark.parametrize(("german", "verdicts"), [(0.4, ("matched", "not matched")), (0.6, ("not matched", "matched"))])
def test_a_second_language_is_held_to_the_first(german: float, verdicts: tuple[str, str]) -> None:
    """Of 1.5 and 1.7 calls a word 0.5 and 0.6 saved leave 0.75 and 0.68, nearer to each other; 0.4 of the latter, 1.02.

    English cuts 0.5 of the calls: 0.4 in German is less, as published for Medusa, and 0.6 is not.
    """
    kinds = ("medusa-linear", "medusa-block", "mtp-latent")
    plain = {"frozen-e10": 1.5, "german-e10": 1.7}
    results = {
        name: {domain: {"kinds": {kind: _heads(cut, plain=plain[name]) for kind in kinds}}}
        for name, domain, cut in (("frozen-e10", "maintenance", 0.5), ("german-e10", "maintenance-de", german))
    }
    claims = {claim.what: claim for paper in papers.PAPERS.values() for claim in paper.claims}
    medusa = next(claim for what, claim in claims.items() if what.startswith("German is sped up less"))
    tokens = claims["calls per word differ less from language to language with heads"]
    assert tuple(answered(claim, results).verdict for claim in (medusa, tokens)) == verdicts


def test_a_last_layer_is_told_beside_one_that_stays() -> None:
    kinds = {"medusa-linear": _heads(0.5), "medusa-block": _heads(0.6)}
    results = {
        "frozen-e10": {domain: {"kinds": kinds} for domain in ("maintenance", "notes")},
        "unfrozen-e10": {
            domain: {"kinds": {"medusa-linear": _heads(0.55, wer=2.5)}} for domain in ("maintenance", "notes")
        },
    }
    claims = papers.PAPERS["whisper-medusa"].claims
    line = answered(next(claim for claim in claims if "unfrozen-e10" in claim.needs), results)
    assert line.verdict == "answered"
    assert "Linear 0.50, with its last layer 0.55, Block 0.60; WER 1.0, with it 2.5" in line.ours
