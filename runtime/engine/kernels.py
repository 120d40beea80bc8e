"""Do ONNX Runtime's kernels compute here what they should? Each kind of node that bundles are made of, against NumPy.

`kernels.onnx` has one node or layer for each output, written by `export.kernel_graph` with the functions that write
bundles. Weights and inputs come from `scattered`, the same numbers on every machine; the expected outputs are computed
in float64. Numbers are chosen so that rounding to 8 bits loses nothing. The outputs `CLIPPED` are products that 7-bit
weights avoid: uint8 255 by int8 127 in pairs, whose sum x86 without VNNI clips to 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import BundleError

from .session import RUNTIME_VERSION, Canceller, Session, bind_array_input, bind_array_output

GRAPH = Path(__file__).with_name("kernels.onnx")
N_IN, N_OUT = 64, 48
N_HEAD = 2
HEAD_DIM = N_IN // N_HEAD
N_AUDIO = 50  # places that cross-attention looks at
N_BEFORE, N_SLOTS = 5, 32  # rows in the self-attention cache before the pass, and its size
N_ROWS = (2, 24)  # of the two passes
BLOCK = 32  # inputs that share a step, in 4-bit blocks
CACHES = ("self_k_0", "self_v_0")
LARGEST_BYTE = 127  # from the middle of uint8, or of an int8 weight
SMALL_WEIGHT = 63  # what bundles hold weights and cross-attention to
# Tolerated differences from NumPy, of an output's largest number. Half precision would be off by 1e-3. Kernels of 4-bit
# blocks round rows in steps of their own (1.1e-3 off on Arm with dot products), and attention rounds its shares to a
# 255th of the largest. A pair that clips is off by far more.
LAST_BITS, FLOAT, ROUNDED = 4e-6, 1e-4, 1e-2
Array = NDArray[np.float64]
Inputs = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One output of the graph: the `op` that makes it, the precisions whose bundles use it, the expected values."""

    name: str
    op: str
    precisions: tuple[str, ...]
    tolerance: float
    expected: Callable[[Inputs], Array]


@dataclass(frozen=True, kw_only=True)
class KernelResult:
    """How far an output is off, of its largest number; infinite if it is NaN."""

    name: str
    op: str
    precisions: tuple[str, ...]
    difference: float
    tolerance: float

    @property
    def right(self) -> bool:
        return self.difference <= self.tolerance

    def to_json(self) -> dict[str, Any]:
        difference = self.difference if math.isfinite(self.difference) else None
        return {**asdict(self), "difference": difference, "right": self.right}


@dataclass(frozen=True, kw_only=True)
class KernelCheck:
    """`results` of the kernels as bundles use them, `full_range` of products of 8-bit extremes."""

    results: tuple[KernelResult, ...]
    full_range: tuple[KernelResult, ...]

    @property
    def clips(self) -> bool:
        """Whether products of 8-bit weights are wrong here."""
        return not all(result.right for result in self.full_range)

    def wrong(self, precision: str) -> tuple[KernelResult, ...]:
        """The wrong kernels that bundles of `precision` use."""
        return tuple(result for result in self.results if precision in result.precisions and not result.right)

    def to_json(self) -> dict[str, Any]:
        return {
            "clips": self.clips,
            "results": [result.to_json() for result in self.results],
            "full_range": [result.to_json() for result in self.full_range],
        }


