"""The algorithm, from the RFC and the Moonshot lineage that it names, in the parameters' dtype."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from checks.references.matrices import Blocks
from muon_fork.coefficients import expand_coefficients

Tensor = torch.Tensor
# Both guards are sums: norm + guard.
NORM_GUARD, CLIP_GUARD = 1e-7, 1e-6


@dataclass(frozen=True)
class Options:
    """Arguments of the trainer, by its names without ``muon_``."""

    momentum: float = 0.95
    nesterov: bool = True
    matched_adamw_rms: float = 0.2
    num_ns_steps: int = 5
    split_head: bool = True
    split_linear_fc1: bool = True
    weight_decay_norm_params: bool = True
    batch_update: bool = True
    batch_update_size: int = 16
    weight_decay: float = 0.1
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_eps: float = 1e-8
    clip_grad: float = 1.0


@dataclass
class Parameter:
    """A parameter, and what the optimizer knows about it.

    Attributes:
      name: in the model.
      tensor: its values, changed in place.
      is_muon: else Adam.
      decays: under weight decay.
      blocks: rows of each matrix that Newton-Schulz sees; None is the whole.
      state: buffers by their name on disk.
    """

    name: str
    tensor: Tensor
    is_muon: bool
    decays: bool
    blocks: Blocks | None = None
    state: dict[str, Tensor] = field(default_factory=dict)


def step(
    options: Options,
    parameters: Sequence[Parameter],
    gradients: Sequence[Tensor],
    learning_rate: float,
    count: int,
) -> Tensor:
    """One step of everything, ``count`` steps having been taken; the gradients' global norm."""
    norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
    factor = options.clip_grad / (norm + CLIP_GUARD) if options.clip_grad else norm.new_ones(())
    clipped = [g * factor.clamp(max=1.0) for g in gradients]
    pairs = list(zip(parameters, clipped, strict=True))
    with torch.no_grad():
        _muon(options, [pair for pair in pairs if pair[0].is_muon], learning_rate)
        for parameter, gradient in pairs:
            if not parameter.is_muon:
                _adam(options, parameter, gradient, learning_rate, count + 1)
    return norm


def fresh_state(parameter: Parameter) -> dict[str, Tensor]:
    """Buffers before the first step: zeros like the parameter."""
    names = ("muon_buffer",) if parameter.is_muon else ("adamw_exp_avg", "adamw_exp_avg_sq")
    return {name: torch.zeros_like(parameter.tensor.detach()) for name in names}


def _state(parameter: Parameter) -> dict[str, Tensor]:
    if not parameter.state:
        parameter.state = fresh_state(parameter)
    return parameter.state


def _muon(
    options: Options, pairs: Sequence[tuple[Parameter, Tensor]], learning_rate: float
) -> None:
    inputs = []
    for parameter, gradient in pairs:
        buffer = _state(parameter)["muon_buffer"]
        buffer.mul_(options.momentum).add_(gradient)
        ahead = gradient + options.momentum * buffer if options.nesterov else buffer.clone()
        inputs.append((parameter, ahead))
    for (parameter, _), update in zip(pairs, _updates(options, inputs), strict=True):
        _decay(options, parameter, learning_rate)
        parameter.tensor.sub_(update, alpha=learning_rate)


def _updates(options: Options, inputs: Sequence[tuple[Parameter, Tensor]]) -> list[Tensor]:
    """Orthogonal, scaled by sqrt of the longer side of each matrix, in the parameters' order."""
    places: list[tuple[int, Tensor]] = []
    matrices: list[Tensor] = []
    for number, (parameter, whole) in enumerate(inputs):
        every = (np.arange(len(whole)),)
        for block in every if parameter.blocks is None else parameter.blocks:
            places.append((number, torch.from_numpy(block)))
            matrices.append(whole[places[-1][1]])
    updates = [torch.empty_like(whole) for _, whole in inputs]
    for (number, rows), matrix in zip(places, _orthogonal(options, matrices), strict=True):
        updates[number][rows] = matrix * (max(matrix.shape) ** 0.5 * options.matched_adamw_rms)
    return updates


def _orthogonal(options: Options, matrices: Sequence[Tensor]) -> list[Tensor]:
    """Newton-Schulz of all, stacked where their shapes agree, rows the shorter side."""
    size = options.batch_update_size if options.batch_update else 1
    found: list[Tensor] = list(matrices)
    for chunk in _chunks(matrices, size):
        is_tall = [matrices[n].shape[0] > matrices[n].shape[1] for n in chunk]
        stack = torch.stack(
            [matrices[n].T if tall else matrices[n] for n, tall in zip(chunk, is_tall, strict=True)]
        )
        for n, tall, done in zip(chunk, is_tall, newton_schulz(options, stack), strict=True):
            found[n] = done.T if tall else done
    return found


def _chunks(matrices: Sequence[Tensor], size: int) -> Iterator[list[int]]:
    """Numbers of matrices of one shape, up to transposition, ``size`` at a time; 0 is no limit."""
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for number, matrix in enumerate(matrices):
        by_shape.setdefault(tuple(sorted(matrix.shape)), []).append(number)
    for numbers in by_shape.values():
        width = size or len(numbers)
        yield from (numbers[at : at + width] for at in range(0, len(numbers), width))


def newton_schulz(options: Options, stack: Tensor) -> Tensor:
    """Of a stack [n, short, long] of matrices."""
    norms = torch.linalg.vector_norm(stack, dim=(1, 2), keepdim=True)
    x: Tensor = stack / (norms + NORM_GUARD)
    for a, b, c in expand_coefficients("simple", options.num_ns_steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def _adam(
    options: Options, parameter: Parameter, gradient: Tensor, learning_rate: float, count: int
) -> None:
    state = _state(parameter)
    first, second = state["adamw_exp_avg"], state["adamw_exp_avg_sq"]
    b1, b2 = options.adam_beta1, options.adam_beta2
    first.mul_(b1).add_(gradient, alpha=1.0 - b1)
    second.mul_(b2).addcmul_(gradient, gradient, value=1.0 - b2)
    divisor = (second / (1.0 - b2**count)).sqrt_().add_(options.adam_eps)
    _decay(options, parameter, learning_rate)
    parameter.tensor.addcdiv_(first / (1.0 - b1**count), divisor, value=-learning_rate)


def _decay(options: Options, parameter: Parameter, learning_rate: float) -> None:
    if parameter.decays:
        parameter.tensor.mul_(1.0 - learning_rate * options.weight_decay)
