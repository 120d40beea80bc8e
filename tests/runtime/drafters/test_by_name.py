"""Drafters by the names that commands and programs say: what is refused, and what each is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specedge.errors import MapError, UsageError
from specedge.maps.build import build
from specedge.maps.tmap_format import text_fingerprint
from specedge.models import store
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.decoding.drafter import DraftContext, Drafter, TargetModel, WindowContext
from specedge.runtime.device import DEFAULT_COSTS, Profile, save_profile
from specedge.runtime.drafters import registry
from specedge.runtime.drafters.registry import costs_here, make_drafter, runnable, threads_here
from specedge.runtime.drafters.tokenmap import TokenMapDrafter
from specedge.runtime.options import DrafterOptions
from support.exported import bundle


def here(*, weighs: bool = True) -> TargetModel:
    return TargetModel(bundle(), threads=2, weighs=weighs)


@pytest.fixture
def token_map(tmp_path: Path) -> Path:
    """A map for the vocabulary of the small bundles: after 5 come 6 and 7."""
    tokenizer = bundle().tokenizer
    eot = tokenizer.special.eot
    build([[5, 6, 7]] * 9, tmp_path / "x.tmap", n_text=eot, fingerprint=text_fingerprint(tokenizer.ranks, eot))
    return tmp_path / "x.tmap"


@pytest.fixture
def foreign_map(tmp_path: Path) -> Path:
    build([[5, 6, 7]] * 9, tmp_path / "foreign.tmap", n_text=100, fingerprint=bytes(32))
    return tmp_path / "foreign.tmap"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Profiles and caches of nobody."""
    monkeypatch.setenv("SPECEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("specedge.runtime.device.cache_home", lambda: tmp_path / "cache")
    return tmp_path / "home"


def drafted(drafter: Drafter, opened: Bundle, sampled: tuple[int, ...]) -> list[int]:
    special = opened.manifest.tokens
    prompt = tuple(special.prompt("en", "transcribe", False))
    drafter.begin(
        WindowContext(
            features=None,
            prompt=prompt,
            n_vocab=special.n_vocab,
            n_sample=30,
            eot=special.eot,
            timestamp_begin=special.timestamp_begin,
        )
    )
    context = DraftContext(prompt=prompt, sampled=sampled, position=len(prompt) + len(sampled) - 1)
    return [int(token) for token in drafter.propose(context, 30).tokens]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("oracle", {}, "drafter: got 'oracle', expected none, tokenmap, ngram, draft, ctc"),
        (
            "ngram",
            {"token_maps": [Path("x")]},
            "token_maps: the drafter ngram reads no token maps; use tokenmap, ctc, draft or auto",
        ),
        ("none", {"token_maps": [Path("x")]}, "none reads no token maps"),
        ("tokenmap", {"remember": True}, "remember: the drafter tokenmap learns nothing"),
        ("tokenmap", {"map_preset": "fast"}, "map_preset: got 'fast', expected default or paper"),
        ("ngram", {"draft_model": "x"}, "draft_model: the drafter ngram has no model"),
        ("ngram", {"translation": "direct"}, "translation: the drafter ngram has no model"),
        ("draft", {"translation": "letters"}, "translation: got 'letters', expected words, tokens or direct"),
        ("ngram", {"learn": True}, "learn: the drafter ngram has no model that could learn; use draft"),
        ("draft", {}, "the drafter draft needs a smaller model, and micro brings none: name one with --draft-model"),
        ("tokenmap", {}, "the drafter tokenmap needs a token map, and micro brings none"),
        ("ctc", {"token_maps": ["x"]}, "the drafter ctc needs a CTC head, and micro brings none: train one with"),
    ],
)
def test_what_cannot_be_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_drafter(DrafterOptions(name, **options), here())
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_a_map_that_is_given_is_read(token_map: Path, preset: str) -> None:
    made = make_drafter(DrafterOptions("tokenmap", token_maps=[token_map], map_preset=preset), here())
    assert made.name == "tokenmap"
    # The paper's keys are three tokens long, and this sentence has no third one before its end.
    assert drafted(made, bundle(), (5,)) == ([6, 7] if preset == "default" else [])


