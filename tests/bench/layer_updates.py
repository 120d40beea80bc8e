"""E17: what a draft learns by its last row, by low-rank updates inside its layers, and by all weights (OmniDraft).

Published: all weights, and LoRA inside the layers, which is said to come close to them (arXiv 2507.02659). specedge
trains low-rank factors of the last hidden row alone: behind frozen layers they need no pass back through them. Here all
three learn in torch from the same texts, what the target said of three quarters of the utterances, in order, by
cross-entropy, each at the best of some rates; judged is the share of the other texts' tokens that are the draft's best
guess behind the right ones. Once: the stream goes by once, as published; more often: what there is to be learned of it.
The drafts are the given one, and layers of the target's decoder that nobody taught to draft. Nothing is timed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from bench.draft_runs import DraftRuns
from bench.map_texts import DOMAINS, Findings
from bench.relaid import checkpoint_of
from bench.rounds import BenchError
from torch import Tensor, nn
from torch.nn.utils import parametrize

from specedge.export.training.labels import IGNORE
from specedge.export.training.nets import DraftNet, decoder_of
from specedge.models.recipe.labels import layout_of
from specedge.runtime.bench.plots import Panel
from specedge.runtime.bundle.bundle import Bundle

__all__ = ["run"]

N_LAYERS = 2
RANK_ROW, RANK_LAYERS = 32, 8
RATES = (3e-4, 1e-3, 3e-3)
TIMES = (1, 8)  # how often the stream goes by
N_BATCH = 4
NOTHING, ROW, LAYERS, ALL = "nothing", "last row", "inside layers", "all weights"


class Lesson(NamedTuple):
    """A text: prompt, text and end, i64 [n]; the encoder's output, f32 [n_ctx, d]; and the prompt's length."""

    ids: Tensor
    features: Tensor
    n_prompt: int


class Student(NamedTuple):
    """What learns, and the rows of a batch of ids over features: [B, T, d]."""

    weights: list[nn.Parameter]
    rows: Callable[[Tensor, Tensor], Tensor]


class _Added(nn.Module):
    """A weight [n, m] with a product of low rank added, zero at first."""

    def __init__(self, n: int, m: int, rank: int) -> None:
        super().__init__()
        self.down, self.up = nn.Parameter(torch.randn(rank, m) / m**0.5), nn.Parameter(torch.zeros(n, rank))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.up @ self.down


def student_of(way: str, net: DraftNet) -> Student:
    """A way to learn; what does not learn in `net` is frozen."""
    net.requires_grad_(way == ALL)
    if way == ALL:
        return Student(list(net.parameters()), net)
    if way == LAYERS:
        for part in [part for part in net.layers.modules() if isinstance(part, nn.Linear)]:
            parametrize.register_parametrization(part, "weight", _Added(*part.weight.shape, RANK_LAYERS))
        found = [weight for name, weight in net.named_parameters() if name.endswith((".up", ".down"))]
        return Student([weight.requires_grad_() for weight in found], net)
    d = net.layer_norm.weight.shape[0]
    added = _Added(d, d, RANK_ROW)

    def rows(ids: Tensor, features: Tensor) -> Tensor:
        below: Tensor = net(ids, features)
        return below + below @ added.up @ added.down

    return Student(list(added.parameters()), rows)


def run(runs: DraftRuns, *, folder: Path | None, n_utterances: int) -> Findings:
    """Both domains together. Raises BenchError for a draft that has not the target's ids and encoder."""
    torch.manual_seed(0)
    torch.set_num_threads(runs.threads)
    heard, sources = [], []
    for domain in DOMAINS:
        part, source = runs.hear(folder, domain, n_utterances)
        heard += part
        sources.append(f"{len(part)} {domain} utterances from {source}")
    eot = runs.bench.eot
    lessons = [
        Lesson(torch.tensor([*runs.prompt, *one.plain, eot]), torch.from_numpy(one.features.hidden), len(runs.prompt))
        for one in heard
    ]
    learned, judged = [one for at, one in enumerate(lessons) if at % 4 != 3], lessons[3::4]
    figures: dict[str, Any] = {}
    tables: dict[str, list[list[str]]] = {}
    series: dict[str, list[tuple[float, float]]] = {}
    for name, base in _bases(runs).items():
        found = figures[name] = {NOTHING: {"right": _right(_frozen(base), base, judged), "weights": 0}}
        for way in (ROW, LAYERS, ALL):
            found[way] = _best(way, base, learned, judged)
            series[f"{name}, {way}"] = [(n, found[way][f"times {n}"]) for n in TIMES]
        head = ["learns", "weights", "right before", *(f"stream {n} times" for n in TIMES)]
        before = f"{found[NOTHING]['right']:.3f}"
        tables[f"{name}; {len(learned)} texts learned, {len(judged)} judged; {', '.join(sources)}"] = [
            head,
            *(
                [way, str(found[way]["weights"]), before, *(f"{found[way][f'times {n}']:.3f}" for n in TIMES)]
                for way in (ROW, LAYERS, ALL)
            ),
        ]
    panel = Panel(title="Learned", x="times", y="tokens right", series=series)
    return Findings(tables=tables, panels=[panel], figures={"utterances": len(heard), "drafts": figures})


