"""From a bundle with a CTC head to the drafter `ctc`: the head, the token maps and the cache that guide it.

A head that was trained for another encoder or other units is refused. What takes its place in a bundle without one is
for `by_name`. Does not know: drafts, commands.
"""

from __future__ import annotations

from collections.abc import Sequence

from specedge.maps.ngram_cache import NgramCache
from specedge.maps.token_map import TokenMap
from specedge.runtime.bundles.bundle import Bundle
from specedge.runtime.ctc.guide import LONGEST, Guide
from specedge.runtime.ctc.head import CtcHead
from specedge.runtime.ctc.search import SearchOptions
from specedge.runtime.decoding.costs import CostTable
from specedge.runtime.drafters.ctc import CtcDrafter
from specedge.runtime.drafters.pace import Pace
from specedge.runtime.drafters.payoff import Payoff
from specedge.runtime.drafters.prices import Prices
from specedge.runtime.drafters.sentences import ends_sentence
from specedge.runtime.passes.session import Canceller

__all__ = ["open_ctc"]

_WINDOW_PASSES = 2.0  # of one row, that hearing a window may take, until it was seen


def open_ctc(
    bundle: Bundle,
    maps: Sequence[TokenMap],
    costs: CostTable,
    *,
    canceller: Canceller | None = None,
    caches: bool = True,
    options: SearchOptions | None = None,
    resyncs: bool = True,
    weighs: bool = True,
) -> CtcDrafter:
    """The drafter over `bundle`'s head, which closes `maps`; with `caches`, texts of this run guide it too.

    weighs: False hears and searches every window, whatever that takes here: as beside a model whose passes are dear.

    Raises BundleError for a head that is missing, broken, or one of another encoder or other units.
    """
    head = CtcHead(bundle, canceller or Canceller())
    head.load()
    tokenizer = bundle.tokenizer
    tokenizer.encode(" ")  # its tables are made now, not in the first window
    cache = NgramCache(longest=LONGEST - 1) if caches else None
    guide = None
    if maps or cache is not None:
        guide = Guide(maps, cache, ends=ends_sentence(tokenizer))

    def close() -> None:
        for map_ in maps:
            map_.close()

    return CtcDrafter(
        head.hear,
        tokenizer,
        costs,
        guide=guide,
        options=options,
        resyncs=resyncs,
        payoff=Payoff(Prices(costs, draft_cost=0.0, window_cost=_WINDOW_PASSES), Pace()) if weighs else None,
        on_close=close,
    )
