"""What every reference computes: the trajectory of one torch-shaped matrix, and its row blocks.

A matrix is ``[out, in]``. Blocks are the rows that Newton-Schulz sees as matrices of their own, as
index arrays that cover all rows once; ``None`` is the whole matrix. Joined leaves are concatenated
along the rows by the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muon_fork.spec import MuonSpec, SpecError

Array = NDArray[Any]
Blocks = Sequence[NDArray[np.int64]]


@dataclass(frozen=True)
class Trajectory:
    """Weight ``[out, in]`` and momentum buffer of the same shape after the last step."""

    weight: Array
    buffer: Array


@dataclass(frozen=True)
class Qkv:
    """Row layout of Megatron's ``linear_qkv``: per query group ``q_per_group`` heads of q, as many
    of gate where attention is gated, then one of k and one of v, each ``head_dim`` rows."""

    groups: int
    q_per_group: int
    head_dim: int
    gated: bool = False

    def split_shapes(self, split_gate: bool = True) -> tuple[int, ...]:
        """Rows of one group by component, Megatron's ``qkv_split_shapes``."""
        queries = self.q_per_group * self.head_dim
        parts = (queries,) * (2 if self.gated else 1)
        return (*(parts if split_gate else (sum(parts),)), self.head_dim, self.head_dim)

    @property
    def rows(self) -> int:
        return self.groups * sum(self.split_shapes())


def component_rows(groups: int, split_shapes: Sequence[int]) -> tuple[NDArray[np.int64], ...]:
    """Rows of each component, over all groups, of a matrix whose groups repeat ``split_shapes``.

    ``linear_qkv`` has (q, k, v) or (q, gate, k, v) per query group, the MLA up-projections have
    (nope, rope) or (nope, value) per head.
    """
    layout = np.arange(groups * sum(split_shapes)).reshape(groups, sum(split_shapes))
    edges = np.cumsum(split_shapes)[:-1]
    return tuple(part.reshape(-1) for part in np.split(layout, edges, axis=1))


def qkv_blocks(spec: MuonSpec, qkv: Qkv) -> Blocks | None:
    """Blocks of ``linear_qkv`` by the spec's granularity: fused, by projection, or by head."""
    if spec.qkv_granularity == "fused":
        return None
    if spec.qkv_granularity == "projection":
        return component_rows(qkv.groups, qkv.split_shapes(spec.split_attention_gate))
    projections = component_rows(qkv.groups, qkv.split_shapes())
    return [head for rows in projections for head in rows.reshape(-1, qkv.head_dim)]


def fc1_blocks(spec: MuonSpec, ffn: int) -> Blocks | None:
    """Blocks of ``linear_fc1``, rows ``[gate; up]`` of ``ffn`` each."""
    return component_rows(1, (ffn, ffn)) if spec.split_linear_fc1 else None


def mla_blocks(spec: MuonSpec, heads: int, components: Sequence[int]) -> Blocks | None:
    """Blocks of an MLA up-projection whose heads repeat ``components``."""
    return component_rows(heads, components) if spec.split_mla_up_proj else None


def check_blocks(blocks: Blocks, rows: int) -> None:
    """Raise SpecError unless the blocks cover every row once."""
    listed = np.sort(np.concatenate(list(blocks)))
    if not np.array_equal(listed, np.arange(rows)):
        raise SpecError(f"row blocks name {listed.size} rows of a matrix of {rows}, each once")
