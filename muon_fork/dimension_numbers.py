"""MuonDimensionNumbers: which axes of a leaf form the matrices that Newton-Schulz sees.

The first two fields are optax's. The others say what optax cannot: parts of an axis that are
matrices of their own, leaves that are one matrix together, and leaves that are stored scaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple


class MuonDimensionNumbers(NamedTuple):
    """Matrix view of one parameter leaf.

    Axes that are neither reduction nor output axes are batch axes: each index there is a matrix of
    its own (scanned layers, experts, heads).

    Attributes:
      reduction_axis: axis or axes that form the rows, the fan-in.
      output_axis: axis or axes that form the columns, the fan-out.
      component_splits: sizes into which the last output axis is cut; each component, with the other
        output axes merged into it, is a matrix of its own. Empty means uncut. They must add up to
        the axis. (MLA: ``(qk_nope, qk_rope)`` with the heads merged.)
      join: leaves that carry the same name are concatenated along the output side, in tree order,
        and orthogonalised as one matrix per batch index. Their reduction and batch sizes must
        agree. None stands alone. (Megatron's fused linear_fc1 and linear_qkv.)
      update_scale: c of ``W_stored = c * W_source``. The gradient is multiplied by c on entry, so
        that clipping, momentum and moments are those of the source weight, and the update by c on
        exit. (llama query kernels: ``1 / sqrt(head_dim)``.)
      optimizer: ``muon``, or ``adam`` for a leaf of the AdamW branch that needs ``update_scale``.
      sharding: ``NamedSharding`` of the leaf where the trainer knows it; never changes a value.
    """

    reduction_axis: Sequence[int] | int = 0
    output_axis: Sequence[int] | int = 1
    component_splits: tuple[int, ...] = ()
    join: str | None = None
    update_scale: float = 1.0
    optimizer: Literal["muon", "adam"] = "muon"
    sharding: Any = None


def is_dimension_numbers(node: Any) -> bool:
    """Whether ``node`` is a MuonDimensionNumbers: this one, optax's or MaxText's."""
    return hasattr(node, "reduction_axis") and hasattr(node, "output_axis")


def as_dimension_numbers(node: Any) -> MuonDimensionNumbers:
    """``node`` as this module's type; fields that its own type lacks take their defaults."""
    if isinstance(node, MuonDimensionNumbers):
        return node
    return MuonDimensionNumbers(
        node.reduction_axis, node.output_axis, sharding=getattr(node, "sharding", None)
    )
