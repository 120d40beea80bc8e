"""A draft says common tokens, and others where they are expected or were said; it changes no text."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.export import bundling
from specedge.export.bundling import write_bundle
from specedge.export.checkpoint import open_checkpoint
from specedge.maps.build import build
from specedge.maps.tmap_format import text_fingerprint
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.decoding.drafter import TargetModel
from specedge.runtime.drafters.draft.drafter import DraftModelDrafter
from specedge.runtime.drafters.registry import make_drafter
from specedge.runtime.engine import shortlist
from specedge.runtime.engine.draft_model import DraftModel, DraftText
from specedge.runtime.engine.shortlist import shortlist_spans
from specedge.runtime.options import DrafterOptions
from support.drafts import CASES, compared, opened, sound_for
from support.exported import PRECISIONS, bundle, checkpoint, engine, noise_mel
from support.lossless import run

N_COMMON = 128
IDS = [5, 6, 7]


def exported(out: Path, precision: str = "int8", variant: str = "plain") -> Bundle:
    """A bundle with a shortlist, though its vocabulary is of a thousand tokens."""
    few = mock.patch.object(bundling, "shortlist_spans", partial(shortlist_spans, n_common=N_COMMON))
    with open_checkpoint(checkpoint(variant)) as found, few:
        return write_bundle(found, out / f"{precision}-{variant}", precision=precision, name="few", version="1")


def rows(made: Bundle, said: list[int], precision: str, variant: str) -> tuple[NDArray[np.float32], ...]:
    """What the draft says behind IDS, and what the decoder does."""
    whole = engine(precision, variant, threads=1)
    features = whole.encode(noise_mel(whole.dims.n_mels, 200))
    state = whole.start(features)
    expected = whole.forward(state, IDS, [2])[0].copy()
    whole.release(state)
    model = DraftModel(made, threads=1)
    model.add_to_shortlist(said)
    text = DraftText(model, features)
    return text.follow(IDS).copy(), expected


def may_say(model: DraftModel) -> set[int]:
    """The ids whose logits are finite."""
    mel = noise_mel(model.bundle.manifest.dims.n_mels, 200)
    return set(np.flatnonzero(np.isfinite(DraftText(model, model.engine.encode(mel)).follow(IDS))).tolist())


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("variant", ["plain", "untied", "draft en"])
def test_its_logits_are_the_decoders(precision: str, variant: str, tmp_path: Path) -> None:
    made = exported(tmp_path, precision, variant)
    special = made.manifest.tokens.eot - made.manifest.tokens.eot % 16
    said = [N_COMMON, N_COMMON + 17, special - 1]
    row, expected = rows(made, [*said, 3, special + 2], precision, variant)
    kept = [*range(N_COMMON), *range(special, len(row))]
    assert row.shape == expected.shape and np.allclose(row[kept], expected[kept], rtol=0, atol=1e-5)
    slack = 1e-4 if precision == "fp32" else 0.15 * expected.std()  # int8 rounds the row
    assert np.abs(row[said] - expected[said]).max() < slack
    assert np.isneginf(np.delete(row, [*kept, *said])).all()


def test_the_oldest_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortlist, "MOST_SAID", 2)
    made = exported(tmp_path)
    model = DraftModel(made, threads=1)
    text = DraftText(model, engine(threads=1).encode(noise_mel(80, 200)))
    for token in (200, 201, 202):
        model.add_to_shortlist([token])
        text.follow(IDS)
    row = text.follow(IDS)
    assert np.isneginf(row[200]) and np.isfinite(row[[201, 202]]).all()


def test_words_of_token_maps_and_prompts_are_expected(tmp_path: Path) -> None:
    target, made = bundle(), exported(tmp_path)
    tokenizer = target.tokenizer
    fingerprint = text_fingerprint(tokenizer.ranks, tokenizer.special.eot)
    of_map = tmp_path / "x.tmap"
    build([[300, 301, 302], [300, 301, 302]], of_map, n_text=tokenizer.special.eot, fingerprint=fingerprint)
    options = DrafterOptions("draft", draft_model=made.path, token_maps=[of_map], lookahead="4")
    drafter = make_drafter(options, TargetModel(target, threads=1))
    assert isinstance(drafter, DraftModelDrafter) and drafter.model is not None
    assert {300, 301} <= may_say(drafter.model) and not {310, 311} & may_say(drafter.model)
    asked = replace(CASES["prompt, no timestamps"], initial_prompt=(310, 311))
    run(engine(threads=1), target, sound_for(target), asked, drafter)
    assert {300, 301, 310, 311} <= may_say(drafter.model)
    drafter.close()


@pytest.mark.parametrize("case", list(CASES))
def test_it_changes_no_text(case: str, tmp_path: Path) -> None:
    drafter = opened(bundle(), exported(tmp_path))
    first = compared("plain", case, drafter).speculation
    again = compared("plain", case, drafter).speculation
    assert first.proposed > 0
    # The same weights: what they said first, they may draft later.
    assert again.accepted > first.accepted
    drafter.close()


def test_a_draft_that_learns_knows_all(tmp_path: Path) -> None:
    made = bundling.add_to_bundle(exported(tmp_path).path, learnable=True)
    assert DraftModel(made, threads=1, learns=True).shortlist is None
