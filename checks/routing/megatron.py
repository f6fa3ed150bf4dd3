"""Megatron's side: from the checkpoint's tensors, groups and arguments, by Megatron's own rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from checks.references.numpy_muon import scale
from converters.errors import CheckpointError
from converters.mapping import Leaf
from converters.source import Key, Source, State
from muon_fork.model_dimensions import ModelDimensions
from muon_fork.spec import MuonSpec

from .side import Optimizer, Side, gathered

Shape = tuple[int, ...]
_EMBEDDINGS = ("embedding.word_embeddings.weight", "output_layer.weight")
# As Megatron asks for them; MLA's kv_layernorm is none of them.
_QK_NORMS = ("q_layernorm.", "k_layernorm.")
_MLA_UP = ("linear_q_up_proj.weight", "linear_q_proj.weight", "linear_kv_up_proj.weight")


def megatron_side(source: Source, spec: MuonSpec, dimensions: ModelDimensions, leaf: Leaf) -> Side:
    """How Megatron trained the parameters that one MaxText leaf is made of.

    Raises:
      CheckpointError: its layers were trained in different ways.
    """
    sides = [
        _side(source, spec, dimensions, leaf, part.link.parameter, part.link.is_buffer)
        for part in leaf.parts
    ]
    first = sides[0]
    if any((s.optimizer, s.weight_decay, s.rate) != _key(first) for s in sides):
        raise CheckpointError(f"{'/'.join(leaf.path)}: its layers were trained in different ways")
    sizes = [(m.fan_out, m.fan_in, m.count) for side in sides for m in side.matrices]
    matrices = gathered(sizes)
    scales = tuple(scale(spec, (m.fan_out, m.fan_in)) for m in matrices)
    return Side(first.optimizer, matrices, scales, first.weight_decay, first.rate)


def _key(side: Side) -> tuple[Optimizer, float, float]:
    return side.optimizer, side.weight_decay, side.rate


def _side(
    source: Source,
    spec: MuonSpec,
    dimensions: ModelDimensions,
    leaf: Leaf,
    parameter: str,
    is_buffer: bool,
) -> Side:
    if is_buffer:
        return Side("none")
    shape = _shape(source, parameter)
    optimizer = optimizer_of(source, parameter, shape)
    decay = _decay(source, spec, optimizer, parameter, shape)
    rate = _rate(source, parameter)
    if optimizer == "adam":
        return Side("adam", weight_decay=decay, rate=rate)
    sizes = matrices_of(spec, dimensions, leaf, parameter, shape)
    return Side("muon", gathered(sizes), (), decay, rate)


def _shape(source: Source, parameter: str) -> Shape:
    for state in (State.WEIGHT, State.MASTER):
        if Key(parameter, state) in source.tensors:
            return source.tensors[Key(parameter, state)].shape
    raise CheckpointError(f"{parameter}: not in the checkpoint")


def has_states(source: Source) -> bool:
    """Whether the checkpoint says by state who trained what."""
    return any(key.state not in (State.WEIGHT, State.MASTER) for key in source.tensors)


def optimizer_of(source: Source, parameter: str, shape: Shape) -> Optimizer:
    """Whose state the checkpoint keeps of it; without any state, Megatron's rule."""
    if has_states(source):
        if Key(parameter, State.MOMENTUM) in source.tensors:
            return "muon"
        return "adam" if Key(parameter, State.EXP_AVG) in source.tensors else "none"
    experts = ".experts." in parameter
    return "muon" if len(shape) - experts == 2 and parameter not in _EMBEDDINGS else "adam"


def matrices_of(
    spec: MuonSpec, dimensions: ModelDimensions, leaf: Leaf, parameter: str, shape: Shape
) -> Iterator[tuple[int, int, int]]:
    """(fan_out, fan_in, count) of the matrices with entries of ``leaf`` in one parameter.

    Args:
      leaf: says which component of a fused weight is asked for.
      shape: Megatron's: ``[out, in]``, of experts ``[experts, out, in]``.
    """
    *experts, rows, columns = shape
    count = experts[0] if experts else 1
    for size, times in _blocks(spec, dimensions, leaf, parameter, rows):
        yield size, columns, count * times


def _blocks(
    spec: MuonSpec, dimensions: ModelDimensions, leaf: Leaf, parameter: str, rows: int
) -> Iterator[tuple[int, int]]:
    """(rows, how many) of the blocks in which one matrix is orthogonalised."""
    if parameter.endswith("self_attention.linear_qkv.weight"):
        yield from _qkv_blocks(spec, dimensions, leaf.path[-2], rows)
    elif parameter.endswith("linear_fc1.weight") and spec.split_linear_fc1:
        yield rows // 2, 1
    elif parameter.endswith(_MLA_UP) and spec.split_mla_up_proj and dimensions.is_mla:
        value = parameter.endswith("linear_kv_up_proj.weight")
        second = dimensions.v_head_dim if value else dimensions.qk_rope_head_dim
        for size in (dimensions.qk_nope_head_dim, second):
            yield size * dimensions.num_query_heads, 1
    else:
        yield rows, 1


def _qkv_blocks(
    spec: MuonSpec, d: ModelDimensions, component: str, rows: int
) -> Iterator[tuple[int, int]]:
    heads = d.num_query_heads if component == "query" else d.num_kv_heads
    gated = rows > (d.num_query_heads + 2 * d.num_kv_heads) * d.head_dim
    twice = 2 if gated and component == "query" else 1
    if spec.qkv_granularity == "fused":
        yield rows, 1
    elif spec.qkv_granularity == "head":
        yield d.head_dim, heads * twice
    elif twice == 2 and not spec.split_attention_gate:
        yield 2 * heads * d.head_dim, 1
    else:
        yield heads * d.head_dim, twice


def _decay(
    source: Source, spec: MuonSpec, optimizer: Optimizer, parameter: str, shape: Shape
) -> float:
    """Megatron's rule for who decays, with the value that its groups hold."""
    if optimizer == "muon":
        return max(_values(source, "weight_decay", adam=False), default=spec.weight_decay)
    if len(shape) == 1 or parameter.endswith(".bias"):
        norm = "norm" in parameter.rpartition(".layers.")[2] and parameter.endswith(".weight")
        of_qk = spec.apply_wd_to_qk_layernorm and any(name in parameter for name in _QK_NORMS)
        if not (norm and (spec.weight_decay_norm_params or of_qk)):
            return 0.0
    return max(_values(source, "weight_decay", adam=True), default=spec.adam_weight_decay)


def _rate(source: Source, parameter: str) -> float:
    """1, but for embedding and output layer of a run with a decoupled learning rate."""
    decoupled = source.run.arguments.get("decoupled_lr")
    rate = source.run.arguments.get("lr")
    if decoupled and rate and parameter in _EMBEDDINGS:
        return float(decoupled) / float(rate)
    return 1.0


def _groups(source: Source) -> Iterator[Mapping[str, Any]]:
    for state in source.run.optimizers:
        yield from state.groups


def _values(source: Source, name: str, adam: bool) -> list[float]:
    return [
        float(group[name])
        for group in _groups(source)
        if (group.get("betas") is not None) == adam and group.get(name) is not None
    ]
