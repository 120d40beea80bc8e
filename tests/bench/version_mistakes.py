"""E8: a draft of another Whisper version, and what each mistake of the published code costs (Chheda 2025).

    shift        ids by what they mean, prompt and text in the draft's own: what specedge does
    relaid       the same draft, exported in the target's ids: nothing is translated
    text         each token through text: decoded, encoded again, the first id taken; timestamps become the end
    prompt       the draft is asked, and told the text, in the target's ids
    no bonus     nothing is taken from a pass in which all drafts came true but the drafts
    prefix lost  of a partly accepted draft only the correction is kept

Acceptance is of what was proposed: where timestamps end a draft, less is. The first four run in the decode loop, whose
text is plain decoding's; the last two are the published loop, whose text may be another. With timestamps, three tokens
a draft, as published. A draft of the target's own version stands beside, where one is given, and a control: `relaid`
beside `shift` is what crossing versions costs by itself. It does not time anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.draft_runs import DraftRuns, Heard, figures
from bench.map_texts import DOMAINS, Findings
from bench.relaid import relaid
from bench.rounds import BenchError

from specedge.models.recipe.labels import layout_of
from specedge.runtime.bench.plots import Panel
from specedge.runtime.decoding.accept import Drawn
from specedge.runtime.decoding.drafter import DraftContext, WindowContext
from specedge.runtime.drafters.draft.drafter import DraftModelDrafter
from specedge.runtime.drafters.draft.translate import Reader, Remapped
from specedge.runtime.text.tokenizer import Tokenizer
from specedge.runtime.text.words import edit_distance

__all__ = ["TargetsIds", "ThroughText", "run"]

N_DRAFT = 3
SAME, SHIFT, RELAID, TEXT, PROMPT, NO_BONUS, LOST = (
    "same version",
    "shift",
    "relaid",
    "text",
    "prompt",
    "no bonus",
    "prefix lost",
)


@dataclass(kw_only=True)
class _TextReader(Reader):
    draft: Tokenizer
    target: Tokenizer

    def push(self, token: int, confidence: float, drawn: Drawn | None = None) -> None:
        """The published code's map: what has no text is unknown, and the unknown token is the end of the text."""
        ids = self.target.encode(self.draft.decode([token]))
        self.is_ended = not ids
        if ids:
            self.origins.append(self.n_read)
            self.n_read += 1
            self.tokens.append(ids[0])
            self.confidences.append(confidence)
            self.drawn.append(None)


class ThroughText(Remapped):
    """What the draft says goes through text."""

    def __init__(self, draft: Tokenizer, target: Tokenizer) -> None:
        super().__init__(draft.special, target.special)
        self._pair = draft, target

    def reader(self, word: Sequence[int] = (), *, is_start: bool = False) -> Reader:
        """See the class."""
        return _TextReader(draft=self._pair[0], target=self._pair[1])


class TargetsIds(Remapped):
    """What the draft says is mapped, what it is asked and told is not."""

    def __init__(self, draft: Tokenizer, target: Tokenizer) -> None:
        super().__init__(draft.special, target.special)
        self._n_vocab = draft.special.n_vocab

    def prompt(self, ids: Sequence[int]) -> list[int] | None:
        """As it is."""
        return self.text(ids)

    def text(self, ids: Sequence[int]) -> list[int]:
        """As it is, but for ids that the draft has not."""
        return [token for token in ids if token < self._n_vocab]


def run(runs: DraftRuns, *, folder: Path | None, n_utterances: int, same: str | None) -> Findings:
    """Both domains. `same` names a draft of the target's version. Raises BenchError for a draft of its version."""
    mine, theirs = runs.draft.tokenizer, runs.bench.bundle.tokenizer
    if Remapped.between(mine, theirs) is None or mine.special.to_json() == theirs.special.to_json():
        raise BenchError("e8 needs a draft of another version with the target's vocabulary, such as demo-draft")
    layout = layout_of(theirs.special.n_vocab, runs.bench.bundle.path).name
    control = relaid(runs.draft, layout, runs.bench.folder / RELAID)
    tables: dict[str, list[list[str]]] = {}
    found: dict[str, Any] = {}
    accepted: dict[str, list[tuple[float, float]]] = {}
    per_pass: dict[str, list[tuple[float, float]]] = {}
    for domain in DOMAINS:
        heard, source = runs.hear(folder, domain, n_utterances)
        rows: dict[str, dict[str, float]] = {}
        if same is not None:
            rows[SAME] = _decoded(runs.with_draft(same), heard, None)
        rows[SHIFT] = _decoded(runs, heard, None)
        rows[RELAID] = _decoded(runs.with_draft(control.path), heard, None)
        ways = {TEXT: ThroughText(mine, theirs), PROMPT: TargetsIds(mine, theirs)}
        rows |= {name: _decoded(runs, heard, way) for name, way in ways.items()}
        rows[NO_BONUS] = _published(runs, heard, keeps_prefix=True, takes_bonus=False)
        rows[LOST] = _published(runs, heard, keeps_prefix=False, takes_bonus=True)
        table = [["way", "speed-up", "tokens per pass", "acceptance", "tokens wrong %", "texts changed"]]
        for name, row in rows.items():
            cells = [f"{row[key]:.3f}" for key in ("speed_up", "tokens_per_pass", "acceptance")]
            table.append([name, *cells, f"{row['wrong_percent']:.1f}", f"{row['changed']:.0f} of {len(heard)}"])
        tables[f"{domain}, {len(heard)} utterances from {source}"] = table
        found[domain] = {"source": source, "utterances": len(heard), "rows": rows}
        accepted[domain] = [(float(at), row["acceptance"]) for at, row in enumerate(rows.values())]
        per_pass[domain] = [(float(at), row["tokens_per_pass"]) for at, row in enumerate(rows.values())]
    ticks = tuple((float(at), name) for at, name in enumerate(rows))
    panels = [
        Panel(title="Mistakes across versions", x="way", y="acceptance", series=accepted, ticks=ticks),
        Panel(title="Mistakes across versions", x="way", y="tokens per pass", series=per_pass, ticks=ticks),
    ]
    return Findings(tables=tables, panels=panels, figures=found)


