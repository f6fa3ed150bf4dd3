"""The fork under jit on MaxText-shaped leaves, with a known mistake in it where one is wanted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax

from checks.parameters import Parameter
from checks.references.matrices import Array
from checks.setting import Setting
from checks.traps import NO_TRAP, Trap
from checks.tree import MODELS
from muon_fork._muon import muon
from muon_fork.decay_mask import decays
from muon_fork.dimension_numbers import MuonDimensionNumbers
from muon_fork.rules import UNKNOWN, dimension_numbers_for
from muon_fork.spec import MuonSpec

from . import devices
from .state import Arrays, Rates, State, parameter_of


@dataclass(frozen=True)
class Ours:
    """What is computed, where: hashable, one compiled step each.

    Attributes:
      tree: parameters.
      spec: of the reference; the trap changes it for this side.
      setting: device.
      dtype: ``f64``, ``f32`` or ``bf16``.
      trap: the known mistake, ``NO_TRAP`` for none.
    """

    tree: tuple[Parameter, ...]
    spec: MuonSpec
    setting: Setting
    dtype: str
    trap: Trap = NO_TRAP

    def __hash__(self) -> int:
        return hash((self.spec, self.setting.device, self.dtype, self.trap.name))

    @property
    def own_spec(self) -> MuonSpec:
        return self.trap.spec(self.spec)


@dataclass(frozen=True)
class Running:
    """Parameters and optimizer state on the device, in MaxText's units."""

    params: Any
    state: Any


@functools.cache
def dims_of(side: Ours) -> dict[str, MuonDimensionNumbers | None]:
    """What the optimizer's rules say of each leaf.

    Raises:
      ValueError: the rules do not know a leaf.
    """
    found = {}
    for leaf, shape in leaf_shapes(side.tree).items():
        model, _, path = leaf.partition("/")
        answer = dimension_numbers_for(path.split("/"), MODELS[model], side.own_spec, shape)
        if answer is UNKNOWN:
            raise ValueError(f"no rule knows {path} of {model}, shape {shape}")
        if answer is not None and answer.join is not None:
            # Two models of the tree may have blocks of one name.
            answer = answer._replace(join=f"{model}/{answer.join}")
        found[leaf] = side.trap.dims(leaf, answer)
    return found


def leaf_shapes(tree: tuple[Parameter, ...]) -> dict[str, tuple[int, ...]]:
    return {
        leaf: part.shape
        for p in tree
        for leaf, part in p.leaves(np.zeros(p.shape, np.float32)).items()
    }


@functools.cache
def update_scales(side: Ours) -> dict[str, float]:
    """By leaf, the factor that this side believes in."""
    return {
        leaf: 1.0 if dims is None else dims.update_scale for leaf, dims in dims_of(side).items()
    }


@functools.cache
def owners(side: Ours) -> dict[str, str]:
    """By leaf, ``muon`` or ``adam``."""
    return {
        leaf: "adam" if dims is None or dims.optimizer == "adam" else "muon"
        for leaf, dims in dims_of(side).items()
    }


@functools.cache
def folds(side: Ours) -> dict[str, float]:
    """By leaf, c of ``W_maxtext = c * W_source``."""
    return {leaf: p.fold(leaf, side.spec) for leaf, p in parameter_of(side.tree).items()}


def optimizer(
    side: Ours,
    rates: tuple[Any, Any],
    shardings: Mapping[str, Any] | None = None,
    use_all_to_all: bool = False,
) -> Any:
    """``muon()`` with everything that the spec, the rules and a mesh settle."""
    spec = side.own_spec
    dims: dict[str, Any] = dict(dims_of(side))
    for leaf, sharding in (shardings or {}).items():
        dims[leaf] = dims[leaf] and dims[leaf]._replace(sharding=sharding)
    mask = {leaf: decays(_path(leaf), s, spec) for leaf, s in leaf_shapes(side.tree).items()}
    options = spec.muon_kwargs()
    if side.trap.clip is not None:
        options["clip_grad"] = 0.0
    return muon(
        rates[0],
        **options,
        adam_learning_rate=rates[1],
        muon_weight_dimension_numbers=lambda _: dims,
        adam_weight_decay_mask=lambda tree: {leaf: mask[leaf] for leaf in tree},
        use_all_to_all=use_all_to_all,
    )


def _path(leaf: str) -> tuple[str, ...]:
    return tuple(leaf.split("/")[1:])


@functools.cache
def compiled(side: Ours) -> Callable[..., Any]:
    """One step: (params, state, gradients, rates) -> (params, state, updates)."""

    @functools.partial(jax.jit, compiler_options=compiler_options(side.setting))
    def step(params: Any, state: Any, gradients: Any, rates: Any) -> Any:
        if side.trap.clip is not None:
            gradients = side.trap.clip(gradients, folds(side), side.spec.clip_grad)
        updates, state = optimizer(side, rates).update(gradients, state, params)
        return optax.apply_updates(params, updates), state, updates

    return step


