"""Token Map Drafting (Ho et al., arXiv 2507.21522): the published figures, and where ours are."""

from __future__ import annotations

from bench.published.claim import ANSWERED, DOMAINS, Answer, Claim, Figures, Paper, held_to, shown

__all__ = ["TOKEN_MAP"]

UNDEFINED = "the verdict is on the speed-up: the paper does not say what its acceptance is counted over"


def _timed(speculate: Figures, domain: str, published: float) -> Answer:
    """The published rules by the clock, drafting included, and our gate beside them; the rules are compared."""
    rows = speculate["domains"][f"{domain}-dev"]
    ours = ", ".join(
        f"{name} {row['decoder_speed_up']:.2f}x ({row['least']:.2f}-{row['greatest']:.2f}), "
        f"{100 * row['acceptance']:.1f} %"
        for name, row in (("its rules", rows["paper"]), ("gated", rows["tokenmap"]))
    )
    return Answer(ours=ours, verdict=held_to(published, rows["paper"]["decoder_speed_up"]))


def _open_domain(speculate: Figures) -> Answer:
    return _timed(speculate, "notes", 1.27)


def _commands(speculate: Figures) -> Answer:
    return _timed(speculate, "maintenance", 1.37)


def _ordered(e4: Figures) -> Answer:
    found = {domain: e4[domain]["rows"][0]["paper"] for domain in DOMAINS}
    ours = ", ".join(f"{domain} {100 * row['acceptance']:.1f} %" for domain, row in found.items())
    more = found["maintenance"]["acceptance"] > found["notes"]["acceptance"]
    return Answer(ours=ours, verdict=shown(is_so=more))


def _best_key(e1: Figures) -> Answer:
    best = {d: max(e1[d]["orders"], key=lambda n, d=d: e1[d]["orders"][n]["alone"]["speed_up"]) for d in DOMAINS}
    ours = ", ".join(f"{d} N = {n} ({e1[d]['orders'][n]['alone']['speed_up']:.2f}x)" for d, n in best.items())
    return Answer(ours=ours, verdict=shown(is_so=set(best.values()) == {"3"}))


def _candidates(e1: Figures) -> Answer:
    best, parts = [], []
    for domain in DOMAINS:
        speeds = {int(c): row["lcp 9/16, batch"]["speed_up"] for c, row in e1[domain]["candidates"].items()}
        best.append(max(speeds, key=lambda c: speeds[c]))
        parts.append(f"{domain} C = {best[-1]} ({', '.join(f'{speeds[c]:.2f}' for c in sorted(speeds))})")
    return Answer(ours="; ".join(parts), verdict=shown(is_so=all(c in (2, 3) for c in best)))


def _least_lengths(e2: Figures) -> Answer:
    """By the measured price of this runtime's passes. The price of copied keys and values is not asked: it was solved
    from the published 9 and 16, so that it gives them back whatever they are."""
    found = e2["thresholds"]["shared K/V, batch rows"]["1.0"][1:3]
    is_so = all(n is not None and abs(n - published) <= 1 for n, published in zip(found, (9, 16), strict=True))
    return Answer(ours=" and ".join("never" if n is None else str(n) for n in found), verdict=shown(is_so=is_so))


def _beside_a_draft(e5: Figures) -> Answer:
    gains, parts = [], []
    for domain in DOMAINS:
        mapped, draft = (e5[domain]["rows"][0][way] for way in ("map", "draft"))
        gains.append(mapped["speed_up"] - draft["speed_up"])
        parts.append(
            f"{domain} {100 * gains[-1]:+.0f} points: {mapped['speed_up']:.2f}x beside {draft['speed_up']:.2f}x "
            f"with {100 * draft['acceptance']:.0f} % accepted"
        )
    return Answer(ours="; ".join(parts), verdict=held_to(1.1, 1 + sum(gains) / len(gains)))


def _accuracy(e3: Figures) -> Answer:
    parts = []
    for domain in DOMAINS:
        first, last = e3[domain]["rows"][0], e3[domain]["rows"][-1]
        clean, noisy = (row["training list"]["acceptance"] for row in (first, last))
        parts.append(f"{domain}: WER {first['wer']:.0f} to {last['wer']:.0f} %, accepted {clean:.2f} to {noisy:.2f}")
    return Answer(ours="; ".join(parts), verdict=ANSWERED)


