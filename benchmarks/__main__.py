"""One optimizer step of the fork against optax's, interleaved, medians and their ratio."""

from __future__ import annotations

import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from muon_fork import MuonDimensionNumbers, muon

HEADS = dict.fromkeys(("query", "key", "value"), ((0,), (-1,)))
AXES = {**HEADS, "out": ((0, 1), (2,)), "wi_0": (0, 1), "wi_1": (0, 1), "wo": (0, 1)}


def model(layers: int, width: int = 256, heads: int = 8, hidden: int = 704) -> dict:
    rng = np.random.default_rng(0)
    head = width // heads
    shapes = dict.fromkeys(HEADS, (width, heads, head))
    shapes |= {"out": (heads, head, width), "wo": (hidden, width)}
    shapes |= {"wi_0": (width, hidden), "wi_1": (width, hidden)}
    draw = lambda shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)  # noqa: E731
    return {f"layer_{i}": {k: draw(s) for k, s in shapes.items()} for i in range(layers)}


def main(layers: int, repeats: int) -> None:
    params = model(layers)
    makers = {
        "optax": (optax.contrib.muon, optax.contrib.MuonDimensionNumbers),
        "fork": (muon, MuonDimensionNumbers),
    }
    steps, compile_seconds = {}, {}
    for name, (maker, kind) in makers.items():
        dims = {layer: {k: kind(*AXES[k]) for k in leaves} for layer, leaves in params.items()}
        transform = maker(1e-2, muon_weight_dimension_numbers=dims)
        state = transform.init(params)
        begin = time.perf_counter()
        compiled = jax.jit(transform.update).lower(params, state, params).compile()
        compile_seconds[name] = time.perf_counter() - begin
        steps[name] = (compiled, state)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats + 1):
        for name, (compiled, state) in steps.items():
            begin = time.perf_counter()
            jax.block_until_ready(compiled(params, state, params))
            seconds[name].append(time.perf_counter() - begin)
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    for what, row in (("compile", compile_seconds), ("step", medians)):
        ratio = row["fork"] / row["optax"]
        print(f"{what:8} optax {row['optax']:.3f} s  fork {row['fork']:.3f} s  ratio {ratio:.3f}")


if __name__ == "__main__":
    main(*(int(value) for value in (sys.argv[1:] + ["24", "7"][len(sys.argv) - 1 :])))