def _decoded(runs: DraftRuns, heard: Sequence[Heard], way: Remapped | None) -> dict[str, float]:
    """In the decode loop, which does not let a draft change the text."""
    drafter = runs.drafter(lookahead=str(N_DRAFT))
    if way is not None:
        drafter.translation = way
    row = figures(runs, runs.run(drafter, heard))
    drafter.close()
    return row | {"wrong_percent": 0.0, "changed": 0.0}


def _published(runs: DraftRuns, heard: Sequence[Heard], *, keeps_prefix: bool, takes_bonus: bool) -> dict[str, float]:
    """In the published loop, with the right map."""
    costs = runs.bench.costs
    n_tokens = n_passes = n_proposed = n_accepted = n_wrong = n_plain = n_changed = 0
    cost = 0.0
    for window in heard:
        drafter = runs.drafter(lookahead=str(N_DRAFT))
        target = _Greedy(runs, window)
        drafter.begin(target.window)
        sampled: list[int] = []
        while len(sampled) < target.window.n_sample and not (sampled and sampled[-1] == target.window.eot):
            draft = _proposed(drafter, runs, sampled)
            said = target.behind(sampled, draft)
            n = next((at for at, token in enumerate(draft) if token != said[at]), len(draft))
            if n < len(draft):
                sampled += [*(draft[:n] if keeps_prefix else []), said[n]]
            else:
                sampled += [*draft, said[n]] if takes_bonus or not draft else draft
            n_passes, n_proposed, n_accepted = n_passes + 1, n_proposed + len(draft), n_accepted + n
            n_rows = 1 + len(draft)
            cost += costs.cost(n_rows + n_rows % 2) if draft else 1.0
        target.release()
        drafter.close()
        text = [token for token in sampled if token != target.window.eot]
        n_tokens, n_plain = n_tokens + len(sampled), n_plain + len(window.plain)
        n_wrong += edit_distance(window.plain, text)
        n_changed += tuple(text) != window.plain
    cost += runs.draft_cost * n_proposed
    return {
        "speed_up": round(n_tokens / cost, 4) if cost else 1.0,
        "tokens_per_pass": round(n_tokens / max(n_passes, 1), 4),
        "acceptance": round(n_accepted / max(n_proposed, 1), 4),
        "proposed": n_proposed,
        "tokens": n_tokens,
        "passes": n_passes,
        "wrong_percent": round(100 * n_wrong / max(n_plain, 1), 2),
        "changed": n_changed,
    }


def _proposed(drafter: DraftModelDrafter, runs: DraftRuns, sampled: Sequence[int]) -> list[int]:
    position = len(runs.prompt) + len(sampled) - 1
    context = DraftContext(prompt=runs.prompt, sampled=tuple(sampled), position=position)
    tokens: list[int] = list(drafter.propose(context, N_DRAFT).tokens)
    useless = [at for at, token in enumerate(tokens) if token in runs.rules.forbidden]
    return tokens[: useless[0]] if useless else tokens


class _Greedy:
    """What the target says of one window behind any text, under the rules of plain decoding."""

    def __init__(self, runs: DraftRuns, window: Heard) -> None:
        manifest = runs.bench.bundle.manifest
        self._runs, self._state = runs, runs.engine.start(window.features)
        self._rules = runs.rules
        self.window = WindowContext(
            features=window.features,
            prompt=runs.prompt,
            n_vocab=manifest.dims.n_vocab,
            n_sample=manifest.dims.n_text_ctx // 2,
            eot=manifest.tokens.eot,
            timestamp_begin=manifest.tokens.timestamp_begin,
            mel=runs.mel(window.sound),
        )

    def behind(self, sampled: Sequence[int], draft: Sequence[int]) -> list[int]:
        """The token behind `sampled`, and behind each of `draft` after it, all computed anew, as published."""
        engine, prompt = self._runs.engine, self._runs.prompt
        engine.rewind(self._state, 0)
        ids = [*prompt, *sampled, *draft]
        first = len(prompt) + len(sampled) - 1
        rows = engine.forward(self._state, ids, list(range(first, len(ids))))
        said = []
        for at, row in enumerate(rows):
            logits = row.copy()
            self._rules.apply(logits, [*sampled, *draft[:at]])
            said.append(int(logits.argmax()))
        return said

    def release(self) -> None:
        """Give the buffers back."""
        self._runs.engine.release(self._state)
