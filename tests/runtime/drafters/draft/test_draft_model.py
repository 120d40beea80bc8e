"""A draft model changes no text, is asked in its own ids, and runs no row twice. Bundles are small and random."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from specedge.errors import Interrupted, UsageError
from specedge.runtime.bundle.bundle import encoder_fingerprint
from specedge.runtime.decoding.drafter import DraftContext, Verdict, WindowContext
from specedge.runtime.drafters.draft.drafter import DraftModelDrafter
from specedge.runtime.engine.draft_model import DraftText, load_draft
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


def test_attempts_at_a_window_share_its_hearing() -> None:
    drafter = opened(bundle(), bundle("int8", "draft"))
    prompt = list(bundle().manifest.tokens.prompt("en", "transcribe", False))
    heard: list[int] = []

    def mel(n_mels: int) -> Any:
        heard.append(n_mels)
        return noise_mel(n_mels, 200)

    window = begun(drafter, "plain", prompt, mel)
    first = proposed(drafter, prompt, [])
    drafter.end(())
    drafter.begin(window)
    assert proposed(drafter, prompt, []) == first and heard == [80]
    drafter.end((5, 6))
    begun(drafter, "plain", prompt, mel)
    proposed(drafter, prompt, [])
    assert heard == [80, 80]


def test_behind_a_window_without_text_hearing_waits_for_one() -> None:
    drafter = opened(bundle(), bundle("int8", "draft"))
    special = bundle().manifest.tokens
    prompt = list(special.prompt("en", "transcribe", True))
    heard: list[int] = []

    def mel(n_mels: int) -> Any:
        heard.append(n_mels)
        return noise_mel(n_mels, 200)

    begun(drafter, "plain", prompt, mel)
    drafter.end((special.timestamp_begin,))
    begun(drafter, "plain", prompt, mel)
    assert proposed(drafter, prompt, []) == [] and proposed(drafter, prompt, [special.timestamp_begin]) == []
    assert not heard
    assert proposed(drafter, prompt, [special.timestamp_begin, 5]) and heard == [80]


def test_a_shared_encoder_is_known_by_its_files_and_not_run_again() -> None:
    same, other = bundle("int8", "draft same"), bundle("int8", "draft")
    assert encoder_fingerprint(same.manifest) == encoder_fingerprint(bundle().manifest)
    assert encoder_fingerprint(other.manifest) != encoder_fingerprint(bundle().manifest)
    assert encoder_fingerprint(bundle("fp32", "draft same").manifest) != encoder_fingerprint(bundle().manifest)
    drafter = opened(bundle(), same)
    assert not drafter.listens
    prompt = list(bundle().manifest.tokens.prompt("en", "transcribe", False))
    begun(drafter, "plain", prompt, lambda n_mels: pytest.fail("the audio was asked for"))
    assert proposed(drafter, prompt, [])
    assert drafter._model is not None and "encoder" not in drafter._model.engine._sessions  # it was not even loaded


def test_a_draft_is_silent_where_it_cannot_be_asked() -> None:
    said: list[str] = []
    drafter = opened(bundle("int8", "v3"), bundle("int8", "draft"))
    drafter._on_silent = lambda: said.append("once")
    target = bundle("int8", "v3").manifest.tokens
    missing = (set(target.languages) - set(bundle("int8", "draft").manifest.tokens.languages)).pop()
    for _ in range(2):
        prompt = list(target.prompt(missing, "transcribe", False))
        begun(drafter, "v3", prompt)
        assert proposed(drafter, prompt, []) == []
        drafter.observe(Verdict(drafted=(), n_accepted=0, token=65, finished=False))
    assert said == ["once"]


@pytest.mark.slow
def test_a_long_prompt_is_cut_to_the_drafts_positions() -> None:
    drafter = opened(bundle("int8", "one head of 64"), bundle("int8", "draft"))
    special = bundle("int8", "one head of 64").manifest.tokens
    prompt = [special.sot_prev, *([65] * 220), *special.prompt("en", "transcribe", False)]
    begun(drafter, "one head of 64", prompt)
    assert len(proposed(drafter, prompt, [])) == 4
    assert proposed(drafter, prompt, [65] * 80) == []  # beyond the draft's last position


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
    text.follow([5, 6, 7])  # it works for somebody else now


def test_sampled_texts_do_not_shorten_the_drafts_of_greedy_ones() -> None:
    drafter = opened(bundle(), bundle("int8", "draft"), lookahead="rule")
    prompt = list(bundle().manifest.tokens.prompt("en", "transcribe", False))
    window = begun(drafter, "plain", prompt)
    for temperature, n_drafts in ((0.0, 3), (0.4, 3), (0.4, 2), (0.0, 3)):
        drafter.begin(replace(window, temperature=temperature))
        found = proposed(drafter, prompt, [])
        assert len(found) == n_drafts
        if temperature:
            drafter.observe(Verdict(drafted=tuple(found), n_accepted=0, token=65, finished=False, rejected=0))


def test_a_closed_drafter_drafts_nothing() -> None:
    drafter = opened(bundle(), bundle("int8", "draft"))
    prompt = list(bundle().manifest.tokens.prompt("en", "transcribe", False))
    begun(drafter, "plain", prompt)
    drafter.close()
    drafter.close()
    assert proposed(drafter, prompt, []) == []
    begun(drafter, "plain", prompt)
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


def test_targets_of_one_vocabulary_share_the_words_that_a_draft_has_spelt() -> None:
    draft = bundle("int8", "draft en")
    made = [opened(bundle("int8", name), draft) for name in ("plain", "deep text", "v3")]
    made.append(opened(bundle(), draft, translation="tokens"))
    caches = [drafter.translation.cache for drafter in made]  # type: ignore[attr-defined]
    assert caches[0] is caches[1] is caches[2], "v2 and v3 differ in special tokens only"
    assert caches[3] is not caches[0], "runs are no words"


@pytest.mark.parametrize("draft", ["draft", "draft en"])
def test_an_opened_draft_has_nothing_left_to_load(draft: str) -> None:
    """Or the first window would be charged with it."""
    made = opened(bundle(), bundle("int8", draft))
    assert made.model is not None and {"encoder", "cross_kv", "decoder"} <= set(made.model.engine._sessions)


def test_without_the_audio_an_encoder_of_its_own_hears_nothing() -> None:
    model = load_draft(bundle("int8", "draft"), threads=1)
    with pytest.raises(UsageError, match="needs the audio of the window"):
        model.hear(object(), "another encoder", None)
