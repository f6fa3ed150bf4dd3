"""Reports as the ladder makes them, of the size of real ones, from a fixed seed."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from checks.measure import Difference
from checks.result import Curve, Divergence, Figure, Outcome, Report, Rung
from muon_fork.presets import preset

STEPS = 1300
LAYERS = 2
KERNELS = (
    "self_attention/query/kernel",
    "self_attention/key/kernel",
    "self_attention/value/kernel",
    "self_attention/out/kernel",
    "mlp/wi_0/kernel",
    "mlp/wi_1/kernel",
    "mlp/wo/kernel",
    "pre_self_attention_layer_norm/scale",
)
PARAMETERS = (
    "params/token_embedder/embedding",
    *(f"params/decoder/layers_{n}/{kernel}" for n in range(LAYERS) for kernel in KERNELS),
    "params/decoder/decoder_norm/scale",
    "params/decoder/logits_dense/kernel",
)
ENVIRONMENT = {
    "device": "cpu x 1",
    "device kind": "cpu",
    "matmul precision": "highest",
    "float64": "on",
    "cores": "2",
    "platform": "Linux x86_64",
    "python": "3.11.7",
    "muon-toolkit": "0.1.0",
    "jax": "0.10.2",
    "optax": "0.2.8",
    "megatron-core": "0.19.2",
    "emerging-optimizers": "0.3.0",
}
DIVERGENCE = Divergence(
    "trajectory",
    12,
    PARAMETERS[1],
    "momentum",
    "expected -0.0123 (m = b m + (1-b) g), got -0.2460 (m = b m + g): 20 times as large, "
    "the sum where the average was asked for",
)


def difference(size: float, *, scale: float = 1.0) -> Difference:
    return Difference(size, size * 3.1, scale, 1.0 - size)


def figures(
    subject: str, worst: float, limit: float, seed: int, gate: str = "fork_vs_megatron_fp32"
) -> tuple[Figure, ...]:
    """One figure a parameter, the largest of them ``worst``."""
    rng = np.random.default_rng(seed)
    sizes = worst * 10.0 ** -np.append(rng.uniform(0.2, 4.0, len(PARAMETERS) - 1), 0.0)
    return tuple(
        Figure(
            subject=subject,
            difference=difference(float(size)),
            gate=gate,
            limit=limit,
            parameter=path,
            step=int(rng.integers(1000)),
            floor=float(size) * 0.4,
        )
        for path, size in zip(PARAMETERS, rng.permutation(sizes), strict=True)
    )


def curve(name: str, gap: float, seed: int, steps: int = STEPS) -> Curve:
    """Two losses that fall like a young model's and part slowly, up to about ``gap``."""
    rng = np.random.default_rng(seed)
    at = np.arange(steps)
    loss = 5.6 * np.exp(-at / 240.0) + 1.9 + 0.06 * rng.standard_normal(steps)
    growth = (0.02 + at / steps) * gap * np.abs(rng.standard_normal(steps)) / 3.0
    floor = (0.02 + at / steps) * 3.6e-6 * np.abs(rng.standard_normal(steps)) / 3.0
    ours = loss + growth * rng.choice((-1.0, 1.0), steps)
    ours[:3] = loss[:3]
    return Curve(
        name, 20, tuple(loss.tolist()), tuple(ours.tolist()), tuple(floor.tolist()), limit=1e-5
    )


def training(gap: float, outcome: Outcome) -> Rung:
    one = curve("qwen3, 2 layers", gap, seed=7)
    size = max(abs(a - b) for a, b in zip(one.ours, one.reference, strict=True))
    figure = Figure("loss of every step", difference(size), "replay", 1e-5, floor=3.6e-6)
    notes = ("muon-convert moved the checkpoint", "reads tokens.npy in the recorded order")
    return Rung(
        "training",
        "two real trainers from one checkpoint on the same tokens",
        outcome,
        (figure,),
        curves=(one,),
        notes=notes,
        seconds=71.4,
    )


def not_run(name: str, reason: str) -> Rung:
    return Rung(name, "the train step compiles for v5e-16", Outcome.NOT_RUN, reason=reason)


