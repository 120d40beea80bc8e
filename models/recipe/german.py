"""German maintenance commands: the demo's first domain in a second language, from a small grammar of our own.

Machines are named without an article ("an Ventil elf"), as on a shop floor, so that one form of each fits everywhere.
No sentence of the dev list is in the training list.
"""

from __future__ import annotations

import random
import re
from functools import cache

__all__ = ["DOMAIN", "german_lines", "german_number"]

DOMAIN = "maintenance-de"
_N_TRAIN, _N_DEV = 6000, 200

_ONES = tuple(
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn".split()
)
_TENS = tuple("zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split())
_WORDS = {
    "machine": "Motor;Pumpe;Ventil;Kessel;Turbine;Generator;Kompressor;Transformator;Aufzug;Lüfter;Getriebe;Förderband;"
    "Kühlturm;Tank;Leistungsschalter;Drucksensor;Schaltschrank;Wärmetauscher;Filter;Roboter",
    "place": "im Keller;im Kontrollraum;in der Werkstatt;auf dem Dach;in Halle zwei;am Haupttor",
    "fault": "ein Leck;einen Riss;ein seltsames Geräusch;einen verbrannten Geruch;eine lose Schraube;einen Kurzschluss",
    "part": "die Dichtung;den Riemen;die Batterie;die Sicherung;die Verkabelung;den Öldruck;den Kühlmittelstand",
    "reading": "Der Öldruck;Die Temperatur;Der Durchfluss;Die Spannung;Die Drehzahl;Die Vibration",
    "measure": "Temperatur;Druck;Durchfluss;Spannung;Drehzahl;Vibration",
    "setting": "die Temperatur;den Druck;die Drehzahl;die Alarmschwelle;den Durchfluss",
    "unit": "Grad;Prozent;Bar;Volt;Ampere;Liter pro Minute",
    "state": "zu hoch;zu niedrig;normal;außerhalb des Bereichs;stabil",
    "condition": "in Wartung;außer Betrieb;bereit;abgeschaltet;gesichert",
    "verb": "reinigen;prüfen;schmieren;testen;neu starten",
    "then": "den Auftrag schließen;auf den Vorarbeiter warten;das Ergebnis notieren",
    "person": "den Vorarbeiter;die Elektrikerin;das Wartungsteam",
    "time": "vor der nächsten Schicht;bis morgen früh;noch heute;nach der Pause",
    "progress": "abgeschlossen;offen;verschoben;dringend",
    "delay": "zwei Wochen;drei Tagen;sechs Monaten",
    "switch": "ein;aus",
}
_CHOICES = {name: tuple(words.split(";")) for name, words in _WORDS.items()}
_SENTENCES = (
    "Melden Sie {fault} an {machine} {small} {place}.",
    "Prüfen Sie {part} von {machine} {small}.",
    "Ersetzen Sie {part} an {machine} {small} {time}.",
    "{reading} von {machine} {small} ist {state}.",
    "Notieren Sie {measure} {value} {unit} an {machine} {small}.",
    "Stellen Sie {setting} auf {value} {unit}.",
    "Rufen Sie {person} zu {machine} {small}.",
    "Bestätigen Sie, dass {machine} {small} {condition} ist.",
    "Als Nächstes {machine} {small} {verb} und {then}.",
    "Arbeitsauftrag {large} ist {progress}.",
    "Planen Sie eine Kalibrierung für {machine} {small} in {delay}.",
    "Untersuchen Sie {machine} {small} {place}.",
    "Schalten Sie {machine} {small} {place} {switch}.",
)


def german_number(n: int) -> str:
    """Of 0 to 99, in words: 63 -> "dreiundsechzig"."""
    if n < len(_ONES):
        return _ONES[n]
    tens, one = _TENS[n // 10 - 2], n % 10
    return f"{'ein' if one == 1 else _ONES[one]}und{tens}" if one else tens


@cache
def german_lines() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The training list and the dev list: sentences, each once."""
    rng = random.Random(DOMAIN)
    found: dict[str, None] = {}
    while len(found) < _N_TRAIN + _N_DEV:
        found[re.sub(r"\{(\w+)\}", lambda slot: _filled(rng, slot[1]), rng.choice(_SENTENCES))] = None
    lines = tuple(found)
    return lines[_N_DEV:], lines[:_N_DEV]


def _filled(rng: random.Random, slot: str) -> str:
    """A value may have a decimal: "sieben Komma acht"."""
    if slot == "small":
        return german_number(rng.randint(1, 20))
    if slot == "large":
        return german_number(rng.randint(1, 99))
    if slot == "value":
        if rng.random() < 0.4:
            return f"{german_number(rng.randint(1, 9))} Komma {german_number(rng.randint(1, 9))}"
        return german_number(rng.randint(2, 99))
    return rng.choice(_CHOICES[slot])
