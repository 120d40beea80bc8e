"""Makes the drafter of a name, for commands and programs that name what they want."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from specedge.errors import ExactnessError, MapError, UsageError
from specedge.maps.ngram_cache import NgramCache, UserCache
from specedge.maps.tmap_format import text_fingerprint
from specedge.maps.token_map import TokenMap
from specedge.models import store

from ..bundle.bundle import Bundle
from ..bundle.manifest import CTC_GRAPH, DRAFT_FOLDER, graph_bytes
from ..decoding.drafter import Drafter, DrafterOptions, EmptyDrafter
from ..decoding.payoff import Payoff
from ..device import DEFAULT_COSTS, CostTable, Profile, load_profile
from ..options import HEAD_KINDS
from ..text.words import ends_sentence
from .ngram import NgramDrafter
from .tokenmap import PAPER, TokenMapDrafter, TokenMapOptions

__all__ = [
    "DRAFTERS",
    "HAS_MODEL",
    "MAP_PRESETS",
    "READS_MAPS",
    "REMEMBERS",
    "SEVERAL",
    "close_drafter",
    "costs_here",
    "make_drafter",
    "runnable",
    "threads_here",
]

MAP_PRESETS = {"default": TokenMapOptions(), "paper": PAPER}
SEVERAL = ("cascade", "auto")
READS_MAPS = ("tokenmap", "ctc", *SEVERAL)
REMEMBERS = ("ngram", "draft", *SEVERAL)
HAS_MODEL = ("draft", *SEVERAL)
_USUAL_BYTES_S = 1e10  # of weights that a pass of one row reads
_LARGE_PASS_S = 1e-2  # beside such passes a layer and a hearing of its own are cheaper than what a block's heads save
_HEADS_CHEAPEST_FIRST = ("mtp-latent", "mtp-projection", "medusa-linear", "medusa-block")
_HEADS_SUREST_FIRST = ("medusa-block", "mtp-latent", "medusa-linear", "mtp-projection")
log = logging.getLogger(__name__)


def make_drafter(drafter: str | Drafter, bundle: Bundle, options: DrafterOptions) -> Drafter:
    """A new drafter of this name; one that was made elsewhere is given back as it is.

    Raises UsageError for an unknown name, or options for a drafter that has no use for them; MapError; ExactnessError
    where drafts could change the text. There `auto` is none, with a warning.
    """
    if not isinstance(drafter, str):
        if options.token_maps:
            raise UsageError("token_map goes with the name of a drafter, not with one that is already made")
        if options.draft_model is not None:
            raise UsageError("draft_model goes with the name of a drafter, not with one that is already made")
        if options.learn:
            raise UsageError("learn goes with the name of a drafter, not with one that is already made")
        if not isinstance(drafter, EmptyDrafter):
            _may_draft("given", bundle, options)
        return drafter
    make = DRAFTERS.get(drafter)
    if make is None:
        raise UsageError(f"drafter: got {drafter!r}, expected {' or '.join(DRAFTERS)}")
    if options.token_maps and drafter not in READS_MAPS:
        raise UsageError(f"token_map: the drafter {drafter!r} reads no token maps; use {' or '.join(READS_MAPS)}")
    if options.remember and drafter not in REMEMBERS:
        raise UsageError(f"remember: the drafter {drafter!r} learns nothing from text; use ngram")
    if options.draft_model is not None and drafter not in HAS_MODEL:
        raise UsageError(f"draft_model: the drafter {drafter!r} has no model of its own; use draft")
    if options.learn and drafter not in HAS_MODEL:
        raise UsageError(f"learn: the drafter {drafter!r} has no model that could learn; use draft")
    if options.map_preset not in MAP_PRESETS:
        raise UsageError(f"map_preset: got {options.map_preset!r}, expected {' or '.join(MAP_PRESETS)}")
    if drafter != "none" and not _may_draft(drafter, bundle, options):
        return EmptyDrafter()
    return make(bundle, options)


def _may_draft(drafter: str, bundle: Bundle, options: DrafterOptions) -> bool:
    """Whether the promise holds here, or was waived; False for `auto` where it does not. Raises ExactnessError."""
    from ..engine.exactness import rows_are_exact

    if options.engine is None or rows_are_exact(options.engine, bundle) or options.allow_inexact:
        return True
    what = f"on this machine the rows of {bundle.manifest.name} notice how many share a pass"
    if drafter == "auto":
        log.warning("%s, so drafts could change the text: drafting is off; `specedge doctor` says more", what)
        return False
    raise ExactnessError(
        f"the drafter {drafter}: {what}, so drafts could change the text: use none, or add --allow-inexact "
        "(allow_inexact=True); `specedge doctor` says more"
    )


def runnable(bundle: Bundle, options: DrafterOptions) -> tuple[str, ...]:
    """The drafters that this bundle can have with these options and takes no other's place for, "none" first.

    Without "auto", which is some of them.
    """
    graphs = bundle.manifest.graphs
    able = {
        "none": True,
        "ngram": True,
        "tokenmap": bool(options.token_maps) or any(name.startswith("maps/") for name in bundle.manifest.files),
        "ctc": CTC_GRAPH in graphs,
        **{kind: kind in graphs for kind in HEAD_KINDS},
        "draft": options.draft_model is not None or (bundle.path / DRAFT_FOLDER).is_dir(),
        "cascade": True,
    }
    return tuple(name for name, is_able in able.items() if is_able)


def close_drafter(drafter: Drafter) -> None:
    """Give back the files of a drafter that `make_drafter` made; one without any is left as it is."""
    drafter.close()


def costs_here(bundle: Bundle, threads: int) -> CostTable:
    """What rows of this model cost on this device: measured by `specedge calibrate`, or a table of a usual device."""
    profile = load_profile(bundle.digest, threads)
    return DEFAULT_COSTS if profile is None else profile.costs()


def _costs(bundle: Bundle, options: DrafterOptions) -> CostTable:
    return options.costs or costs_here(bundle, options.threads)


def _payoff(bundle: Bundle, options: DrafterOptions) -> Payoff:
    """The account of a new drafter."""
    return Payoff(_costs(bundle, options), weighs=options.weighs)


def threads_here(bundle: Bundle) -> int | None:
    """The number of threads of every drafter, and of none, where the user gives none.

    It is the quickest of several that `specedge calibrate` measured; None, the engine's own choice, where it did not.
    """
    from .auto import quickest_threads

    return quickest_threads(_profiles(bundle))


def _profiles(bundle: Bundle) -> dict[int, Profile]:
    """What was measured of this model on this device, by number of threads."""
    found = {threads: load_profile(bundle.digest, threads) for threads in range(1, (os.cpu_count() or 1) + 1)}
    return {threads: profile for threads, profile in found.items() if profile is not None}


def _opened_maps(bundle: Bundle, options: DrafterOptions) -> list[TokenMap]:
    """The maps that are given, else the bundle's own. Raises MapError."""
    files = list(options.token_maps) or [
        bundle.file(name) for name in sorted(bundle.manifest.files) if name.startswith("maps/")
    ]
    tokenizer = bundle.tokenizer
    fingerprint = text_fingerprint(tokenizer.ranks, tokenizer.special.eot)
    maps = []
    try:
        for file in files:
            maps.append(TokenMap.open(file, fingerprint=fingerprint))
    except MapError:
        for opened in maps:
            opened.close()
        raise
    return maps


