"""Trees of dimension numbers: None, prefix, callable or full, brought to one entry per leaf."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import optax

from .dimension_numbers import MuonDimensionNumbers, as_dimension_numbers, is_dimension_numbers


@dataclass(frozen=True)
class _Entry:
    """Keeps a dimension number, a tuple, in one piece while trees are mapped."""

    dims: MuonDimensionNumbers | None


def _is_entry(node: Any) -> bool:
    return node is None or is_dimension_numbers(node) or isinstance(node, optax.MaskedNode)


def resolve(dimension_numbers: Any, tree: Any) -> list[MuonDimensionNumbers | None]:
    """One entry per leaf of ``tree``, in order.

    Args:
      dimension_numbers: one MuonDimensionNumbers, a tree or prefix of them, or a function of
        ``tree`` that returns one of these. None, in place of all or at a leaf or subtree, stays
        None.
      tree: parameters or updates; masked nodes have no leaves.

    Raises:
      ValueError: the structures do not match.
    """
    if callable(dimension_numbers) and not is_dimension_numbers(dimension_numbers):
        dimension_numbers = dimension_numbers(tree)

    def populate(dims: Any, subtree: Any) -> Any:
        known = is_dimension_numbers(dims)
        entry = _Entry(as_dimension_numbers(dims) if known else None)
        return jax.tree.map(lambda _: entry, subtree)

    entries = jax.tree.map(populate, dimension_numbers, tree, is_leaf=_is_entry)
    return [entry.dims for entry in jax.tree.leaves(entries)]


def uses_muon(dims: MuonDimensionNumbers | None) -> bool:
    return dims is not None and dims.optimizer == "muon"


def fold_of(dims: MuonDimensionNumbers | None) -> float:
    return 1.0 if dims is None else dims.update_scale


def fold_leaves(leaves: Sequence[Any], dims: Sequence[MuonDimensionNumbers | None]) -> list[Any]:
    """Each leaf times its ``update_scale``, in its own dtype."""
    return [
        leaf if fold_of(entry) == 1.0 else leaf * fold_of(entry)
        for leaf, entry in zip(leaves, dims, strict=True)
    ]
