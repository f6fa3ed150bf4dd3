"""How leaves are spread over a mesh, and a step under jit with real NamedShardings."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import optax

from checks.sides import devices, ours
from checks.sides.gaps import Side
from checks.sides.ours import Ours, Running
from checks.sides.pair import Step
from checks.sides.state import in_leaves, state_in_leaves

DEVICES = 8
_partition_spec: Any = jax.sharding.PartitionSpec


@dataclass(frozen=True)
class Layout:
    """A mesh, and which of its axes a leaf may be cut along.

    Attributes:
      name: for a reader.
      axes: size by mesh axis.
      whose: mesh axes that a leaf is cut along, in order; each takes the leaf's first axis that it
        divides and that is still whole.
      use_all_to_all: muon()'s argument.
    """

    name: str
    axes: Mapping[str, int]
    whose: Callable[[str], tuple[str, ...]]
    use_all_to_all: bool = False

    def mesh(self, found: list[Any]) -> Any:
        array = np.asarray(found[: math.prod(self.axes.values())])
        return jax.sharding.Mesh(array.reshape(tuple(self.axes.values())), tuple(self.axes))

    def spec(self, leaf: str, shape: tuple[int, ...]) -> Any:
        cut: list[str | None] = [None] * len(shape)
        for name in self.whose(leaf):
            fits = [i for i, n in enumerate(shape) if cut[i] is None and n % self.axes[name] == 0]
            if fits:
                cut[fits[0]] = name
        return _partition_spec(*cut)


def _experts_first(leaf: str) -> tuple[str, ...]:
    return ("expert", "fsdp") if "/MoeBlock_0/w" in leaf else ("fsdp",)


LAYOUTS: tuple[Layout, ...] = (
    Layout("fsdp 8", {"fsdp": 8}, lambda _: ("fsdp",)),
    Layout("fsdp 8, all to all", {"fsdp": 8}, lambda _: ("fsdp",), use_all_to_all=True),
    Layout("fsdp 4 x tensor 2", {"fsdp": 4, "tensor": 2}, lambda _: ("fsdp", "tensor")),
    Layout("expert 4 x fsdp 2", {"expert": 4, "fsdp": 2}, _experts_first),
)


@dataclass(frozen=True)
class Spread:
    """A step on a mesh.

    Attributes:
      side: after it.
      cut: leaves that no single device held whole.
      leaves: all leaves.
      collectives: instructions of each kind in the compiled step.
    """

    side: Side
    cut: int
    leaves: int
    collectives: dict[str, int] = field(default_factory=dict)


def run(side: Ours, step: Step, found: list[Any]) -> Iterator[tuple[Layout, Spread]]:
    """The step under every layout, on the first eight of the devices.

    A quick check leaves out the layout that differs from another only in who talks to whom.
    """
    for layout in LAYOUTS:
        if layout.use_all_to_all and side.setting.level == "quick":
            continue
        side.setting.progress(f"sharding: {layout.name}")
        with devices.pinned(side.setting, side.dtype):
            yield layout, _run(side, step, layout, layout.mesh(found))


def _run(side: Ours, step: Step, layout: Layout, mesh: Any) -> Spread:
    shardings = {
        leaf: jax.sharding.NamedSharding(mesh, layout.spec(leaf, shape))
        for leaf, shape in ours.leaf_shapes(side.tree).items()
    }
    everywhere = jax.sharding.NamedSharding(mesh, _partition_spec())
    start = ours.start(side, state_in_leaves(step.before, side.tree))
    gradients = ours.stored(side, in_leaves(step.gradients, side.tree))
    params, state, by_leaf = (
        jax.device_put(tree, _like(tree, shardings, everywhere))
        for tree in (start.params, start.state, gradients)
    )
    placed = tuple(_like(tree, shardings, everywhere) for tree in (params, state, params))
    number = devices.numpy_dtype(side.dtype)
    rates = (number(step.rates.muon), number(step.rates.adam))
    function = jax.jit(functools.partial(_step, side, layout, shardings), out_shardings=placed)
    compiled = function.lower(params, state, by_leaf, rates).compile(
        compiler_options=ours.compiler_options(side.setting)
    )
    new, state, updates = compiled(params, state, by_leaf, rates)
    after = ours.read(side, Running(new, state))
    cut = sum(not a.sharding.is_fully_replicated for a in params.values())
    return Spread(
        Side(after, ours.in_source_units(side, updates)), cut, len(params), _collectives(compiled)
    )


def _step(
    side: Ours, layout: Layout, shardings: Any, params: Any, state: Any, gradients: Any, rates: Any
) -> Any:
    optimizer = ours.optimizer(
        side, rates, shardings=shardings, use_all_to_all=layout.use_all_to_all
    )
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, updates


def _like(tree: Any, shardings: Mapping[str, Any], everywhere: Any) -> Any:
    """Every array of a leaf where the leaf is, everything else on every device."""

    def place(path: Any, array: Any) -> Any:
        name = str(getattr(path[-1], "key", "")) if path else ""
        return shardings.get(name, everywhere) if array.ndim else everywhere

    return jax.tree_util.tree_map_with_path(place, tree)


def _collectives(compiled: Any) -> dict[str, int]:
    text = compiled.as_text()
    kinds = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")
    return {kind: text.count(f" {kind}(") + text.count(f" {kind}-start(") for kind in kinds}
