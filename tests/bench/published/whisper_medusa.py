"""Whisper-Medusa (Segal-Feldman et al., arXiv 2409.15869): the published figures, and where ours are."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

from bench.published.claim import (
    ANSWERED,
    DOMAINS,
    NOT_COMPARED,
    UNCHANGED,
    Answer,
    Claim,
    Figures,
    Paper,
    held_to,
    in_each_domain,
    shown,
)

__all__ = ["WHISPER_MEDUSA"]

LINEAR, BLOCK = "medusa-linear", "medusa-block"
_MANY = 15  # heads: the published peak is at 10


def _all_heads(e10: Figures, kind: str) -> Figures:
    """The row of a domain's figures that is of most heads."""
    heads: Figures = e10["kinds"][kind]["heads"]
    row: Figures = heads[max(heads, key=int)]
    return row


def _speed(kind: str, published: float, e10: Figures) -> Answer:
    parts, speeds = [], []
    for domain in DOMAINS:
        chain = _all_heads(e10[domain], kind)["chain"]
        speeds.append(chain["speed_up"])
        parts.append(f"{domain} {chain['speed_up']:.2f}x, {100 * chain['calls_cut']:.0f} % of the calls cut")
    return Answer(ours="; ".join(parts), verdict=held_to(published, sum(speeds) / len(speeds)))


@in_each_domain
def _linear_is_faster(e10: Figures) -> tuple[str, bool]:
    linear, block = (_all_heads(e10, kind)["chain"] for kind in (LINEAR, BLOCK))
    speeds = f"{linear['speed_up']:.2f}x against {block['speed_up']:.2f}x"
    cuts = f"(calls cut {linear['calls_cut']:.2f}, {block['calls_cut']:.2f})"
    return f"{speeds} {cuts}", linear["speed_up"] > block["speed_up"]


def _last_layer(frozen: Figures, unfrozen: Figures) -> Answer:
    """Calls cut by Linear behind a decoder that stays and behind one whose last layer learned with it; word errors of
    the two models by themselves."""
    parts = []
    for domain in DOMAINS:
        stays, learned, block = (
            _all_heads(e10[domain], kind)["chain"]["calls_cut"]
            for e10, kind in ((frozen, LINEAR), (unfrozen, LINEAR), (frozen, BLOCK))
        )
        before, after = (e10[domain]["kinds"][LINEAR]["rules"]["exact"]["wer"] for e10 in (frozen, unfrozen))
        parts.append(
            f"{domain} calls cut: Linear {stays:.2f}, with its last layer {learned:.2f}, Block {block:.2f}; "
            f"WER {before:.1f}, with it {after:.1f}"
        )
    return Answer(ours="; ".join(parts), verdict=ANSWERED)


def _language(english: Figures, german: Figures) -> Answer:
    """Both kinds of heads save fewer passes in German than in English, as published."""
    parts, so = [], []
    for kind in (LINEAR, BLOCK):
        rows = [_all_heads(e10[f"maintenance{of}"], kind)["chain"] for e10, of in ((english, ""), (german, "-de"))]
        here, there = (row["calls_cut"] for row in rows)
        so.append(there < here)
        parts.append(f"{kind} cuts {here:.2f} of the calls in English, {there:.2f} in German")
    errors = [
        e10[f"maintenance{of}"]["kinds"][LINEAR]["rules"]["exact"]["wer"]
        for e10, of in ((english, ""), (german, "-de"))
    ]
    ours = f"{'; '.join(parts)}; WER {errors[0]:.1f} and {errors[1]:.1f}"
    return Answer(ours=ours, verdict=shown(is_so=all(so)))


@in_each_domain
def _errors(e10: Figures) -> tuple[str, bool]:
    kinds = e10["kinds"]
    exact = kinds[LINEAR]["rules"]["exact"]["wer"]
    linear, block = (kinds[kind]["rules"]["typical"]["wer"] for kind in (LINEAR, BLOCK))
    return f"exact {exact:.1f}, typical: linear {linear:.1f}, block {block:.1f}", linear > block


