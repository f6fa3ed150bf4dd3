"""The real ``TensorParallelMuon`` of Megatron-Core, with the real emerging-optimizers, on a CPU."""

from __future__ import annotations

import functools
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from muon_fork.spec import MuonSpec, SpecError

from .matrices import Array, Qkv, Trajectory
from .megatron_cpu import importable

# Where the class lives: since 0.18, before 0.18.
_HOMES = ("megatron.core.optimizer.emerging_optimizers", "megatron.core.optimizer.muon")
# Constructor arguments that 0.18 renamed.
_OLD_NAMES = {"momentum": "momentum_beta", "nesterov": "use_nesterov", "tp_mode": "mode"}
# Megatron's fp32_matmul_prec by MuonSpec.ns_dtype.
_PRECISIONS = {"float32": "highest", "momentum": "highest", "bfloat16": "medium"}
# What TensorParallelMuon cannot be told: its own value of each field.
_FIXED: Mapping[str, Any] = {
    "nesterov_style": "ema",
    "bias_correction": False,
    "ns_eps_mode": "floor",
    "ns_eps": 1e-7,
    "cast_before_norm": False,
    "ns_rounding": "fused",
    "preconditioning": "frobenius",
    "split_head": False,
}


@functools.cache
def optimizer_class() -> type[Any]:
    """``TensorParallelMuon`` of the megatron-core that ``sys.path`` finds first.

    Raises:
      ModuleNotFoundError: megatron-core or emerging-optimizers is not installed.
    """
    # One process has no rank to tell; Megatron says so once, wherever it first looks.
    warnings.filterwarnings("ignore", "Could not determine rank")
    with importable():
        for home in _HOMES:
            try:
                return importlib.import_module(home).TensorParallelMuon  # type: ignore[no-any-return]
            except ModuleNotFoundError as error:
                if error.name != home:
                    raise
    raise ModuleNotFoundError(f"this megatron-core has no Muon: looked in {', '.join(_HOMES)}")


def arguments(spec: MuonSpec, learning_rate: float) -> dict[str, Any]:
    """Keyword arguments of ``TensorParallelMuon`` for ``spec``, under the installed names.

    Raises:
      SpecError: Megatron-Core cannot compute what the spec asks for; the message names the field.
    """
    _refuse_others(spec)
    chosen = {
        "lr": learning_rate,
        "momentum": spec.beta,
        "nesterov": spec.nesterov,
        "weight_decay": spec.weight_decay,
        "coefficient_type": spec.coefficient_type,
        "num_ns_steps": spec.num_ns_steps,
        "scale_mode": spec.scale_mode,
        "extra_scale_factor": spec.extra_scale_factor,
        "fp32_matmul_prec": _PRECISIONS[spec.ns_dtype],
        "tp_mode": "duplicated",
    }
    known = inspect.signature(optimizer_class()).parameters
    return {(n if n in known else _OLD_NAMES[n]): value for n, value in chosen.items()}


def _refuse_others(spec: MuonSpec) -> None:
    for field, value in _FIXED.items():
        if getattr(spec, field) != value:
            raise SpecError(f"Megatron-Core has {field}={value!r}, got {getattr(spec, field)!r}")


def trajectory(
    spec: MuonSpec,
    weight: Array,
    gradients: Iterable[Array],
    learning_rate: float,
    qkv: Qkv | None = None,
) -> Trajectory:
    """One float32 ``[out, in]`` matrix after one real step per gradient.

    ``qkv`` marks it as ``linear_qkv``; the spec's ``split_qkv`` then decides as Megatron's does.
    """
    return run(maker(spec, qkv), weight, gradients, learning_rate)


def maker(spec: MuonSpec, qkv: Qkv | None = None) -> Callable[[list[Any], float], Any]:
    """The real optimizer, as a function of its parameters and learning rate.

    Raises:
      SpecError: Megatron-Core cannot compute what the spec asks for.
      ModuleNotFoundError: it is not installed.
    """
    _refuse_others(spec)
    split: dict[str, Any] = {}
    if qkv is not None and spec.split_qkv:
        shapes = qkv.split_shapes(spec.split_attention_gate)
        split = {"split_qkv": True, "is_qkv_fn": _always, "qkv_split_shapes": shapes}
    make: Callable[..., Any] = optimizer_class()
    return lambda parameters, rate: make(parameters, **arguments(spec, rate), **split)


def run(
    make: Callable[[list[Any], float], Any],
    weight: Array,
    gradients: Iterable[Array],
    learning_rate: float,
) -> Trajectory:
    """Steps of a torch optimizer that keeps a ``momentum_buffer`` per parameter."""
    import torch

    parameter = torch.nn.Parameter(torch.tensor(np.asarray(weight, np.float32)))
    optimizer = make([parameter], learning_rate)
    for gradient in gradients:
        parameter.grad = torch.tensor(np.asarray(gradient, np.float32))
        optimizer.step()
    buffer = optimizer.state[parameter]["momentum_buffer"]
    return Trajectory(parameter.detach().numpy(), buffer.numpy())


def _always(_parameter: Any) -> bool:
    return True


def orthogonalizer(spec: MuonSpec) -> Callable[[Array], Array]:
    """The real Newton-Schulz of emerging-optimizers on one float32 ``[out, in]`` matrix.

    Raises:
      SpecError: Megatron-Core cannot compute what the spec asks for.
      ModuleNotFoundError: emerging-optimizers is not installed.
    """
    _refuse_others(spec)
    import torch

    with importable():
        utils = importlib.import_module("emerging_optimizers.utils")
        module = importlib.import_module("emerging_optimizers.orthogonalized_optimizers.muon_utils")
    precision = _PRECISIONS[spec.ns_dtype]

    def run(matrix: Array) -> Array:
        with utils.fp32_matmul_precision(precision):
            out = module.newton_schulz(
                torch.tensor(np.asarray(matrix, np.float32)),
                steps=spec.num_ns_steps,
                coefficient_type=spec.coefficient_type,
                eps=spec.ns_eps,
            )
        return np.asarray(out.float().numpy(), np.float64)

    return run
