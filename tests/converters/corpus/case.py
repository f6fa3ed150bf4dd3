"""What a hostile checkpoint is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Damage = Callable[[Path], object]

DISTCP = "__0_0.distcp"
COMMON = "common_state/shard_0_1"
HEAD = "output_layer.weight"
PROJ = "decoder.layers.self_attention.linear_proj.weight"
MOMENTUM = f"optimizer.state.momentum_buffer.{PROJ}"
FIRST = f"optimizer.state.exp_avg.{HEAD}"
SECOND = f"optimizer.state.exp_avg_sq.{HEAD}"


@dataclass(frozen=True)
class Case:
    """One checkpoint that must be refused.

    Attributes:
      name: of the test.
      damage: what is done to a copy of the sample.
      message: pattern of the error; it names the file or tensor.
      sample: checkpoint of which the copy is, at iteration 20.
    """

    name: str
    damage: Damage
    message: str
    sample: str = "dense_td"