def _number(e10: Figures) -> Answer:
    parts, so = [], []
    for domain in DOMAINS:
        heads = e10[domain]["kinds"][LINEAR]["heads"]
        speeds = {int(n): row["chain"]["speed_up"] for n, row in heads.items()}
        best = max(speeds, key=lambda n: speeds[n])
        rising = [speeds[n] for n in sorted(speeds) if n <= best]
        falling = [speeds[n] for n in sorted(speeds) if n >= best]
        so.append(_climbs(rising) and _climbs(falling[::-1]))
        most = max(speeds)
        parts.append(f"{domain} best {best} of {max(speeds)} ({', '.join(f'{speeds[n]:.2f}' for n in sorted(speeds))})")
    return Answer(ours="; ".join(parts), verdict=shown(is_so=all(so)) if most >= _MANY else NOT_COMPARED)


def _climbs(speeds: Sequence[float]) -> bool:
    """Whether the last is the highest, by more than the scatter of a few texts, and none before it falls by more."""
    steady = all(after >= (1 - UNCHANGED) * before for before, after in itertools.pairwise(speeds))
    return steady and speeds[-1] > (1 + UNCHANGED) * speeds[0]


def _errors_by_heads(e10: Figures) -> Answer:
    parts, so, most = [], [], 0
    for domain in DOMAINS:
        heads = e10[domain]["kinds"][LINEAR]["heads"]
        errors = {int(n): row["typical"]["wer"] for n, row in heads.items()}
        most = max(errors)
        so.append(errors[most] > errors[min(errors)])
        parts.append(f"{domain} {', '.join(f'{n}: {errors[n]:.2f}' for n in sorted(errors))}")
    return Answer(ours="; ".join(parts), verdict=shown(is_so=all(so)) if most >= _MANY else NOT_COMPARED)


def _by_length(e10: Figures) -> Answer:
    parts, so = [], []
    for domain in DOMAINS:
        for kind in (LINEAR, BLOCK):
            thirds = e10[domain]["kinds"][kind]["lengths"]
            so.append(thirds[0]["speed_up"] < thirds[-1]["speed_up"])
            said = ", ".join(f"{one['tokens']:.0f} tokens {one['speed_up']:.2f}x" for one in thirds)
            parts.append(f"{domain} {kind} {said}")
    return Answer(ours="; ".join(parts), verdict=shown(is_so=all(so)))


@in_each_domain
def _assistant(e9: Figures, e10: Figures) -> tuple[str, bool]:
    """An assistant is a draft model that decodes several tokens ahead: the best fixed number of them."""
    assistant = max(row["speed_up"] for name, row in e9["rows"].items() if name.isdigit())
    linear, block = (_all_heads(e10, kind)["chain"]["speed_up"] for kind in (LINEAR, BLOCK))
    return f"{assistant:.2f}x, Linear {linear:.2f}x, Block {block:.2f}x", assistant > linear > block


@in_each_domain
def _two_passes(e10: Figures) -> tuple[str, bool]:
    row = _all_heads(e10, BLOCK)
    one, two = (row[way]["calls_cut"] for way in ("chain", "two passes"))
    return f"calls cut {one:.2f} in one pass, {two:.2f} in two", one > two


def _tree(e10: Figures) -> Answer:
    parts = []
    for domain in DOMAINS:
        ways = {way: _all_heads(e10[domain], BLOCK)[way] for way in ("tree", "chain")}
        said = ", ".join(f"{way} {row['calls_cut']:.2f}, {row['speed_up']:.2f}x" for way, row in ways.items())
        parts.append(f"{domain} calls cut and speed-up: {said}")
    return Answer(ours="; ".join(parts), verdict=ANSWERED)


