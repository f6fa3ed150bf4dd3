"""Released implementations of a spec, where one is installed and computes exactly that spec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from checks.parameters import Parameter
from checks.references import emerging, torch_adam, torch_muon
from checks.references.matrices import Array
from checks.references.torch_steps import ADAM, MUON, TorchSteps
from muon_fork.spec import MuonSpec, SpecError

from .devices import numpy_dtype
from .gaps import Side
from .state import Arrays, Rates, State, state_in_leaves

Notes = tuple[str, ...]
Make = Callable[[list[Any], float], Any]


@dataclass(frozen=True)
class Orthogonalizer:
    """A real Newton-Schulz of one ``[out, in]`` matrix, and what it is."""

    name: str
    run: Callable[[Array], Array]


def orthogonalizer(spec: MuonSpec, dtype: str) -> tuple[Orthogonalizer | None, Notes]:
    """The one that computes ``spec``, or None and why there is none."""
    if dtype == "f64":
        return None, ("emerging-optimizers was not asked: it computes in float32",)
    try:
        return Orthogonalizer("emerging-optimizers", emerging.orthogonalizer(spec)), ()
    except (ModuleNotFoundError, SpecError) as error:
        return None, (f"emerging-optimizers was not asked: {_why(error)}",)


class Tracker(Protocol):
    """Real optimizers that walk beside the fork; ``Side`` holds the leaves that they train."""

    name: str

    def start(self, state: State) -> None: ...

    def advance(self, clipped: Arrays, rates: Rates) -> Side: ...


def trackers(
    tree: tuple[Parameter, ...], spec: MuonSpec, dtype: str
) -> tuple[tuple[Tracker, ...], Notes]:
    """Every real optimizer that computes its part of ``spec``, and why others were not asked."""
    found: list[Tracker] = []
    notes: list[str] = []
    for name, make in (
        ("Megatron-Core", _of_megatron),
        ("torch.optim.Muon", _of_torch_muon),
        ("torch.optim.AdamW", _of_adam),
        ("optax.contrib.muon", _of_optax),
    ):
        try:
            found.append(make(tree, spec, dtype))
        except (ModuleNotFoundError, SpecError) as error:
            notes.append(f"{name} was not asked: {_why(error)}")
    return tuple(found), tuple(notes)


def _why(error: Exception) -> str:
    return f"{error.name} is not installed" if isinstance(error, ImportError) else str(error)


def _of_megatron(tree: tuple[Parameter, ...], spec: MuonSpec, dtype: str) -> Tracker:
    if dtype == "f64":
        raise SpecError("it computes in float32")
    makes = {p.name: emerging.maker(spec, p.qkv) for p in tree if p.muon(spec)}
    whole = [p for p in tree if p.muon(spec) and not p.qkv and p.blocks(spec)]
    if whole:
        raise SpecError(f"it does not split {whole[0].name}")
    return Torch("Megatron-Core", tree, spec, makes, MUON, dtype)


def _of_torch_muon(tree: tuple[Parameter, ...], spec: MuonSpec, dtype: str) -> Tracker:
    if any(p.muon(spec) and p.blocks(spec) for p in tree):
        raise SpecError("it splits no matrix")
    makes = {p.name: torch_muon.maker(spec) for p in tree if p.muon(spec)}
    return Torch("torch.optim.Muon", tree, spec, makes, MUON, dtype)


def _of_adam(tree: tuple[Parameter, ...], spec: MuonSpec, dtype: str) -> Tracker:
    adam = [p for p in tree if not p.muon(spec)]
    makes = {p.name: torch_adam.maker(spec, p.decays(spec)) for p in adam}
    return Torch("torch.optim.AdamW", tree, spec, makes, ADAM, dtype)


def _of_optax(tree: tuple[Parameter, ...], spec: MuonSpec, dtype: str) -> Tracker:
    from .optax_side import tracker

    return tracker(tree, spec, dtype)


class Torch:
    """Real torch optimizers, one a parameter; each matrix of a stack is a parameter to torch."""

    def __init__(
        self,
        name: str,
        tree: tuple[Parameter, ...],
        spec: MuonSpec,
        makes: dict[str, Make],
        names: Sequence[str],
        dtype: str,
    ) -> None:
        self.name = name
        self.tree = tuple(p for p in tree if p.name in makes)
        self.spec = spec
        self.makes = makes
        self.names = tuple(names)
        self.dtype = numpy_dtype(dtype)
        self.count = 0
        self.runs: dict[str, TorchSteps] = {}

    def start(self, state: State) -> None:
        self.count = state.count
        kept = (state.first, state.second)[: len(self.names)]
        for p in self.tree:
            arrays = [dict(self._parts(p, by_name[p.name])) for by_name in (state.weights, *kept)]
            make = self.makes[p.name]
            self.runs[p.name] = TorchSteps(
                make, arrays[0], arrays[1:], self.names, state.count, self.dtype
            )

    def advance(self, clipped: Arrays, rates: Rates) -> Side:
        rate = rates.muon if self.names == MUON else rates.adam
        self.count += 1
        for p in self.tree:
            self.runs[p.name].step(dict(self._parts(p, clipped[p.name])), rate)
        weights = {p.name: self._whole(p, self.runs[p.name].weight) for p in self.tree}
        states = [{p.name: self._state(p, name) for p in self.tree} for name in self.names]
        after = State(weights, states[0], states[1] if len(states) > 1 else {}, self.count)
        return Side(state_in_leaves(after, self.tree), {})

    def _state(self, parameter: Parameter, name: str) -> Array:
        run = self.runs[parameter.name]
        return self._whole(parameter, lambda key: run.state(key, name))

    def _parts(self, parameter: Parameter, array: Array) -> list[tuple[tuple[int, ...], Array]]:
        return list(parameter.matrices(array)) if self.names == MUON else [((), array)]

    def _whole(self, parameter: Parameter, read: Callable[[Any], Array]) -> Array:
        whole = np.empty(parameter.shape)
        for key, _ in self._parts(parameter, whole):
            whole[key] = read(key)
        return whole
