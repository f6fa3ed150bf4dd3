"""Put the parts of a tensor together that tensor and expert parallelism cut.

The same rules hold for a weight, its fp32 master and every state of an optimizer. Copies of one
part must be equal bit for bit: a difference means that files of two checkpoints were mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from converters.errors import CheckpointError
from converters.megatron.masters import same_bits
from converters.source import Array, SourceTensor

# Rows of one rank follow those of the one before; by the last two segments of the name.
_ROWS = (
    "word_embeddings.weight",
    "output_layer.weight",
    "output_layer.bias",
    "linear_qkv.weight",
    "linear_qkv.bias",
    "linear_q_proj.weight",
    "linear_q_up_proj.weight",
    "linear_kv_up_proj.weight",
    "core_attention.softmax_offset",
)
_COLUMNS = ("linear_proj.weight", "linear_fc2.weight")
# Gate and up of one rank's part, then those of the next.
_HALVES = ("linear_fc1.weight", "linear_fc1.bias")
_REPLICATED = (
    "position_embeddings.weight",
    "linear_proj.bias",
    "linear_fc2.bias",
    "router.weight",
    "router.bias",
    "router.expert_bias",
    "shared_experts.gate_weight",
)
# Either way, as the layer specification has it: told by the number of rows.
_ROWS_OF: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "linear_q_down_proj.weight": lambda a: a.get("q_lora_rank"),
    "linear_kv_down_proj.weight": lambda a: a["kv_lora_rank"] + a["qk_pos_emb_head_dim"],
    "linear_qkv_down_proj.weight": lambda a: (
        a["q_lora_rank"] + a["kv_lora_rank"] + a["qk_pos_emb_head_dim"]
    ),
    "eh_proj.weight": lambda a: a.get("hidden_size"),
}


class Part(NamedTuple):
    """A part of a tensor: which cut along the tensor-parallel axis, of which expert, if of one."""

    cut: int
    expert: int | None
    tensor: SourceTensor


class Join(NamedTuple):
    """How parts become one array: concatenated on ``axis`` after splitting each in ``halves``."""

    axis: int
    halves: int


def merged(
    name: str, parts: Sequence[Part], cuts: int, experts: int, arguments: Mapping[str, Any]
) -> SourceTensor:
    """The whole tensor of a canonical name.

    Args:
      parts: of every rank that holds one, copies among them.
      cuts: how many ways it was cut along one axis.
      experts: number of experts of the layer, for parts that are of one.

    Raises:
      CheckpointError: a part is missing or has another shape, or nobody knows how it was cut.
    """
    if all(part.expert is None for part in parts):
        return _whole(name, parts, cuts, arguments)
    by_expert: dict[int | None, list[Part]] = {}
    for part in parts:
        by_expert.setdefault(part.expert, []).append(part)
    if by_expert.keys() != set(range(experts)):
        missing = sorted(set(range(experts)) - by_expert.keys(), key=str)
        raise CheckpointError(
            f"{parts[0].tensor.origin[0]}: {name} has parts of {len(by_expert)} experts, "
            f"num_experts is {experts}" + (f"; expert {missing[0]} is missing" if missing else "")
        )
    each = [_whole(name, by_expert[number], cuts, arguments) for number in range(experts)]
    if len({(tensor.shape, tensor.dtype) for tensor in each}) != 1:
        raise CheckpointError(f"{each[0].origin[0]}: {name}: experts differ in shape or dtype")
    shape = (experts, *each[0].shape)
    return SourceTensor(shape, each[0].dtype, _origins(each), partial(_stack, each, shape))


def local_shape(
    name: str, shape: tuple[int, ...], cuts: int, arguments: Mapping[str, Any]
) -> tuple[int, ...]:
    """Shape of one rank's part of a tensor.

    Raises:
      CheckpointError: nobody knows how it is cut.
    """
    if cuts == 1 or is_replicated(name):
        return shape
    tail = _tail(name)
    if tail in _ROWS_OF and arguments.get("transformer_impl") == "transformer_engine":
        return shape
    axis = 1 if tail in _COLUMNS else 0
    if tail not in (*_ROWS, *_COLUMNS, *_HALVES, *_ROWS_OF) or shape[axis] % cuts:
        raise CheckpointError(
            f"{name} {shape}: nobody knows how it is cut {cuts} ways: save with --ckpt-format "
            "torch_dist --dist-ckpt-optim-fully-reshardable"
        )
    return (*shape[:axis], shape[axis] // cuts, *shape[axis + 1 :])


def is_replicated(name: str) -> bool:
    """Whether every tensor-parallel rank holds the whole parameter."""
    return "layernorm" in name or _tail(name) in (*_REPLICATED, "enorm.weight", "hnorm.weight")


def _tail(name: str) -> str:
    return ".".join(name.split(".")[-2:])


def rows(tensor: SourceTensor, start: int, stop: int) -> SourceTensor:
    """Some rows of a tensor."""
    shape = (stop - start, *tensor.shape[1:])
    origin = tuple(f"{o} rows {start} to {stop}" for o in tensor.origin)
    return SourceTensor(shape, tensor.dtype, origin, lambda: tensor.load()[start:stop])


def _whole(
    name: str, parts: Sequence[Part], cuts: int, arguments: Mapping[str, Any]
) -> SourceTensor:
    copies: dict[int, list[SourceTensor]] = {}
    for part in parts:
        copies.setdefault(part.cut, []).append(part.tensor)
    if sorted(copies) != list(range(cuts)):
        raise CheckpointError(
            f"{parts[0].tensor.origin[0]}: {name}: parts {sorted(copies)} of {cuts} are there"
        )
    first = parts[0].tensor
    for part in parts:
        if (part.tensor.shape, part.tensor.dtype) != (first.shape, first.dtype):
            raise CheckpointError(
                f"{part.tensor.origin[0]}: {name} is {part.tensor.dtype} {part.tensor.shape}, in "
                f"{first.origin[0]} {first.dtype} {first.shape}: files of two runs"
            )
    join = join_of(name, first, cuts, arguments)
    if join is None:
        return _one_of(name, [part.tensor for part in parts])
    pieces = [_one_of(name, copies[cut]) for cut in range(cuts)]
    if cuts == 1:
        return pieces[0]
    shape = list(first.shape)
    if join.axis >= len(shape) or shape[join.axis] % join.halves:
        raise CheckpointError(f"{first.origin[0]}: {name} has shape {first.shape}")
    shape[join.axis] *= cuts
    load = partial(_concatenate, pieces, join, tuple(shape))
    return SourceTensor(tuple(shape), first.dtype, _origins(pieces), load)


def join_of(name: str, part: SourceTensor, cuts: int, arguments: Mapping[str, Any]) -> Join | None:
    """None if every rank holds the whole tensor."""
    if cuts == 1:
        return Join(0, 1)
    if is_replicated(name):
        return None
    tail = _tail(name)
    if tail in _ROWS:
        return Join(0, 1)
    if tail in _COLUMNS:
        return Join(1, 1)
    if tail in _HALVES:
        return Join(0, 2 if is_gated(arguments) else 1)
    if tail in _ROWS_OF:
        try:
            whole = _ROWS_OF[tail](arguments)
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"{part.origin[0]}: the arguments lack {error}") from error
        if part.shape[0] in (whole, whole // cuts):
            return None if part.shape[0] == whole else Join(0, 1)
    raise CheckpointError(
        f"{part.origin[0]}: nobody knows how {name} {part.shape} was cut {cuts} ways: save with "
        "--ckpt-format torch_dist, which says so"
    )


def is_gated(arguments: Mapping[str, Any]) -> bool:
    """Whether the first layer of an MLP holds gate and up rows."""
    return bool(arguments.get("swiglu") or arguments.get("quick_geglu"))


def _origins(tensors: Iterable[SourceTensor]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(origin for tensor in tensors for origin in tensor.origin))


def _one_of(name: str, copies: Sequence[SourceTensor]) -> SourceTensor:
    """The first of several copies, compared with the others when it is read."""
    if len(copies) == 1:
        return copies[0]
    first = copies[0]

    def load() -> Array:
        value = first.load()
        for other in copies[1:]:
            if not same_bits(value, other.load()):
                raise CheckpointError(
                    f"{other.origin[0]}: {name} differs from its copy in {first.origin[0]}: every "
                    "rank must hold the same, so the files are of two checkpoints or damaged"
                )
        return value

    return SourceTensor(first.shape, first.dtype, _origins(copies), load)


def _concatenate(pieces: Sequence[SourceTensor], join: Join, shape: tuple[int, ...]) -> Array:
    """Piece r's half h is block ``h * len(pieces) + r`` of the whole."""
    whole = np.empty(shape, pieces[0].dtype)
    block = shape[join.axis] // (len(pieces) * join.halves)
    for number, piece in enumerate(pieces):
        value = piece.load()
        for half in range(join.halves):
            start = (half * len(pieces) + number) * block
            target = [slice(None)] * len(shape)
            source = list(target)
            target[join.axis] = slice(start, start + block)
            source[join.axis] = slice(half * block, (half + 1) * block)
            whole[tuple(target)] = value[tuple(source)]
    whole.flags.writeable = False
    return whole


def _stack(tensors: Sequence[SourceTensor], shape: tuple[int, ...]) -> Array:
    whole = np.empty(shape, tensors[0].dtype)
    for number, tensor in enumerate(tensors):
        whole[number] = tensor.load()
    whole.flags.writeable = False
    return whole
