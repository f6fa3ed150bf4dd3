"""Newton-Schulz orthogonalisation of stacks of matrices.

One step maps X to ``a X + (b A + c A A) X`` with ``A = X X^H``. The leading axes of an array are a
batch; ``packing`` and ``stacks`` decide which leaves of a model meet in one array.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import jax
import jax.numpy as jnp

from .coefficients import COEFFICIENT_SETS, SIMPLE, expand_coefficients
from .dimension_numbers import MuonDimensionNumbers
from .one_cpu import barrier
from .packing import make_plan
from .spec import EpsMode, NsDtype, NsRounding, Preconditioning
from .stacks import map_matrices

Step = Callable[[jax.Array, jax.Array], Any]
Coefficients = Any  # array-like of shape (3,) or (n, 3), or the name of a set

# optax guards the rescaling inside the first aol/schatten step with this, whatever ``eps`` is.
_FIRST_STEP_GUARD = 1e-8
# More than any named set has; beyond it a loop, whose program does not grow.
_UNROLLED_STEPS = 12
_DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float64": jnp.float64}


@dataclass(frozen=True)
class NewtonSchulz:
    """How a stack is orthogonalised.

    Attributes:
      steps: iterations for coefficients of shape (3,); ignored for (n, 3), one row per step.
      eps: guard of the norm (frobenius and spectral preconditioning).
      eps_mode: ``add`` divides by ``norm + eps``, ``floor`` by ``max(norm, eps)``.
      preconditioning: ``frobenius`` and ``spectral`` divide by a norm, ``aol`` and ``schatten``
        rescale inside the first step.
      dtype: dtype of the iteration; ``momentum`` keeps the dtype of the input.
      cast_before_norm: cast to bfloat16 before the norm rather than after it.
      rounding: for bfloat16. ``elementwise`` rounds every intermediate to bfloat16, as the operator
        expression ``b * A + c * A @ A`` does in torch; ``fused`` rounds once after the sum, as
        torch.addmm does. Matrix products accumulate in float32 in both.
    """

    steps: int = 5
    eps: Any = 1e-8
    eps_mode: EpsMode = "add"
    preconditioning: Preconditioning = "frobenius"
    dtype: NsDtype = "momentum"
    cast_before_norm: bool = False
    rounding: NsRounding = "fused"

    def __post_init__(self) -> None:
        check_count("ns_steps", self.steps, 1)
        check_choice("preconditioning", self.preconditioning, get_args(Preconditioning))
        check_choice("eps_mode", self.eps_mode, get_args(EpsMode))
        check_choice("ns_dtype", self.dtype, get_args(NsDtype))
        check_choice("ns_rounding", self.rounding, get_args(NsRounding))
        if self.dtype == "bfloat16" and self.preconditioning in ("aol", "schatten"):
            raise ValueError(
                f"preconditioning={self.preconditioning!r} is not defined for ns_dtype='bfloat16'"
            )


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raises ValueError, naming the argument and its choices, unless ``value`` is one of them."""
    if value not in choices:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(map(repr, choices))}")


def check_count(name: str, value: Any, least: int) -> None:
    """Raises ValueError unless ``value`` is a Python int of at least ``least``."""
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a Python int of at least {least}, got {value!r}")


def coefficient_rows(ns_coeffs: Coefficients, ns_steps: int) -> jax.Array:
    """The coefficients as the state keeps them: shape (3,), or (n, 3) with n <= ``ns_steps``.

    Args:
      ns_coeffs: a triple, rows of triples, or a name: optax's ``standard`` and ``dion``, or any
        published set, stretched over ``ns_steps`` by its own rule.

    Raises:
      ValueError: unknown name, another shape, or more rows than steps.
    """
    if isinstance(ns_coeffs, str):
        ns_coeffs = _named_coefficients(ns_coeffs, ns_steps)
    rows = jnp.asarray(ns_coeffs)
    if rows.ndim not in (1, 2) or rows.shape[-1] != 3:
        raise ValueError(f"ns_coeffs must have shape (3,) or (n, 3), got {rows.shape}")
    if rows.ndim == 2 and rows.shape[0] > ns_steps:
        raise ValueError(f"ns_coeffs has {rows.shape[0]} rows, more than ns_steps={ns_steps}")
    return rows


def _named_coefficients(name: str, ns_steps: int) -> tuple[Any, ...]:
    if name == "standard":
        return SIMPLE
    if name == "dion":
        return COEFFICIENT_SETS["quintic"].rows
    if name not in COEFFICIENT_SETS:
        known = ", ".join(("standard", "dion", *COEFFICIENT_SETS))
        raise ValueError(f"unknown ns_coeffs preset {name!r}; known: {known}")
    return expand_coefficients(name, ns_steps)


