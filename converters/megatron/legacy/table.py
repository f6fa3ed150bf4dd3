"""The table of a whole run from what its ranks hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from converters.errors import CheckpointError
from converters.megatron.integrity import require_states, sound
from converters.megatron.masters import rounds_to
from converters.source import Array, Key, SourceTensor, State

from .groups import Owned
from .merge import Part, is_gated, merged, rows
from .parameters import Parameter
from .ranks import Place, Sizes

_EMBEDDING = "embedding.word_embeddings.weight"
_OUTPUT = "output_layer.weight"
# The down projection of MLA, queries before keys and values, as one linear layer.
FUSED = ".linear_qkv_down_proj."


def tabulate(
    owned: Iterable[Owned], sizes: Sizes, arguments: Mapping[str, Any]
) -> dict[Key, SourceTensor]:
    """Every tensor of the run, layers in order.

    Args:
      owned: parameters of every rank with their states; weights are taken from the parameters.

    Raises:
      CheckpointError: parts are missing or do not fit together.
    """
    if arguments.get("moe_mlp_glu_interleave_size"):
        raise CheckpointError(
            "moe_mlp_glu_interleave_size is set: gate and up rows of the experts are interleaved, "
            "which no converter here undoes"
        )
    parts: dict[Key, list[Part]] = {}
    for one in owned:
        for state, tensor in {State.WEIGHT: one.parameter.tensor, **one.states}.items():
            key = Key(canonical(one.parameter, arguments), state)
            for part in _parts(one.parameter, tensor, sizes, arguments):
                parts.setdefault(key, []).append(part)
    experts = arguments.get("num_experts") or 0
    table: dict[Key, SourceTensor] = {}
    for key, found in parts.items():
        expert = found[0].expert is not None
        cuts = sizes.expert_tensor if expert else sizes.tensor
        whole = merged(key.parameter, found, cuts, experts, arguments)
        table |= _split_fused(key, whole, arguments)
    require_states(table)
    return _in_order(verified(table))


def canonical(parameter: Parameter, arguments: Mapping[str, Any]) -> str:
    """A tied output layer is a copy of the embedding on the last stage."""
    untied = arguments.get("untie_embeddings_and_output_weights")
    return _EMBEDDING if parameter.name == _OUTPUT and not untied else parameter.name


def _parts(
    parameter: Parameter, tensor: SourceTensor, sizes: Sizes, arguments: Mapping[str, Any]
) -> list[Part]:
    if not parameter.is_expert:
        return [Part(parameter.place.tensor, None, tensor)]
    cut = sizes.expert_part(parameter.place)
    here = local_experts(parameter, sizes, arguments)
    first = parameter.place.expert * here
    if parameter.grouped:
        return [
            Part(cut, first + number, _ungrouped(parameter, tensor, number, here, arguments))
            for number in range(here)
        ]
    if parameter.expert is None or parameter.expert >= here:
        raise CheckpointError(
            f"{tensor.origin[0]}: not one of the {here} experts that each rank has"
        )
    return [Part(cut, first + parameter.expert, tensor)]


def local_experts(parameter: Parameter, sizes: Sizes, arguments: Mapping[str, Any]) -> int:
    experts = arguments.get("num_experts")
    if not isinstance(experts, int) or experts < 1 or experts % sizes.expert:
        raise CheckpointError(
            f"{parameter.tensor.origin[0]}: is of an expert, but the arguments say num_experts="
            f"{experts!r}, spread over {sizes.expert}"
        )
    return experts // sizes.expert


def _ungrouped(
    parameter: Parameter,
    tensor: SourceTensor,
    number: int,
    here: int,
    arguments: Mapping[str, Any],
) -> SourceTensor:
    """One expert of a grouped matrix, whose memory is [experts, in, out]."""
    hidden = arguments.get("hidden_size")
    size = int(np.prod(tensor.shape, dtype=np.int64))
    if not isinstance(hidden, int) or size % (here * hidden):
        raise CheckpointError(f"{tensor.origin[0]}: shape {tensor.shape} is not of {here} experts")
    other = size // (here * hidden)
    inside = (hidden, other) if parameter.grouped == 1 else (other, hidden)
    if parameter.grouped == 1 and is_gated(arguments) and other % 2:
        raise CheckpointError(f"{tensor.origin[0]}: shape {tensor.shape} has no two halves")

    def load() -> Array:
        expert: Array = tensor.load().reshape(here, *inside)[number]
        return expert.T

    origin = (f"{tensor.origin[0]} expert {number}",)
    return SourceTensor(inside[::-1], tensor.dtype, origin, load)


def _split_fused(
    key: Key, whole: SourceTensor, arguments: Mapping[str, Any]
) -> dict[Key, SourceTensor]:
    """Two parameters of the fused down projection of MLA, queries first; else the one."""
    if FUSED not in key.parameter:
        return {key: whole}
    query = arguments.get("q_lora_rank")
    if not isinstance(query, int) or not 0 < query < whole.shape[0]:
        raise CheckpointError(f"{whole.origin[0]}: the arguments say q_lora_rank={query!r}")
    first, second = fused_names(key.parameter)
    return {
        Key(first, key.state): rows(whole, 0, query),
        Key(second, key.state): rows(whole, query, whole.shape[0]),
    }


def fused_names(name: str) -> tuple[str, str]:
    """The two parameters whose rows a fused down projection holds, in their order."""
    apart = (".linear_q_down_proj.", ".linear_kv_down_proj.")
    return name.replace(FUSED, apart[0]), name.replace(FUSED, apart[1])


def verified(table: Mapping[Key, SourceTensor]) -> dict[Key, SourceTensor]:
    """Refusing to be read if not finite, and a master if it is not its weight's."""
    checked: dict[Key, SourceTensor] = {}
    for key, tensor in table.items():
        load: Callable[[], Array] = partial(_sound, key, tensor)
        if key.state is State.MASTER:
            weight = table.get(Key(key.parameter, State.WEIGHT))
            if weight is None or weight.shape != tensor.shape:
                raise CheckpointError(f"{tensor.origin[0]}: there is no weight {key.parameter}")
            load = partial(_matching_master, key, tensor, weight)
        checked[key] = SourceTensor(tensor.shape, tensor.dtype, tensor.origin, load)
    return checked


def _sound(key: Key, tensor: SourceTensor) -> Array:
    return sound(tensor.load(), key, tensor.origin)


def _matching_master(key: Key, master: SourceTensor, weight: SourceTensor) -> Array:
    """The master, which rounds to the weight: proof that both are of the same parameter."""
    value = _sound(key, master)
    if not rounds_to(value, weight.load()):
        raise CheckpointError(
            f"{master.origin[0]}: {key} is not the fp32 form of the weight in "
            f"{weight.origin[0]}: the order of the optimizer's parameters is not the one "
            "known, or a file is damaged; save with --ckpt-format torch_dist "
            "--dist-ckpt-optim-fully-reshardable"
        )
    return value


def _in_order(table: Mapping[Key, SourceTensor]) -> dict[Key, SourceTensor]:
    """Sorted by name with numbers as numbers, a parameter's weight first."""
    states = list(State)

    def order(key: Key) -> tuple[Any, ...]:
        segments = [
            (s.isdecimal(), int(s) if s.isdecimal() else s) for s in key.parameter.split(".")
        ]
        return (segments, states.index(key.state))

    return {key: table[key] for key in sorted(table, key=order)}


def weights_only(parameters: Mapping[Place, Sequence[Parameter]]) -> list[Owned]:
    """Every parameter without states, for checkpoints without an optimizer."""
    return [Owned(parameter, {}) for own in parameters.values() for parameter in own]
