"""Option combinations under which the fork and the real TensorParallelMuon take the same steps.

An ``Options`` row is one optimizer; every ``Shape`` of ``SHAPES`` is trained under each row, so the
combinations are their product. A shape says how a Megatron matrix ``[out, in]`` lies in MaxText's
leaves. Only NumPy and the fork's declarations here: a subprocess with another Megatron-Core on its
path imports this file too.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from checks.references.matrices import Array, Qkv
from muon_fork.dimension_numbers import MuonDimensionNumbers
from muon_fork.presets import preset
from muon_fork.spec import MuonSpec

STEPS = 20
WIDTH = 24

Leaves = dict[str, Array]


@dataclass(frozen=True)
class Shape:
    """A Megatron matrix and its leaves in MaxText.

    Attributes:
      name: also the seed of its values.
      rows, columns: Megatron's ``[out, in]``.
      leaves: the matrix cut into MaxText-shaped leaves; linear, so it serves gradients and buffers.
      dims: dimension numbers by leaf.
      qkv: given where Megatron must take it for ``linear_qkv``.
      split_qkv: the value of ``muon_split_qkv`` that this shape belongs to.
    """

    name: str
    rows: int
    columns: int
    leaves: Callable[[Array], Leaves]
    dims: dict[str, MuonDimensionNumbers]
    qkv: Qkv | None = None
    split_qkv: bool = True


@dataclass(frozen=True)
class Options:
    """One optimizer: its spec and learning rate."""

    name: str
    spec: MuonSpec
    learning_rate: float


def _plain(name: str, rows: int, columns: int) -> Shape:
    return Shape(name, rows, columns, lambda w: {"kernel": w.T}, {"kernel": MuonDimensionNumbers()})


def _fc1(name: str, ffn: int) -> Shape:
    joined = MuonDimensionNumbers(0, -1, join=name)
    return Shape(
        name,
        2 * ffn,
        WIDTH,
        lambda w: {"wi_0": w[:ffn].T, "wi_1": w[ffn:].T},
        {"wi_0": joined, "wi_1": joined},
    )


def _out(name: str, heads: int, head_dim: int) -> Shape:
    return Shape(
        name,
        WIDTH,
        heads * head_dim,
        lambda w: {"out": w.T.reshape(heads, head_dim, WIDTH)},
        {"out": MuonDimensionNumbers((0, 1), (2,))},
    )


def _attention(name: str, qkv: Qkv, split: bool) -> Shape:
    """Query (with its gate behind each head), key and value of grouped attention."""
    heads, size = qkv.groups * qkv.q_per_group, qkv.head_dim

    def leaves(w: Array) -> Leaves:
        edges = np.cumsum(qkv.split_shapes())[:-1]
        grouped = w.reshape(qkv.groups, -1, w.shape[1])
        parts = [p.reshape(-1, size, w.shape[1]) for p in np.split(grouped, edges, axis=1)]
        query = np.concatenate(parts[:-2], axis=1)
        kernels = (query, *parts[-2:])
        named = zip(("query", "key", "value"), kernels, strict=True)
        return {n: np.moveaxis(p, -1, 0) for n, p in named}

    assert heads == qkv.rows // size - qkv.groups * (2 + qkv.gated * qkv.q_per_group)
    dims = MuonDimensionNumbers((0,), (1, 2), join=None if split else name)
    gate = (size, size) if qkv.gated and split else ()
    by_leaf = {"query": dims._replace(component_splits=gate), "key": dims, "value": dims}
    return Shape(name, qkv.rows, WIDTH, leaves, by_leaf, qkv, split)


# Few distinct sizes of the matrices that Newton-Schulz sees: each one is compiled.
SHAPES: tuple[Shape, ...] = (
    _plain("linear_fc2", WIDTH, 32),
    _plain("router", 4, WIDTH),
    _plain("tall", 80, WIDTH),
    _plain("square", WIDTH, WIDTH),
    _fc1("linear_fc1", 40),
    _fc1("narrow_fc1", 8),
    _out("linear_proj", 4, 8),
    _attention("qkv", Qkv(2, 2, 8), split=True),
    _attention("qkv_multi_head", Qkv(4, 1, 4), split=True),
    _attention("qkv_gated", Qkv(2, 2, 8, gated=True), split=True),
    _attention("qkv_fused", Qkv(2, 2, 8), split=False),
    _attention("qkv_gated_fused", Qkv(4, 1, 4, gated=True), split=False),
)

# What is compiled into a step: Nesterov, scale mode, steps, momentum.
_STATIC = (
    (False, "spectral", 5, 0.95),
    (True, "unit_rms_norm", 5, 0.9),
    (False, "shape_scaling", 8, 0.8),
    (True, "spectral", 8, 0.95),
    (False, "unit_rms_norm", 10, 0.95),
    (True, "shape_scaling", 7, 0.9),
)
_COEFFICIENTS = ("simple", "quintic", "polar_express", "cans", "aol", "deepseekv4")
# Learning rate, extra scale, weight decay.
_RATES = ((0.02, 0.2, 0.1), (0.002, 1.0, 0.0), (0.004, 0.5, 0.01), (0.002, 0.8, 0.1))


def options(ns_dtype: str = "float32") -> Iterator[Options]:
    """Every static choice with every coefficient type at two rates, which rotate.

    For bfloat16 only the first three static choices, and not cans: it admits no singular value
    above one, rounding makes some, and Megatron's own weights overflow within the 20 steps.
    """
    base = preset("megatron").replace(ns_dtype=ns_dtype)
    static, types = _STATIC, _COEFFICIENTS
    if ns_dtype == "bfloat16":
        static, types = _STATIC[:3], tuple(name for name in _COEFFICIENTS if name != "cans")
    for number, (choice, coefficients) in enumerate(itertools.product(static, types)):
        nesterov, scale, steps, beta = choice
        for turn in (0, 1):
            rate, extra, decay = _RATES[(2 * number + number // 2 + turn) % len(_RATES)]
            spec = base.replace(
                nesterov=nesterov,
                scale_mode=scale,
                num_ns_steps=steps,
                beta=beta,
                coefficient_type=coefficients,
                extra_scale_factor=extra,
                weight_decay=decay,
            )
            yield Options(f"{coefficients}-{steps}-{nesterov}-{scale}-{turn}", spec, rate)


def spec_for(row: Options, shape: Shape) -> MuonSpec:
    """The row's spec with the shape's ``split_qkv``."""
    return row.spec.replace(split_qkv=shape.split_qkv, split_attention_gate=shape.split_qkv)


def values(row: Options, shape: Shape) -> tuple[Array, list[Array]]:
    """Weight and gradients, float32, reproducible anywhere; some spectra decay fast."""
    rng = np.random.default_rng(zlib.crc32(f"{row.name}/{shape.name}".encode()))
    size = (shape.rows, shape.columns)
    weight = 0.1 * rng.standard_normal(size)
    decay = np.exp(-np.arange(shape.columns) * rng.choice([0.0, 0.1]))
    scale = 10.0 ** rng.integers(-3, 2)
    gradients = [scale * rng.standard_normal(size) * decay for _ in range(STEPS)]
    return weight.astype(np.float32), [g.astype(np.float32) for g in gradients]


def key(row: Options, shape: Shape, what: str) -> str:
    """Name of an array in the file that a subprocess writes."""
    return f"{row.name}/{shape.name}/{what}"