def _tokenmap(bundle: Bundle, options: DrafterOptions) -> Drafter:
    maps = _opened_maps(bundle, options)
    if not maps:
        raise UsageError(
            f"the drafter tokenmap needs a token map, and {bundle.manifest.name} brings none: build one from "
            "transcripts with `specedge map build`, and give it with --token-map (token_map)"
        )
    return _tokenmap_of(maps, bundle, options)


def _tokenmap_of(maps: Sequence[TokenMap], bundle: Bundle, options: DrafterOptions) -> Drafter:
    preset = MAP_PRESETS[options.map_preset]
    return TokenMapDrafter(
        maps,
        _costs(bundle, options),
        ends=ends_sentence(bundle.tokenizer),
        options=preset,
        payoff=_payoff(bundle, options) if preset.gated else None,
    )


def _ctc(bundle: Bundle, options: DrafterOptions) -> Drafter:
    maps = _opened_maps(bundle, options)
    if CTC_GRAPH not in bundle.manifest.graphs:
        instead = "tokenmap" if maps else "ngram"
        log.warning("%s has no CTC head: the drafter %s takes the place of ctc", bundle.manifest.name, instead)
        return _tokenmap_of(maps, bundle, options) if maps else _ngram(bundle, options)
    # Not at the top: as below.
    from .ctc.drafter import open_ctc

    try:
        return open_ctc(bundle, maps, _costs(bundle, options), canceller=options.canceller, weighs=options.weighs)
    except BaseException:
        for opened in maps:
            opened.close()
        raise


def _ngram(bundle: Bundle, options: DrafterOptions) -> Drafter:
    tokenizer = bundle.tokenizer
    user_cache = None
    path = store.path_to_keep(store.user_cache_path) if options.remember else None
    if path is not None:
        user_cache = UserCache(path, text_fingerprint(tokenizer.ranks, tokenizer.special.eot))
    return NgramDrafter(_costs(bundle, options), cache=NgramCache(), user_cache=user_cache)


def _draft(bundle: Bundle, options: DrafterOptions) -> Drafter:
    # Not at the top: names are known to programs that may never load a model, and ONNX Runtime is large.
    from .draft.load import open_draft

    return open_draft(bundle, options, _costs(bundle, options))


