"""A draft model changes no text, is asked in its own ids, and runs no row twice. Bundles are small and random."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from specedge.errors import Interrupted
from specedge.runtime.decoding.drafter import DraftContext, Verdict, WindowContext
from specedge.runtime.drafters.draft.drafter import DraftModelDrafter
from specedge.runtime.engine.draft_model import DraftText, averaged, load_draft
from specedge.runtime.engine.session import Canceller
from support.drafts import CASES, compared, opened, plain, segments
from support.exported import bundle, engine, noise_mel

PAIRS = [
    ("plain", "draft same"),
    ("plain", "draft"),
    ("plain", "draft v3"),
    ("v3", "draft"),
    ("v3", "draft v3"),
    ("plain", "draft en"),
    ("en", "draft"),
    ("en", "draft en"),
]


FAST = [("plain", "draft", "fallback, samples"), ("v3", "draft", "timestamps"), ("en", "draft en", "timestamps")]


@pytest.mark.parametrize(
    ("target", "draft", "case"),
    [
        pytest.param(*pair, case, marks=() if (*pair, case) in FAST else pytest.mark.slow)
        for pair in PAIRS
        for case in CASES
    ],
)
def test_no_draft_model_changes_a_text(target: str, draft: str, case: str) -> None:
    drafter = opened(bundle("int8", target), bundle("int8", draft))
    assert compared(target, case, drafter).speculation.proposed > 0
    drafter.close()


def test_the_targets_own_weights_are_nearly_always_right() -> None:
    drafter = opened(bundle(), bundle())
    for case in ("timestamps", "prompt, no timestamps"):
        counted = compared("plain", case, drafter).speculation
        # The end of the text is not drafted, and the last draft of a window may be cut by the limit of tokens.
        assert counted.accepted == counted.evaluated > 20


def begun(drafter: DraftModelDrafter, target: str, prompt: list[int], mel: Any = None) -> WindowContext:
    special = bundle("int8", target).manifest.tokens
    made = engine("int8", target, threads=1)
    window = WindowContext(
        features=made.encode(noise_mel(made.dims.n_mels, 200)),
        prompt=tuple(prompt),
        n_vocab=special.n_vocab,
        n_sample=30,
        eot=special.eot,
        timestamp_begin=special.timestamp_begin,
        mel=mel or (lambda n_mels: noise_mel(n_mels, 200)),
    )
    drafter.begin(window)
    return window


def proposed(drafter: DraftModelDrafter, prompt: list[int], sampled: list[int]) -> list[int]:
    position = len(prompt) + len(sampled) - 1 if sampled else 0
    tree = drafter.propose(DraftContext(prompt=tuple(prompt), sampled=tuple(sampled), position=position), 30)
    return [int(token) for token in tree.tokens]


def test_what_was_accepted_is_not_run_again() -> None:
    drafter = opened(bundle(), bundle("int8", "draft"))
    prompt = list(bundle().manifest.tokens.prompt("en", "transcribe", False))
    begun(drafter, "plain", prompt)
    first = proposed(drafter, prompt, [])
    assert len(first) == 4
    text = drafter._text
    assert text is not None and text.n_rows == len(prompt) + 3  # the last token was not fed
    # Two accepted and a correction: one row, then three of the new draft.
    other = next(token for token in range(60, 99) if token != first[2])
    assert len(proposed(drafter, prompt, [*first[:2], other])) == 4
    assert text.n_rows == len(prompt) + 3 + 1 + 3
    second = text._ids[len(prompt) :]
    assert second[:3] == [*first[:2], other]
    # All accepted and the bonus: the draft's last token and the bonus, then three.
    proposed(drafter, prompt, [*second, 65, 66])
    assert text.n_rows == len(prompt) + 3 + 1 + 3 + 2 + 3
    # The same from the beginning gives the same drafts: what was kept is what would be computed.
    fresh = opened(bundle(), bundle("int8", "draft"))
    begun(fresh, "plain", prompt)
    assert proposed(fresh, prompt, [*first[:2], other]) == second[3:] + [
        proposed(fresh, prompt, [*first[:2], other])[-1]
    ]


def test_a_draft_is_silent_where_it_cannot_be_asked(caplog: pytest.LogCaptureFixture) -> None:
    drafter = opened(bundle("int8", "v3"), bundle("int8", "draft"))
    target = bundle("int8", "v3").manifest.tokens
    missing = (set(target.languages) - set(bundle("int8", "draft").manifest.tokens.languages)).pop()
    for _ in range(2):
        prompt = list(target.prompt(missing, "transcribe", False))
        begun(drafter, "v3", prompt)
        assert proposed(drafter, prompt, []) == []
        drafter.observe(Verdict(drafted=(), n_accepted=0, token=65, finished=False))
    (said,) = [record.getMessage() for record in caplog.records]
    assert "does not know the language or task of every window" in said


def test_the_targets_canceller_stops_the_draft_and_it_can_be_used_again() -> None:
    canceller = Canceller()
    model = load_draft(bundle("int8", "draft"), threads=1)
    features = model.engine.encode(noise_mel(80, 200))
    text = DraftText(model, features)
    with model.working_for(canceller):
        canceller.cancel()
        with pytest.raises(Interrupted):
            text.follow([5, 6])
        canceller.reset()
        text.follow([5, 6])
        canceller.cancel()
        with pytest.raises(Interrupted):
            text.follow([5, 9])
        canceller.reset()
        logits = text.follow([5, 9, 7]).copy()  # the row that was stopped is run again
        assert np.allclose(logits, DraftText(model, features).follow([5, 9, 7]), atol=1e-3)
    canceller.cancel()
    text.follow([5, 6, 7])  # it works for somebody else now


def test_a_closed_drafter_drafts_nothing() -> None:
    drafter = opened(bundle(), bundle("int8", "draft"))
    prompt = list(bundle().manifest.tokens.prompt("en", "transcribe", False))
    begun(drafter, "plain", prompt)
    drafter.close()
    drafter.close()
    assert proposed(drafter, prompt, []) == []


def test_one_draft_serves_several_targets_in_several_threads() -> None:
    names = ("plain", "v3")
    drafters = [opened(bundle("int8", name), bundle("int8", "draft")) for name in names]
    assert drafters[0]._model is drafters[1]._model
    with ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(segments, name, "timestamps", drafter) for name, drafter in zip(names, drafters, strict=True)
        ]
        found = [job.result() for job in jobs]
    assert found == [plain(name, "timestamps").segments for name in names]


def test_positions_are_averaged_by_how_many_each_stands_for() -> None:
    hidden = np.arange(14, dtype=np.float32).reshape(7, 2)
    bias = np.log(np.array([1, 1, 1, 1, 5, 5, 2], np.float32))[None, None, None]
    means, counts = averaged(hidden, bias, 3)
    np.testing.assert_allclose(means[[0, 2]], [hidden[1], hidden[6]])
    np.testing.assert_allclose(means[1], (hidden[3] + 5 * hidden[4] + 5 * hidden[5]) / 11)
    np.testing.assert_allclose(np.exp(counts[0, 0, 0]), [3, 11, 2], rtol=1e-6)
    means, counts = averaged(hidden.astype(np.float16), None, 3)
    assert counts is None and means.dtype == np.float16 and means[2].tolist() == hidden[6].tolist()
    assert averaged(hidden, bias, 1)[0] is hidden
