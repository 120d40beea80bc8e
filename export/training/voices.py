"""The synthetic voices of the demo recipe: which are heard in training and which never are.

Three free synthesizers speak the text lists: espeak-ng (formant synthesis, an accent combined with a "variant" that
sets formants, pitch and roughness), flite and festival (diphones and models of recorded speakers). A voice is written
`espeak:ACCENT+VARIANT`, `flite:NAME` or `festival:NAME`. Held out of training, for the dev lists and for every
published figure:

- six espeak-ng variants: m3, m7, Michael (male), f2, f5, linda (female), in every accent;
- one espeak-ng accent: en-gb-x-gbclan (Lancaster), with every variant.

All recorded speakers are trained on: there are five (slt, awb, kal, ked, rms), and a model that had never heard rms
made most of its errors there. Nothing then says how it fares with another recorded speaker, but the digits of the one
left out (`speech digits`).

Left out altogether, because they are hard to follow for people or were for the first model trained (a loss by
character more than twice the mean): whisper, whisperf, Demonic, fast, Alicia, Lee and the RicishayMax variants. Kal
and kal16 are the same speaker, at 8 and at 16 kHz.

This module knows names and the limits of the random prosody. It knows nothing of audio or of files.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = [
    "ACCENTS",
    "FESTIVAL",
    "FLITE",
    "HELD_OUT_ACCENT",
    "HELD_OUT_VARIANTS",
    "VARIANTS",
    "Voice",
    "draw",
    "usable",
]

ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbcwmd", "en-029", "en-us-nyc")
HELD_OUT_ACCENT = "en-gb-x-gbclan"
VARIANTS = tuple(
    """m1 m2 m4 m5 m6 m8 f1 f3 f4 adam Alex Andrea Andy Annie AnxiousAndy Denis Diogo Gene Gene2 Henrique Hugo Jacky
    Marco Mario Mike Nguyen Storm Tweaky UniRobot anika anikaRobot announcer antonio aunty belinda benjamin boris
    caleb croak david ed edward edward2 grandma grandpa gustave iven iven2 iven3 iven4 john kaukovalta klatt klatt2
    klatt3 klatt4 klatt5 klatt6 marcelo max michel miguel norbert pablo paul pedro quincy rob robert robosoft
    robosoft2 robosoft3 robosoft4 robosoft5 robosoft6 robosoft7 robosoft8 sandro shelby steph steph2 steph3 travis
    victor zac""".split()
)
HELD_OUT_VARIANTS = ("m3", "m7", "Michael", "f2", "f5", "linda")
FLITE = ("slt", "awb", "kal", "kal16", "rms")
FESTIVAL = ("ked",)
_PLAIN_VARIANTS = ("m1", "m2", "m4", "m5", "m6", "m8", "f1", "f3", "f4", "")  # the clearest ones, drawn more often


@dataclass(frozen=True, kw_only=True)
class Voice:
    """One speaker and the prosody of one utterance.

    `speed_wpm` words a minute (espeak-ng), `stretch` a factor on durations (flite, festival), `pitch` 0..99 and
    `pitch_range` in percent of the voice's own (espeak-ng), `pitch_hz` the mean (flite, festival), `gap_10ms` the pause
    added between words (espeak-ng).
    """

    name: str
    speed_wpm: int = 165
    stretch: float = 1.0
    pitch: int = 50
    pitch_range: int = 100
    pitch_hz: int = 120
    gap_10ms: int = 0


def draw(rng: random.Random, *, held_out: bool) -> Voice:
    """Draw a voice with random prosody, from the training voices or from the held-out ones, never mixed.

    Of the held-out draws, three in four are a held-out variant in a known accent, one in four the held-out accent with
    a known variant. Recorded speakers are few, so in training they also speak at pitches far from their own.
    """
    prosody = {
        "speed_wpm": rng.randint(120, 210) if not held_out else rng.randint(135, 190),
        "stretch": round(rng.uniform(0.8, 1.3) if not held_out else rng.uniform(0.85, 1.2), 3),
        "pitch": rng.randint(15, 85) if not held_out else rng.randint(30, 70),
        "pitch_range": rng.randint(20, 180) if not held_out else rng.randint(70, 130),
        "gap_10ms": rng.choice((0, 0, 0, 0, 0, 1, 2, 4)),
    }
    choice = rng.random()
    if held_out and choice < 0.75:
        name = f"espeak:{rng.choice(ACCENTS)}+{rng.choice(HELD_OUT_VARIANTS)}"
    elif held_out:
        name = f"espeak:{HELD_OUT_ACCENT}+{rng.choice(VARIANTS[:9])}"
    elif choice < 0.33:
        name = f"flite:{rng.choice(FLITE)}"
    elif choice < 0.45:
        name = f"festival:{rng.choice(FESTIVAL)}"
    else:
        variant = rng.choice(_PLAIN_VARIANTS) if rng.random() < 0.3 else rng.choice(VARIANTS)
        name = f"espeak:{rng.choice(ACCENTS)}" + (f"+{variant}" if variant else "")
    female = name.endswith("slt")
    prosody["pitch_hz"] = rng.randint(140, 230) if female else rng.randint(80, 170)
    if not held_out and rng.random() < 0.35:
        prosody["pitch_hz"] = rng.randint(75, 235)
    return Voice(name=name, **prosody)  # type: ignore[arg-type]


def usable(name: str) -> bool:
    """Whether a voice may be trained on: neither held out nor left out. Recorded voices always may."""
    kind, _, rest = name.partition(":")
    if kind in ("flite", "festival"):
        return rest in (FLITE if kind == "flite" else FESTIVAL)
    accent, _, variant = rest.partition("+")
    return kind != "espeak" or (accent in ACCENTS and (not variant or variant in VARIANTS))
