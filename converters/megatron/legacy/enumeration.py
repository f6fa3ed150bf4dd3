"""What ``named_parameters()`` of each rank would list, from the whole model's weights alone.

Needed where a checkpoint keeps no rank's model, yet optimizer state that only this order explains.
The order is that in which Megatron's modules are built; whoever uses it has to compare masters with
weights, which shows any departure from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from converters.errors import CheckpointError
from converters.source import SourceTensor

from .flat import ADVICE
from .merge import local_shape
from .ranks import Sizes

_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_EXPERTS = "mlp.experts."
# Modules of a layer in the order in which they are built.
_MODULES = (
    "input_layernorm",
    "self_attention.core_attention",
    "self_attention.linear_proj",
    "self_attention.linear_qkv",
    "self_attention.linear_q_proj",
    "self_attention.linear_q_down_proj",
    "self_attention.linear_q_up_proj",
    "self_attention.linear_kv_down_proj",
    "self_attention.linear_kv_up_proj",
    "self_attention.q_layernorm",
    "self_attention.k_layernorm",
    "self_attention.kv_layernorm",
    "pre_mlp_layernorm",
    "mlp.router",
    "mlp.linear_fc1",
    "mlp.linear_fc2",
    "mlp.experts",
    "mlp.shared_experts",
    "mlp.shared_experts.linear_fc1",
    "mlp.shared_experts.linear_fc2",
)
# Transformer Engine builds these norms into the next linear layer, where it has one.
_FUSED = {
    "input_layernorm": "self_attention.linear_qkv",
    "pre_mlp_layernorm": "mlp.linear_fc1",
    "self_attention.q_layernorm": "self_attention.linear_q_up_proj",
    "self_attention.kv_layernorm": "self_attention.linear_kv_up_proj",
}
_FIRST = ("embedding.word_embeddings.weight", "embedding.position_embeddings.weight")
_LAST = ("decoder.final_layernorm.weight", "decoder.final_layernorm.bias", "output_layer.weight")


class Local(NamedTuple):
    """A parameter of one rank: canonical name, local expert if of one, chunk, shape and dtype."""

    name: str
    expert: int | None
    chunk: int
    shape: tuple[int, ...]
    dtype: str


def listed(
    weights: Mapping[str, SourceTensor], sizes: Sizes, stage: int, arguments: Mapping[str, Any]
) -> tuple[Local, ...]:
    """The trained parameters of every rank of a pipeline stage; their shapes are the same.

    Raises:
      CheckpointError: parameters whose place is not known.
    """
    for name in weights:
        if not (_LAYER.fullmatch(name) or name in _FIRST or name in _LAST):
            raise CheckpointError(
                f"{name}: its place among flat optimizer state is unknown: {ADVICE}"
            )
    found: list[Local] = []
    for chunk in range(sizes.virtual):
        first = stage == 0 and chunk == 0
        last = stage == sizes.pipeline - 1 and chunk == sizes.virtual - 1
        names = [name for name in _FIRST if first]
        names += _of_layers(weights, _layers(sizes, stage, chunk, arguments), arguments)
        names += [name for name in _LAST if last]
        for name in names:
            if name in weights:
                found += _locals(name, weights[name], chunk, sizes, arguments)
        tied = not arguments.get("untie_embeddings_and_output_weights")
        if last and tied and sizes.pipeline > 1:
            copy = _locals(_FIRST[0], weights[_FIRST[0]], chunk, sizes, arguments)
            found += copy
    return _experts_in_order(found, arguments)


def _of_layers(
    weights: Mapping[str, SourceTensor], numbers: range, arguments: Mapping[str, Any]
) -> list[str]:
    names: list[str] = []
    for number in numbers:
        prefix = f"decoder.layers.{number}."
        suffixes = [name.removeprefix(prefix) for name in weights if name.startswith(prefix)]
        fused = arguments.get("transformer_impl") == "transformer_engine"
        modules = {_module(suffix) for suffix in suffixes}
        names += sorted(
            (prefix + suffix for suffix in suffixes),
            key=lambda name: _order(name.removeprefix(prefix), modules, fused),
        )
    return names


def _module(suffix: str) -> str:
    if suffix.startswith(_EXPERTS):
        return _EXPERTS.rstrip(".")
    return suffix.rpartition(".")[0]


def _order(suffix: str, modules: set[str], fused: bool) -> tuple[int, int, int]:
    """Position of the module, norms inside it first, weight before bias."""
    module, leaf = _module(suffix), suffix.rpartition(".")[2]
    inside = 1
    if fused and _FUSED.get(module) in modules:
        module, inside = _FUSED[module], 0
    if module not in _MODULES:
        raise CheckpointError(
            f"{suffix}: its place among flat optimizer state is unknown: {ADVICE}"
        )
    return _MODULES.index(module), inside, int(leaf == "bias")


def _locals(
    name: str, weight: SourceTensor, chunk: int, sizes: Sizes, arguments: Mapping[str, Any]
) -> list[Local]:
    if name.endswith("mlp.router.expert_bias"):
        return []
    if f".{_EXPERTS}" not in name:
        shape = local_shape(name, weight.shape, sizes.tensor, arguments)
        return [Local(name, None, chunk, shape, weight.dtype.name)]
    shape = local_shape(name, weight.shape[1:], sizes.expert_tensor, arguments)
    return [
        Local(name, number, chunk, shape, weight.dtype.name)
        for number in range(weight.shape[0] // sizes.expert)
    ]


def _experts_in_order(found: Sequence[Local], arguments: Mapping[str, Any]) -> tuple[Local, ...]:
    """Grouped experts are listed matrix by matrix, others expert by expert."""
    grouped = arguments.get("moe_grouped_gemm") and (
        arguments.get("transformer_impl") == "transformer_engine"
    )
    if grouped:
        return tuple(found)
    ordered: list[Local] = []
    pending: list[Local] = []
    for one in found:
        if pending and (one.expert is None or _layer(one) != _layer(pending[0])):
            ordered += sorted(pending, key=lambda p: p.expert or 0)
            pending = []
        (ordered if one.expert is None else pending).append(one)
    return (*ordered, *sorted(pending, key=lambda p: p.expert or 0))


def _layer(one: Local) -> str:
    match = _LAYER.fullmatch(one.name)
    return match[1] if match else ""


def _layers(sizes: Sizes, stage: int, chunk: int, arguments: Mapping[str, Any]) -> range:
    """Global numbers of the layers of a stage's chunk.

    Raises:
      CheckpointError: an explicit layout of the pipeline.
    """
    if sizes.pipeline > 1 and arguments.get("pipeline_model_parallel_layout") is not None:
        raise CheckpointError(
            "pipeline_model_parallel_layout: which layers a stage's flat optimizer state is of is "
            f"not decoded: {ADVICE}"
        )
    counts = _counts(sizes, arguments)
    before = sum(sum(row) for row in counts[:chunk]) + sum(counts[chunk][:stage])
    return range(before, before + counts[chunk][stage])


def _counts(sizes: Sizes, arguments: Mapping[str, Any]) -> list[list[int]]:
    """Layers by chunk and stage."""
    total, stages, chunks = arguments["num_layers"], sizes.pipeline, sizes.virtual
    ends = (
        arguments.get("decoder_first_pipeline_num_layers"),
        arguments.get("decoder_last_pipeline_num_layers"),
    )
    if stages > 1 and any(n is not None for n in ends):
        middle = stages - sum(n is not None for n in ends)
        rest = total - sum(n or 0 for n in ends)
        per_stage = [rest // middle if middle else 0] * stages
        for index, number in zip((0, -1), ends, strict=True):
            if number is not None:
                per_stage[index] = number
        counts = [[n // chunks for n in per_stage] for _ in range(chunks)]
    else:
        extra = [bool(arguments.get(f"account_for_{end}_in_pipeline_split")) for end in _ENDS]
        each = (total + sum(extra)) // (stages * chunks)
        counts = [[each] * stages for _ in range(chunks)]
        counts[0][0] -= extra[0]
        counts[-1][-1] -= extra[1]
    if sum(map(sum, counts)) != total or min(map(min, counts)) < 0:
        raise CheckpointError(
            f"num_layers={total} on {stages} stages of {chunks} chunks: how they were divided is "
            f"not known: {ADVICE}"
        )
    return counts


_ENDS = ("embedding", "loss")
