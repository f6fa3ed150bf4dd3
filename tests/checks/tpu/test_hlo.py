"""Newton-Schulz loops and the collectives in them, as compilers write them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from checks.tpu.hlo import newton_schulz_loops, parse

# One turn of a loop, as the TPU's compiler writes it: fused products, metadata, comments.
TPU = (Path(__file__).parents[2] / "data" / "hlo" / "tpu_loop.txt").read_text()

# Matrices [16, 24, 64] of eight devices, cut by their columns or one stack from the other.
CPU = """
import sys
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from muon_fork.newton_schulz import NewtonSchulz, iterate

mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(AxisType.Auto,))
spec = PartitionSpec("fsdp") if sys.argv[1] == "stacks" else PartitionSpec(None, None, "fsdp")
place = NamedSharding(mesh, spec)
how = NewtonSchulz(steps=5)

def step(x):
    def layer(y, _):  # A model's loop, with products and collectives of its own.
        for _ in range(3):
            y = jnp.tanh(y @ (jnp.swapaxes(y, 1, 2) @ y))
        return y, None
    loss = lambda y: jax.lax.scan(layer, y, length=3)[0].sum()
    return iterate(jax.grad(loss)(x), jnp.asarray([3.4445, -4.775, 2.0315]), how)

shape = jax.ShapeDtypeStruct((16, 24, 64), jnp.float32, sharding=place)
print(jax.jit(step, out_shardings=place).lower(shape).compile().as_text())
"""


def tpu(collective: str = "all-reduce", name: str = "") -> str:
    return TPU.replace("COLLECTIVE", collective).replace("NAME", name)


def test_a_collective_inside_the_loop_is_found() -> None:
    (loop,) = newton_schulz_loops(tpu())
    assert loop.body == "body.1"
    assert loop.products == 3
    assert loop.collectives == {"all-reduce": 1}
    assert loop.names == ("jit(train_step)/while/body/dot_general",)


def test_asynchronous_ones_count_once() -> None:
    (loop,) = newton_schulz_loops(tpu("all-gather-start"))
    assert loop.collectives == {"all-gather": 1}
    (loop,) = newton_schulz_loops(tpu("all-gather-done"))
    assert loop.collectives == {}


def test_loops_of_the_model_are_none_of_newton_schulz() -> None:
    assert not newton_schulz_loops(tpu(name="transpose(jvp())/"))
    assert not newton_schulz_loops(tpu().replace("calls=%rest", "calls=%none"))


def test_operations_and_what_they_call() -> None:
    program = parse(tpu())
    assert [op.kind for op in program["body.1"]] == [
        "parameter",
        "get-tuple-element",
        "get-tuple-element",
        "fusion",
        "all-reduce",
        "fusion",
        "tuple",
    ]
    assert program["body.1"][3].calls == ("gram",)
    assert program["main.1"][1].body == "body.1"
    assert set(program) == {"add.14", "gram", "rest", "body.1", "cond.1", "main.1"}


@pytest.mark.parametrize("cut", ["stacks", "columns"])
def test_programs_that_jax_compiled(cut: str) -> None:
    """Whole matrices need no other device; matrices cut by columns need them in every turn."""
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-c", CPU, cut],
        cwd=Path(__file__).parents[3],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (loop,) = newton_schulz_loops(done.stdout)
    assert loop.products == 3
    assert bool(loop.collectives) == (cut == "columns")
