"""What each `--precision` means, graph by graph.

fp32  everything in float32: the reference, large and slow.
int8  the default: rows rounded one by one, but for the small matrices of the decoder, which are in 8-bit blocks; int8
      cross-attention.
int4  for size, not speed: linear layers in 4-bit blocks; costs accuracy and a verifier gains nothing from it
      (graph recipe, section 4). Vocabulary and cross-attention stay at 8 bits.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from specedge.export.layers import LinearKind


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The linear kinds of the three graphs, and what the self-check may find.

    `max_features_error` and `max_logits_error` bound the relative error (Frobenius norm) against float32; they
    catch a wrong graph or a kernel that saturates, not a loss of accuracy on speech.
    """

    name: str
    encoder: LinearKind
    cross_kv: LinearKind
    decoder: LinearKind
    int8_attention: bool
    max_features_error: float
    max_logits_error: float

    def to_json(self) -> dict[str, str | bool | float]:
        """The choice as the manifest records it."""
        return asdict(self)


PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision(
            name="fp32",
            encoder="fp32",
            cross_kv="fp32",
            decoder="fp32",
            int8_attention=False,
            max_features_error=1e-3,
            max_logits_error=1e-3,
        ),
        Precision(
            name="int8",
            encoder="rows8",
            cross_kv="rows8",
            decoder="short8",
            int8_attention=True,
            max_features_error=0.25,
            max_logits_error=0.35,
        ),
        Precision(
            name="int4",
            encoder="block4",
            cross_kv="rows8",
            decoder="block4",
            int8_attention=True,
            max_features_error=0.9,
            max_logits_error=1.2,
        ),
    )
}
