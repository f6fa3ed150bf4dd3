"""Muon in float64 NumPy, straight from a MuonSpec: the oracle of last resort.

It is written for reading, one matrix at a time, and shares no line with the optimizer. All of it
is float64, so ``ns_dtype``, ``cast_before_norm`` and ``ns_rounding``, which only say how to round,
do nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from muon_fork.coefficients import Triple, expand_coefficients
from muon_fork.spec import MuonSpec

from .matrices import Array, Blocks, Trajectory, check_blocks

# Guard of optax's aol and schatten rescalings, which its eps argument does not reach.
_RESCALING_FLOOR = 1e-8
# Megatron's guard of the clipping divisor.
_CLIP_GUARD = 1e-6


def trajectory(
    spec: MuonSpec,
    weight: Array,
    gradients: Iterable[Array],
    learning_rate: float,
    blocks: Blocks | None = None,
) -> Trajectory:
    """The matrix after one step per gradient, from a zero buffer."""
    state = Trajectory(np.asarray(weight, np.float64), np.zeros(weight.shape))
    for count, gradient in enumerate(gradients):
        state = step(spec, state, gradient, learning_rate, count, blocks)
    return state


def step(
    spec: MuonSpec,
    state: Trajectory,
    gradient: Array,
    learning_rate: float,
    count: int = 0,
    blocks: Blocks | None = None,
) -> Trajectory:
    """One step; ``count`` steps came before it (only ``bias_correction`` asks)."""
    gradient = np.asarray(gradient, np.float64)
    buffer = _accumulate(spec, state.buffer, gradient)
    update = orthogonal_update(spec, _look_ahead(spec, buffer, gradient, count), blocks)
    decayed = state.weight - learning_rate * spec.weight_decay * state.weight
    return Trajectory(decayed - learning_rate * update, buffer)


def orthogonal_update(spec: MuonSpec, momentum: Array, blocks: Blocks | None = None) -> Array:
    """Each block orthogonalised and scaled by its own fans."""
    if blocks is None:
        return scale(spec, momentum.shape) * orthogonalize(spec, momentum)
    check_blocks(blocks, momentum.shape[0])
    update = np.empty_like(momentum)
    for rows in blocks:
        update[rows] = scale(spec, momentum[rows].shape) * orthogonalize(spec, momentum[rows])
    return update


def scale(spec: MuonSpec, shape: Sequence[int]) -> float:
    """Factor on the orthogonalised ``[out, in]`` matrix."""
    fan_out, fan_in = shape
    factor = {
        "spectral": max(fan_out, fan_in),
        "consistent_rms": max(fan_out, fan_in),
        "unit_rms_norm": fan_out / fan_in,
        "shape_scaling": max(1.0, fan_out / fan_in),
        "width_transfer": max(1.0, fan_out / fan_in),
    }[spec.scale_mode]
    return math.sqrt(factor) * spec.extra_scale_factor


def orthogonalize(spec: MuonSpec, matrix: Array) -> Array:
    """Newton-Schulz of one matrix, on its shorter side."""
    if matrix.shape[0] > matrix.shape[1]:
        # aol weighs rows, so its side must be the one that optax and Megatron iterate on.
        return orthogonalize(spec, matrix.T).T
    x: Array = _precondition(spec, np.asarray(matrix, np.float64))
    for triple in expand_coefficients(spec.coefficient_type, spec.num_ns_steps):
        x = _iterate(x, triple)
    return x


def _iterate(x: Array, triple: Triple) -> Array:
    a, b, c = triple
    gram: Array = x @ x.T
    after: Array = a * x + (b * gram + c * (gram @ gram)) @ x
    return after


def _precondition(spec: MuonSpec, x: Array) -> Array:
    if spec.preconditioning == "aol":
        rows: Array = np.abs(x @ x.T).sum(axis=1, keepdims=True)
        divisor: Array = np.sqrt(np.maximum(rows, _RESCALING_FLOOR))
        return x / divisor
    if spec.preconditioning == "schatten":
        return x / math.sqrt(max(float(np.linalg.norm(x @ x.T)), _RESCALING_FLOOR))
    norm = float(np.linalg.norm(x, ord=2 if spec.preconditioning == "spectral" else None))
    return x / (max(norm, spec.ns_eps) if spec.ns_eps_mode == "floor" else norm + spec.ns_eps)


def _accumulate(spec: MuonSpec, buffer: Array, gradient: Array) -> Array:
    fresh = gradient if spec.nesterov_style == "sgd" else (1.0 - spec.beta) * gradient
    return spec.beta * buffer + fresh


def _look_ahead(spec: MuonSpec, buffer: Array, gradient: Array, count: int) -> Array:
    """The matrix that enters Newton-Schulz."""
    fresh = gradient if spec.nesterov_style == "sgd" else (1.0 - spec.beta) * gradient
    now, following = 1.0, 1.0
    # The sum style has no corrected form.
    if spec.bias_correction and spec.nesterov_style == "ema":
        now = 1.0 - spec.beta ** (count + 1)
        following = 1.0 - spec.beta ** (count + 2)
    if not spec.nesterov:
        return buffer / now
    return spec.beta * buffer / following + fresh / now


@dataclass(frozen=True)
class AdamState:
    """Weight and both moments, one shape, float64."""

    weight: Array
    first: Array
    second: Array


def adam_step(
    spec: MuonSpec,
    state: AdamState,
    gradient: Array,
    learning_rate: float,
    count: int,
    decays: bool = True,
) -> AdamState:
    """One step of the AdamW branch; ``count`` steps came before it."""
    gradient = np.asarray(gradient, np.float64)
    first = spec.adam_b1 * state.first + (1.0 - spec.adam_b1) * gradient
    second = spec.adam_b2 * state.second + (1.0 - spec.adam_b2) * gradient**2
    mean = first / (1.0 - spec.adam_b1 ** (count + 1))
    if spec.adam_nesterov:
        following = 1.0 - spec.adam_b1 ** (count + 2)
        fresh = (1.0 - spec.adam_b1) * gradient / (1.0 - spec.adam_b1 ** (count + 1))
        mean = spec.adam_b1 * first / following + fresh
    square = second / (1.0 - spec.adam_b2 ** (count + 1))
    update = mean / (np.sqrt(square + spec.adam_eps_root) + spec.adam_eps)
    decay = spec.adam_weight_decay if decays else 0.0
    return AdamState(state.weight - learning_rate * (update + decay * state.weight), first, second)


def clip(spec: MuonSpec, gradients: Sequence[Array]) -> list[Array]:
    """Gradients under Megatron's global norm limit; unchanged where ``clip_grad`` is 0."""
    if not spec.clip_grad:
        return list(gradients)
    norm = math.sqrt(sum(float(np.sum(np.asarray(g, np.float64) ** 2)) for g in gradients))
    factor = min(1.0, spec.clip_grad / (norm + _CLIP_GUARD))
    return [g * factor for g in gradients]
