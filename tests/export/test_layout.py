"""The special-token layout from a checkpoint's files: the published ones, a fine-tune's, and contradictions."""

from __future__ import annotations

from typing import Any

import pytest

from specedge.errors import CheckpointError
from specedge.export.vocabulary import read_layout, standard_layout
from support.checkpoints import Layout

# reference: the ids of the three published layouts
PUBLISHED = {
    51864: dict(eot=50256, sot=50257, translate=50357, transcribe=50358, sot_lm=50359, sot_prev=50360, no_speech=50361,
                no_timestamps=50362, timestamp_begin=50363),
    51865: dict(eot=50257, sot=50258, translate=50358, transcribe=50359, sot_lm=50360, sot_prev=50361, no_speech=50362,
                no_timestamps=50363, timestamp_begin=50364),
    51866: dict(eot=50257, sot=50258, translate=50359, transcribe=50360, sot_lm=50361, sot_prev=50362, no_speech=50363,
                no_timestamps=50364, timestamp_begin=50365),
}  # fmt: skip
TINY = Layout.of(51865, 1500, False)
TINY_EN = Layout.of(51864, 1500, True)
LARGE_V3 = Layout.of(51866, 1500, False)


def _generation(layout: Layout) -> dict[str, Any]:
    ids = layout.specials
    found: dict[str, Any] = {
        "eos_token_id": layout.n_text,
        "decoder_start_token_id": layout.n_text + 1,
        "no_timestamps_token_id": ids["<|notimestamps|>"],
        "prev_sot_token_id": ids["<|startofprev|>"],
        "is_multilingual": not layout.en,
    }
    if not layout.en:
        found["lang_to_id"] = {f"<|{code}|>": ids[f"<|{code}|>"] for code in layout.languages}
        found["task_to_id"] = {task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")}
    return found


@pytest.mark.parametrize("n_vocab", PUBLISHED)
def test_published_layouts(n_vocab: int) -> None:
    special = standard_layout(n_vocab)
    assert {name: getattr(special, name) for name in PUBLISHED[n_vocab]} == PUBLISHED[n_vocab]
    assert (special.n_timestamps, special.timestamp_end, special.time_precision_s) == (1501, n_vocab, 0.02)
    assert special.is_multilingual == (n_vocab != 51864)
    if special.is_multilingual:
        languages = special.languages
        assert (languages["en"], languages["su"], languages.get("yue")) == (50259, 50357, {51866: 50358}.get(n_vocab))
        assert len(languages) == n_vocab - 51766


@pytest.mark.parametrize("layout", [TINY_EN, TINY, LARGE_V3], ids=lambda layout: str(layout.n_vocab))
@pytest.mark.parametrize("what", ["nothing", "tokens", "old tokens", "generation", "config", "all"])
def test_a_published_checkpoint_is_read_the_same_from_any_of_its_files(layout: Layout, what: str) -> None:
    added = {**layout.specials, **(layout.timestamps if what != "old tokens" else {})}
    generation = _generation(layout)
    config = {"eos_token_id": layout.n_text, "decoder_start_token_id": layout.n_text + 1}
    special = read_layout(
        added if what in ("tokens", "old tokens", "all") else {},
        config if what in ("config", "all") else {},
        generation if what in ("generation", "all") else {},
        layout.n_vocab,
    )
    assert special == standard_layout(layout.n_vocab)


def test_converted_checkpoints_with_the_defaults_of_transformers_in_config_json() -> None:
    """transformers' converter writes 50256 and 50257 into the config of a multilingual model of 51,865 tokens."""
    config = {"eos_token_id": 50256, "decoder_start_token_id": 50257}
    assert read_layout({}, config, {}, 51865) == standard_layout(51865)
    assert read_layout({**TINY.specials}, config, _generation(TINY), 51865) == standard_layout(51865)


@pytest.mark.parametrize("layout", [TINY_EN, TINY, LARGE_V3], ids=lambda layout: str(layout.n_vocab))
@pytest.mark.parametrize("n_more", [1, 2, 6, 86])
def test_a_larger_vocabulary_changes_nothing_below(layout: Layout, n_more: int) -> None:
    """51866 is also a v2 fine-tune with one token more: what the files say decides, not the size."""
    added = {**layout.specials, **layout.timestamps, "<|mine|>": layout.n_vocab}
    special = read_layout(added, {}, _generation(layout), layout.n_vocab + n_more)
    expected = standard_layout(layout.n_vocab).to_json()
    assert special.to_json() == expected
    assert (special.n_vocab, special.timestamp_end) == (layout.n_vocab + n_more, layout.n_vocab)


def test_a_language_of_its_own() -> None:
    generation = _generation(TINY)
    generation["lang_to_id"]["<|gsw|>"] = 51865
    with pytest.raises(CheckpointError, match="to the timestamps"):
        read_layout({}, {}, generation, 51866)
    added = dict(TINY.specials)
    added.pop("<|su|>")
    added["<|gsw|>"] = 50357
    generation["lang_to_id"] = {f"<|{code}|>": TINY.specials[f"<|{code}|>"] for code in TINY.languages if code != "su"}
    generation["lang_to_id"]["<|gsw|>"] = 50357
    added |= {"<|0.00|>": 50364}
    special = read_layout(added, {}, generation, 51865)
    assert special.languages["gsw"] == 50357 and "su" not in special.languages


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eos_token_id": 50258}, "contradict each other"),
        ({"eos_token_id": [50258]}, "contradict each other"),
        ({"no_timestamps_token_id": 50364}, "no_timestamps_token_id .* token 50364 and .*notimestamps.* says 50363"),
        ({"prev_sot_token_id": "x"}, "expected a token id"),
        ({"prev_sot_token_id": True}, "expected a token id"),
        ({"lang_to_id": {"<|en|>": 50260}}, "contradict each other"),
        ({"lang_to_id": ["en"]}, "lang_to_id .* no table"),
        ({"task_to_id": {"translate": None}}, "expected a token id"),
    ],
    ids=str,
)
def test_contradictions(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        read_layout({**TINY.specials}, {}, _generation(TINY) | change, 51865)
    assert "\n" not in str(caught.value)


def test_the_config_may_not_contradict_either() -> None:
    with pytest.raises(CheckpointError, match="eos_token_id of config.json says token 7"):
        read_layout({}, {"eos_token_id": 7}, _generation(TINY), 51865)


def test_a_generation_config_of_another_version_is_noticed() -> None:
    with pytest.raises(CheckpointError, match="contradict each other"):
        read_layout({**LARGE_V3.specials}, {}, _generation(TINY), 51866)
    with pytest.raises(CheckpointError, match="those of a Whisper of 51866 tokens, its weights have 51865 rows"):
        read_layout({}, {}, _generation(LARGE_V3), 51865)


@pytest.mark.parametrize("n_vocab", [1, 1000, 51863, 51867, 60000])
def test_any_other_size_needs_files(n_vocab: int) -> None:
    with pytest.raises(CheckpointError, match=f"{n_vocab} is no published Whisper size"):
        standard_layout(n_vocab)
    with pytest.raises(CheckpointError, match="no tokenizer files"):
        read_layout({}, {}, {}, n_vocab)
    with pytest.raises(CheckpointError, match="do not say which token is"):
        read_layout({"<|endoftext|>": 0}, {}, {}, n_vocab)


def test_a_multilingual_model_must_name_its_languages() -> None:
    layout = Layout.of(1000, 100, True)
    languages = {f"<|{code}|>" for code in layout.languages}
    added = {token: id_ for token, id_ in layout.specials.items() if token not in languages}
    with pytest.raises(CheckpointError, match="which tokens are its languages"):
        read_layout(added, {}, {"is_multilingual": True}, 1000)
