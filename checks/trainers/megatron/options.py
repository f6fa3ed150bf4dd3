"""Optimizer and layout of a run, in Megatron's words. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

# What a run has unless it says otherwise; names are fields of Megatron's OptimizerConfig.
SETTINGS: dict[str, Any] = {
    "optimizer": "muon",
    "lr": 2e-3,
    "min_lr": 2e-3,
    "weight_decay": 0.1,
    "clip_grad": 1.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "adam_eps": 1e-8,
    "muon_momentum": 0.95,
    "muon_nesterov": True,
    "muon_scale_mode": "spectral",
    "muon_extra_scale_factor": 0.2,
    "muon_coefficient_type": "quintic",
    "muon_num_ns_steps": 5,
    "muon_split_qkv": True,
    "muon_fp32_matmul_prec": "highest",
}


# RFC-0023's production run, with Newton-Schulz in the dtype of the weights.
RFC: dict[str, Any] = {
    "muon_matched_adamw_rms": 0.2,
    "muon_split_head": True,
    "muon_split_linear_fc1": True,
    "muon_weight_decay_norm_params": True,
    "muon_batch_update": True,
    "muon_batch_update_size": 16,
}


@dataclass(frozen=True)
class Optimizer:
    """
    Attributes:
      changes: of ``SETTINGS``, by name.
      rfc: arguments of RFC-0023's optimizer, where that one trains.
      decay_style, warmup, decay: learning-rate schedule, in steps; ``constant`` stays at ``lr``.
      subtract_decay: AdamW decays by ``p - lr * wd * p``, as Megatron's FusedAdam does on a GPU.
        Without a GPU Megatron falls back to torch's AdamW, which multiplies by ``1 - lr * wd``:
        rounded to float32 first, that factor is wrong the same way in every step.
    """

    changes: dict[str, Any] = field(default_factory=dict)
    rfc: dict[str, Any] = field(default_factory=dict)
    decay_style: str = "constant"
    warmup: int = 0
    decay: int = 100_000
    subtract_decay: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        return SETTINGS | self.changes


@dataclass(frozen=True)
class Layout:
    """Processes that share the model, ``tensor`` times ``pipeline``, and the batch, ``data``."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1

    @property
    def processes(self) -> int:
        return self.tensor * self.pipeline * self.data


ShardedForm = Literal["dp_reshardable", "fully_reshardable"]


@dataclass(frozen=True)
class Sharding:
    """How data-parallel ranks share the optimizer's state (``--use-distributed-optimizer``).

    Of Adam alone every rank has a range of the flat buffers. Of Muon every rank has whole matrices.

    Attributes:
      form: of torch_dist checkpoints, in Megatron's words: flat buffers, or named tensors
        (``--dist-ckpt-optim-fully-reshardable``).
      layout: the matrices lie in buffers of their own, and what Muon leaves to Adam is shared in
        ranges (``use_layer_wise_param_layout``); without it that, too, is dealt out whole.
    """

    form: ShardedForm = "dp_reshardable"
    layout: bool = False
