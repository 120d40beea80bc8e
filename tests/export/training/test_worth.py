"""What a training says that its drafts would save."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the training extra is not installed")

from specedge.export.training.worth import Worth, of_flags, right_tokens  # noqa: E402
from specedge.runtime.device import CostTable  # noqa: E402

FLAT = CostTable(rows=(1, 16), relative=(1.0, 1.0))
STEEP = CostTable(rows=(1, 2, 16), relative=(1.0, 2.0, 16.0))


def test_tokens_are_right_where_the_guess_spells_them_whole() -> None:
    tokens = [b" the", b" oil", b" level", b" of", b" pump"]
    assert right_tokens(tokens, b" the oil level of pump") == [True] * 5
    assert right_tokens(tokens, b" the oil levvel of pump") == [True, True, False, True, True]
    assert right_tokens(tokens, b"") == [False] * 5 and right_tokens([], b"x") == []


def test_drafts_are_replayed() -> None:
    found = of_flags([[True] * 9, [True] * 9], FLAT)
    assert found == Worth(share=1.0, tokens_per_pass=9.0, speed_up=9.0), "eight drafted, and one of the model's own"
    assert of_flags([[True, False] * 4], FLAT).tokens_per_pass == 2.0
    assert of_flags([[True] * 9], STEEP).speed_up == 1.0, "where rows cost as much as passes, none are drafted"
    assert of_flags([], FLAT).speed_up == 1.0
