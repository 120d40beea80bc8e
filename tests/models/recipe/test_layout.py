"""The token layouts of the recipe, and the restricted vocabulary."""

from __future__ import annotations

import pytest

from specedge.errors import UsageError
from specedge.models.recipe.labels import LAYOUTS, Vocabulary, layout_of, tokenizer_of


@pytest.mark.parametrize(
    ("name", "sot", "transcribe", "no_speech", "timestamp_begin", "n_vocab"),
    [
        ("v3", 50258, 50360, 50363, 50365, 51866),
        ("v2", 50258, 50359, 50362, 50364, 51865),
        ("en", 50257, None, 50361, 50363, 51864),
    ],
)
def test_layouts_are_whisper_s(
    name: str, sot: int, transcribe: int | None, no_speech: int, timestamp_begin: int, n_vocab: int
) -> None:
    special = LAYOUTS[name].special
    assert (special.sot, special.no_speech, special.timestamp_begin, special.n_vocab) == (
        sot,
        no_speech,
        timestamp_begin,
        n_vocab,
    )
    assert transcribe is None or special.transcribe == transcribe


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_suppressed_tokens_are_specials_or_symbols_that_no_sentence_needs(name: str) -> None:
    layout = LAYOUTS[name]
    suppressed = layout.suppress()
    assert suppressed == sorted(set(suppressed))
    assert layout.special.eot not in suppressed
    assert max(suppressed) < layout.special.no_timestamps
    tokenizer = tokenizer_of(name)
    assert not set(suppressed) & set(tokenizer.encode(" Check the filter. I could not, so we can't?"))
    for symbol in ('"', "(", "[", "♪", "「", ";"):
        assert tokenizer.encode(symbol)[0] in suppressed


def test_suppressed_tokens_are_the_published_ones() -> None:
    """First and last of large-v3's list, and of small.en's; openai/whisper-large-v3, generation_config.json."""
    v3, english = LAYOUTS["v3"].suppress(), LAYOUTS["en"].suppress()
    assert (len(v3), v3[:4], v3[-6:]) == (88, [1, 2, 7, 8], [50258, 50359, 50360, 50361, 50362, 50363])
    assert (len(english), english[:4], english[-6:]) == (90, [1, 2, 7, 8], [50257, 50357, 50358, 50359, 50360, 50361])


def test_unused_ids_share_the_row_that_stands_for_the_rest() -> None:
    layout = LAYOUTS["v3"]
    vocabulary = Vocabulary(layout, [11, 13, 440], 10.0)
    assert vocabulary.row_of[12] == vocabulary.row_of[51865] == vocabulary.other
    assert vocabulary.n_rows == len(vocabulary.rows) + 1
    assert vocabulary.n_unused + len(vocabulary.rows) == layout.special.n_vocab
    used = [11, 13, 440, layout.special.timestamp_begin + 500, layout.special.eot, layout.special.no_speech]
    assert vocabulary.rows[vocabulary.restrict(used)].tolist() == used
    assert vocabulary.restrict([layout.special.timestamp_begin + 501]) == [vocabulary.other]


def test_a_vocabulary_of_another_size_is_refused_by_name() -> None:
    assert layout_of(51865, "here").name == "v2"
    with pytest.raises(UsageError, match="here: a vocabulary of 7 ids, expected one of Whisper's: 51866, 51865, 51864"):
        layout_of(7, "here")
