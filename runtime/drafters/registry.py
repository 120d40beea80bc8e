"""Drafters by name: `make_drafter` makes the one that a program or the command asks for."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from specedge.errors import ExactnessError, UsageError
from specedge.maps.ngram_cache import NgramCache, UserCache
from specedge.maps.tmap_format import text_fingerprint
from specedge.maps.token_map import TokenMap
from specedge.models import store

from ..bundle.bundle import Bundle
from ..bundle.manifest import CTC_GRAPH, DRAFT_FOLDER, graph_bytes
from ..decoding.drafter import Drafter, EmptyDrafter, TargetModel
from ..decoding.payoff import Payoff
from ..device import DEFAULT_COSTS, CostTable, Profile, load_profile
from ..options import HEAD_KINDS, SEVERAL, DrafterOptions
from ..registered import find, names
from ..text.beginnings import Beginnings
from ..text.words import ends_sentence
from .ngram import NgramDrafter
from .tokenmap import PAPER, TokenMapDrafter, TokenMapOptions

__all__ = ["costs_here", "costs_of", "make_drafter", "runnable", "threads_here"]

_MAP_OPTIONS = {"default": TokenMapOptions(), "paper": PAPER}
_USUAL_BYTES_S = 1e10  # of weights that a pass of one row reads
_LARGE_PASS_S = 3e-2  # beside such passes a layer and a hearing of its own are cheaper than what a block's heads save
_HEADS_CHEAPEST_FIRST = ("mtp-latent", "mtp-projection", "medusa-linear", "medusa-block")
_HEADS_SUREST_FIRST = ("medusa-block", "mtp-latent", "medusa-linear", "mtp-projection")
_Maker = Callable[[TargetModel, DrafterOptions], Drafter]
log = logging.getLogger(__name__)


def make_drafter(asked: str | DrafterOptions | Drafter, target: TargetModel, *, allow_inexact: bool = False) -> Drafter:
    """A new drafter for `target`; one that was made elsewhere is given back as it is.

    allow_inexact: draft even where that may change the text. Raises UsageError for an unknown name or
    for what the target lacks; ModelError; MapError; ExactnessError where drafts could change the text. There `auto` is
    none, with a warning.
    """
    if isinstance(asked, str):
        asked = DrafterOptions(asked)
    if not isinstance(asked, DrafterOptions):
        if not isinstance(asked, EmptyDrafter):
            _may_draft("given", target, allow_inexact=allow_inexact)
        return asked
    if asked.name != "none" and not _may_draft(asked.name, target, allow_inexact=asked.allow_inexact or allow_inexact):
        return EmptyDrafter()
    return _MAKERS[asked.name](target, asked)


def _may_draft(drafter: str, target: TargetModel, *, allow_inexact: bool) -> bool:
    """Whether the promise holds here, or was waived; False for `auto` where it does not. Raises ExactnessError."""
    from ..engine.exactness import rows_are_exact

    if target.engine is None or rows_are_exact(target.engine, target.bundle) or allow_inexact:
        return True
    what = f"on this machine the rows of {target.bundle.manifest.name} depend on how many share a pass"
    if drafter == "auto":
        log.warning("%s, so drafts could change the text: drafting is off; `specedge doctor` says more", what)
        return False
    raise ExactnessError(
        f"the drafter {drafter}: {what}, so drafts could change the text: use none, or add --allow-inexact "
        "(allow_inexact=True); `specedge doctor` says more"
    )


def runnable(bundle: Bundle, options: DrafterOptions) -> tuple[str, ...]:
    """Names of the drafters that this bundle supports without a substitute, "none" first; "auto" is left out."""
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


def costs_here(bundle: Bundle, threads: int) -> CostTable:
    """What rows of this model cost on this device: measured by `specedge calibrate`, or a table of a usual device."""
    profile = load_profile(bundle.digest, threads)
    return DEFAULT_COSTS if profile is None else profile.costs()


def costs_of(target: TargetModel) -> CostTable:
    """What rows of a target cost: what it says itself, else `costs_here`."""
    return target.costs or costs_here(target.bundle, target.threads)


def _payoff(target: TargetModel) -> Payoff:
    """The account of a new drafter."""
    return Payoff(costs_of(target), weighs=target.weighs)


def threads_here(bundle: Bundle) -> int | None:
    """The default number of threads, with or without a drafter.

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
            maps.append(TokenMap.open(Path(file), fingerprint=fingerprint))
    except BaseException:
        for opened in maps:
            opened.close()
        raise
    return maps


def _tokenmap(target: TargetModel, options: DrafterOptions) -> Drafter:
    maps = _opened_maps(target.bundle, options)
    if not maps:
        raise UsageError(
            f"the drafter tokenmap needs a token map, and {target.bundle.manifest.name} brings none: build one from "
            "transcripts with `specedge map build`, and give it with --token-map (token_map)"
        )
    return _tokenmap_of(maps, target, options)


def _tokenmap_of(maps: Sequence[TokenMap], target: TargetModel, options: DrafterOptions) -> Drafter:
    preset = _MAP_OPTIONS[options.map_preset]
    tokenizer = target.bundle.tokenizer
    return TokenMapDrafter(
        maps,
        costs_of(target),
        ends=ends_sentence(tokenizer),
        beginnings=None if tokenizer.special.begins_with_space else Beginnings(tokenizer),
        options=preset,
        payoff=_payoff(target) if preset.gated else None,
    )


