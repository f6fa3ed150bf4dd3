"""The saved tensors of a pair as MaxText-shaped leaves: weights, buffers and the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from converters.errors import CheckpointError
from converters.mapping import Leaf as Target
from converters.mapping import Part
from converters.source import Key, Source, State
from muon_fork.dimension_numbers import MuonDimensionNumbers
from muon_fork.rules import UNKNOWN, dimension_numbers_for

from .pair import Pair, ReplayError

Array = NDArray[Any]
Path = tuple[str, ...]


@dataclass(frozen=True)
class Leaf:
    """One MaxText leaf of the step; arrays are float64 and in Megatron's scale.

    Attributes:
      path: its name in MaxText.
      parameters: what Megatron keeps it in, layer by layer.
      dims: dimension numbers, None for AdamW without a stored scale.
      scale: c of MaxText's ``W_stored = c * W``.
      weight, expected: before and after Megatron's step.
      first, second: momentum buffer or Adam's moments before the step; ``second`` only for Adam.
      gradient: the clipped gradient.
      expected_second: Adam's second moment after Megatron's step.
    """

    path: Path
    parameters: tuple[str, ...]
    dims: MuonDimensionNumbers | None
    scale: float
    weight: Array
    expected: Array
    first: Array
    gradient: Array
    second: Array | None = None
    expected_second: Array | None = None

    @property
    def is_muon(self) -> bool:
        return self.second is None


def read_leaves(pair: Pair) -> tuple[Leaf, ...]:
    """Every leaf, in the order of the family's table.

    Raises:
      ReplayError: state is missing, or MaxText's rules would give a parameter to the other
        optimizer than Megatron did.
    """
    if all(key.state in (State.WEIGHT, State.MASTER) for key in pair.before.tensors):
        raise ReplayError(f"{pair.before.folder}: no optimizer state by parameter name")
    try:
        return tuple(_leaf(pair, target) for target in pair.leaves if not target.is_buffer)
    except CheckpointError as error:
        raise ReplayError(str(error)) from error


def _leaf(pair: Pair, target: Target) -> Leaf:
    spec = pair.spec
    parameters = tuple(part.link.parameter for part in target.parts)
    states = {key.state for key in pair.before.tensors if key.parameter == parameters[0]}
    second = expected_second = None
    if State.MOMENTUM in states:
        first, after = (
            buffer * pair.momentum_factor for buffer in _both(pair, target, State.MOMENTUM)
        )
        fresh = 1.0 if spec.nesterov_style == "sgd" else 1.0 - spec.beta
        gradient = (after - spec.beta * first) / fresh
    elif {State.EXP_AVG, State.EXP_AVG_SQ} <= states:
        first, after = _both(pair, target, State.EXP_AVG)
        gradient = (after - spec.adam_b1 * first) / (1.0 - spec.adam_b1)
        second, expected_second = _both(pair, target, State.EXP_AVG_SQ)
    else:
        kept = sorted(state.value for state in states)
        raise ReplayError(f"{parameters[0]}: has {kept}, neither Muon's state nor Adam's")
    # What the optimizer really updates: the masters of mixed precision.
    weight, expected = _both(pair, target, State.MASTER if State.MASTER in states else State.WEIGHT)
    return Leaf(
        path=target.path,
        parameters=parameters,
        dims=_route(pair, target, is_muon=second is None),
        scale=_stored_scale(pair, target),
        weight=weight,
        expected=expected,
        first=first,
        gradient=gradient,
        second=second,
        expected_second=expected_second,
    )


def _both(pair: Pair, target: Target, state: State) -> tuple[Array, Array]:
    before, after = _read(pair.before, target, state), _read(pair.after, target, state)
    if before.shape != after.shape:
        raise ReplayError(
            f"{'/'.join(target.path)}: shape {list(before.shape)} before, {list(after.shape)} "
            "after: another model, or a vocabulary padded for another layout"
        )
    return before, after


def _read(source: Source, target: Target, state: State) -> Array:
    """The leaf without stored scales and offsets."""

    def part_of(part: Part) -> Array:
        key = Key(part.link.parameter, state)
        if key not in source.tensors:
            raise ReplayError(f"{source.folder}: no {key}")
        array = source.tensors[key].load().astype(np.float64)
        return part.link.transform.of_state().part(array, part.which)

    parts = [part_of(part) for part in target.parts]
    return parts[0] if target.axis is None else np.stack(parts, axis=target.axis)


def _route(pair: Pair, target: Target, is_muon: bool) -> MuonDimensionNumbers | None:
    """The rules' answer, which must send the leaf where Megatron sent it."""
    name = "/".join(target.path)
    answer = dimension_numbers_for(target.path, pair.dimensions, pair.spec, target.shape)
    if answer is UNKNOWN:
        raise ReplayError(f"{name}: no rule knows this path with shape {target.shape}")
    assert answer is None or isinstance(answer, MuonDimensionNumbers)
    ruled = answer is not None and answer.optimizer == "muon"
    if ruled != is_muon:
        names = ("AdamW", "Muon")
        raise ReplayError(
            f"{name}: Megatron trained it with {names[is_muon]}, MaxText would with {names[ruled]}"
        )
    return answer


def _stored_scale(pair: Pair, target: Target) -> float:
    """A fact of the model, whatever the spec makes of it."""
    unfolding = pair.spec.replace(unfold_scaled_weights=True)
    answer = dimension_numbers_for(target.path, pair.dimensions, unfolding, target.shape)
    return answer.update_scale if isinstance(answer, MuonDimensionNumbers) else 1.0
