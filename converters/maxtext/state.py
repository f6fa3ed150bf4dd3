"""The train state of MaxText with Muon, as Orbax saves it.

NNX keeps optax's chains as dictionaries of the positions that hold something; Linen keeps them as
lists with None for those that do not, and wraps parameters once more in ``params``. In both, a
parameter that the other optimizer owns is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from converters.mapping import Path
from converters.target import TargetTensor
from muon_fork.spec import MuonSpec

from .ownership import Owner
from .tensors import constant
from .versions import Layout

_COUNT = np.dtype(np.int32)
# Where NNX keeps what is neither parameter nor optimizer state.
VARIABLES = ("nnx_aux", "model")
_CHAIN = ("opt_state", "inner_states")
# Positions of a branch's chain: Muon scales, decays and applies the rate; AdamW likewise.
_LENGTH: Mapping[Owner, int] = {"muon": 4, "adam": 3}

Make = Callable[[Path, Path], TargetTensor]


@dataclass(frozen=True)
class Counts:
    """Steps taken, for each count of the state: all int32 scalars."""

    step: int
    muon: int
    adam: int
    schedule: int


@dataclass(frozen=True)
class Moments:
    """How to make the optimizer's leaves: (path in the state, path of the parameter) -> tensor."""

    momentum: Make
    exp_avg: Make
    exp_avg_sq: Make


def parameters(paths: Sequence[Path], weight: Make) -> dict[str, Any]:
    """``{"params": {"params": ...}}``."""
    return {"params": {"params": _tree(paths, ("params", "params"), weight)}}


def variables(paths: Sequence[Path], make: Make) -> dict[str, Any]:
    """``{"nnx_aux": {"model": ...}}``, empty if there are none."""
    tree = _tree(paths, VARIABLES, make)
    return {"nnx_aux": {"model": tree}} if tree else {}


def train_state(
    paths: Sequence[Path],
    owner: Mapping[Path, Owner],
    weight: Make,
    moments: Moments,
    counts: Counts,
    spec: MuonSpec,
    layout: Layout,
    dtype: np.dtype[Any],
) -> dict[str, Any]:
    """The whole state: parameters, optimizer state, step; coefficients in ``dtype``."""
    build = _Branches(paths, owner, layout)
    coefficients = np.asarray(spec.ns_coeffs, dtype)
    muon = {
        0: build.head("muon", {"mu": moments.momentum}, counts.muon)
        | {"ns_coeffs": constant(build.at("muon", 0, "ns_coeffs"), coefficients, dtype)},
        3: {"count": constant(build.at("muon", 3, "count"), counts.schedule, _COUNT)},
    }
    adam = {
        0: build.head("adam", {"mu": moments.exp_avg, "nu": moments.exp_avg_sq}, counts.adam),
        2: {"count": constant(build.at("adam", 2, "count"), counts.schedule, _COUNT)},
    }
    inner = {"adam": build.chain("adam", adam), "muon": build.chain("muon", muon)}
    return {
        **parameters(paths, weight),
        "opt_state": {"inner_states": inner},
        "step": constant(("step",), counts.step, _COUNT),
    }


@dataclass(frozen=True)
class _Branches:
    paths: Sequence[Path]
    owner: Mapping[Path, Owner]
    layout: Layout

    def at(self, branch: Owner, position: int, *names: str) -> Path:
        return (*_CHAIN, branch, "inner_state", str(position), *names)

    def head(self, branch: Owner, trees: Mapping[str, Make], count: int) -> dict[str, Any]:
        """The first state of a chain: count and one tree per moment."""
        state: dict[str, Any] = {"count": constant(self.at(branch, 0, "count"), count, _COUNT)}
        inner = ("params",) if self.layout == "linen" else ()
        for name, make in trees.items():

            def owned(path: Path, parameter: Path, make: Make = make) -> TargetTensor | None:
                return make(path, parameter) if self.owner[parameter] == branch else None

            tree = _tree(self.paths, self.at(branch, 0, name, *inner), owned)
            state[name] = {"params": tree} if inner else tree
        return state

    def chain(self, branch: Owner, states: Mapping[int, Any]) -> dict[str, Any]:
        if self.layout == "nnx":
            return {"inner_state": {str(position): state for position, state in states.items()}}
        return {"inner_state": [states.get(position) for position in range(_LENGTH[branch])]}


def _tree(
    paths: Sequence[Path], root: Path, make: Callable[[Path, Path], TargetTensor | None]
) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path in paths:
        node = tree
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = make((*root, *path), path)
    return tree
