"""Held-out voices stay out of training, whatever is drawn."""

from __future__ import annotations

import random

from specedge.models.recipe.speech import (
    ACCENTS,
    HELD_OUT_ACCENT,
    HELD_OUT_VARIANTS,
    VARIANTS,
    draw,
    draw_german,
    draw_varied,
    invented,
    usable,
)


def _parts(name: str) -> tuple[str, str]:
    accent, _, variant = name.partition(":")[2].partition("+")
    return accent, variant


def test_no_training_voice_is_held_out() -> None:
    rng = random.Random(0)
    for _ in range(4000):
        voice = draw(rng, held_out=False)
        accent, variant = _parts(voice.name)
        assert variant not in HELD_OUT_VARIANTS
        assert accent not in {HELD_OUT_ACCENT}
        assert usable(voice.name)


def test_every_held_out_voice_is_held_out_for_one_reason_and_comes_up() -> None:
    rng = random.Random(0)
    names = {draw(rng, held_out=True).name for _ in range(3000)}
    assert not any(usable(name) for name in names)
    assert {_parts(name)[1] for name in names} >= set(HELD_OUT_VARIANTS)
    assert {_parts(name)[0] for name in names} >= {HELD_OUT_ACCENT, *ACCENTS}
    assert not any(accent == HELD_OUT_ACCENT and variant in HELD_OUT_VARIANTS for accent, variant in map(_parts, names))


def test_the_lists_do_not_overlap() -> None:
    assert not set(VARIANTS) & set(HELD_OUT_VARIANTS)
    assert HELD_OUT_ACCENT not in ACCENTS
    assert usable("recorded:george")
    assert usable("festival:ked")
    assert not usable("festival:rms")


def test_invented_variants_are_told_by_their_number() -> None:
    assert invented(7) == invented(7) != invented(8)
    lines = invented(7).splitlines()
    assert (
        lines[:2] == ["language variant", "name invented-7"] and sum(line.startswith("formant") for line in lines) == 9
    )


def test_varied_voices_are_none_that_are_held_out() -> None:
    rng = random.Random(0)
    assert all(usable(draw_varied(rng).name) for _ in range(500))


def test_german_voices_keep_to_their_sides() -> None:
    rng = random.Random(0)
    training = [draw_german(rng, held_out=False).name for _ in range(500)]
    assert all(usable(name) and _parts(name)[0] == "de" for name in training)
    held_out = {draw_german(rng, held_out=True).name for _ in range(100)}
    assert {_parts(name)[1] for name in held_out} == set(HELD_OUT_VARIANTS) and not any(map(usable, held_out))
