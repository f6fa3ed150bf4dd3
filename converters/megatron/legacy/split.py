"""The part of a whole tensor that a rank keeps: the inverse of ``table`` and ``merge``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from converters.source import Array, Key, SourceTensor, State

from .merge import join_of
from .parameters import Parameter
from .ranks import Sizes
from .table import FUSED, canonical, fused_names, local_experts


def keys_of(parameter: Parameter, state: State, arguments: Mapping[str, Any]) -> tuple[Key, ...]:
    """The table's keys that a rank's tensor is part of; two for a fused projection."""
    name = canonical(parameter, arguments)
    parts = fused_names(name) if FUSED in name else (name,)
    return tuple(Key(part, state) for part in parts)


def part_of(
    parameter: Parameter,
    state: State,
    value: Callable[[Key], Array],
    sizes: Sizes,
    arguments: Mapping[str, Any],
) -> Array:
    """What a rank is to keep of a parameter's weight or state, in the rank's shape.

    Args:
      value: makes a tensor of the table.
    """
    wholes = [value(key) for key in keys_of(parameter, state, arguments)]
    whole = wholes[0] if len(wholes) == 1 else np.concatenate(wholes)
    name, place = canonical(parameter, arguments), parameter.place
    if not parameter.is_expert:
        like = parameter.tensor
        return _cut(whole, name, like, place.tensor, sizes.tensor, arguments)
    here, cut = local_experts(parameter, sizes, arguments), sizes.expert_part(place)
    first = place.expert * here
    if not parameter.grouped:
        assert parameter.expert is not None
        expert = whole[first + parameter.expert]
        return _cut(expert, name, parameter.tensor, cut, sizes.expert_tensor, arguments)
    experts = [
        _cut(whole[first + number], name, parameter.tensor, cut, sizes.expert_tensor, arguments).T
        for number in range(here)
    ]
    return np.stack(experts).reshape(parameter.tensor.shape)


def _cut(
    whole: Array,
    name: str,
    like: SourceTensor,
    number: int,
    cuts: int,
    arguments: Mapping[str, Any],
) -> Array:
    join = join_of(name, like, cuts, arguments)
    if join is None or cuts == 1:
        return whole
    blocks = np.split(whole, join.halves * cuts, axis=join.axis)
    own = [blocks[half * cuts + number] for half in range(join.halves)]
    return own[0] if len(own) == 1 else np.concatenate(own, axis=join.axis)
