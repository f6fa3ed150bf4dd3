"""Algorithm 1 of the DeepSeek-V4 report, written out as printed, in float64.

Deliberately not built from a MuonSpec: every number stands here a second time, from the report.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .matrices import Array, Trajectory

MOMENTUM = 0.95
WEIGHT_DECAY = 0.1
UPDATE_RMS = 0.18
RAPID = (8, (3.4445, -4.7750, 2.0315))
SETTLING = (2, (2.0, -1.5, 0.5))


def trajectory(weight: Array, gradients: Iterable[Array], learning_rate: float) -> Trajectory:
    """One ``[n, m]`` matrix after one step per gradient, from a zero buffer."""
    w = np.asarray(weight, np.float64)
    m = np.zeros_like(w)
    for gradient in gradients:
        g = np.asarray(gradient, np.float64)
        m = MOMENTUM * m + g
        update = hybrid_newton_schulz(MOMENTUM * m + g) * np.sqrt(max(w.shape)) * UPDATE_RMS
        w = w * (1.0 - learning_rate * WEIGHT_DECAY) - learning_rate * update
    return Trajectory(w, m)


def hybrid_newton_schulz(matrix: Array) -> Array:
    """Eight fast iterations, then two that settle the singular values at one."""
    x: Array = matrix / np.linalg.norm(matrix)
    for steps, (a, b, c) in (RAPID, SETTLING):
        for _ in range(steps):
            gram = x @ x.T
            x = a * x + b * gram @ x + c * gram @ gram @ x
    return x