def _perplexity(e4: Figures) -> Answer:
    places = {domain: e4[domain]["crossings"]["paper"] for domain in DOMAINS}
    at = ", ".join(f"{domain} {'never' if place is None else place}" for domain, place in places.items())
    ours = f"its rules stop paying at a perplexity of: {at}; gated at least {e4['lowest_gated']:.2f}x everywhere"
    return Answer(ours=ours, verdict=ANSWERED)


def _hybrid(e5: Figures) -> Answer:
    found = {domain: [row["hybrid_over_best"] for row in e5[domain]["rows"]] for domain in DOMAINS}
    ours = "; ".join(f"{domain} {min(part):.2f} to {max(part):.2f} of the best alone" for domain, part in found.items())
    return Answer(ours=ours, verdict=ANSWERED)


TOKEN_MAP = Paper(
    name="token-map",
    title="Token Map Drafting (arXiv 2507.21522)",
    setting="Published: a Whisper on a CPU, timed. Ours: the demo's two domains; timed where it "
    "says so, else counts that are priced by a table of T(k), with drafting at no time.",
    claims=[
        Claim(
            what="decoding speed-up and acceptance, CI-AVSR",
            published="1.27x, 38.6 %",
            where="abstract; algorithms 4, S1",
            needs=["speculate"],
            ask=_open_domain,
            timed=True,
            why="another corpus: dictated notes; timed on the demo, whose passes are short beside the drafting",
            aside=UNDEFINED,
        ),
        Claim(
            what="decoding speed-up and acceptance, maintenance commands",
            published="1.37x, 85.6 %",
            where="abstract; algorithms 4, S1",
            needs=["speculate"],
            ask=_commands,
            timed=True,
            why="sentences decoded are not in the map's list, so whole commands are never known; timed on the demo, "
            "whose passes are short beside the drafting",
            aside=UNDEFINED,
        ),
        Claim(
            what="more is accepted of commands than of the open domain",
            published="85.6 % against 38.6 %",
            where="algorithms 4, S1",
            needs=["e4"],
            ask=_ordered,
            why="both lists come from grammars with slots",
        ),
        Claim(
            what="best length of the key, of 1 to 5",
            published="N = 3",
            where="algorithms 1.1",
            needs=["e1"],
            ask=_best_key,
            why="the best length depends on how soon the corpus' keys say what follows",
        ),
        Claim(
            what="candidates of a key",
            published="2 or 3, then less",
            where="algorithms 1.1",
            needs=["e1"],
            ask=_candidates,
            why="rows of a pass have another price here (E2): a second candidate pays only where it is right",
        ),
        Claim(
            what="least length of 2 and of 3 candidates",
            published="9 and 16",
            where="Fig. 3",
            needs=["e2"],
            ask=_least_lengths,
            why="thresholds hold for the price of one runtime's rows, and do not transfer",
        ),
        Claim(
            what="beside the Distill-Spec baseline on a CPU",
            published="+10 points",
            where="abstract",
            needs=["e5"],
            ask=_beside_a_draft,
            why="their draft gains nearly as much as the map, ours nothing although it is right: a step of its two "
            "layers and of the whole vocabulary costs some two thirds of a pass of the demo's six, so four of them "
            "cost what they save; a map's drafts are counted as free",
        ),
        Claim(
            what="open question 1: does acceptance follow accuracy?",
            published="asked, no figure",
            where="algorithms 4, E3",
            needs=["e3"],
            ask=_accuracy,
            why="",
        ),
        Claim(
            what="open question 2: up to which perplexity does a map pay?",
            published="asked, no figure",
            where="algorithms 4, E4",
            needs=["e4"],
            ask=_perplexity,
            why="",
        ),
        Claim(
            what="open question 3: map and draft together",
            published="asked, no figure",
            where="algorithms 4, E5",
            needs=["e5"],
            ask=_hybrid,
            why="",
        ),
    ],
)