@functools.cache
def _fresh(side: Ours) -> Callable[[Any], Any]:
    """The optimizer's own first state, for these parameters."""
    init: Callable[[Any], Any] = jax.jit(optimizer(side, (0.0, 0.0)).init)
    return init


def compiler_options(setting: Setting) -> dict[str, Any] | None:
    """LLVM's optimizations take longer than a quick check computes; they change no formula."""
    hurried = setting.device == "cpu" and setting.level == "quick"
    return {"xla_backend_optimization_level": 0} if hurried else None


def start(side: Ours, state: State) -> Running:
    """The state, by leaf and in the source's units, where the optimizer keeps it."""
    with devices.pinned(side.setting, side.dtype) as device:
        fold, believed, owner = folds(side), update_scales(side), owners(side)
        number = devices.numpy_dtype(side.dtype)
        count = np.asarray(0 if side.trap.forgets_count else state.count, np.int32)

        def placed(arrays: Arrays, factor: Callable[[str], float], who: str) -> dict[str, Any]:
            return {
                leaf: jax.device_put((_wide(arrays[leaf]) * factor(leaf)).astype(number), device)
                for leaf in arrays
                if who in ("", owner[leaf])
            }

        def ratio(leaf: str) -> float:
            return believed[leaf] / fold[leaf]

        params = placed(state.weights, lambda leaf: fold[leaf], "")
        second = {leaf: state.second.get(leaf, np.zeros_like(a)) for leaf, a in state.first.items()}
        fills = {
            "muon": {"mu": placed(state.first, ratio, "muon")},
            "adam": {
                "mu": placed(state.first, ratio, "adam"),
                "nu": placed(second, lambda leaf: ratio(leaf) ** 2, "adam"),
            },
        }
        empty = _fresh(side)(params)
        whole = jax.device_put(_filled(empty, fills, count), device)
        return Running(params, whole)


def _filled(state: Any, fills: Mapping[str, Mapping[str, Any]], count: Any) -> Any:
    """A fresh state with these trees and this count in both branches."""
    inner = dict(state.inner_states)
    for who, trees in fills.items():
        first, *rest = inner[who].inner_state
        merged = {
            name: {leaf: tree.get(leaf, old) for leaf, old in getattr(first, name).items()}
            for name, tree in trees.items()
        }
        first = first._replace(count=count, **merged)
        inner[who] = inner[who]._replace(inner_state=(first, *rest))
    return state._replace(inner_states=inner)


def advance(
    side: Ours, running: Running, gradients: Arrays, rates: Rates
) -> tuple[Running, dict[str, Array]]:
    """One step from gradients by leaf, in the source's units.

    Returns:
      the state after it, and the updates by leaf, float64, in the source's units.
    """
    with devices.pinned(side.setting, side.dtype) as device:
        number = devices.numpy_dtype(side.dtype)
        placed = jax.device_put(stored(side, gradients), device)
        both = (number(rates.muon), number(rates.adam))
        params, state, updates = compiled(side)(running.params, running.state, placed, both)
        return Running(params, state), in_source_units(side, updates)


def stored(side: Ours, gradients: Arrays) -> dict[str, Array]:
    """Gradients of the stored weights, in the side's dtype, from those of the source's."""
    number, fold = devices.numpy_dtype(side.dtype), folds(side)
    return {leaf: (_wide(g) / fold[leaf]).astype(number) for leaf, g in gradients.items()}


def in_source_units(side: Ours, updates: Mapping[str, Any]) -> dict[str, Array]:
    """Updates of the stored weights, as float64 updates of the source's."""
    fold = folds(side)
    return {leaf: _wide(u) / fold[leaf] for leaf, u in updates.items()}


def read(side: Ours, running: Running) -> State:
    """The state by leaf, float64, in the source's units."""
    fold, believed = folds(side), update_scales(side)
    inner = running.state.inner_states
    muon_state, adam_state = inner["muon"].inner_state[0], inner["adam"].inner_state[0]
    weights = {leaf: _wide(a) / fold[leaf] for leaf, a in running.params.items()}
    first = {
        leaf: _wide(a) * fold[leaf] / believed[leaf]
        for tree in (muon_state.mu, adam_state.mu)
        for leaf, a in tree.items()
        if hasattr(a, "shape")
    }
    second = {
        leaf: _wide(a) * (fold[leaf] / believed[leaf]) ** 2
        for leaf, a in adam_state.nu.items()
        if hasattr(a, "shape")
    }
    return State(weights, first, second, int(adam_state.count))


def _wide(array: Any) -> Array:
    return np.asarray(array, np.float64)
