"""One optimizer step of the fork against optax's, interleaved: medians and their ratio."""

from __future__ import annotations

import statistics
import time
from typing import Any

import click
import jax
import optax

from benchmarks.trees import SIZES, TREES, Leaves, draw
from muon_fork import MuonDimensionNumbers, muon

MAKERS = {
    "optax": (optax.contrib.muon, optax.contrib.MuonDimensionNumbers),
    "fork": (muon, MuonDimensionNumbers),
}


@click.command()
@click.argument("tree", type=click.Choice(list(TREES)), default="transformer")
@click.option("--size", type=int, help="Layers, leaves or rows; by default as in README.md.")
@click.option("--repeats", type=int, default=7, show_default=True)
def main(tree: str, size: int | None, repeats: int) -> None:
    """Time compilation and step of the fork and of optax.contrib.muon on TREE."""
    leaves = TREES[tree](SIZES[tree] if size is None else size)
    params = draw(leaves)
    built = {name: build(name, leaves, params) for name in MAKERS}
    report("compile", {name: seconds for name, (_, _, seconds) in built.items()})
    seconds: dict[str, list[float]] = {name: [] for name in built}
    for _ in range(repeats + 1):
        for name, (step, state, _) in built.items():
            begin = time.perf_counter()
            jax.block_until_ready(step(params, state, params))
            seconds[name].append(time.perf_counter() - begin)
    report("step", {name: statistics.median(values[1:]) for name, values in seconds.items()})


def build(name: str, leaves: Leaves, params: dict[str, Any]) -> tuple[Any, Any, float]:
    """The compiled update, its state, and the seconds of tracing and compiling."""
    maker, kind = MAKERS[name]
    dims = {leaf: kind(*axes) for leaf, (_, axes) in leaves.items()}
    transform = maker(1e-2, muon_weight_dimension_numbers=dims)
    state = transform.init(params)
    begin = time.perf_counter()
    step = jax.jit(transform.update).lower(params, state, params).compile()
    return step, state, time.perf_counter() - begin


def report(what: str, seconds: dict[str, float]) -> None:
    optax_seconds, fork_seconds = seconds["optax"], seconds["fork"]
    click.echo(
        f"{what:8} optax {optax_seconds:.3f} s  fork {fork_seconds:.3f} s  "
        f"ratio {fork_seconds / optax_seconds:.3f}"
    )


if __name__ == "__main__":
    main()