def _bases(runs: DraftRuns) -> dict[str, DraftNet]:
    found = {}
    target, draft = runs.bench.bundle, runs.draft
    if draft.manifest.dims.n_vocab != target.manifest.dims.n_vocab:
        raise BenchError("e17 needs a draft with the target's ids and encoder, such as demo-draft-same")
    parts: Sequence[tuple[str, Bundle, int | None]] = (
        (draft.manifest.name, draft, None),
        (f"{N_LAYERS} layers of {target.manifest.name}", target, N_LAYERS),
    )
    for name, bundle, n_layers in parts:
        with checkpoint_of(bundle, layout_of(bundle.manifest.dims.n_vocab, bundle.path).name) as checkpoint:
            found[name] = decoder_of(checkpoint, n_layers)
    return found


def _frozen(net: DraftNet) -> Student:
    return Student([], net)


def _best(way: str, base: DraftNet, learned: Sequence[Lesson], judged: Sequence[Lesson]) -> dict[str, float]:
    """Of a way at its best rate: the share right after the stream went by so often, and how many weights learn."""
    rows: list[dict[str, float]] = []
    for rate in RATES:
        net = copy.deepcopy(base)
        student = student_of(way, net)
        optimiser = torch.optim.Adam(student.weights, lr=rate / (10 if way == ALL else 1))
        row: dict[str, float] = {"weights": sum(weight.numel() for weight in student.weights)}
        for time in range(1, max(TIMES) + 1):
            for at in range(0, len(learned), N_BATCH):
                optimiser.zero_grad()
                _loss(student, net, learned[at : at + N_BATCH]).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            if time in TIMES:
                row[f"times {time}"] = _right(student, net, judged)
        rows.append(row)
    return {name: max(row[name] for row in rows) for name in rows[0]}


def _logits(student: Student, net: DraftNet, lessons: Sequence[Lesson]) -> tuple[Tensor, Tensor]:
    """Of the places that have a token of the text next: [n, n_vocab], and those tokens."""
    ids = nn.utils.rnn.pad_sequence([one.ids for one in lessons], batch_first=True)
    labels = torch.full_like(ids, IGNORE)
    for at, one in enumerate(lessons):
        labels[at, one.n_prompt - 1 : len(one.ids) - 1] = one.ids[one.n_prompt :]
    wanted = labels != IGNORE
    rows = student.rows(ids, torch.stack([one.features for one in lessons]))
    return net.logits(rows[wanted]), labels[wanted]


def _loss(student: Student, net: DraftNet, lessons: Sequence[Lesson]) -> Tensor:
    return F.cross_entropy(*_logits(student, net, lessons))


def _right(student: Student, net: DraftNet, lessons: Sequence[Lesson]) -> float:
    """The share of the tokens that are the best guess."""
    found = []
    with torch.no_grad():
        for one in lessons:
            logits, labels = _logits(student, net, [one])
            found.append((logits.argmax(-1) == labels).numpy())
    return round(float(np.concatenate(found).mean()), 4)