def test_maps_that_cannot_be_used(token_map: Path, foreign_map: Path, tmp_path: Path) -> None:
    for bad, message in ((tmp_path / "gone.tmap", "cannot read the token map"), (foreign_map, "vocabulary")):
        with pytest.raises(MapError, match=message) as caught:
            make_drafter(DrafterOptions("tokenmap", token_maps=[token_map, bad]), here())
        assert caught.value.exit_code == 4 and "\n" not in str(caught.value)


def test_prices_are_those_measured_on_this_device_where_there_are_any() -> None:
    assert costs_here(bundle(), 2) is DEFAULT_COSTS
    profile = Profile(threads=2, pass_s={1: 0.01, 2: 0.01, 8: 0.04}, encode_s=0.1, rounds=1)
    save_profile(bundle().timed_digest, profile)
    found = costs_here(bundle(), 2)
    assert found.rows == (1, 2, 8) and found.relative == pytest.approx((1.0, 1.0, 4.0))
    assert costs_here(bundle(), 1) is DEFAULT_COSTS, "of other threads nothing is known"


def test_runnable_are_those_that_need_nothing_else(token_map: Path) -> None:
    assert runnable(bundle(), DrafterOptions()) == ("none", "ngram")
    with_map = DrafterOptions("auto", token_maps=[token_map])
    assert runnable(bundle(), with_map) == ("none", "ngram", "tokenmap")
    assert runnable(bundle(), DrafterOptions("draft", draft_model="tiny")) == ("none", "ngram", "draft")


def test_only_remember_reads_and_writes_the_users_cache(home: Path) -> None:
    for remember in (False, True, False):
        made = make_drafter(DrafterOptions("ngram", remember=remember), here())
        assert made.name == "ngram"
        assert drafted(made, bundle(), (5, 6)) == []
        for _ in range(4):
            made.end((5, 6, 7, 8))
        assert store.user_cache_path().exists() == (remember or home.exists())
        made.close()
    again = make_drafter(DrafterOptions("ngram", remember=True), here())
    assert drafted(again, bundle(), (5, 6))[:1] == [7]
    again.close()
    forgetful = make_drafter("ngram", here())
    assert drafted(forgetful, bundle(), (5, 6)) == []


def test_auto_is_made_of_what_there_is_and_closes_it(token_map: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[TokenMapDrafter] = []
    monkeypatch.setattr(TokenMapDrafter, "close", lambda self: closed.append(self))
    made = make_drafter(DrafterOptions("auto", token_maps=[token_map]), here())
    assert made.name == "auto" and made.sources == ("earlier", "tokenmap", "ngram")
    assert drafted(made, bundle(), (5,)) == [6, 7]
    made.close()
    assert len(closed) == 1 and drafted(made, bundle(), (5,)) == []
    assert make_drafter("auto", here()).sources == ("earlier", "ngram")


def test_a_name_that_is_gone_is_answered_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="drafter: got 'cascade', expected none, .* or auto"):
        DrafterOptions("cascade")


def test_what_one_of_them_cannot_be_made_of_closes_the_others(token_map: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[TokenMapDrafter] = []
    monkeypatch.setattr(TokenMapDrafter, "close", lambda self: closed.append(self))
    with pytest.raises(UsageError, match="needs a smaller model"):
        made = DrafterOptions("auto", token_maps=[token_map])
        registry._made(["tokenmap", "draft"], here(), made)
    assert len(closed) == 1


def test_threads_are_chosen_among_those_that_were_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert threads_here(bundle()) is None
    for threads, one_s in ((1, 0.01), (2, 0.02)):
        save_profile(
            bundle().timed_digest, Profile(threads=threads, pass_s={1: one_s, 8: one_s}, encode_s=0.1, rounds=1)
        )
    assert threads_here(bundle()) == 1
