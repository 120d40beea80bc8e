"""OmniDraft (Ramakrishnan et al., arXiv 2507.02659): the published figures, and where ours are."""

from __future__ import annotations

from bench.published.claim import ANSWERED, DOMAINS, NEAR, UNCHANGED, Answer, Claim, Figures, Paper, held_to, shown

__all__ = ["OMNIDRAFT"]

FULL = "words"
HIT_RATE = 0.87
NOTHING = 1.05  # a speed-up below which a draft brings nothing
# Speed-ups on the four tasks, Llama3-8B then Qwen2-7B.
DIRECT = (0.94, 1.03, 0.96, 0.91, 1.04, 0.91, 1.01, 0.96)
HYBRID = (1.70, 1.33, 1.30, 1.24, 1.61, 1.36, 1.30, 1.22)


def _cells(e6: Figures, way: str) -> str:
    rows = {domain: e6[domain]["rows"][way] for domain in DOMAINS}
    return ", ".join(f"{domain} {row['acceptance']:.2f}/{row['speed_up']:.2f}" for domain, row in rows.items())


def _direct(e6: Figures) -> Answer:
    """Nothing is gained, and far less accepted than with the cache."""
    rows = [e6[domain]["rows"] for domain in DOMAINS]
    slow = all(row["direct"]["speed_up"] <= NOTHING for row in rows)
    few = all(row["direct"]["acceptance"] <= row[FULL]["acceptance"] / 2 for row in rows)
    return Answer(ours=_cells(e6, "direct"), verdict=shown(is_so=slow and few))


def _cached(e6: Figures) -> Answer:
    rows = [e6[domain]["rows"] for domain in DOMAINS]
    gain = sum(row[FULL]["speed_up"] / row["direct"]["speed_up"] for row in rows) / len(rows)
    ours = f"words {_cells(e6, FULL)}; tokens as published {_cells(e6, 'tokens')}; words {gain:.2f} times direct"
    return Answer(ours=ours, verdict=held_to(sum(HYBRID) / sum(DIRECT), gain))


def _hit_rate(e6: Figures) -> Answer:
    rows = {domain: e6[domain]["rows"][FULL] for domain in DOMAINS}
    ours = ", ".join(f"{d} {row['hit_rate']:.2f} in {row['cache_bytes'] / 1024:.0f} KB" for d, row in rows.items())
    return Answer(ours=ours, verdict=held_to(HIT_RATE, min(row["hit_rate"] for row in rows.values())))


def _stream(rows: Figures, *names: str) -> str:
    return "; ".join(f"{name} {rows[name]['acceptance']:.2f}/{rows[name]['speed_up']:.2f}" for name in names)


def _learning(e7: Figures) -> Answer:
    rows = e7["rows"]
    before, after = (rows[name]["second_end"] for name in ("no learning", "learning"))
    ours = f"{_stream(rows, 'no learning', 'learning')}; at the end {100 * (after - before):+.1f} points"
    is_more = after > (1 + UNCHANGED) * before  # less is scatter
    return Answer(ours=ours, verdict=shown(is_so=is_more and rows["learning"]["updates"] > 0))


def _adapts(e7: Figures) -> Answer:
    row = e7["rows"]["learning"]
    ours = f"accepted {row['first_end']:.2f}, after the change {row['second_begin']:.2f}, end {row['second_end']:.2f}"
    dips = row["second_begin"] < (1 - UNCHANGED) * min(row["first_end"], row["second_end"])
    return Answer(ours=ours, verdict=shown(is_so=dips))


def _head(e7: Figures) -> Answer:
    rows = e7["rows"]
    before, heads = rows["learning"], [rows["joint"], rows["interleaved"]]
    more = all(row["acceptance"] > before["acceptance"] for row in heads)
    near = all(row["speed_up"] / before["speed_up"] >= 0.94 for row in heads)
    ours = _stream(rows, "learning", "joint", "interleaved")
    return Answer(ours=ours, verdict=shown(is_so=more and near))


def _lambda(found: Figures) -> Answer:
    """The fixed one and the dynamic one, and the ends that both lie between; all learn as much as they like."""
    rows = found["rows"]
    weights = (("0", "n-grams 0"), ("0.2", "any time"), ("dynamic", "n-grams dynamic"), ("1", "n-grams 1"))
    said = (f"{weight}: {rows[name]['acceptance']:.4f}" for weight, name in weights)
    ours = f"accepted without learning {rows['no learning']['acceptance']:.4f}, with lambda {', '.join(said)}"
    return Answer(ours=ours, verdict=ANSWERED)


