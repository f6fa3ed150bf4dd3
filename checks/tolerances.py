"""Every numeric limit of the tests and commands, with the measurement that justifies it.

A row is raised only together with a new measurement in its reason.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """A limit on an absolute difference (or on a ratio, where the reason says so)."""

    name: str
    limit: float
    reason: str


TOLERANCES: tuple[Tolerance, ...] = (
    Tolerance(
        "fork_vs_megatron_fp32",
        5e-6,
        "Weights and buffers after 20 steps.",
    ),
    Tolerance(
        "megatron_fp32_vs_exact",
        5e-6,
        "Float32 rounding of Megatron's own Newton-Schulz over 20 steps, against float64.",
    ),
    Tolerance(
        "bf16_over_noise",
        3.0,
        "Ratio: fork to Megatron, over Megatron to itself with inputs one unit in the last place "
        "apart, Newton-Schulz in bfloat16.",
    ),
    Tolerance(
        "replay",
        1e-7,
        "One step between real checkpoints. Measured 5.9e-8 on dense, qk-norm and MoE samples: "
        "norm scales near 1, whose float32 unit in the last place is 1.2e-7.",
    ),
    Tolerance(
        "replay_muon",
        2e-8,
        "The same for Muon's matrices. Measured 7.1e-9, 7.3e-9 and 9.4e-9: float32 values below "
        "0.25, whose unit in the last place is 1.5e-8.",
    ),
)


def limit(name: str) -> float:
    """The limit of that name.

    Raises:
      KeyError: there is no such row.
    """
    return {row.name: row.limit for row in TOLERANCES}[name]