def lower_rungs() -> tuple[Rung, ...]:
    matrices = tuple(
        Figure(
            f"{rows}x{columns}, quintic, 5 steps",
            difference(10.0**-power),
            "float64",
            1e-12,
            "relative_l2",
            floor=2e-16,
        )
        for rows, columns, power in ((64, 64, 15.2), (96, 64, 14.1), (64, 256, 14.8), (1, 64, 16))
    )
    return (
        Rung(
            "newton_schulz",
            "the iteration alone, on one matrix",
            Outcome.PASSED,
            matrices,
            seconds=1.4,
        ),
        Rung(
            "step",
            "one step of every kind of parameter",
            Outcome.PASSED,
            figures("weights after one step", 1.9e-7, 5e-6, seed=1),
            notes=("the reference is emerging-optimizers 0.3.0 inside megatron-core 0.19.2",),
            seconds=3.2,
        ),
    )


def passed() -> Report:
    """Everything passed but one rung that this machine cannot run."""
    trajectory = Rung(
        "trajectory",
        "1000 steps of every kind of parameter",
        Outcome.PASSED,
        figures("weights after 1000 steps", 2.1e-6, 5e-6, seed=2),
        seconds=21.0,
    )
    compiled = Rung(
        "sharding",
        "sharded = unsharded, 8 devices",
        Outcome.PASSED,
        (Figure("fsdp 8, all weights", difference(0.0), "replay", 0.0, floor=0.0),),
        details={
            "mesh": {"fsdp": 8, "tensor": 1},
            "memory per chip": [
                {"layers": "scanned", "migrated": "31.2 MiB", "as released": "33.0 MiB"},
                {"layers": "unscanned", "migrated": "30.8 MiB", "as released": "32.6 MiB"},
            ],
        },
        seconds=8.0,
    )
    top = not_run("tpu_compile", "libtpu is not installed: install the toolkit with [tpu]")
    return Report(
        (*lower_rungs(), trajectory, compiled, training(9.5e-6, Outcome.PASSED), top),
        ENVIRONMENT,
        dataclasses.asdict(preset("megatron")),
        ("muon-check parity --level full --html parity.html",),
    )


def failed() -> Report:
    """The trajectory parts at step 12, the training rung shows it; one rung was not run."""
    wrong = figures("weights after 1000 steps", 0.31, 5e-6, seed=3)
    broken = dataclasses.replace(
        wrong[4], difference=Difference(math.nan, math.nan, math.nan, math.nan), floor=None
    )
    trajectory = Rung(
        "trajectory",
        "1000 steps of every kind of parameter",
        Outcome.FAILED,
        (*wrong[:4], broken, *wrong[5:]),
        DIVERGENCE,
        seconds=20.3,
    )
    top = not_run("tpu_compile", "libtpu is not installed: install the toolkit with [tpu]")
    return Report(
        (*lower_rungs(), trajectory, training(6.0e-2, Outcome.FAILED), top),
        ENVIRONMENT,
        dataclasses.asdict(preset("megatron")),
        (
            "muon-check parity --level full --html parity.html",
            "muon-check parity --run runs/qwen3 --maxtext ../maxtext --steps 1300 --json out.json",
        ),
    )


def small() -> Report:
    """One of everything that the form has, and values that JSON has no word for."""
    worst = Difference(0.02, 0.5, 1.001, 0.998)
    step = Rung(
        "step",
        "one step",
        Outcome.FAILED,
        (
            Figure("weights", worst, "replay", 1e-7, "max_abs", "decoder/scale", 3, 1e-9),
            Figure("loss", Difference(math.nan, math.inf, 1.0, -math.inf), "replay", 1e-7),
        ),
        dataclasses.replace(DIVERGENCE, step=None, parameter=""),
        reason="the weights differ",
        notes=("a note",),
        curves=(
            Curve("floored", 20, (2.0, 1.5, 1.25), (2.0, 1.5, 1.5), (0.0, 0.125, 0.25), 0.125),
            Curve("bare", 0, (1.0,), (math.nan,), reference_name="torch", ours_name="fork"),
        ),
        seconds=1.5,
        details={"mesh": {"fsdp": np.int64(8)}, "losses": np.array([1.0, math.nan])},
    )
    return Report(
        (step, not_run("tpu_compile", "no libtpu")),
        {"device": "cpu x 1"},
        {"beta": 0.95, "nesterov": False},
        ("muon-check parity",),
    )
