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

    def advance(
        self, gradients: Sequence[jax.Array], buffers: Sequence[jax.Array], count: Any
    ) -> tuple[list[Any], list[Any]]:
        """New buffers and Newton-Schulz inputs of step ``count`` (1 for the first), per leaf."""
        corrections = self._corrections(count)
        # Under jit a leaf is traced once per shape, which is most of what tracing costs.
        advance = jax.jit(self._advance)
        pairs = zip(gradients, buffers, strict=True)
        done = [advance(gradient, buffer, corrections) for gradient, buffer in pairs]
        return [buffer for buffer, _ in done], [direction for _, direction in done]

    def _corrections(self, count: Any) -> tuple[Any, ...]:
        """Divisors of this step's average and of the next one's, if there is a bias."""
        if not self.bias_correction or self.style == "sgd":
            return ()
        return 1 - self.beta**count, 1 - self.beta ** optax.safe_increment(count)

    def _advance(
        self, gradient: jax.Array, buffer: jax.Array, corrections: tuple[Any, ...]
    ) -> tuple[Any, Any]:
        fresh, kept = self._terms(gradient, buffer)
        buffer = fresh + kept
        now, following = corrections or (None, None)
        if not self.nesterov:
            return buffer, _divided(buffer, now)
        fresh, kept = self._terms(_divided(gradient, now), _divided(buffer, following))
        # optax's order: a fused multiply-and-add rounds one product only, and the order says which.
        return buffer, kept + fresh

    def _terms(self, gradient: jax.Array, buffer: jax.Array) -> tuple[Any, Any]:
        fresh = gradient if self.style == "sgd" else (1 - self.beta) * gradient
        return fresh, self.beta * buffer


def _divided(leaf: jax.Array, correction: Any) -> Any:
    return leaf if correction is None else leaf / correction.astype(leaf.dtype)
