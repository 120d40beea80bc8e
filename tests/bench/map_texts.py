"""What the experiments with token maps share: the two domains' texts, maps of them, prices, drafters.

The texts are the lists kept in export/training/lists: the training list makes the map, the dev list is decoded. It
does not know what is compared.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.replay import Setting

from specedge.export.training.corpus import list_lines
from specedge.maps.build import BuildOptions, build
from specedge.maps.tmap_format import text_fingerprint
from specedge.maps.token_map import TokenMap
from specedge.runtime.bench.plots import Panel
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.device import DEFAULT_COSTS, CostTable, load_profile
from specedge.runtime.drafters.tokenmap import TokenMapDrafter, TokenMapOptions
from specedge.runtime.text.special import SpecialTokens
from specedge.runtime.text.transcripts import token_sentences
from support.paths import DEMO

__all__ = ["DOMAINS", "Bench", "Findings", "open_bench"]

DOMAINS = ("maintenance", "notes")
Ids = Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Of one experiment: tables by title (the first row is the head), a plot, and figures for the JSON."""

    tables: dict[str, list[list[str]]]
    panels: Sequence[Panel]
    figures: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Texts, maps, prices. `n_train` and `n_dev`: lines of each list that take part, None for all; one_row_s: seconds
    of a pass of one row, None where it was not measured on this device; language: of the speech."""

    bundle: Bundle
    costs: CostTable
    prices: str
    folder: Path
    resources: contextlib.ExitStack
    n_train: int | None = None
    n_dev: int | None = None
    one_row_s: float | None = None
    language: str = "en"

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains that there is speech of: another language than English has the first alone."""
        return DOMAINS if self.language == "en" else (f"{DOMAINS[0]}-{self.language}",)

    @property
    def eot(self) -> int:
        return self.bundle.tokenizer.special.eot

    def ids(self, lines: Sequence[str]) -> list[list[int]]:
        """Sentences as the model writes them."""
        return list(token_sentences(lines, self.bundle.tokenizer))

    def train_lines(self, domain: str) -> list[str]:
        return list_lines(f"{domain}.train")[: self.n_train]

    def train(self, domain: str) -> list[list[int]]:
        return self.ids(self.train_lines(domain))

    def dev(self, domain: str) -> list[list[int]]:
        """Texts to decode, without the end."""
        return self.ids(list_lines(f"{domain}.dev")[: self.n_dev])

    def ended(self, sentences: Sequence[Ids]) -> list[list[int]]:
        """With the end of text, as a replay needs them."""
        return [[*sentence, self.eot] for sentence in sentences]

    def make_map(self, name: str, sentences: Sequence[Ids], options: BuildOptions | None = None) -> TokenMap:
        """A map of these sentences, open until the bench is closed."""
        path = self.folder / f"{name}.tmap"
        fingerprint = text_fingerprint(self.bundle.tokenizer.ranks, self.eot)
        build(sentences, path, n_text=self.eot, fingerprint=fingerprint, options=options)
        opened = TokenMap.open(path, fingerprint=fingerprint)
        self.resources.callback(opened.close)
        return opened

    def drafter(self, map_: TokenMap, options: TokenMapOptions | None = None) -> TokenMapDrafter:
        ranks = self.bundle.tokenizer.ranks
        return TokenMapDrafter(
            [map_], self.costs, ends=lambda token: ranks[token][-1:] in (b".", b"?", b"!"), options=options
        )

    def setting(self, n_paths: int = 1) -> Setting:
        """Windows without timestamps; of a speech LLM whole ones, whose audio rows are part of the prompt."""
        special, dims = self.bundle.tokenizer.special, self.bundle.manifest.dims
        prompt: tuple[int, ...]
        if isinstance(special, SpecialTokens):
            prompt = (special.sot, special.languages[self.language], special.transcribe, special.no_timestamps)
        else:
            prompt = tuple(special.prompt(dims.n_audio_rows, self.language))
        n_text_ctx = dims.n_text_ctx
        return Setting(special=special, prompt=prompt, n_text_ctx=n_text_ctx, n_paths=n_paths)


@contextlib.contextmanager
def open_bench(
    bundle: str | None,
    threads: int,
    n_train: int | None,
    n_dev: int | None,
    given: CostTable | None = None,
    language: str = "en",
) -> Iterator[Bench]:
    """The bench for a bundle, None for the bundled one; prices are those given, else this device's where they were
    measured."""
    opened = Bundle.open(bundle or DEMO, verify=False)
    profile = load_profile(opened.digest, threads)
    costs, prices = DEFAULT_COSTS, "built-in table"
    if profile is not None:
        costs, prices = profile.costs(), f"calibrated here, {threads} threads"
    if given is not None:
        costs, prices = given, "given"
    with contextlib.ExitStack() as resources:
        folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="specedge-bench-")))
        yield Bench(
            bundle=opened,
            costs=costs,
            prices=prices,
            folder=folder,
            resources=resources,
            n_train=n_train,
            n_dev=n_dev,
            one_row_s=None if profile is None else profile.pass_s[1],
            language=language,
        )
