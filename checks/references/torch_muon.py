"""``torch.optim.Muon``: Keller Jordan's Muon, with Newton-Schulz always in bfloat16."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from muon_fork.coefficients import expand_coefficients
from muon_fork.spec import MuonSpec, SpecError

from .emerging import run
from .matrices import Array, Trajectory

# What torch.optim.Muon cannot be told: its own value of each field.
_FIXED: Mapping[str, Any] = {
    "nesterov_style": "ema",
    "bias_correction": False,
    "ns_eps_mode": "floor",
    "ns_dtype": "bfloat16",
    "cast_before_norm": True,
    "ns_rounding": "fused",
    "preconditioning": "frobenius",
}
_SCALES = {
    ("shape_scaling", 1.0): "original",
    ("width_transfer", 1.0): "original",
    ("spectral", 0.2): "match_rms_adamw",
    ("consistent_rms", 0.2): "match_rms_adamw",
}


def trajectory(
    spec: MuonSpec, weight: Array, gradients: Iterable[Array], learning_rate: float
) -> Trajectory:
    """One float32 ``[out, in]`` matrix after one real step per gradient.

    Raises:
      SpecError: torch.optim.Muon cannot compute what the spec asks for.
    """
    return run(maker(spec), weight, gradients, learning_rate)


def maker(spec: MuonSpec) -> Callable[[list[Any], float], Any]:
    """The real optimizer, as a function of its parameters and learning rate.

    Raises:
      SpecError: torch.optim.Muon cannot compute what the spec asks for.
      ModuleNotFoundError: torch is not installed.
    """
    import torch

    for field, value in _FIXED.items():
        if getattr(spec, field) != value:
            raise SpecError(f"torch.optim.Muon has {field}={value!r}, got {getattr(spec, field)!r}")
    scale = (spec.scale_mode, spec.extra_scale_factor)
    schedule = set(expand_coefficients(spec.coefficient_type, spec.num_ns_steps))
    if scale not in _SCALES or len(schedule) != 1:
        raise SpecError(f"torch.optim.Muon has no scale {scale} or no schedule {schedule}")
    make = functools.partial(
        torch.optim.Muon,
        weight_decay=spec.weight_decay,
        momentum=spec.beta,
        nesterov=spec.nesterov,
        ns_coefficients=schedule.pop(),
        eps=spec.ns_eps,
        ns_steps=spec.num_ns_steps,
        adjust_lr_fn=_SCALES[scale],
    )
    return lambda parameters, rate: make(parameters, lr=rate)
