"""Drafters by name: `make_drafter` makes the one that a program or the command asks for."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
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
from ..device import DEFAULT_COSTS, CostTable, load_profile
from ..options import HEAD_KINDS, DrafterOptions
from ..registered import find, names
from ..text.beginnings import Beginnings
from ..text.words import ends_sentence
from .auto import AutoDrafter
from .earlier import EarlierDrafter
from .ngram import NgramDrafter
from .tokenmap import TokenMapDrafter

_N_TOKENS = 20  # of a usual window, a short sentence or two
# Of a decoder whose passes take 30 ms and more, at 1e10 bytes of weights a second: beside them a layer and a hearing of
# its own are cheaper than what a block's heads save.
_LARGE_BYTES = 3e8
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
    }
    return tuple(name for name, is_able in able.items() if is_able)


def costs_here(bundle: Bundle, threads: int) -> CostTable:
    """What rows of this model cost on this device: measured by `doctor --calibrate`, or a table of a usual device."""
    profile = load_profile(bundle.timed_digest, threads)
    return DEFAULT_COSTS if profile is None else profile.costs()


def costs_of(target: TargetModel) -> CostTable:
    """What rows of a target cost: what it says itself, else `costs_here`."""
    return target.costs or costs_here(target.bundle, target.threads)


def threads_here(bundle: Bundle) -> int | None:
    """The default number of threads, with or without a drafter.

    The one of several with which `doctor --calibrate` measured a usual window to be quickest; None, the engine's own
    choice, where it did not measure several.
    """
    found = {threads: load_profile(bundle.timed_digest, threads) for threads in range(1, (os.cpu_count() or 1) + 1)}
    took_s = {
        threads: profile.encode_s + _N_TOKENS * profile.pass_s[1]
        for threads, profile in found.items()
        if profile is not None
    }
    return min(took_s, key=took_s.__getitem__) if len(took_s) > 1 else None


def weighed(drafter: Drafter, target: TargetModel) -> Drafter:
    """The drafter with an account of whether drafting pays, where the target's time counts."""
    return AutoDrafter([drafter], costs_of(target), name=drafter.name) if target.weighs else drafter


def _opened_maps(bundle: Bundle, options: DrafterOptions, opened: ExitStack) -> list[TokenMap]:
    """The maps that are given, else the bundle's own; `opened` closes them. Raises MapError."""
    files = list(options.token_maps) or [
        bundle.file(name) for name in sorted(bundle.manifest.files) if name.startswith("maps/")
    ]
    tokenizer = bundle.tokenizer
    fingerprint = text_fingerprint(tokenizer.ranks, tokenizer.special.eot)
    return [opened.enter_context(TokenMap.open(Path(file), fingerprint=fingerprint)) for file in files]


def _tokenmap(target: TargetModel, options: DrafterOptions) -> Drafter:
    with ExitStack() as opened:
        maps = _opened_maps(target.bundle, options, opened)
        opened.pop_all()
    if not maps:
        raise UsageError(
            f"the drafter tokenmap needs a token map, and {target.bundle.manifest.name} brings none: build one from "
            "transcripts with `specedge map build`, and give it with --token-map (token_map)"
        )
    is_usual = options.map_preset == DrafterOptions.map_preset
    kind: type[TokenMapDrafter] = TokenMapDrafter if is_usual else find("tokenmap", options.map_preset)
    tokenizer = target.bundle.tokenizer
    made = kind(
        maps,
        costs_of(target),
        ends=ends_sentence(tokenizer),
        beginnings=None if tokenizer.special.begins_with_space else Beginnings(tokenizer),
    )
    return weighed(made, target) if is_usual else made