def check_kernels(canceller: Canceller) -> KernelCheck:
    """Run every kernel in a narrow and in a wide pass and compare with NumPy; takes less than 0.1 s.

    Raises BundleError when this ONNX Runtime has no such kernel or the installation lacks `kernels.onnx`, Interrupted.
    """
    if not GRAPH.is_file():
        raise BundleError(f"{GRAPH}: this installation of specedge lacks this file; install specedge again")
    try:
        session = Session(GRAPH, canceller, threads=1, spin=False)
    except BundleError as error:
        raise BundleError(
            f"{GRAPH}: ONNX Runtime {RUNTIME_VERSION} lacks a kernel that bundles need: {error.__cause__}; "
            "install another onnxruntime"
        ) from error
    differences: dict[str, float] = {}
    for n_rows in N_ROWS:
        given = inputs(n_rows)
        expected = {kernel.name: kernel.expected(given) for kernel in (*KERNELS, *CLIPPED)}
        for name, array in _run(session, given, expected).items():
            differences[name] = max(differences.get(name, 0.0), _difference(array, expected[name]))
    results, full_range = (
        tuple(
            KernelResult(
                name=kernel.name,
                op=kernel.op,
                precisions=kernel.precisions,
                difference=differences[kernel.name],
                tolerance=kernel.tolerance,
            )
            for kernel in kernels
        )
        for kernels in (KERNELS, CLIPPED)
    )
    return KernelCheck(results=results, full_range=full_range)


def _run(session: Session, given: Inputs, expected: Mapping[str, Array]) -> dict[str, NDArray[np.float32]]:
    binding = session.binding()
    arrays = {name: np.ascontiguousarray(array) for name, array in given.items()}
    # The cache is written in place, as in the engine.
    made = {f"new_{name}": arrays[name] for name in CACHES}
    made = {name: made.get(name, np.zeros(value.shape, np.float32)) for name, value in expected.items()}
    for name, array in arrays.items():
        bind_array_input(binding, name, array)
    for name, array in made.items():
        bind_array_output(binding, name, array)
    session.run(binding)
    return made


def _difference(measured: NDArray[np.float32], expected: Array) -> float:
    difference = float(np.abs(measured - expected).max() / np.abs(expected).max())
    return difference if math.isfinite(difference) else math.inf


# ------------------------------------------------------------------------------------------------- numbers of the graph
def scattered(shape: tuple[int, ...], largest: int, seed: int) -> NDArray[np.int64]:
    """Integers from -`largest` to `largest`, a hash of their place, the same on every machine."""
    place = np.arange(math.prod(shape), dtype=np.uint64) + np.uint64(seed * 1_000_003)
    mask = np.uint64(0xFFFF_FFFF)
    place = (place * np.uint64(2_654_435_761)) & mask
    place = ((place ^ (place >> np.uint64(15))) * np.uint64(2_246_822_519)) & mask
    place ^= place >> np.uint64(13)
    return (place % np.uint64(2 * largest + 1)).astype(np.int64).reshape(shape) - largest


def _powers(shape: tuple[int, ...], highest: int) -> Array:
    """One step for each column or row: three powers of two in turn, which multiply without rounding."""
    steps: Array = np.exp2(-(highest + np.indices(shape).sum(axis=0) % 3).astype(np.float64))
    return steps


def weight8() -> NDArray[np.float32]:
    """`[N_OUT, N_IN]`: 7-bit integers times a power of two for each output, the first two at the ends of the range."""
    weight = scattered((N_OUT, N_IN), SMALL_WEIGHT, 1)
    weight[:, 0] = SMALL_WEIGHT  # each output reaches the end of the range, which decides its step
    weight[:2] = [[SMALL_WEIGHT], [-SMALL_WEIGHT]]
    return (weight * _powers((N_OUT, 1), 8)).astype(np.float32)


