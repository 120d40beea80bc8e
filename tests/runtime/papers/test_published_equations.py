"""The papers' equations in numbers worked by hand: a changed sign, factor or constant shows.

Papers: Whisper-Medusa (arXiv 2409.15869), OmniDraft (arXiv 2507.02659), cross-version speculation (Chheda 2025), Token
Map Drafting (arXiv 2507.21522), Faster Speech-LLaMA (arXiv 2409.08148). A constant that no paper gives is said to be
ours where it is tested.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.maps.build import BuildOptions, build
from specedge.maps.token_map import TokenMap
from specedge.runtime.decoding.accept import Candidate
from specedge.runtime.decoding.sampling import Draw
from specedge.runtime.device import CostTable
from specedge.runtime.drafters.draft.lookahead import DraftCost
from specedge.runtime.papers.accept import Threshold, TopM, Typical
from specedge.runtime.papers.adapter import Adam, Adapter, AdapterOptions, Batch
from specedge.runtime.papers.lookahead import N_SIGNS, AcceptanceHead, Adaptive, Rule

FREE = CostTable((1, 64), (1.0, 1.0))
GREEDY = Draw(0.0, None, 0)


def logits_of(*p: float) -> NDArray[np.float32]:
    """A row whose softmax is `p`."""
    return np.log(np.array(p)).astype(np.float32)


def kept(rule: Typical | TopM | Threshold, p: tuple[float, ...], token: int, conf: float | None = None) -> bool:
    """Whether a draft of `token`, which is not the likeliest one, is kept."""
    return rule.choose(logits_of(*p), [Candidate(token=token, conf=conf)], GREEDY) == token


def test_typical_acceptance_of_an_unsure_row() -> None:
    """Whisper-Medusa, section II, eq. 3: p0 > min(0.09, 0.3 exp(-H)).

    Twelve tokens of nearly 1/12: H = ln 12, 0.3 exp(-H) = 0.025, so a token of 0.083 is kept. With exp(+H) the limit
    would be 0.09, whatever the row is, and the token refused.
    """
    alike = (0.0835, *([0.9165 / 11] * 11))
    assert kept(Typical(), alike, 7)


def test_typical_acceptance_holds_to_both_constants() -> None:
    """Whisper-Medusa, section II, eq. 3, epsilon = 0.09 and alpha = 0.3.

    (0.92, 0.08): H = 0.279, 0.3 exp(-H) = 0.227, so the limit is 0.09. Eight tokens of about 0.12 and one of 0.04:
    H = 2.164, exp(-H) = 0.1148, the limit 0.0345. With 0.03: H = 2.152, exp(-H) = 0.1163, the limit 0.0349.
    """
    assert not kept(Typical(), (0.92, 0.08), 1)
    assert kept(Typical(), (0.90, 0.10), 1)
    assert kept(Typical(), (0.121, *([0.839 / 7] * 7), 0.04), 8)
    assert not kept(Typical(), (0.122, *([0.848 / 7] * 7), 0.03), 8)


def test_the_limits_of_multi_token_prediction() -> None:
    """Faster Speech-LLaMA, section III-A: among the M likeliest (eq. 9); a confidence of tau or more (eq. 10)."""
    row = (0.4, 0.3, 0.2, 0.1)
    assert [kept(TopM(m=2), row, token) for token in (1, 2)] == [True, False]
    assert not kept(TopM(m=1), row, 1), "strict verification"
    assert [kept(Threshold(tau=0.8), row, 3, conf) for conf in (0.8, 0.79)] == [True, False]


def one_place(*, direct: bool, n: int = 1) -> Batch:
    """Places where the draft gives the only known token 3/4 and all others 1/4; the target gives each 1/2.

    h = ln 3 in one dimension, the token's vector is 1, the summed exponentials of all others are 1.
    """
    half = np.full((n, 1), math.log(0.5), np.float32)
    return dict(
        hidden=np.full((n, 1), math.log(3), np.float32),
        vectors=np.ones((n, 1, 1), np.float32),
        used=np.ones((n, 1), np.bool_),
        rest=np.zeros(n, np.float32),
        logp=half,
        logp_rest=half[:, 0],
        direct=np.full(n, direct),
    )


def adapter(**options: Any) -> Adapter:
    """Of one dimension and rank 1, with A = 1 and B = 0, so that h A = ln 3 and nothing is changed yet."""
    made = Adapter(1, AdapterOptions(rank=1, **options))
    made.trained["a"][...] = 1
    return made


def test_a_direct_token_is_learned_by_the_reverse_divergence() -> None:
    """OmniDraft, hybrid distillation loss, L_DM = KL(draft || target).

    3/4 ln(3/2) + 1/4 ln(1/2) = 0.304099 - 0.173287 = 0.130812 (forward it would be 0.143841). By the logit it grows as
    q (ln(q/p) - KL) = 3/4 (0.405465 - 0.130812) = 0.205990, by B that times h A = ln 3: 0.226303.
    """
    loss, gradients = adapter().loss(one_place(direct=True))
    assert loss == pytest.approx(0.130812, abs=1e-5)
    assert gradients["b"].item() == pytest.approx(0.226303, abs=1e-5)
    assert gradients["a"].item() == 0


def test_a_token_of_several_is_learned_by_a_fifth_of_its_likelihood() -> None:
    """OmniDraft, hybrid distillation loss, lambda L_N-gram, lambda = 0.2.

    0.2 (-ln 3/4) = 0.2 * 0.287682 = 0.057536. By the logit 0.2 (q - 1) = -0.05, by B that times ln 3: -0.054931.
    """
    loss, gradients = adapter().loss(one_place(direct=False))
    assert loss == pytest.approx(0.057536, abs=1e-5)
    assert gradients["b"].item() == pytest.approx(-0.054931, abs=1e-5)


def test_both_parts_are_added_over_the_places() -> None:
    """OmniDraft, L = L_DM + lambda L_N-gram: the mean over two places, (0.130812 + 0.057536) / 2 = 0.094174."""
    both = one_place(direct=True, n=2)
    both["direct"][1] = False
    assert adapter().loss(both)[0] == pytest.approx(0.094174, abs=1e-5)


def test_two_steps_of_adam() -> None:
    """Kingma and Ba 2015, algorithm 1, with beta 0.9 and 0.99 (ours) and gradients cut to a norm of 1.

    (0.3, 0.4) is short enough: the first step is the rate, by the signs. (3, -4) becomes (0.6, -0.8): the means are
    0.9 * 0.03 + 0.1 * 0.6 = 0.087 and 0.9 * 0.04 - 0.1 * 0.8 = -0.044, of the squares 0.99 * 0.0009 + 0.01 * 0.36 =
    0.004491 and 0.99 * 0.0016 + 0.01 * 0.64 = 0.007984, and sqrt(1 - 0.9801) / (1 - 0.81) = 0.742460: the second step
    is 0.742460 * 0.087 / 0.0670149 = 0.963875 and 0.742460 * -0.044 / 0.0893532 = -0.365608.
    """
    weights = {"one": np.zeros(1, np.float32), "two": np.zeros(1, np.float32)}
    adam = Adam(weights, rate=0.1)

    def step(one: float, two: float) -> bool:
        return adam.step({"one": np.array([one], np.float32), "two": np.array([two], np.float32)})

    assert step(0.3, 0.4)
    assert [float(weights[name][0]) for name in ("one", "two")] == pytest.approx([-0.1, -0.1], abs=1e-6)
    assert step(3, -4)
    expected = [-0.1 - 0.0963875, -0.1 + 0.0365608]
    assert [float(weights[name][0]) for name in ("one", "two")] == pytest.approx(expected, abs=1e-6)
    assert not step(math.nan, 0.0), "no number, no step"
    assert [float(weights[name][0]) for name in ("one", "two")] == pytest.approx(expected, abs=1e-6)
    adam.reset()
    assert step(0.3, 0.0), "as if it were the first"
    expected = [expected[0] - 0.1, expected[1]]
    assert [float(weights[name][0]) for name in ("one", "two")] == pytest.approx(expected, abs=1e-6)


def test_what_is_learned_stays_small_beside_the_row() -> None:
    """A B has a Frobenius norm of 3 at most (ours): of one dimension 2 * 2 = 4 becomes 2 * 1.5, and 2 * 1 stays 2."""
    for b, expected in ((2.0, 1.5), (1.0, 1.0)):
        made = adapter(rate=0.0)
        made.trained["a"][...], made.trained["b"][...] = 2, b
        made.step(one_place(direct=True))
        assert made.trained["b"].item() == pytest.approx(expected) and made.trained["a"].item() == 2.0


def test_the_head_is_a_logistic_of_what_it_sees_and_the_drafts_odds() -> None:
    """OmniDraft, online adaptive drafting, f(e): relu(2 * 1 - 0.5) * 0.4 = 0.6, with 0.2 and ln(0.9 / 0.1) 2.997225.

    1 / (1 + exp(-2.997225)) = 0.952449; with -1 in place of 1 nothing passes relu: 0.2 + 2.197225, 0.916615.
    """
    head = AcceptanceHead(2)
    head.weights = {name: np.zeros_like(array) for name, array in head.weights.items()}
    head.weights["w1"][0, 0], head.weights["b1"][0], head.weights["w2"][0] = 2, -0.5, 0.4
    head.weights["b2"][0] = 0.2
    assert head.predict(np.array([1, 7], np.float32), 0.9) == pytest.approx(0.952449, abs=1e-5)
    assert head.predict(np.array([-1, 7], np.float32), 0.9) == pytest.approx(0.916615, abs=1e-5)
    # The same in its loss: accepted -ln 0.952449 = 0.048719, refused -ln(1 - 0.916615) = 2.484292, which weighs three.
    features = np.array([[1, 7], [-1, 7]], np.float32)
    loss, _ = head.loss(features, np.full(2, math.log(9), np.float32), np.array([1, 0], np.float32))
    assert loss == pytest.approx((0.048719 + 3 * 2.484292) / 4, abs=1e-5)


def test_a_refused_token_weighs_three_accepted_ones() -> None:
    """OmniDraft, online adaptive drafting: weighted binary cross-entropy. The weight of 3 is ours.

    Untrained, the head says what the draft does, 3/4: accepted -ln 3/4 = 0.287682, refused -ln 1/4 = 1.386294, together
    (0.287682 + 3 * 1.386294) / 4 = 1.111641. By the bias: (1 (3/4 - 1) + 3 * 3/4) / 4 = 0.5.
    """
    odds = np.full(2, math.log(3), np.float32)
    loss, gradients = AcceptanceHead(4).loss(np.zeros((2, 4), np.float32), odds, np.array([1, 0], np.float32))
    assert loss == pytest.approx(1.111641, abs=1e-5)
    assert gradients["b2"].item() == pytest.approx(0.5, abs=1e-5)


def test_a_draft_ends_where_a_refusal_is_likelier_than_gamma() -> None:
    """OmniDraft, online adaptive drafting: exit where P(a refusal among the first k) > gamma. The gamma of 0.7 is ours.

    Of tokens that are accepted with 0.6: 1 - 0.6 = 0.4 and 1 - 0.36 = 0.64 go on, 1 - 0.216 = 0.784 does not. Of 0.68
    and 0.45: 1 - 0.306 = 0.694 goes on, of 0.65 and 0.45: 1 - 0.2925 = 0.7075 does not.
    """
    signs = [np.zeros(N_SIGNS, np.float32)] * 3

    def goes_on(*accepted: float) -> bool:
        policy = Adaptive(FREE, DraftCost(0.001))
        policy.limit()
        return policy.goes_on(accepted, signs)

    assert goes_on(0.6) and goes_on(0.6, 0.6) and not goes_on(0.6, 0.6, 0.6)
    assert goes_on(0.68, 0.45) and not goes_on(0.65, 0.45)


@pytest.mark.parametrize(
    ("n_accepted", "n_drafted", "step"),
    [(4, 5, 0), (5, 6, 1), (13, 16, 1), (3, 10, 0), (2, 7, -1), (4, 13, 0), (5, 16, 0), (0, 1, -1), (1, 2, 0)],
)
def test_k_follows_acceptance(n_accepted: int, n_drafted: int, step: int) -> None:
    """Chheda, section 7.4, eq. 6: one more where r > 0.8 (not at 4/5), one fewer where r < 0.3 (not at 3/10)."""
    rule = Rule()
    before = rule.limit()
    rule.learn([0.5] * n_drafted, n_accepted, refused=n_accepted < n_drafted)
    assert rule.limit() - before == step


def test_k_stays_between_one_and_its_greatest() -> None:
    """Chheda, section 7.4, eq. 6: min(K + 1, K_max) and max(K - 1, 1)."""
    for accepted, expected in ((1, 4), (0, 1)):
        rule = Rule(longest=4)
        for _ in range(5):
            rule.learn([0.5], accepted, refused=not accepted)
        assert rule.limit() == expected


def test_candidates_stand_by_how_often_they_followed(tmp_path: Path) -> None:
    """Token Map Drafting, construction: the continuations of a key, ranked by frequency; the first C are kept."""
    key, stop = [20, 21, 22], 46
    sentences = [[*key, 30 + n, 50 + n, stop] for n, count in enumerate((2, 5, 1, 4, 3)) for _ in range(count)]
    for wanted in (1, 3, 5):
        path = tmp_path / f"{wanted}.tmap"
        options = BuildOptions(n_orders=3, n_candidates=wanted, min_count=1)
        build(sentences, path, n_text=1000, fingerprint=bytes(32), options=options)
        with TokenMap.open(path) as map_:
            found = [map_.candidate(number).tokens[0] for number in map_.find(tuple(key), 3)]
        assert found == [31, 33, 34, 30, 32][:wanted]