def normalize(x: jax.Array, how: NewtonSchulz) -> Any:
    """Matrices [..., rows, columns] as the iteration wants them: its dtype, norm at most one.

    Raises:
      ValueError: a dtype that the iteration cannot run in.
    """
    dtype = _compute_dtype(x.dtype, how.dtype)
    if how.preconditioning not in ("frobenius", "spectral"):
        return x.astype(dtype)
    if how.dtype == "bfloat16":
        return _normalize_bfloat16(x.astype(jnp.float32), how).astype(dtype)
    y = x.astype(dtype)
    return y / _guarded(_norm(y, how.preconditioning), how)


def iterate(x: jax.Array, ns_coeffs: jax.Array, how: NewtonSchulz) -> Any:
    """Orthogonalise normalised matrices.

    Args:
      x: shape [..., rows, columns], real or complex; rows <= columns is the cheaper orientation.
      ns_coeffs: shape (3,), or (n, 3) with one row per step.
      how: the choices that are fixed at trace time.

    Returns:
      An array of the shape and dtype of ``x``.
    """
    if how.dtype == "bfloat16":
        return _iterate_bfloat16(x, ns_coeffs, how)
    rows = ns_coeffs.astype(x.dtype)
    first = _FIRST_STEP.get(how.preconditioning)
    if first is None:
        return _repeat(_step, x, rows, how.steps)
    x = first(x, rows if rows.ndim == 1 else rows[0])
    return _repeat(_step, x, rows if rows.ndim == 1 else rows[1:], how.steps - 1)


def _repeat(step: Step, x: jax.Array, rows: jax.Array, steps: int) -> Any:
    """The step with each row, or ``steps`` times with the only one.

    A matrix alone takes the steps one after another: what stands in a loop waits for the loop, what
    does not runs on a CPU beside the steps of other matrices. A stack fills a device by itself.
    """
    count = steps if rows.ndim == 1 else rows.shape[0]
    if x.ndim == 2 and count <= _UNROLLED_STEPS:
        return functools.reduce(step, _each(rows, count), x)
    if rows.ndim == 1:
        return jax.lax.fori_loop(0, steps, lambda _, y: step(y, rows), x)
    return jax.lax.scan(lambda y, row: (step(y, row), None), x, rows)[0]


def _each(rows: jax.Array, steps: int) -> Any:
    """The coefficients of each step."""
    if rows.ndim == 1:
        return [rows] * steps
    # Behind a barrier the rows are operands. A place in the table would be written into the kernel
    # that reads it, and equal steps would no longer share one.
    return barrier(list(rows))


def _compute_dtype(dtype: Any, ns_dtype: NsDtype) -> Any:
    if ns_dtype == "momentum":
        return dtype
    target = jnp.dtype(_DTYPES[ns_dtype])
    if jax.dtypes.canonicalize_dtype(target) != target:
        raise ValueError("ns_dtype='float64' needs 64-bit JAX: set jax_enable_x64")
    if not jnp.issubdtype(dtype, jnp.complexfloating):
        return target
    if ns_dtype == "bfloat16":
        raise ValueError(f"ns_dtype='bfloat16' cannot hold a complex matrix of dtype {dtype}")
    return jnp.promote_types(target, jnp.complex64)


def _norm(x: jax.Array, preconditioning: Preconditioning) -> Any:
    if preconditioning == "frobenius":
        return jnp.linalg.norm(x, ord="fro", axis=(-2, -1), keepdims=True)
    return jnp.linalg.norm(x, ord=2, axis=(-2, -1), keepdims=True)


def _guarded(norm: jax.Array, how: NewtonSchulz) -> Any:
    return norm + how.eps if how.eps_mode == "add" else jnp.maximum(norm, how.eps)


def _adjoint(x: jax.Array) -> jax.Array:
    return jnp.swapaxes(x, -1, -2).conj()


def _step(x: jax.Array, abc: jax.Array) -> jax.Array:
    gram = x @ _adjoint(x)
    return _polynomial(x, gram, abc)


def _polynomial(x: jax.Array, gram: jax.Array, abc: jax.Array) -> jax.Array:
    return abc[0] * x + (abc[1] * gram + (abc[2] * gram) @ gram) @ x


def _aol_step(x: jax.Array, abc: jax.Array) -> jax.Array:
    # Almost-orthogonal-layer rescaling of the rows, arXiv:2512.04632.
    gram = x @ _adjoint(x)
    row_sums = jnp.sum(jnp.abs(gram), axis=-1, keepdims=True)
    scale = jax.lax.rsqrt(jnp.maximum(row_sums, _FIRST_STEP_GUARD))
    return _polynomial(x * scale, gram * scale * jnp.swapaxes(scale, -1, -2), abc)


def _schatten_step(x: jax.Array, abc: jax.Array) -> jax.Array:
    # Schatten-4 norm, arXiv:2506.10935.
    gram = x @ _adjoint(x)
    norm = jnp.linalg.norm(gram, ord="fro", axis=(-2, -1), keepdims=True)
    scale = jax.lax.rsqrt(jnp.maximum(norm, _FIRST_STEP_GUARD))
    return _polynomial(x * scale, gram * scale**2, abc)