def _heads(kind: str) -> Callable[[Bundle, DrafterOptions], Drafter]:
    """Makes the drafter whose heads the bundle brings in its graph of the same name."""

    def make(bundle: Bundle, options: DrafterOptions) -> Drafter:
        if kind not in bundle.manifest.graphs:
            have = ", ".join(name for name in HEAD_KINDS if name in bundle.manifest.graphs) or "none"
            raise UsageError(
                f"the drafter {kind} needs heads of that kind, and {bundle.manifest.name} brings {have}: export a "
                "checkpoint that has them, or give trained heads to `specedge export --heads`"
            )
        from ..engine.heads import HeadsPass
        from ..engine.session import Canceller
        from .heads import HeadsDrafter

        n_heads = _heads_wanted(options.lookahead, kind)
        heads = HeadsPass(bundle, kind, options.canceller or Canceller())
        if n_heads is None:
            return HeadsDrafter(kind, heads, _costs(bundle, options), payoff=_payoff(bundle, options))
        return HeadsDrafter(kind, heads, _costs(bundle, options), n_heads=n_heads, gated=False)

    return make


def _heads_wanted(lookahead: str, kind: str) -> int | None:
    """How many heads draft whatever it costs, None where costs decide. Raises UsageError."""
    if lookahead == DrafterOptions.lookahead:
        return None
    if not lookahead.isdecimal() or int(lookahead) < 1:
        raise UsageError(f"lookahead: got {lookahead!r}; the drafter {kind} takes cost, or a number from 1 on")
    return int(lookahead)


def _sources(bundle: Bundle, options: DrafterOptions) -> tuple[str, ...]:
    """What a cascade is made of here, the cheapest first; of several kinds of heads one.

    That is the one that foresees most where the decoder is large, or nothing of what drafting takes is weighed.
    """
    able = runnable(bundle, options)
    heads = [kind for kind in _HEADS_CHEAPEST_FIRST if kind in able]
    if len(heads) > 1 and (not options.weighs or _usual_pass_s(bundle) >= _LARGE_PASS_S):
        heads.sort(key=_HEADS_SUREST_FIRST.index)
    return tuple(name for name in ("ngram", "tokenmap", "ctc", *heads[:1], "draft") if name in able)


def _cascade(bundle: Bundle, options: DrafterOptions) -> Drafter:
    return _of_sources(_sources(bundle, options), bundle, options)


def _auto(bundle: Bundle, options: DrafterOptions) -> Drafter:
    # Not at the top: as above.
    from ..verdict import load_verdict
    from .auto import choose

    able = [name for name in runnable(bundle, options) if name not in ("none", *SEVERAL)]
    usual = _sources(bundle, options)
    verdict = load_verdict(bundle.digest, options.threads)
    choice = choose(
        [*usual, *(name for name in able if verdict is not None and name == verdict.drafter and name not in usual)],
        _costs(bundle, options),
        threads=options.threads,
        profiles=_profiles(bundle),
        verdict=verdict,
        token_maps=[os.path.abspath(path) for path in options.token_maps],
    )
    return _of_sources(choice.sources, bundle, options, name="auto", choice=choice.reason)


def _usual_pass_s(bundle: Bundle) -> float:
    """What a pass of one row takes on a usual device: it has to read the decoder's weights."""
    return graph_bytes(bundle.manifest, "decoder") / _USUAL_BYTES_S


def _of_sources(
    names: Sequence[str], bundle: Bundle, options: DrafterOptions, *, name: str = "cascade", choice: str = ""
) -> Drafter:
    """A cascade of earlier texts and the drafters of these names, which keeps their accounts."""
    from .cascade import CascadeDrafter
    from .earlier import EarlierDrafter

    costs = _costs(bundle, options)
    made: list[Drafter] = [EarlierDrafter(costs)]
    try:
        for source in names:
            lookahead = options.lookahead if source == "draft" else DrafterOptions.lookahead
            made.append(DRAFTERS[source](bundle, replace(options, lookahead=lookahead, weighs=False)))
    except BaseException:
        for drafter in made:
            close_drafter(drafter)
        raise
    drafters = [drafter for drafter in made if not isinstance(drafter, EmptyDrafter)]
    return CascadeDrafter(drafters, costs, name=name, choice=choice, weighs=options.weighs)


DRAFTERS: dict[str, Callable[[Bundle, DrafterOptions], Drafter]] = {
    "none": lambda bundle, options: EmptyDrafter(),
    "tokenmap": _tokenmap,
    "ngram": _ngram,
    "draft": _draft,
    "ctc": _ctc,
    **{kind: _heads(kind) for kind in HEAD_KINDS},
    "cascade": _cascade,
    "auto": _auto,
}
