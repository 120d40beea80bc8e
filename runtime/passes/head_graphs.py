"""The names of graphs that hold heads: each is called as the drafter that it is for.

Does not know: what heads compute (`export.heads_graph`).
"""

from __future__ import annotations

__all__ = ["BLOCK_KIND", "BLOCK_KV_GRAPH", "HEAD_GRAPHS", "HEAD_KINDS"]

BLOCK_KIND = "medusa-block"
BLOCK_KV_GRAPH = "medusa-block-kv"  # cross-attention keys and values of medusa-block
HEAD_KINDS = ("medusa-linear", BLOCK_KIND, "mtp-latent", "mtp-projection")
HEAD_GRAPHS = (*HEAD_KINDS, BLOCK_KV_GRAPH)
