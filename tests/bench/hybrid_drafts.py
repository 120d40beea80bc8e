"""E5: a token map and a draft model together (arXiv 2507.21522, the question of a hybrid).

A map of one domain; utterances of which a share rho is of the other domain; drafts of the map alone, of the draft model
alone (what Distill-Spec is beside the map), of the map where it has any and else of the model, and of whichever
promises more. The model runs four tokens at a time. It is told of what the map brought only when it is asked again:
the rows that it then has to catch up with are counted and priced, as are those of its prompts. Nothing is timed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.domain_transfer import mix
from bench.draft_runs import DraftRuns, Heard, figures, passes_cost
from bench.map_texts import DOMAINS, Findings

from specedge.maps.build import BuildOptions
from specedge.maps.token_map import TokenMap
from specedge.runtime.bench.plots import Panel
from specedge.runtime.decoding.decode import Speculation
from specedge.runtime.decoding.drafter import DraftContext, Drafter, DraftTree, Verdict, WindowContext
from specedge.runtime.decoding.payoff import Gate
from specedge.runtime.device import CostTable
from specedge.runtime.drafters.draft.drafter import DraftModelDrafter
from specedge.runtime.drafters.tokenmap import TokenMapOptions

__all__ = ["InTurn", "MostGain", "run"]

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
WAYS = ("map", "draft", "map, then draft", "most gain")
N_DRAFT = 4
_FADE = 0.97
_PRIOR, _PRIOR_RATE = 4.0, 0.75


class InTurn(Drafter):
    """The map's draft where it has one, else the model's."""

    name = "in turn"

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self.first, self.second = first, second
        self.asked = first

    @property
    def listens(self) -> bool:
        """As the model does."""
        return self.second.listens

    def begin(self, window: WindowContext) -> None:
        """Both hear of it."""
        self.first.begin(window)
        self.second.begin(window)

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """Of the first that has anything."""
        self.asked = self.first
        found = self.first.propose(context, budget)
        if len(found):
            return found
        self.asked = self.second
        return self.second.propose(context, budget)

    def observe(self, verdict: Verdict) -> None:
        """Whose draft it was hears of it."""
        self.asked.observe(verdict)

    def end(self, tokens: tuple[int, ...]) -> None:
        """Both hear of it."""
        self.first.end(tokens)
        self.second.end(tokens)


class MostGain(InTurn):
    """The draft with the larger expected gain, in passes of one row; what the model would take is part of its price.

    The map's drafts are judged by their confidences as experience has them, the model's by its rate so far, and by how
    many rows it has to catch up with.
    """

    name = "most gain"

    def __init__(self, first: Drafter, second: Drafter, costs: CostTable, draft_cost: float) -> None:
        super().__init__(first, second)
        self._costs, self._draft_cost, self._gate = costs, draft_cost, Gate(costs)
        self._came, self._tried = _PRIOR * _PRIOR_RATE, _PRIOR
        self._sure: list[float] = []
        self._n_known = 0  # tokens of the window that the model has seen

    def begin(self, window: WindowContext) -> None:
        """See `InTurn.begin`."""
        super().begin(window)
        self._n_known = 0

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """See the class."""
        n_pending = len(context.prompt) + len(context.sampled) - context.position
        found = self.first.propose(context, budget)
        conf = found.conf
        self._sure = [] if conf is None else [float(sure) for sure in conf]
        gain = self._gate.best_chain([self._gate.believed(sure, "map") for sure in self._sure], n_pending)[1]
        self.asked = self.first
        if len(found) and gain >= self._of_model(len(context.sampled) - self._n_known, n_pending):
            return found
        self.asked, self._n_known = self.second, len(context.sampled)
        return self.second.propose(context, budget)

    def observe(self, verdict: Verdict) -> None:
        """See `InTurn.observe`."""
        super().observe(verdict)
        n_decided = verdict.n_accepted + (verdict.rejected is not None)
        for at in range(n_decided):
            came = at < verdict.n_accepted
            if self.asked is self.first:
                self._gate.learn(self._sure[at], "map", accepted=came)
            else:
                self._came, self._tried = self._came * _FADE + came, self._tried * _FADE + 1

    def _of_model(self, n_behind: int, n_pending: int) -> float:
        rate, cost = self._came / self._tried, self._costs.cost
        worth = sum(rate**n for n in range(1, N_DRAFT + 1))
        rows = cost(n_pending + N_DRAFT) - cost(n_pending)
        return worth - rows - self._draft_cost * (N_DRAFT - 1 + cost(max(n_behind, 1)))


def run(runs: DraftRuns, *, folder: Path | None, n_utterances: int) -> Findings:
    """Maps of both domains."""
    heard = {domain: runs.hear(folder, domain, n_utterances) for domain in DOMAINS}
    tables: dict[str, list[list[str]]] = {}
    found: dict[str, Any] = {}
    panels = []
    for own, other in (DOMAINS, DOMAINS[::-1]):
        (mine, source), (theirs, _) = heard[own], heard[other]
        map_ = runs.bench.make_map(f"{own}-hybrid", runs.bench.train(own), BuildOptions(n_orders=5))
        table = [["rho", *WAYS, "hybrid / best alone"]]
        series: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        rows = []
        for share in SHARES:
            mixed = mix(mine, theirs, share)
            row: dict[str, Any] = {"rho": share} | {way: _counted(runs, map_, way, mixed) for way in WAYS}
            speeds = {way: row[way]["speed_up"] for way in WAYS}
            row["hybrid_over_best"] = round(max(list(speeds.values())[2:]) / max(list(speeds.values())[:2]), 4)
            for way, speed in speeds.items():
                series[way].append((share, speed))
            cells = [
                f"{row[way]['speed_up']:.3f} ({row[way]['tokens_per_pass']:.2f}, {row[way]['acceptance']:.2f})"
                for way in WAYS
            ]
            table.append([f"{share:g}", *cells, f"{row['hybrid_over_best']:.3f}"])
            rows.append(row)
        tables[f"map of {own}, mixed with {other}; {len(mixed)} utterances from {source}"] = table
        found[own] = {"source": source, "utterances": len(mixed), "rows": rows}
        panels.append(Panel(title=f"map of {own}", x="rho", y="speed-up", series=series, level=1.0))
    return Findings(tables=tables, panels=panels, figures=found)


def _counted(runs: DraftRuns, map_: TokenMap, way: str, heard: list[Heard]) -> dict[str, Any]:
    """Figures of one way, with the rows that the model ran in its own units: passes of one row of it."""
    costs = runs.bench.costs
    of_map = runs.bench.drafter(map_, TokenMapOptions(candidates=1))  # chains, as the model's are
    if way == "map":
        counted = runs.run(of_map, heard)
        return figures(runs, counted) | {"speed_up": round(_speed_up(runs, counted, 0.0), 4), "model_passes": 0.0}
    model = runs.drafter(lookahead=str(N_DRAFT))
    made: Drafter = model
    if way != "draft":
        made = InTurn(of_map, model) if way == WAYS[2] else MostGain(of_map, model, costs, runs.draft_cost)
    with _rows_of(model) as rows:
        counted = runs.run(made, heard)
    model.close()
    spent = sum(costs.cost(n_rows) for n_rows in rows)
    return figures(runs, counted) | {
        "speed_up": round(_speed_up(runs, counted, spent), 4),
        "model_passes": round(spent, 1),
    }


def _speed_up(runs: DraftRuns, counted: Speculation, model_passes: float) -> float:
    cost = passes_cost(counted, runs.bench.costs) + runs.draft_cost * model_passes
    return counted.tokens / cost if cost else 1.0


@contextlib.contextmanager
def _rows_of(drafter: DraftModelDrafter) -> Iterator[list[int]]:
    """The rows of every pass of the drafter's model."""
    assert drafter.model is not None
    engine = drafter.model.engine
    forward, rows = engine.forward, list[int]()

    def counting(state: Any, ids: Any, logit_rows: Any = None) -> Any:
        rows.append(len(ids))
        return forward(state, ids, logit_rows)

    engine.forward = counting  # type: ignore[method-assign]
    try:
        yield rows
    finally:
        del engine.forward
