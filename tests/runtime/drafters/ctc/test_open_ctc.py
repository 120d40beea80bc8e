"""The drafter ctc as the command makes it: over a small random model with a random head, beside plain decoding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specedge.errors import BundleError
from specedge.maps.build import build
from specedge.maps.tmap_format import text_fingerprint
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.decoding.drafter import TargetModel
from specedge.runtime.drafters.registry import make_drafter
from specedge.runtime.options import DrafterOptions
from support.ctc_heads import bundle_with_head
from support.drafts import CASES, plain, transcribed
from support.exported import bundle
from support.lossless import difference


@pytest.fixture(scope="module")
def headed(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return bundle_with_head(bundle(), tmp_path_factory.mktemp("headed") / "bundle")


@pytest.fixture(scope="module")
def token_map(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = bundle().tokenizer
    rng = np.random.default_rng(2)
    sentences = [[int(id_) for id_ in rng.integers(0, 300, 12)] for _ in range(40)] * 2
    path = tmp_path_factory.mktemp("map") / "x.tmap"
    eot = tokenizer.special.eot
    build(sentences, path, n_text=eot, fingerprint=text_fingerprint(tokenizer.ranks, eot))
    return path


@pytest.mark.parametrize(("case", "has_map"), [(case, True) for case in CASES] + [("timestamps", False)])
def test_no_text_changes(headed: Bundle, token_map: Path, case: str, has_map: bool) -> None:
    made = make_drafter(
        DrafterOptions("ctc", token_maps=[token_map] if has_map else []), TargetModel(headed, threads=1)
    )
    assert made.name == "ctc"
    for _ in range(2):
        got = transcribed("plain", case, made)
        assert got.drafter_error is None
        assert difference(plain("plain", case), got) is None
    assert got.speculation.drafter == "ctc"
    made.close()


def test_a_head_of_another_encoder_is_refused(headed: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specedge.runtime.drafters.ctc.head.encoder_fingerprint", lambda manifest: "0" * 64)
    with pytest.raises(BundleError, match="another encoder") as caught:
        make_drafter("ctc", TargetModel(headed, threads=1))
    assert caught.value.exit_code == 4 and "\n" not in str(caught.value)