WHISPER_MEDUSA = Paper(
    name="whisper-medusa",
    title="Whisper-Medusa (arXiv 2409.15869)",
    setting="Published: large-v2 with 10 heads, clean/other of LibriSpeech, typical acceptance (lossy), timed. Ours: "
    "the demo with the heads it has, chains, exact acceptance unless it says typical; speed-ups are counts priced by a "
    "table of T(k) and the heads' own time, which was measured where the results were taken.",
    claims=[
        Claim(
            what="Medusa-Linear, speed-up",
            published="1.49x clean, 1.40x other (WER 4.11/8.07, vanilla 4.00/6.19)",
            where="Table II",
            needs=["e10"],
            ask=partial(_speed, LINEAR, 1.49),
            timed=True,
            why="fewer heads, a smaller decoder, exact acceptance; sentences of grammars are easier to foresee, and "
            "the vocabulary weighs most in the demo's decoder",
        ),
        Claim(
            what="Medusa-Block, speed-up",
            published="1.37x clean, 1.29x other (WER 3.40/6.16)",
            where="Table II",
            needs=["e10"],
            ask=partial(_speed, BLOCK, 1.37),
            timed=True,
            why="fewer heads, a smaller decoder, exact acceptance; sentences of grammars are easier to foresee, and a "
            "block is a seventh layer on the demo's six",
        ),
        Claim(
            what="Linear is faster than Block",
            published="1.49x against 1.37x",
            where="Table II",
            needs=["e10"],
            ask=_linear_is_faster,
            timed=True,
            why="Linear was published with its last layer trained along; ours guess from a decoder that stays as it is",
        ),
        Claim(
            what="Linear with the decoder's last layer trained along",
            published="so is Linear trained, and Block behind a frozen decoder; none without it",
            where="section II",
            needs=["frozen-e10", "unfrozen-e10"],
            ask=_last_layer,
            why="",
            aside="1000 steps each over 1.2 h of the same speech; the paper has 200,000 steps over 960 h",
        ),
        Claim(
            what="Linear makes more errors than Block (typical acceptance)",
            published="4.11/8.07 against 3.40/6.16 %",
            where="Table II",
            needs=["e10"],
            ask=_errors,
            why="the base head is the model's own here, so only typical acceptance can change a text",
        ),
        Claim(
            what="more heads pay up to a point (5, 10, 15, 20)",
            published="1.42 1.49 1.37 1.27x clean; 1.34 1.40 1.30 1.21x other",
            where="Table IV",
            needs=["many-e10"],
            ask=_number,
            why=f"the falling side shows with {_MANY} heads; the rising one hardly, for ours are right in 57, 37 and "
            "28 % of places, so that one head, whose row is free in the table of prices, brings nearly all",
            aside="counts at a given price of the heads; where the peak lies follows from the price of rows and heads, "
            "and from how often they are right",
        ),
        Claim(
            what="errors grow with the heads (5, 10, 15, 20)",
            published="3.64 4.11 5.74 6.40 % clean; 7.00 8.07 9.21 10.87 % other",
            where="Table IV",
            needs=["many-e10"],
            ask=_errors_by_heads,
            why="the base head is the model's own here, and the typical rule refuses what it finds unlikely; by exact "
            "acceptance no number of heads changes a text",
            aside="typical acceptance",
        ),
        Claim(
            what="verification and prediction in one pass (the published code takes two)",
            published="two passes an iteration",
            where="algorithms 1.4",
            needs=["e10"],
            ask=_two_passes,
            why="one pass cut no more calls than two",
        ),
        Claim(
            what="trees of the heads' choices",
            published="in the code, but no mask is passed: chains alone are right",
            where="algorithms 1.4",
            needs=["e10"],
            ask=_tree,
            timed=True,
            why="",
            aside="no figure of a tree was published; it cuts more calls than a chain, and its passes cost more",
        ),
        Claim(
            what="the assistant (a distilled draft) is faster than Linear, and Linear than Block",
            published="1.57x, 1.49x, 1.37x clean; 1.49x, 1.40x, 1.29x other",
            where="Table II",
            needs=["e9", "e10"],
            ask=_assistant,
            timed=True,
            why="a draft is a larger part of a decoder as small as the demo's than of large-v2's",
        ),
        Claim(
            what="German is sped up less than English (VoxPopuli en/de/es/fr; self-supervised cs/fi/nl)",
            published="Linear 1.48 1.31 1.37 1.40x, Block 1.40 1.23 1.28 1.30x; Linear 1.83 1.60 1.47x",
            where="Tables I and III",
            needs=["frozen-e10", "german-e10"],
            ask=_language,
            why="our German has 13 kinds of sentences, which heads foresee better than the English lists",
            aside="maintenance commands in both languages, by espeak-ng; a model of each",
        ),
        Claim(
            what="speed-up grows with length, up to about 130 tokens",
            published="a plot",
            where="Fig. 2",
            needs=["e10"],
            ask=_by_length,
            timed=True,
            why="not in each of the four: a window of the demo holds 10 s, so texts differ little in length",
            aside="thirds of the texts by length",
        ),
    ],
)
