"""Megatron's optimizer and learning-rate schedule for a run."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

import torch

from .training import Training

# Fields that Megatron-Core 0.18 renamed.
_OLD_NAMES = {"muon_nesterov": "muon_use_nesterov"}
_KEPT = "weight_decay_of_the_step"


def optimizer_config(settings: Mapping[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    """Megatron's OptimizerConfig under the installed release's names."""
    from megatron.core.optimizer import OptimizerConfig

    known = {field.name for field in dataclasses.fields(OptimizerConfig)}
    fields = {(n if n in known else _OLD_NAMES[n]): value for n, value in settings.items()}
    return OptimizerConfig(bf16=dtype == torch.bfloat16, params_dtype=dtype, **fields)


def core_optimizer(config: Any, model: Any) -> Any:
    """As Megatron's training script gets it."""
    from megatron.core.optimizer import get_megatron_optimizer

    if hasattr(config, "muon_use_nesterov"):
        older = importlib.import_module("megatron.core.optimizer.muon")
        return older.get_megatron_muon_optimizer(config, [model])
    return get_megatron_optimizer(config, [model])


def subtract_decay(optimizer: Any) -> None:
    """Take the weight decay out of every torch AdamW of Megatron's, and do it by subtraction."""
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if isinstance(part.optimizer, torch.optim.AdamW):
            part.optimizer.register_step_pre_hook(_decay)
            part.optimizer.register_step_post_hook(_restore)


@torch.no_grad()
def _decay(adam: torch.optim.Optimizer, *_: Any) -> None:
    for group in adam.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.add_(parameter, alpha=-group["lr"] * group["weight_decay"])
        group[_KEPT], group["weight_decay"] = group["weight_decay"], 0.0


def _restore(adam: torch.optim.Optimizer, *_: Any) -> None:
    for group in adam.param_groups:
        group["weight_decay"] = group.pop(_KEPT)


def scheduler_of(training: Training, optimizer: Any) -> Any:
    """Counts samples, as Megatron's does."""
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    settings, options = training.settings, training.optimizer
    batch = training.model.batch
    decay = settings["weight_decay"]
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=settings["lr"],
        min_lr=settings["min_lr"],
        lr_warmup_steps=options.warmup * batch,
        lr_decay_steps=options.decay * batch,
        lr_decay_style=options.decay_style,
        start_wd=decay,
        end_wd=decay,
        wd_incr_steps=options.decay * batch,
        wd_incr_style="constant",
    )
