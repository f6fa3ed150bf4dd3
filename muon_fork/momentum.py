"""Momentum buffers and the look-ahead that Newton-Schulz receives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import optax

from .spec import NesterovStyle


@dataclass(frozen=True)
class Momentum:
    """How gradients are accumulated.

    Attributes:
      beta: decay.
      nesterov: look one step ahead.
      style: ``ema`` keeps ``m = b m + (1-b) g`` and looks ahead to ``b m + (1-b) g``; ``sgd`` keeps
        ``m = b m + g`` and looks ahead to ``b m + g``.
      bias_correction: divide an ``ema`` by ``1 - b^t``; the sum of ``sgd`` has no bias to correct.
    """

    beta: Any
    nesterov: bool
    style: NesterovStyle
    bias_correction: bool

    def accumulate(self, gradient: jax.Array, buffer: jax.Array) -> Any:
        fresh = gradient if self.style == "sgd" else (1 - self.beta) * gradient
        return fresh + self.beta * buffer

    def direction(
        self, gradients: Sequence[jax.Array], momentum: Sequence[jax.Array], count: Any
    ) -> list[Any]:
        """The Newton-Schulz input of step ``count`` (1 for the first), one array per leaf."""
        corrected = self.bias_correction and self.style == "ema"
        if not self.nesterov:
            return self._unbiased(momentum, count) if corrected else list(momentum)
        if corrected:
            momentum = self._unbiased(momentum, optax.safe_increment(count))
            gradients = self._unbiased(gradients, count)
        pairs = zip(momentum, gradients, strict=True)
        if self.style == "sgd":
            return [g + self.beta * m for m, g in pairs]
        return [self.beta * m + (1 - self.beta) * g for m, g in pairs]

    def _unbiased(self, leaves: Sequence[jax.Array], count: Any) -> list[jax.Array]:
        correction = 1 - self.beta**count
        return [leaf / correction.astype(leaf.dtype) for leaf in leaves]
