"""Which optimizer owns each leaf in MaxText, and whether Megatron kept what that one needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from converters.errors import CheckpointError
from converters.mapping import Leaf, Path
from converters.source import Key, Source, State
from muon_fork.model_dimensions import ModelDimensions
from muon_fork.rules import UNKNOWN, dimension_numbers_for
from muon_fork.spec import MuonSpec, SpecError

Owner = Literal["muon", "adam"]

NEEDED: Mapping[Owner, tuple[State, ...]] = {
    "muon": (State.MOMENTUM,),
    "adam": (State.EXP_AVG, State.EXP_AVG_SQ),
}


def owners(
    leaves: Sequence[Leaf], dimensions: ModelDimensions, spec: MuonSpec
) -> dict[Path, Owner]:
    """The owner of each leaf, by the rules that the migrated MaxText itself applies.

    Raises:
      CheckpointError: no rule knows a leaf, or the spec does not fit the model.
    """
    found: dict[Path, Owner] = {}
    for leaf in leaves:
        name = "/".join(leaf.path)
        try:
            answer = dimension_numbers_for(("params", *leaf.path), dimensions, spec, leaf.shape)
        except SpecError as error:
            raise CheckpointError(f"{name}: {error}") from error
        if answer is UNKNOWN:
            raise CheckpointError(
                f"{name} of shape {list(leaf.shape)}: Muon's rules do not know it"
            )
        muon = answer is not None and answer.optimizer == "muon"
        found[leaf.path] = "muon" if muon else "adam"
    return found


@dataclass(frozen=True)
class Missing:
    """State that MaxText keeps and the checkpoint does not have."""

    leaf: Leaf
    state: State
    reason: str


def missing_state(
    source: Source, leaves: Sequence[Leaf], owner: Mapping[Path, Owner]
) -> tuple[Missing, ...]:
    """Leaves whose optimizer lacks something, buffers included."""
    found = []
    for leaf in leaves:
        for state in NEEDED[owner[leaf.path]]:
            absent = [
                part.link.parameter
                for part in leaf.parts
                if Key(part.link.parameter, state) not in source.tensors
            ]
            if leaf.is_buffer:
                found.append(Missing(leaf, state, "a buffer in Megatron, no optimizer updates it"))
            elif absent:
                found.append(Missing(leaf, state, _reason(source, absent, state, owner[leaf.path])))
    return tuple(found)


def _reason(source: Source, absent: list[str], state: State, owner: Owner) -> str:
    has = [s.value for s in State if Key(absent[0], s) in source.tensors and s is not State.WEIGHT]
    kept = f"it has {', '.join(has)}" if has else "it has no optimizer state"
    return f"MaxText gives it to {owner}; no {state.value} of {_some(absent)}, {kept}"


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
