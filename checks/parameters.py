"""A parameter as Megatron keeps it, and the MaxText leaves that hold the same numbers.

What is said here stands a second time in the optimizer's rules and in the converter's tables; the
checks compare the two statements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from checks.references.matrices import Array, Blocks, Qkv, fc1_blocks, mla_blocks, qkv_blocks
from muon_fork.spec import MuonSpec

# Sizes shared by the parameters of the synthetic tree.
HIDDEN, FFN, EXPERTS, VOCABULARY = 16, 24, 4, 40
HEADS, GROUPS, HEAD_DIM = 4, 2, 8
MLA_HEADS, NOPE, ROPE, VALUE, LORA = 4, 4, 8, 8, 16

Leaves = dict[str, Array]


class Kind(Enum):
    """What a parameter is to Megatron: who trains it and whether it decays follow from this."""

    MATRIX = "matrix"
    ROUTER = "router"
    TABLE = "table or gate that only Megatron gives to Muon"
    EMBEDDING = "embedding or output layer"
    CONVOLUTION = "convolution"
    NORM = "norm scale"
    QK_NORM = "query or key norm scale"
    VECTOR = "bias or other vector"


def _whole(_spec: MuonSpec) -> Blocks | None:
    return None


@dataclass(frozen=True)
class Parameter:
    """One parameter of Megatron.

    Attributes:
      name: model, ``/``, Megatron's name without ``decoder.layers.N``.
      model: key of ``MODELS``.
      kind: see ``Kind``.
      shape: Megatron's.
      leaves: its array as MaxText-shaped leaves by path, unscaled; linear, so it serves weights,
        gradients and states.
      blocks: rows that are matrices of their own; None is the whole matrix.
      folds: c of ``W_maxtext = c * W_megatron`` by leaf; 1 where absent.
      qkv: given where Megatron takes it for ``linear_qkv``.
    """

    name: str
    model: str
    kind: Kind
    shape: tuple[int, ...]
    leaves: Callable[[Array], Leaves]
    blocks: Callable[[MuonSpec], Blocks | None] = _whole
    folds: Mapping[str, float] = field(default_factory=dict)
    qkv: Qkv | None = None

    def muon(self, spec: MuonSpec) -> bool:
        """Whether Muon trains it."""
        if spec.adam_only:
            return False
        if self.kind is Kind.ROUTER:
            return spec.include_routers
        return self.kind is Kind.MATRIX or (self.kind is Kind.TABLE and spec.all_matrices)

    def decays(self, spec: MuonSpec) -> bool:
        """Whether it decays where AdamW trains it."""
        if spec.decay_all_adam_params:
            return True
        if self.kind is Kind.QK_NORM:
            return spec.weight_decay_norm_params or spec.apply_wd_to_qk_layernorm
        if self.kind is Kind.NORM:
            return spec.weight_decay_norm_params
        return self.kind is not Kind.VECTOR

    def fold(self, leaf: str, spec: MuonSpec) -> float:
        """c of the leaf; 1 if the reference itself trains the stored weights."""
        return self.folds.get(leaf, 1.0) if spec.unfold_scaled_weights else 1.0

    def matrices(self, array: Array) -> Iterator[tuple[tuple[int, ...], Array]]:
        """Each ``[out, in]`` matrix of a Muon parameter, by its index on the leading axes."""
        for index in np.ndindex(array.shape[:-2]):
            yield index, array[index]


def plain(name: str, path: str, out: int, inner: int, kind: Kind = Kind.MATRIX) -> Parameter:
    """A linear layer."""
    leaf = _leaf(name, path)
    return Parameter(name, _of(name), kind, (out, inner), lambda w: {leaf: w.T})


def as_it_is(
    name: str, path: str, shape: tuple[int, ...], kind: Kind, fold: float = 1.0
) -> Parameter:
    leaf = _leaf(name, path)
    return Parameter(name, _of(name), kind, shape, lambda w: {leaf: w}, folds={leaf: fold})


def _of(name: str) -> str:
    return name.partition("/")[0]


def _leaf(name: str, path: str) -> str:
    return f"{_of(name)}/{path}"


def fc1(name: str, block: str) -> Parameter:
    first, second = (_leaf(name, f"{block}/wi_{half}/kernel") for half in (0, 1))
    return Parameter(
        name,
        _of(name),
        Kind.MATRIX,
        (2 * FFN, HIDDEN),
        lambda w: {first: w[:FFN].T, second: w[FFN:].T},
        lambda spec: fc1_blocks(spec, FFN),
    )


def experts_fc1(name: str, block: str) -> Parameter:
    first, second = (_leaf(name, f"{block}/wi_{half}") for half in (0, 1))
    return Parameter(
        name,
        _of(name),
        Kind.MATRIX,
        (EXPERTS, 2 * FFN, HIDDEN),
        lambda w: {first: np.swapaxes(w[:, :FFN], 1, 2), second: np.swapaxes(w[:, FFN:], 1, 2)},
        lambda spec: fc1_blocks(spec, FFN),
    )


def experts_fc2(name: str, block: str) -> Parameter:
    leaf = _leaf(name, f"{block}/wo")
    shape = (EXPERTS, HIDDEN, FFN)
    return Parameter(name, _of(name), Kind.MATRIX, shape, lambda w: {leaf: np.swapaxes(w, 1, 2)})


def from_heads(name: str, path: str, heads: int, size: int) -> Parameter:
    leaf = _leaf(name, path)
    return Parameter(
        name,
        _of(name),
        Kind.MATRIX,
        (HIDDEN, heads * size),
        lambda w: {leaf: w.T.reshape(heads, size, HIDDEN)},
    )


def qkv(name: str, block: str, query_fold: float = 1.0, gated: bool = False) -> Parameter:
    """Grouped attention: per group its queries, its gates, one key, one value."""
    qkv = Qkv(GROUPS, HEADS // GROUPS, HEAD_DIM, gated)
    paths = [_leaf(name, f"{block}/{part}/kernel") for part in ("query", "key", "value")]

    def leaves(w: Array) -> Leaves:
        return {
            path: np.moveaxis(part, -1, 0)
            for path, part in zip(paths, _projections(w, qkv), strict=True)
        }

    return Parameter(
        name,
        _of(name),
        Kind.MATRIX,
        (qkv.rows, HIDDEN),
        leaves,
        lambda spec: qkv_blocks(spec, qkv),
        {paths[0]: query_fold},
        qkv,
    )


def qkv_bias(name: str, block: str, query_fold: float) -> Parameter:
    qkv = Qkv(GROUPS, HEADS // GROUPS, HEAD_DIM)
    paths = [_leaf(name, f"{block}/{part}/bias") for part in ("query", "key", "value")]

    def leaves(w: Array) -> Leaves:
        parts = _projections(w[:, None], qkv)
        return {path: part[..., 0] for path, part in zip(paths, parts, strict=True)}

    return Parameter(
        name, _of(name), Kind.VECTOR, (qkv.rows,), leaves, folds={paths[0]: query_fold}
    )


def _projections(w: Array, qkv: Qkv) -> list[Array]:
    """Query (each head with its gate behind it), key and value as [heads, size, in]."""
    edges = np.cumsum(qkv.split_shapes())[:-1]
    grouped = w.reshape(qkv.groups, -1, w.shape[-1])
    parts = [
        part.reshape(-1, qkv.head_dim, w.shape[-1]) for part in np.split(grouped, edges, axis=1)
    ]
    return [np.concatenate(parts[:-2], axis=1), *parts[-2:]]


def mla_up(name: str, path: str, components: tuple[int, int]) -> Parameter:
    leaf = _leaf(name, path)
    size = sum(components)
    return Parameter(
        name,
        _of(name),
        Kind.MATRIX,
        (MLA_HEADS * size, LORA),
        lambda w: {leaf: np.moveaxis(w.reshape(MLA_HEADS, size, LORA), -1, 0)},
        lambda spec: mla_blocks(spec, MLA_HEADS, components),
    )


def convolution(name: str, path: str, channels: int, width: int) -> Parameter:
    leaf = _leaf(name, path)
    shape = (channels, 1, width)
    return Parameter(name, _of(name), Kind.CONVOLUTION, shape, lambda w: {leaf: w.transpose()})
