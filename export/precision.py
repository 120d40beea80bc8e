"""What each `--precision` means, graph by graph.

fp32  everything in float32: the reference, large and slow.
int8  the default: activations in 8 bits, rounded row by row, weights and cross-attention in 7 bits with a scale an
      output channel (`quantize.LARGEST_IN_COLUMN` says why 7).
int4  for size, not speed: linear layers in 4-bit blocks; costs accuracy and a verifier gains nothing from it
      (graph recipe, section 4). Vocabulary and cross-attention are those of int8.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from specedge.export.layers import LinearKind


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The linear kinds of the three graphs, and what the self-check may find.

    `weight_bits` are those of weights and cross-attention that meet 8-bit activations: with more than 7, x86 without
    VNNI clips their products (`doctor` reads it). `max_features_error` and `max_logits_error` bound the relative error
    (Frobenius norm) against float32; they catch a wrong graph or a kernel that saturates, not a loss of accuracy on
    speech.
    """

    name: str
    encoder: LinearKind
    cross_kv: LinearKind
    decoder: LinearKind
    int8_attention: bool
    weight_bits: int
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
            weight_bits=32,
            max_features_error=1e-3,
            max_logits_error=1e-3,
        ),
        Precision(
            name="int8",
            encoder="rows8",
            cross_kv="rows8",
            decoder="few8",
            int8_attention=True,
            weight_bits=7,
            max_features_error=0.25,
            max_logits_error=0.35,
        ),
        Precision(
            name="int4",
            encoder="block4",
            cross_kv="rows8",
            decoder="block4",
            int8_attention=True,
            weight_bits=7,
            max_features_error=0.9,
            max_logits_error=1.2,
        ),
    )
}
