"""Acceptance rules: residual has the distribution of plain sampling, the lossy ones keep what they say and no more."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from specedge.errors import UsageError
from specedge.runtime.decoding.accept import AcceptanceRule, Candidate, Exact
from specedge.runtime.decoding.decode import DecodeOptions, decode_window
from specedge.runtime.decoding.drafter import DraftContext, DraftTree, Guard
from specedge.runtime.decoding.rules import RuleSet
from specedge.runtime.decoding.sampling import Draw, Noise
from specedge.runtime.options import TranscribeOptions
from specedge.runtime.papers.accept import Residual, Threshold, TopM, Typical
from support.drafting import Scripted, plain_fields
from support.fake_engine import HashEngine, special_tokens

SPECIAL = special_tokens(n_timestamps=31)
PROMPT = [SPECIAL.sot, SPECIAL.languages["en"], SPECIAL.transcribe]
P = np.array([0.4, 0.3, 0.2, 0.1, 0.0])  # a toy vocabulary; its last token is forbidden
N_DRAWS = 6_000
CHI_SQUARE_0_001 = 16.27  # three degrees of freedom


def draw(seed: int, temperature: float = 1.0) -> Draw:
    return Draw(temperature, Noise(seed=seed, window_key=0, temperature=temperature, sample=0), 4)


def row(temperature: float = 1.0) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return (np.log(P) * temperature + 3).astype(np.float32)


def chi_square(tokens: list[int]) -> float:
    counts = np.bincount(tokens, minlength=5)
    assert counts[4] == 0
    expected = P[:4] * len(tokens)
    return float(((counts[:4] - expected) ** 2 / expected).sum())


def test_a_drawn_draft_that_no_rule_allows_is_refused_by_what_it_was_drawn_from() -> None:
    """Two fifths of what is drawn are forbidden to the target. Cut away, that part of q would be lost."""
    q = np.array([0.1, 0.1, 0.1, 0.3, 0.4])  # the last token is forbidden
    context = DraftContext(prompt=(), sampled=(), position=0)
    tokens = []
    for seed, first in enumerate(np.random.default_rng(12).choice(5, N_DRAWS, p=q).tolist()):
        tree = DraftTree([first, 0], drawn=[(np.arange(5), q), None])
        guard = Guard(Scripted(lambda context, budget, tree=tree: tree))
        draft = guard.propose(context, 9, n_vocab=5, useless={4})
        tokens.append(Residual().choose(row(), draft.siblings(range(len(draft))[:1]), draw(seed)))
        assert draft.ids == ([4] if first == 4 else [first, 0]), "nothing stands below what is refused"
    assert chi_square(tokens) < CHI_SQUARE_0_001


class Numbered(Draw):
    """A draw that gets its number of (0, 1) told, and does not sample, but says the weights that it would sample by."""

    def __init__(self, number: float) -> None:
        super().__init__(1.0, None, 0)
        self._number = number
        self.weights: np.ndarray | None = None

    def uniform(self) -> float:
        return self._number

    def sample(self, weights: np.ndarray) -> int:
        self.weights = weights / weights.sum()
        return 0


@pytest.mark.parametrize("peak", [0.0, 2000.0])
@pytest.mark.parametrize("classes", [None, [0, 0, 1, 2]])
def test_residual_leaves_exactly_the_models_distribution(classes: list[int] | None, peak: float) -> None:
    """Over all drafts of q and all numbers of (0, 1), summed: no chi-square, which sees large errors alone.

    Of the first class half of the draws are kept, of token 0 in it all, for there is more of it in p; the second class
    is forbidden to the target; token 4 is never drafted.
    """
    p, q = np.array([0.36, 0.04, 0.0, 0.3, 0.3]), np.array([0.4, 0.4, 0.1, 0.1])
    with np.errstate(divide="ignore"):
        logits = (np.log(p) + peak).astype(np.float32)
    drawn = (np.arange(4), q) if classes is None else (np.arange(4), q, np.array(classes))
    n, found = 20, np.zeros(5)
    for first, number in itertools.product(range(4), (np.arange(n) + 0.5) / n):
        told = Numbered(number)
        token = Residual().choose(logits, [Candidate(token=first, drawn=drawn)], told)
        found += q[first] / n * (np.eye(5)[token] if told.weights is None else told.weights)
    assert found == pytest.approx(p, abs=1e-3)


def choose(rule: AcceptanceRule, *candidates: Candidate) -> int:
    return rule.choose(row(), candidates, Draw(0.0, None, 0))


def test_top_m_keeps_the_first_draft_of_the_m_likeliest() -> None:
    assert choose(TopM(m=2), Candidate(token=1)) == 1
    assert choose(TopM(m=2), Candidate(token=2)) == 0
    assert choose(TopM(m=3), Candidate(token=3), Candidate(token=2), Candidate(token=1)) == 2
    assert choose(TopM(m=3), Candidate(token=2), Candidate(token=0)) == 0, "the model's own when it is drafted"
    assert choose(TopM(m=5), Candidate(token=4)) == 0, "never what the rules forbid"


def test_typical_keeps_what_is_above_its_threshold() -> None:
    entropy = -float((P[:4] * np.log(P[:4])).sum())
    limit = 0.3 * math.exp(-entropy)
    assert limit == pytest.approx(0.0834, abs=1e-3), "below epsilon here"
    assert choose(Typical(), Candidate(token=3)) == 3
    assert choose(Typical(alpha=0.8, epsilon=0.5), Candidate(token=3), Candidate(token=2)) == 0
    assert choose(Typical(alpha=0.5), Candidate(token=3), Candidate(token=2)) == 3
    assert choose(Typical(epsilon=0.0), Candidate(token=4)) == 0, "strictly above"


def test_threshold_believes_the_drafter_but_not_against_the_rules() -> None:
    assert choose(Threshold(tau=0.8), Candidate(token=3, conf=0.8)) == 3
    assert choose(Threshold(tau=0.8), Candidate(token=3, conf=0.79)) == 0
    assert choose(Threshold(tau=0.8), Candidate(token=3)) == 0
    assert choose(Threshold(tau=0.0), Candidate(token=4, conf=1.0)) == 0
    assert choose(Threshold(), Candidate(token=2, conf=math.nan), Candidate(token=1, conf=0.9)) == 1


def window(rule: AcceptanceRule, temperature: float, drafter: Any = None) -> Any:
    rules = RuleSet(SPECIAL, space_ids=[32], suppressed=[33], timestamps=True, max_initial_timestamp_index=20)
    chosen = DecodeOptions(rules=rules, n_text_ctx=48, temperature=temperature, acceptance=rule)
    return decode_window(HashEngine(SPECIAL, eot_bias=-50), b"x", PROMPT, chosen, drafter)


RULES = (TopM(m=4), Typical(epsilon=0.001, alpha=0.001), Threshold(tau=0.5), Residual())


def likely(context: DraftContext, budget: int) -> DraftTree:
    """The second likeliest token, then the third likeliest."""
    engine = HashEngine(SPECIAL, eot_bias=-50)
    ids: list[int] = []
    for rank in (2, 3):
        logits = engine.logits(b"x", (*context.prompt, *context.sampled, *ids))
        ids.append(int(np.argsort(logits[:250])[-rank]))
    made = DraftTree(ids)
    return DraftTree(tokens=made.tokens, parents=made.parents, conf=np.ones(2, np.float32))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_other_rules_are_marked_and_keep_the_counts(rule: AcceptanceRule, temperature: float) -> None:
    result = window(rule, temperature, Scripted(likely))
    counted = result.speculation
    assert counted.lossless is False and counted.plus(window(Exact(), 0.0).speculation).lossless is False
    assert counted.tokens == counted.accepted + counted.passes == len(result.token_logprobs)
    assert all(math.isfinite(value) for value in result.token_logprobs), "what the rules forbid is never text"
    if not isinstance(rule, Residual):
        assert counted.accepted > 0 and result.tokens != window(Exact(), temperature).tokens


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_without_drafts_every_rule_decodes_alike(rule: AcceptanceRule) -> None:
    for temperature in (0.0, 1.0):
        assert plain_fields(window(rule, temperature)) == plain_fields(window(Exact(), temperature))


@pytest.mark.parametrize("name", ["", "top-", "top-0", "1.5", "-0.1", "nan", "best"])
def test_what_is_no_rule_is_one_line(name: str) -> None:
    with pytest.raises(UsageError, match="accept"):
        TranscribeOptions(accept=name)