_FIRST_STEP: dict[str, Step] = {
    "aol": _aol_step,
    "schatten": _schatten_step,
}


# torch's bfloat16 arithmetic: float32 inside an operation, one rounding per stored result.


def _normalize_bfloat16(x: jax.Array, how: NewtonSchulz) -> jax.Array:
    if not how.cast_before_norm:
        return _round(x / _guarded(_norm(x, how.preconditioning), how))
    x = _round(x)
    norm = _round(_norm(x, how.preconditioning))
    return _round(x / _round(_guarded(norm, how)))


def _iterate_bfloat16(x: jax.Array, ns_coeffs: jax.Array, how: NewtonSchulz) -> Any:
    step = _bfloat16_step if how.rounding == "elementwise" else _bfloat16_fused_step
    y = _repeat(step, x.astype(jnp.float32), ns_coeffs.astype(jnp.float32), how.steps)
    return y.astype(x.dtype)


def _round(x: jax.Array) -> jax.Array:
    # A plain cast to bfloat16 and back may be optimised away; reduce_precision may not.
    return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


def _matmul(x: jax.Array, y: jax.Array) -> jax.Array:
    """Product of bfloat16 values, accumulated and returned in float32."""
    # XLA on CPU cannot run bfloat16 x bfloat16 = float32 for some layouts, and fails at run time.
    # Products of bfloat16 values are exact in float32, so float32 operands mean the same there.
    product: jax.Array = jax.lax.platform_dependent(
        x, y, cpu=_matmul_float32, default=_matmul_bfloat16
    )
    return product


def _matmul_float32(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)


def _matmul_bfloat16(x: jax.Array, y: jax.Array) -> jax.Array:
    operands = (x.astype(jnp.bfloat16), y.astype(jnp.bfloat16))
    return jnp.matmul(*operands, preferred_element_type=jnp.float32)


def _bfloat16_step(x: jax.Array, abc: jax.Array) -> jax.Array:
    gram = _round(_matmul(x, _adjoint(x)))
    square = _round(_matmul(_round(abc[2] * gram), gram))
    polynomial = _round(_round(abc[1] * gram) + square)
    return _round(_round(abc[0] * x) + _round(_matmul(polynomial, x)))


def _bfloat16_fused_step(x: jax.Array, abc: jax.Array) -> jax.Array:
    gram = _round(_matmul(x, _adjoint(x)))
    polynomial = _round(abc[1] * gram + abc[2] * _matmul(gram, gram))
    return _round(abc[0] * x + _matmul(polynomial, x))


def orthogonalize_via_newton_schulz(
    x: jax.Array,
    ns_coeffs: jax.Array,
    ns_steps: int = 5,
    preconditioning: Preconditioning = "frobenius",
    eps: Any = 1e-8,
    dimension_numbers: MuonDimensionNumbers | None = None,
    *,
    eps_mode: EpsMode = "add",
    ns_dtype: NsDtype = "momentum",
    cast_before_norm: bool = False,
    ns_rounding: NsRounding = "fused",
) -> jax.Array:
    """Orthogonalise one array.

    Args:
      x: a matrix [rows, columns], or any array together with ``dimension_numbers``.
      ns_coeffs: shape (3,), or (n, 3) with one row per step.
      ns_steps: iterations; ignored for coefficients of shape (n, 3).
      preconditioning: see ``NewtonSchulz``.
      eps: guard of the norm.
      dimension_numbers: matrix view of ``x``; ignored for a matrix, as in optax, unless it has
        ``component_splits``.
      eps_mode, ns_dtype, cast_before_norm, ns_rounding: see ``NewtonSchulz``.

    Returns:
      The orthogonalised array, of the shape and dtype of ``x``.

    Raises:
      ValueError: neither a matrix nor dimension numbers, or coefficients of another shape.
    """
    if x.ndim != 2 and dimension_numbers is None:
        raise ValueError(f"an array of shape {x.shape} needs dimension numbers to be a matrix")
    if dimension_numbers is None or (x.ndim == 2 and not dimension_numbers.component_splits):
        dimension_numbers = MuonDimensionNumbers()
    ns_coeffs = jnp.asarray(ns_coeffs)
    if ns_coeffs.ndim not in (1, 2) or ns_coeffs.shape[-1] != 3:
        raise ValueError(f"ns_coeffs must have shape (3,) or (n, 3), got {ns_coeffs.shape}")
    how = NewtonSchulz(
        ns_steps, eps, eps_mode, preconditioning, ns_dtype, cast_before_norm, ns_rounding
    )
    (result,) = map_matrices(
        lambda x: normalize(x, how),
        lambda x: iterate(x, ns_coeffs, how),
        [x],
        make_plan([x.shape], [dimension_numbers]),
    )
    return result