def _layers(e17: Figures) -> Answer:
    """Once through the stream, as published: the tokens right with low-rank updates inside the layers, and with all
    weights."""
    parts, so = [], []
    for name, ways in e17["drafts"].items():
        right = {way: ways[way]["times 1"] for way in ("last row", "inside layers", "all weights")}
        so.append(right["inside layers"] >= (1 - NEAR) * right["all weights"])
        said = ", ".join(f"{way} {100 * share:.1f}" for way, share in right.items())
        parts.append(f"{name}: {100 * ways['nothing']['right']:.1f} % of the tokens right, then {said}")
    return Answer(ours="; ".join(parts), verdict=shown(is_so=all(so)))


OMNIDRAFT = Paper(
    name="omnidraft",
    title="OmniDraft (arXiv 2507.02659)",
    setting="Published: text models, a draft of 68 million weights, acceptance/speed-up on GSM8K, MBPP and HumanEval, "
    "Alpaca, XSum. Ours: a Whisper draft of English alone beside a multilingual target, K = 4, greedy; speed-ups are "
    "counts priced by the table of T(k).",
    claims=[
        Claim(
            what="another vocabulary, tokens that both have alone",
            published="Llama3-8B .10/.94 .09/1.03 .09/.96 .11/.91; Qwen2-7B .14/1.04 .09/.91 .13/1.01 .12/.96",
            where="algorithms 4, S2",
            needs=["e6"],
            ask=_direct,
            why="29,380 of GPT-2's 50,256 tokens are tokens of the multilingual vocabulary too, the commonest words "
            "among them: little is left to be mapped",
        ),
        Claim(
            what="with the n-gram cache (theirs trained online as well)",
            published="Llama3-8B .42/1.70 .27/1.33 .20/1.30 .24/1.24; Qwen2-7B .37/1.61 .26/1.36 .20/1.30 .22/1.22; "
            f"{sum(HYBRID) / sum(DIRECT):.2f} times direct",
            where="algorithms 4, S2",
            needs=["e6"],
            ask=_cached,
            why="direct tokens are accepted well already, so little is left to gain; nothing is trained in E6",
        ),
        Claim(
            what="hit rate of the cache",
            published="0.87 in 1 to 5 MB",
            where="algorithms 1.2",
            needs=["e6"],
            ask=_hit_rate,
            why="a short stream: every word misses once",
        ),
        Claim(
            what="learning online (distillation)",
            published="Vicuna-7B vanilla .21/1.44 .14/1.22 .20/1.44 .20/1.42; "
            "distilled .42/2.20 .35/1.92 .25/1.57 .23/1.53",
            where="algorithms 4, S2",
            needs=["e7"],
            ask=_learning,
            why="our draft was distilled from the target before: little is left to learn, and a step can spoil more",
        ),
        Claim(
            what="low-rank updates inside the layers come close to training all weights",
            published="close, no figure",
            where="key findings",
            needs=["e17"],
            ask=_layers,
            why="less than nine tenths as many tokens right",
            aside="specedge learns by the last row alone: behind a draft that was distilled nothing is left to learn, "
            "but of layers that nobody taught the last row learns a fifth of what updates inside them do",
        ),
        Claim(
            what="lambda of the n-gram loss: fixed, or the target's probability of the n-gram",
            published="0.2 throughout; a dynamic one is named, no figure",
            where="hybrid distillation loss",
            needs=["lambda-e7"],
            ask=_lambda,
            why="",
            aside="specedge learns with 0.2; the dynamic one is `AdapterOptions(ngram_weight='dynamic')`; one or two "
            "in a hundred tokens of this draft are none of the target's, so there is little that any lambda weighs",
        ),
        Claim(
            what="over a change of domain acceptance dips and recovers",
            published="shown along the stream, no figure",
            where="algorithms 4, E7",
            needs=["e7"],
            ask=_adapts,
            why="the draft knew both domains beforehand",
        ),
        Claim(
            what="the head that predicts acceptance: more is accepted, and nothing lost",
            published="Vicuna-7B joint .61/2.08 .51/1.91 .44/1.61 .42/1.59; "
            "interleaved .52/2.15 .48/1.94 .41/1.60 .38/1.58",
            where="algorithms 4, S2",
            needs=["e7"],
            ask=_head,
            why="the head stopped good drafts, or cost more than it saved",
            aside="where a draft does not pay for itself the head learns to draft next to nothing",
        ),
        Claim(
            what="a target of 32 billion weights",
            published="up to 2.05x",
            where="algorithms 4, S2",
            why="no Whisper is as large",
        ),
    ],
)
