"""Which axes of a MaxText parameter form the matrices that Muon orthogonalises.

``dimension_numbers_for`` answers for one path of any supported family, scanned or not, Linen or
NNX. The granularity (fused, projection or head; gate and up joined or apart; MLA whole or by
component) comes from the MuonSpec, so one table serves every reference.

Where MaxText stores axes as ``(in, ..., out)`` and Megatron as ``(out, in)``, reduction axes here
are Megatron's columns. Layer axes of scanned models sit at position 1 onwards and are batch axes,
as experts and, per head, heads are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

from .dimension_numbers import MuonDimensionNumbers
from .model_dimensions import ModelDimensions
from .module_names import Place, Role, locate
from .spec import MuonSpec, SpecError

__all__ = [
    "UNKNOWN",
    "ModelDimensions",
    "Unknown",
    "dimension_numbers_for",
]


class Unknown(Enum):
    """Type of ``UNKNOWN``."""

    UNKNOWN = "no rule knows this path"


UNKNOWN: Final = Unknown.UNKNOWN
Answer = MuonDimensionNumbers | None | Unknown

_IN_OUT = MuonDimensionNumbers((0,), (-1,))
_IN_HEADS = MuonDimensionNumbers((0,), (-2, -1))
_HEADS_OUT = MuonDimensionNumbers((0, -2), (-1,))
_EACH_IN_OUT = MuonDimensionNumbers((-2,), (-1,))
# Stored as Megatron stores it: rows are the output side.
_POSITION_TABLE = MuonDimensionNumbers((-1,), (0,))

_ADAM = frozenset({Role.NORM, Role.QK_NORM, Role.VECTOR, Role.OUTPUT_LAYER, Role.CONVOLUTION})


def dimension_numbers_for(
    path: Iterable[object],
    dimensions: ModelDimensions,
    spec: MuonSpec,
    shape: Sequence[int] | None = None,
) -> Answer:
    """Dimension numbers of one parameter.

    Args:
      path: segments of its path.
      dimensions: of the model.
      spec: the Muon to compute.
      shape: of the leaf, layer axes included. Without it, projections whose rank varies between
        families are UNKNOWN and the others are taken at their usual rank.

    Returns:
      MuonDimensionNumbers; None for AdamW; UNKNOWN if no rule knows the path at that rank.

    Raises:
      SpecError: the spec asks for what this model's storage cannot give.
    """
    answer = _matrix_axes(path, dimensions, spec, shape)
    if not spec.adam_only:
        return answer
    # Axes and joins are Newton-Schulz's; a stored scale is AdamW's business too.
    scale = answer.update_scale if isinstance(answer, MuonDimensionNumbers) else 1.0
    return None if scale == 1.0 else MuonDimensionNumbers(update_scale=scale, optimizer="adam")


def _matrix_axes(
    path: Iterable[object],
    dimensions: ModelDimensions,
    spec: MuonSpec,
    shape: Sequence[int] | None,
) -> Answer:
    place = locate(path)
    if place is None:
        return UNKNOWN
    if place.layer_axes and dimensions.param_scan_axis != 1:
        raise SpecError(
            f"param_scan_axis={dimensions.param_scan_axis}: the dimension numbers of scanned "
            "layers need the layer axis at position 1"
        )
    rank = None if shape is None else len(shape) - place.layer_axes
    if place.role in _ADAM:
        return None
    if place.role in (Role.BIAS, Role.EMBEDDING):
        return _scaled_adam(place, dimensions, spec)
    if place.role in (Role.ROUTER, Role.SHARED_GATE, Role.POSITION_TABLE):
        return _optional_matrix(place.role, spec)
    if place.role in _ATTENTION_ROLES:
        return _attention(place, dimensions, spec, shape, rank)
    return _feed_forward(place, spec, shape, rank)


def _scaled_adam(place: Place, dimensions: ModelDimensions, spec: MuonSpec) -> Answer:
    """An AdamW leaf, with its scale if it is stored scaled."""
    scale = 1.0
    if spec.unfold_scaled_weights and place.role is Role.EMBEDDING:
        scale = dimensions.embedding_scale
    elif spec.unfold_scaled_weights and place.owner == "query":
        scale = dimensions.query_scale
    if scale == 1.0:
        return None
    return MuonDimensionNumbers(update_scale=scale, optimizer="adam")


def _optional_matrix(role: Role, spec: MuonSpec) -> Answer:
    """Matrices that some trainers give to AdamW."""
    if role is Role.ROUTER:
        return _IN_OUT if spec.include_routers else None
    if not spec.all_matrices:
        return None
    return _POSITION_TABLE if role is Role.POSITION_TABLE else _IN_OUT


_ATTENTION_ROLES = frozenset(
    {
        Role.QUERY,
        Role.KEY_VALUE,
        Role.QKV,
        Role.HEADS,
        Role.WHOLE_HEADS,
        Role.MLA_QUERY_UP,
        Role.MLA_KV_UP,
        Role.ATTENTION_OUT,
    }
)


def _attention(
    place: Place,
    dimensions: ModelDimensions,
    spec: MuonSpec,
    shape: Sequence[int] | None,
    rank: int | None,
) -> Answer:
    role = place.role
    if role is Role.ATTENTION_OUT:
        flat = dimensions.has_gated_attention if rank is None else rank == 2
        return _IN_OUT if flat else _at_rank(rank, 3, _HEADS_OUT)
    if role is Role.HEADS:
        per_head = spec.qkv_granularity == "head"
        if rank is None:
            return _IN_OUT if per_head else UNKNOWN
        return _IN_OUT if per_head or rank == 2 else _at_rank(rank, 3, _IN_HEADS)
    if role is Role.QKV:
        return _at_rank(rank, 3, _fused_qkv(place, dimensions, spec, shape))
    if role is Role.WHOLE_HEADS:
        return _at_rank(rank, 3, _IN_HEADS)
    mla_roles = (Role.MLA_QUERY_UP, Role.MLA_KV_UP)
    if role in mla_roles or (role is Role.QUERY and dimensions.is_mla):
        return _at_rank(rank, 3, _mla_up(role, dimensions, spec))
    return _at_rank(rank, 3, _projection(place, dimensions, spec))


def _projection(place: Place, dimensions: ModelDimensions, spec: MuonSpec) -> MuonDimensionNumbers:
    """Query, key or value of one attention layer."""
    query = place.role is Role.QUERY
    scale = dimensions.query_scale if query and spec.unfold_scaled_weights else 1.0
    gated = query and dimensions.has_gated_attention and spec.split_attention_gate
    splits = (dimensions.head_dim,) * 2 if gated else ()
    if spec.qkv_granularity == "fused":
        return _IN_HEADS._replace(join=_joined(place, "linear_qkv"), update_scale=scale)
    axes = _IN_OUT if spec.qkv_granularity == "head" else _IN_HEADS
    return axes._replace(component_splits=splits, update_scale=scale)


def _fused_qkv(
    place: Place, dimensions: ModelDimensions, spec: MuonSpec, shape: Sequence[int] | None
) -> Answer:
    """One leaf that holds all heads: queries first, then keys, then values."""
    if spec.unfold_scaled_weights and dimensions.query_scale != 1.0:
        raise SpecError(
            f"{'/'.join((*place.block, place.owner))}: decoder_block={dimensions.decoder_block} "
            "stores queries scaled and this leaf holds queries, keys and values together; set "
            "fused_qkv=False, or muon_unfold_scaled_weights=False"
        )
    if spec.qkv_granularity == "head":
        return _IN_OUT
    if spec.qkv_granularity == "fused":
        return _IN_HEADS
    heads = (dimensions.num_query_heads, dimensions.num_kv_heads, dimensions.num_kv_heads)
    if shape is not None and (len(shape) < 2 or sum(heads) != shape[-2]):
        return UNKNOWN
    # The axis that is cut goes last; columns may come in any order.
    return MuonDimensionNumbers((0,), (-1, -2), component_splits=heads)


def _mla_up(role: Role, dimensions: ModelDimensions, spec: MuonSpec) -> MuonDimensionNumbers:
    if not (spec.split_mla_up_proj and dimensions.is_mla):
        return _IN_HEADS
    second = dimensions.v_head_dim if role is Role.MLA_KV_UP else dimensions.qk_rope_head_dim
    return _IN_HEADS._replace(component_splits=(dimensions.qk_nope_head_dim, second))


def _feed_forward(
    place: Place, spec: MuonSpec, shape: Sequence[int] | None, rank: int | None
) -> Answer:
    role = place.role
    if role is Role.FC1:
        join = None if spec.split_linear_fc1 else _joined(place, "linear_fc1")
        return _at_rank(rank, 2, _IN_OUT._replace(join=join))
    if role is Role.FC1_FUSED:
        if rank is None:
            return UNKNOWN
        fused = _IN_OUT if spec.split_linear_fc1 else _IN_HEADS
        return _IN_OUT if rank == 2 else _at_rank(rank, 3, fused)
    if role is Role.EXPERTS_FC1:
        join = None if spec.split_linear_fc1 else _joined(place, "experts/linear_fc1")
        return _at_rank(rank, 3, _EACH_IN_OUT._replace(join=join))
    if role is Role.EXPERTS_FC1_FUSED:
        if not spec.split_linear_fc1:
            return _at_rank(rank, 3, _EACH_IN_OUT)
        if not shape or shape[-1] % 2:
            return UNKNOWN
        halves = (shape[-1] // 2,) * 2
        return _at_rank(rank, 3, _EACH_IN_OUT._replace(component_splits=halves))
    if role in (Role.EXPERTS_FC2, Role.GROUPED):
        return _at_rank(rank, 3, _EACH_IN_OUT)
    return _at_rank(rank, 2, _IN_OUT)


def _at_rank(rank: int | None, expected: int, answer: Answer) -> Answer:
    return answer if rank in (None, expected) else UNKNOWN


def _joined(place: Place, name: str) -> str:
    return "/".join((*place.block, name))
