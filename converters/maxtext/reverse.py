"""The way back: tensors of a Megatron checkpoint from the leaves of a MaxText state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from converters.copying import copy
from converters.errors import CheckpointError
from converters.mapping import Leaf, Link, Part, Path
from converters.source import Array, Key, Source, State
from converters.steps import Scale
from converters.target import TargetTensor

from .plan import Plan
from .state import VARIABLES
from .tensors import Reading

# Arrays of the saved state by the path of their leaf; read when asked.
Arrays = Callable[[Path], Array]

_STATES = (State.WEIGHT, State.MOMENTUM, State.EXP_AVG, State.EXP_AVG_SQ)


def plan_source(plan: Plan, source: Source, arrays: Arrays) -> Mapping[Key, Callable[[], Array]]:
    """How to make every tensor of ``source`` anew from a state of ``plan``'s tree.

    Entries that the state still holds as ``source`` gave them come back bit for bit, also where a
    stored scale had rounded them.

    Args:
      plan: of the conversion of ``source``.
      source: the checkpoint to take names, shapes, dtypes, and rows that MaxText dropped, from.
      arrays: the leaf at a path of the state's tree.

    Returns:
      By key, in the order of ``source``. Tensors that the conversion dropped are ``source``'s own.
      Building one raises CheckpointError if a leaf is missing or has another shape.
    """
    homes = _homes(plan)
    links = {
        name: part.link
        for leaf in plan.leaves
        for part in leaf.parts
        for name in (part.link.parameter, *part.link.alike)
    }
    made: dict[Key, Callable[[], Array]] = {}
    for key, tensor in source.tensors.items():
        link = links.get(key.parameter)
        state = State.WEIGHT if key.state is State.MASTER else key.state
        if link is None or not _has_home(plan, homes, link, state):
            made[key] = tensor.load
        else:
            made[key] = _Maker(plan, source, arrays, homes, link, key)
    return made


@dataclass(frozen=True)
class _Home:
    """Where one state of one part lies: leaf of the saved tree, slot, and the leaf as declared."""

    path: Path
    leaf: Leaf
    slot: int


Homes = Mapping[tuple[str, int, State], _Home]


def _homes(plan: Plan) -> Homes:
    by_parameter = {leaf.path: leaf for leaf in plan.leaves}
    found: dict[tuple[str, int, State], _Home] = {}
    for record in plan.records:
        state, parameter = _state_of(record)
        leaf = by_parameter.get(parameter)
        if state is None or leaf is None or not record.sources:
            continue
        for slot, part in enumerate(leaf.parts):
            found[part.link.parameter, part.which, state] = _Home(record.path, leaf, slot)
    return found


def _state_of(record: TargetTensor) -> tuple[State | None, Path]:
    """Which state a leaf of the tree holds, and of which MaxText parameter."""
    path = record.path
    if path[:2] in (("params", "params"), VARIABLES):
        return State.WEIGHT, path[2:]
    if path[:2] != ("opt_state", "inner_states") or len(path) < 7:
        return None, ()
    branch, name, rest = path[2], path[5], path[6:]
    rest = rest[1:] if rest[0] == "params" else rest
    states = {
        ("muon", "mu"): State.MOMENTUM,
        ("adam", "mu"): State.EXP_AVG,
        ("adam", "nu"): State.EXP_AVG_SQ,
    }
    return states.get((branch, name)), rest


def _has_home(plan: Plan, homes: Homes, link: Link, state: State) -> bool:
    return state in _STATES and (link.parameter, 0, state) in homes


@dataclass(frozen=True)
class _Maker:
    plan: Plan
    source: Source
    arrays: Arrays
    homes: Homes
    link: Link
    key: Key

    def __call__(self) -> Array:
        tensor = self.source.tensors[self.key]
        like = tensor.load()
        master = Key(self.key.parameter, State.MASTER)
        if self.key.state is State.WEIGHT and master in self.source.tensors:
            # A rounded copy of the master: unchanged where that is.
            old = self.source.tensors[master].load()
            new = self._inverse(old, State.WEIGHT)
            return np.where(new == old, like, new.astype(tensor.dtype))
        state = State.WEIGHT if self.key.state is State.MASTER else self.key.state
        return self._inverse(like, state)

    def _inverse(self, like: Array, state: State) -> Array:
        factor = self.plan.momentum_factor if state is State.MOMENTUM else 1.0
        reading = Reading(self.source, state, factor)
        transform = reading.transform(Part(self.link, 0))
        targets = []
        for which in range(len(transform.chains)):
            target = self._target(which, state)
            if factor != 1.0:
                target = Scale(factor).undo(target, transform.part(like, which))
            targets.append(target)
        made = transform.inverse(targets, like)
        whole = np.empty(made.shape, like.dtype)
        copy(whole, made)
        return whole

    def _target(self, which: int, state: State) -> Array:
        home = self.homes[self.link.parameter, which, state]
        array = self.arrays(home.path)
        if array.shape != home.leaf.shape:
            raise CheckpointError(
                f"{'/'.join(home.path)}: shape {list(array.shape)}, expected "
                f"{list(home.leaf.shape)} for {self.key}"
            )
        return home.leaf.slot(array, home.slot)