def _ctc(target: TargetModel, options: DrafterOptions) -> Drafter:
    bundle = target.bundle
    maps = _opened_maps(bundle, options)
    if CTC_GRAPH not in bundle.manifest.graphs:
        instead = "tokenmap" if maps else "ngram"
        log.warning("%s has no CTC head: the drafter %s takes the place of ctc", bundle.manifest.name, instead)
        return _tokenmap_of(maps, target, options) if maps else _ngram(target, options)
    from .ctc.drafter import open_ctc

    try:
        return open_ctc(
            bundle, maps, costs_of(target), threads=target.threads, canceller=target.canceller, weighs=target.weighs
        )
    except BaseException:
        for opened in maps:
            opened.close()
        raise


def _ngram(target: TargetModel, options: DrafterOptions) -> Drafter:
    tokenizer = target.bundle.tokenizer
    user_cache = None
    path = store.path_to_keep(store.user_cache_path) if options.remember else None
    if path is not None:
        user_cache = UserCache(path, text_fingerprint(tokenizer.ranks, tokenizer.special.eot))
    return NgramDrafter(costs_of(target), cache=NgramCache(), user_cache=user_cache)


def _draft(target: TargetModel, options: DrafterOptions) -> Drafter:
    from ..engine.shortlist import MOST_EXPECTED
    from .draft.load import open_draft  # it loads ONNX Runtime, which not every program needs

    maps = _opened_maps(target.bundle, options)
    try:
        expected = [token for opened in maps for token in opened.commonest(MOST_EXPECTED // len(maps))]
    finally:
        for opened in maps:
            opened.close()
    return open_draft(target, options, costs_of(target), expected=expected)


def _registered(name: str) -> _Maker:
    """Makes the drafter that is found by name."""

    def make(target: TargetModel, options: DrafterOptions) -> Drafter:
        made: Drafter = find("drafter", name)(target, replace(options, name=name))
        return made

    return make


def _heads_here(target: TargetModel, able: Sequence[str]) -> tuple[str, ...]:
    """The one kind of heads that is used beside other drafters, () for none.

    That is the most accurate kind where the decoder is large or drafting costs nothing, else the cheapest.
    """
    heads = [kind for kind in _HEADS_CHEAPEST_FIRST if kind in able]
    if len(heads) > 1 and (not target.weighs or _usual_pass_s(target.bundle) >= _LARGE_PASS_S):
        heads.sort(key=_HEADS_SUREST_FIRST.index)
    return tuple(heads[:1])


def _cascade(target: TargetModel, options: DrafterOptions) -> Drafter:
    """The cheapest first. `ctc` rescores with the maps and this run's n-grams, which have nothing to add beside it."""
    from .cascade import CascadeDrafter
    from .earlier import EarlierDrafter

    costs, able = costs_of(target), runnable(target.bundle, options)
    text = ("ctc",) if "ctc" in able else ("ngram", "tokenmap")
    names = [name for name in (*text, *_heads_here(target, able), "draft") if name in able]
    drafters = [EarlierDrafter(costs), *_made(names, target, options)]
    # The drafter ctc takes its own hypothesis up again behind a refused token.
    recycles = all(drafter.name != "ctc" for drafter in drafters)
    return CascadeDrafter(drafters, costs, recycles=recycles, weighs=target.weighs)


def _auto(target: TargetModel, options: DrafterOptions) -> Drafter:
    """Of what this model has. A draft model only where it is given, or there is nothing that was trained on the
    encoder; what is seldom the quickest only by a verdict."""
    from ..verdict import load_verdict
    from .auto import AutoDrafter, Trials, choose
    from .earlier import EarlierDrafter

    bundle, costs, able = target.bundle, costs_of(target), runnable(target.bundle, options)
    text = ("tokenmap",) if "ctc" in able else ("tokenmap", "ngram")
    usual = [name for name in ("ctc", *_heads_here(target, able), *text) if name in able]
    if "draft" in able and (options.draft_model is not None or not {"ctc", *HEAD_KINDS} & set(able)):
        usual.append("draft")
    verdict = load_verdict(bundle.digest, target.threads)
    if verdict is not None and verdict.drafter in able and verdict.drafter not in ("none", *usual):
        usual.append(verdict.drafter)
    choice = choose(
        usual,
        threads=target.threads,
        profiles=_profiles(bundle),
        verdict=verdict,
        token_maps=[os.path.abspath(path) for path in options.token_maps],
    )
    return AutoDrafter(
        _made([name for name in choice.candidates if name != "none"], target, options),
        costs,
        earlier=EarlierDrafter(costs),
        trials=Trials(choice.candidates, choice.speed_up),
        reason=choice.reason,
        weighs=target.weighs,
    )


def _usual_pass_s(bundle: Bundle) -> float:
    """What a pass of one row takes on a usual device: it has to read the decoder's weights."""
    return graph_bytes(bundle.manifest, "decoder") / _USUAL_BYTES_S


def _made(names: Sequence[str], target: TargetModel, options: DrafterOptions) -> list[Drafter]:
    """The drafters of these names, for one that keeps the time of all; what finds no memory is left out."""
    unweighed = replace(target, weighs=False)
    made: list[Drafter] = []
    try:
        for name in names:
            lookahead = options.lookahead if name == "draft" else DrafterOptions.lookahead
            weighed = target if name in SEVERAL else unweighed
            made.append(_MAKERS[name](weighed, replace(options, lookahead=lookahead)))
    except BaseException:
        for drafter in made:
            drafter.close()
        raise
    return [drafter for drafter in made if not isinstance(drafter, EmptyDrafter)]


_MAKERS: dict[str, _Maker] = {
    "none": lambda target, options: EmptyDrafter(),
    "tokenmap": _tokenmap,
    "ngram": _ngram,
    "draft": _draft,
    "ctc": _ctc,
    **{name: _registered(name) for name in names("drafter")},
    "cascade": _cascade,
    "auto": _auto,
}
