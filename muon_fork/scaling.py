"""Factor on an orthogonalised matrix, from its fan-in and fan-out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import jax
import jax.numpy as jnp

from .newton_schulz import check_choice
from .spec import ScaleMode

ScaleFunction = Callable[[int, int], jax.Array]


def _root_of_larger(fan_in: int, fan_out: int) -> jax.Array:
    return jnp.sqrt(jnp.maximum(fan_in, fan_out))


def _root_of_growth(fan_in: int, fan_out: int) -> jax.Array:
    return jnp.sqrt(jnp.maximum(1, fan_out / fan_in))


def _root_of_ratio(fan_in: int, fan_out: int) -> jax.Array:
    return jnp.sqrt(jnp.asarray(fan_out / fan_in))


_MODES: dict[str, ScaleFunction] = {
    "spectral": _root_of_larger,
    "consistent_rms": _root_of_larger,
    "unit_rms_norm": _root_of_ratio,
    "shape_scaling": _root_of_growth,
    "width_transfer": _root_of_growth,
}


def scale_function(
    scale_mode: ScaleMode = "width_transfer",
    extra_scale_factor: Any = 1.0,
    consistent_rms: Any = None,
) -> ScaleFunction:
    """The factor as a function of the fans.

    Args:
      scale_mode: ``spectral`` and ``consistent_rms`` sqrt(max(out, in)), ``unit_rms_norm``
        sqrt(out / in), ``shape_scaling`` and ``width_transfer`` sqrt(max(1, out / in)).
      extra_scale_factor: multiplies it (Megatron ``--muon-extra-scale-factor``).
      consistent_rms: optax's argument: selects sqrt(max(out, in)) and is its factor.

    Raises:
      ValueError: unknown mode, or a ``consistent_rms`` that another argument contradicts.
    """
    check_choice("scale_mode", scale_mode, get_args(ScaleMode))
    if consistent_rms is None:
        root, extra = _MODES[scale_mode], extra_scale_factor
    else:
        _check_consistent_rms(scale_mode, extra_scale_factor, consistent_rms)
        root, extra = _root_of_larger, consistent_rms
    if isinstance(extra, float | int) and extra == 1.0:
        return root
    return lambda fan_in, fan_out: root(fan_in, fan_out) * extra


def _check_consistent_rms(scale_mode: ScaleMode, extra: Any, consistent_rms: Any) -> None:
    if scale_mode not in ("width_transfer", "consistent_rms"):
        raise ValueError(
            f"consistent_rms={consistent_rms} contradicts scale_mode={scale_mode!r}: pass only one"
        )
    # The same factor under both names is one factor; two different ones are a contradiction.
    numbers = [value for value in (extra, consistent_rms) if isinstance(value, float | int)]
    if len(numbers) == 2 and extra not in (1.0, consistent_rms):
        raise ValueError(
            f"consistent_rms={consistent_rms} and extra_scale_factor={extra} are both the factor "
            "of sqrt(max(out, in)): pass only one"
        )