def weight4() -> NDArray[np.float32]:
    """`[N_OUT, N_IN]`: 4-bit integers times a power of two for each block."""
    weight = scattered((N_OUT, N_IN), 7, 2)
    weight[1] = -8
    weight[:, ::BLOCK] = -8
    return (weight * np.repeat(_powers((N_OUT, N_IN // BLOCK), 4), BLOCK, axis=1)).astype(np.float32)


def weight32() -> NDArray[np.float32]:
    """`[N_OUT, N_IN]`: numbers with 21 significant bits."""
    return _floats((N_OUT, N_IN), 3)


def bias() -> NDArray[np.float32]:
    """`[N_OUT]`."""
    return _floats((N_OUT,), 4)


def norm_weights() -> dict[str, NDArray[np.float32]]:
    """Gain and shift of a norm, `[N_IN]` each, under the names of layer "norm"."""
    return {"norm.weight": 1 + _floats((N_IN,), 5), "norm.bias": _floats((N_IN,), 6)}


def full_range_weight() -> NDArray[np.int8]:
    """`[N_IN, N_OUT]`: the ends of int8, outputs in turn."""
    signs = 1 - 2 * (np.arange(N_OUT) % 2)
    return np.tile(LARGEST_BYTE * signs, (N_IN, 1)).astype(np.int8)


def inputs(n_rows: int) -> dict[str, NDArray[Any]]:
    """The graph's inputs for a pass of `n_rows` rows."""
    rows = scattered((n_rows, N_IN), LARGEST_BYTE, 7)
    rows[:, :: BLOCK // 2] = LARGEST_BYTE  # each block reaches the end of the range, which decides its step
    rows[:2] = [[LARGEST_BYTE], [-LARGEST_BYTE]]
    keys, values = (scattered((N_HEAD, N_AUDIO, HEAD_DIM), SMALL_WEIGHT, seed) for seed in (8, 9))
    # The first head attends to all places alike, so that shares and values reach the ends of their ranges together.
    keys[0] = SMALL_WEIGHT
    values[0, :, :2] = [SMALL_WEIGHT, -SMALL_WEIGHT]
    cache = _floats((2, 1, N_HEAD, N_SLOTS, HEAD_DIM), 10)
    return {
        "rows": (rows * _powers((n_rows, 1), 5)).astype(np.float32)[None],
        "signal": _floats((1, n_rows, N_IN), 11),
        "bytes": np.full((1, n_rows, N_IN), 255, np.uint8),
        "full_range": full_range_weight()[None],
        "cross_k": np.ascontiguousarray(keys.transpose(0, 2, 1)[None]).astype(np.int8),
        "cross_v": values[None].astype(np.int8),
        "cross_k_scale": np.full((1, N_HEAD, 1, HEAD_DIM), 2.0**-9, np.float32),
        "cross_v_scale": np.abs(_floats((1, N_HEAD, 1, HEAD_DIM), 12)),
        "qkv": _floats((1, n_rows, 3 * N_IN), 13),
        "self_k_0": cache[0],
        "self_v_0": cache[1],
        "past_len": np.array([N_BEFORE + n_rows - 1], np.int32),
        "total_len": np.array(N_BEFORE + n_rows, np.int32),
    }


def _floats(shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    """Numbers between -2 and 2 with 21 significant bits."""
    return (scattered(shape, 1 << 20, seed) / (1 << 19)).astype(np.float32)


# ----------------------------------------------------------------------------------------------- what they should be
def _product(name: str, weight: Callable[[], NDArray[np.float32]], *, biased: bool) -> Callable[[Inputs], Array]:
    def expected(given: Inputs) -> Array:
        y: Array = given[name].astype(np.float64) @ weight().T.astype(np.float64)
        return y + bias() if biased else y

    return expected


def _full_product(given: Inputs) -> Array:
    y: Array = (given["bytes"].astype(np.float64) - 128) @ full_range_weight().astype(np.float64)
    return y


def _norm(given: Inputs) -> Array:
    x = given["signal"].astype(np.float64) + given["rows"]
    x -= x.mean(axis=-1, keepdims=True)
    y: Array = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)
    return y * norm_weights()["norm.weight"] + norm_weights()["norm.bias"]


def _gelu(given: Inputs) -> Array:
    x = given["signal"].astype(np.float64)
    y: Array = 0.5 * x * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2)))
    return y


def _heads(x: NDArray[Any]) -> Array:
    """`[1, n, N_IN]` as `[1, N_HEAD, n, HEAD_DIM]`."""
    return x.astype(np.float64).reshape(1, -1, N_HEAD, HEAD_DIM).transpose(0, 2, 1, 3)


def _merged(x: Array) -> Array:
    return x.transpose(0, 2, 1, 3).reshape(1, -1, N_IN)


def _softmax(scores: Array) -> Array:
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    y: Array = shares / shares.sum(axis=-1, keepdims=True)
    return y


def _attention(given: Inputs) -> Array:
    q, k, v = (_heads(part) for part in np.split(given["qkv"], 3, axis=-1))
    return _merged(_softmax(q @ k.swapaxes(-1, -2) / math.sqrt(HEAD_DIM)) @ v)


def _cache(given: Inputs, part: str) -> Array:
    """The cache behind the pass, its rows written."""
    cache = given[f"self_{part}_0"].astype(np.float64)
    rows = _heads(np.split(given["qkv"], 3, axis=-1)["qkv".index(part)])
    cache[:, :, N_BEFORE : N_BEFORE + rows.shape[2]] = rows
    return cache


def _self_attention(given: Inputs) -> Array:
    q, k, v = _heads(np.split(given["qkv"], 3, axis=-1)[0]), _cache(given, "k"), _cache(given, "v")
    last = N_BEFORE + np.arange(q.shape[2])[:, None]
    scores = np.where(np.arange(N_SLOTS) <= last, q @ k.swapaxes(-1, -2) / math.sqrt(HEAD_DIM), -np.inf)
    return _merged(_softmax(scores) @ v)


def _cross_attention(given: Inputs) -> Array:
    scores = (_heads(given["rows"]) * given["cross_k_scale"]) @ given["cross_k"].astype(np.float64)
    shares = _softmax(scores)
    top = shares.max(axis=-1, keepdims=True)
    values = given["cross_v"].astype(np.float64) * given["cross_v_scale"]
    return _merged(np.rint(shares / top * 255) / 255 * top @ values)


_INT8, _INT4, _FP32 = "int8", "int4", "fp32"
_ALL = (_FP32, _INT8, _INT4)
_ROUNDED = (_INT8, _INT4)

KERNELS = tuple(
    Kernel(name=name, op=op, precisions=precisions, tolerance=tolerance, expected=expected)
    for name, op, precisions, tolerance, expected in (
        ("few8", "MatMulIntegerToFloat", (_INT8,), LAST_BITS, _product("rows", weight8, biased=True)),
        ("rows8", "MatMulIntegerToFloat", _ROUNDED, LAST_BITS, _product("rows", weight8, biased=True)),
        ("vocabulary8", "QGemm", _ROUNDED, LAST_BITS, _product("rows", weight8, biased=False)),
        ("cross_attention8", "MatMulIntegerToFloat", _ROUNDED, ROUNDED, _cross_attention),
        ("block4", "MatMulNBits", (_INT4,), ROUNDED, _product("rows", weight4, biased=True)),
        ("product32", "MatMul", _ALL, FLOAT, _product("signal", weight32, biased=True)),
        ("vocabulary32", "Gemm", (_FP32,), FLOAT, _product("signal", weight32, biased=False)),
        ("norm", "LayerNormalization", _ALL, FLOAT, _norm),
        ("gelu", "Gelu", _ALL, FLOAT, _gelu),
        ("attention", "MultiHeadAttention", _ALL, FLOAT, _attention),
        ("self_attention", "GroupQueryAttention", _ALL, FLOAT, _self_attention),
        ("new_self_k_0", "GroupQueryAttention", _ALL, FLOAT, lambda given: _cache(given, "k")),
        ("new_self_v_0", "GroupQueryAttention", _ALL, FLOAT, lambda given: _cache(given, "v")),
    )
)

CLIPPED = tuple(
    Kernel(name=name, op=op, precisions=_ROUNDED, tolerance=LAST_BITS, expected=_full_product)
    for name, op in (
        ("full_product", "MatMulIntegerToFloat"),
        ("full_attention", "MatMulIntegerToFloat"),
        ("full_vocabulary", "QGemm"),
    )
)