def _ctc(target: TargetModel, options: DrafterOptions) -> Drafter:
    from .ctc.drafter import open_ctc

    bundle = target.bundle
    if CTC_GRAPH not in bundle.manifest.graphs:
        raise UsageError(
            f"the drafter ctc needs a CTC head, and {bundle.manifest.name} brings none: train one with `specedge train "
            "ctc`, and add it with `specedge export --add-ctc`"
        )
    with ExitStack() as opened:
        maps = _opened_maps(bundle, options, opened)
        made = open_ctc(bundle, maps, costs_of(target), threads=target.threads, canceller=target.canceller)
    return weighed(made, target)


def _ngram(target: TargetModel, options: DrafterOptions) -> Drafter:
    tokenizer = target.bundle.tokenizer
    user_cache = None
    if options.remember:
        user_cache = UserCache(store.user_cache_path(), text_fingerprint(tokenizer.ranks, tokenizer.special.eot))
    # It takes microseconds, so what came true decides alone, by T(k).
    return NgramDrafter(costs_of(target), cache=NgramCache(), user_cache=user_cache)


def _draft(target: TargetModel, options: DrafterOptions) -> Drafter:
    from ..engine.shortlist import MOST_EXPECTED
    from .draft.load import open_draft  # it loads ONNX Runtime, which not every program needs
    from .draft.lookahead import WEIGHED

    with ExitStack() as opened:
        maps = _opened_maps(target.bundle, options, opened)
        expected = [token for one in maps for token in one.commonest(MOST_EXPECTED // len(maps))]
    made = open_draft(target, options, costs_of(target), expected=expected)
    is_weighed = options.lookahead in WEIGHED and not isinstance(made, EmptyDrafter)
    return weighed(made, target) if is_weighed else made


def _heads(kind: str, target: TargetModel, options: DrafterOptions) -> Drafter:
    made: Drafter = find("drafter", kind)(target, kind, str(options.lookahead))
    return made


def _heads_here(target: TargetModel, able: Sequence[str]) -> tuple[str, ...]:
    """The one kind of heads that is used beside other drafters, () for none.

    That is the most accurate kind where the decoder is large or drafting costs nothing, else the cheapest.
    """
    heads = [kind for kind in _HEADS_CHEAPEST_FIRST if kind in able]
    if len(heads) > 1 and (not target.weighs or graph_bytes(target.bundle.manifest, "decoder") >= _LARGE_BYTES):
        heads.sort(key=_HEADS_SUREST_FIRST.index)
    return tuple(heads[:1])


def _auto(target: TargetModel, options: DrafterOptions) -> Drafter:
    """Of what this model has. A draft model only where it is given, or nothing was trained on the encoder."""
    costs, able = costs_of(target), runnable(target.bundle, options)
    text = ("tokenmap",) if "ctc" in able else ("tokenmap", "ngram")
    usual = [name for name in ("ctc", *_heads_here(target, able), *text) if name in able]
    if "draft" in able and (options.draft_model is not None or not {"ctc", *HEAD_KINDS} & set(able)):
        usual.append("draft")
    return AutoDrafter(_made(usual, target, options), costs, earlier=EarlierDrafter(costs), weighs=target.weighs)


def _made(names: Sequence[str], target: TargetModel, options: DrafterOptions) -> list[Drafter]:
    """The drafters of these names, for one that keeps the time of all; what finds no memory is left out."""
    unweighed = replace(target, weighs=False)
    with ExitStack() as opened:
        made: list[Drafter] = []
        for name in names:
            lookahead = options.lookahead if name == "draft" else DrafterOptions.lookahead
            made.append(_MAKERS[name](unweighed, replace(options, lookahead=lookahead)))
            opened.callback(made[-1].close)
        opened.pop_all()
    return [drafter for drafter in made if not isinstance(drafter, EmptyDrafter)]


_MAKERS: dict[str, _Maker] = {
    "none": lambda target, options: EmptyDrafter(),
    "tokenmap": _tokenmap,
    "ngram": _ngram,
    "draft": _draft,
    "ctc": _ctc,
    **{kind: functools.partial(_heads, kind) for kind in names("drafter")},
    "auto": _auto,
}
