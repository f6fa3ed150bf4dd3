"""The saved tensors of a pair as MaxText-shaped leaves: weights, buffers and the gradient."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from converters.errors import CheckpointError
from converters.megatron.torch_dist import Checkpoint, read_tensor
from converters.megatron.views import View, views
from muon_fork.dimension_numbers import MuonDimensionNumbers
from muon_fork.rules import UNKNOWN, dimension_numbers_for
from muon_fork.spec import MuonSpec

from .pair import Pair, ReplayError

Array = NDArray[Any]
Path = tuple[str, ...]

_STATE = re.compile(r"(?:chained_\d+\.)?optimizer\.state\.(\w+?)\.(.+)")
# Masters of mixed precision: what the optimizer really updates.
_MASTERS = ("fp32_param", "param")


@dataclass(frozen=True)
class Leaf:
    """One MaxText leaf of the step; arrays are float64 and in Megatron's scale.

    Attributes:
      path, key: its names in MaxText and in the checkpoint.
      dims: dimension numbers, None for AdamW without a stored scale.
      scale: c of MaxText's ``W_stored = c * W``.
      weight, expected: before and after Megatron's step.
      first, second: momentum buffer or Adam's moments before the step; ``second`` only for Adam.
      gradient: the clipped gradient.
      expected_second: Adam's second moment after Megatron's step.
    """

    path: Path
    key: str
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
    """Every leaf with optimizer state, in the checkpoint's order.

    Raises:
      ReplayError: state is missing, a tensor has no MaxText shape, or MaxText's rules would give a
        parameter to the other optimizer than Megatron did.
    """
    states = optimizer_states(pair.before)
    model_keys = [key for key in pair.before.tensors if _STATE.fullmatch(key) is None]
    if not states:
        raise ReplayError(f"{pair.before.folder}: no optimizer state by parameter name")
    leaves = []
    for key, state in states.items():
        try:
            cuts = views(key, pair.model, model_keys)
            leaves.extend(_leaves_of(pair, key, state, cuts))
        except CheckpointError as error:
            raise ReplayError(str(error)) from error
    return tuple(leaves)


def optimizer_states(checkpoint: Checkpoint) -> dict[str, dict[str, str]]:
    """Keys of the optimizer's tensors by model key and name (``momentum_buffer``, ``exp_avg``)."""
    states: dict[str, dict[str, str]] = {}
    for key in checkpoint.tensors:
        match = _STATE.fullmatch(key)
        if match is not None:
            states.setdefault(match[2], {})[match[1]] = key
    return states


def _leaves_of(pair: Pair, key: str, state: dict[str, str], cuts: tuple[View, ...]) -> list[Leaf]:
    spec = pair.spec
    master = next((state[name] for name in _MASTERS if name in state), key)
    weight, expected = _both(pair, master)
    if "momentum_buffer" in state:
        first, after = _both(pair, state["momentum_buffer"])
        fresh = 1.0 if spec.nesterov_style == "sgd" else 1.0 - spec.beta
        gradient = (after - spec.beta * first) / fresh
        second = expected_second = None
    elif {"exp_avg", "exp_avg_sq"} <= set(state):
        first, after = _both(pair, state["exp_avg"])
        gradient = (after - spec.adam_b1 * first) / (1.0 - spec.adam_b1)
        second, expected_second = _both(pair, state["exp_avg_sq"])
    else:
        raise ReplayError(f"{key}: optimizer state {sorted(state)} is neither Muon's nor Adam's")
    leaves = []
    for view in cuts:
        shape = view.cut(weight).shape
        leaves.append(
            Leaf(
                view.path,
                key,
                _route(pair, view.path, shape, is_muon=second is None),
                _stored_scale(pair, view.path, shape),
                view.cut(weight),
                view.cut(expected),
                view.cut(first),
                view.cut(gradient),
                None if second is None else view.cut(second),
                None if expected_second is None else view.cut(expected_second),
            )
        )
    return leaves


def _both(pair: Pair, key: str) -> tuple[Array, Array]:
    before, after = (read_tensor(c, key).astype(np.float64) for c in (pair.before, pair.after))
    if before.shape != after.shape:
        raise ReplayError(f"{key}: shape {before.shape} before, {after.shape} after")
    return before, after


def _route(
    pair: Pair, path: Path, shape: tuple[int, ...], is_muon: bool
) -> MuonDimensionNumbers | None:
    """The rules' answer, which must send the leaf where Megatron sent it."""
    spec: MuonSpec = pair.spec
    answer = dimension_numbers_for(path, pair.model.dimensions, spec, shape)
    if answer is UNKNOWN:
        raise ReplayError(f"{'/'.join(path)}: no rule knows this path with shape {shape}")
    assert answer is None or isinstance(answer, MuonDimensionNumbers)
    ruled = answer is not None and answer.optimizer == "muon"
    if ruled != is_muon:
        names = ("AdamW", "Muon")
        raise ReplayError(
            f"{'/'.join(path)}: Megatron trained it with {names[is_muon]}, MaxText would with "
            f"{names[ruled]}"
        )
    return answer


def _stored_scale(pair: Pair, path: Path, shape: tuple[int, ...]) -> float:
    """A fact of the model, whatever the spec makes of it."""
    unfolding = pair.spec.replace(unfold_scaled_weights=True)
    answer = dimension_numbers_for(path, pair.model.dimensions, unfolding, shape)
    return answer.update_scale if isinstance(answer, MuonDimensionNumbers) else 1.0
