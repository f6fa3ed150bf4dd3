"""Muon in optax's grammar: ``muon``, ``scale_by_muon`` and ``scale_by_shape``.

Arguments, defaults and state are those of ``optax.contrib`` 0.2.8; UPSTREAM.md lists what is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax

from .adam import adamw_branch
from .clipping import clip_factor, global_norm
from .coefficients import SIMPLE
from .decay import decay_and_rate
from .dimension_numbers import MuonDimensionNumbers
from .dimension_tree import fold_leaves, fold_of, resolve, uses_muon
from .momentum import Momentum
from .newton_schulz import (
    NewtonSchulz,
    check_choice,
    check_count,
    coefficient_rows,
    iterate,
    normalize,
)
from .packing import make_plan, scale_per_leaf
from .scaling import scale_function
from .spec import (
    DecayStyle,
    EpsMode,
    NesterovStyle,
    NsDtype,
    NsRounding,
    Preconditioning,
    ScaleMode,
)
from .stacks import map_matrices

__all__ = ["MuonDimensionNumbers", "MuonState", "muon", "scale_by_muon", "scale_by_shape"]


class MuonState(NamedTuple):
    """State of ``scale_by_muon``, field for field optax's.

    Attributes:
      count: steps taken, int32 scalar.
      mu: momentum, one array per Muon leaf, in ``mu_dtype`` or the parameter's dtype.
      ns_coeffs: Newton-Schulz coefficients, shape (3,) or (n, 3); the update reads them from here.
    """

    count: jax.Array  # type: ignore[assignment]
    mu: Any
    ns_coeffs: jax.Array


def scale_by_muon(
    ns_coeffs: Any = SIMPLE,
    ns_steps: int = 5,
    beta: Any = 0.95,
    eps: Any = 1e-8,
    mu_dtype: Any = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: Preconditioning = "frobenius",
    weight_dimension_numbers: Any = None,
    nesterov_style: NesterovStyle = "ema",
    bias_correction: bool = True,
    eps_mode: EpsMode = "add",
    ns_dtype: NsDtype = "momentum",
    cast_before_norm: bool = False,
    ns_rounding: NsRounding = "fused",
    batch_update: bool = True,
    batch_update_size: int = 0,
    use_all_to_all: bool = False,
    mesh: Any = None,
) -> optax.GradientTransformation:
    """Replace each matrix by its orthogonalised momentum.

    Args:
      weight_dimension_numbers: tree of ``MuonDimensionNumbers`` for the leaves (or a prefix of it),
        or a function of the updates that returns one; None, as a whole or at a leaf, means that
        the leaf is a matrix.

    The other arguments are those of ``muon``.

    Returns:
      A ``GradientTransformation`` with state ``MuonState``. Gradients are multiplied by each leaf's
      ``update_scale`` on entry and the orthogonalised momentum on exit.

    Raises:
      ValueError: an argument outside its choices, or dimension numbers that do not fit a leaf.
    """
    check_choice("nesterov_style", nesterov_style, get_args(NesterovStyle))
    check_count("batch_update_size", batch_update_size, 0)
    rule = Momentum(beta, nesterov, nesterov_style, bias_correction)
    how = NewtonSchulz(
        ns_steps,
        eps,
        eps_mode,
        preconditioning,
        ns_dtype,
        cast_before_norm,
        ns_rounding,
    )
    mu_dtype = None if mu_dtype is None else jax.dtypes.canonicalize_dtype(mu_dtype)

    def init(params: Any) -> MuonState:
        mu = optax.tree.zeros_like(params, dtype=mu_dtype)
        return MuonState(jnp.zeros([], jnp.int32), mu, coefficient_rows(ns_coeffs, ns_steps))

    def update(updates: Any, state: MuonState, params: Any = None) -> tuple[Any, MuonState]:
        del params
        dims = _matrices(weight_dimension_numbers, updates)
        structure: Any = jax.tree.structure(updates)
        gradients = fold_leaves(jax.tree.leaves(updates), dims)
        old = jax.tree.leaves(state.mu)
        count = optax.safe_increment(state.count)
        momentum, inputs = rule.advance(gradients, old, count)
        plan = make_plan([leaf.shape for leaf in inputs], dims)
        outputs = map_matrices(
            lambda x: normalize(x, how),
            lambda x: iterate(x, state.ns_coeffs, how),
            inputs,
            plan,
            batch_update=batch_update,
            batch_update_size=batch_update_size,
            shardings=[entry.sharding for entry in dims],
            use_all_to_all=use_all_to_all,
            mesh=mesh,
        )
        if adaptive:
            outputs = _scale_by_dual_norm(inputs, outputs, dims)
        kept = [m.astype(mu_dtype or o.dtype) for m, o in zip(momentum, old, strict=True)]
        new_state = MuonState(count, structure.unflatten(kept), state.ns_coeffs)
        return structure.unflatten(fold_leaves(outputs, dims)), new_state

    return optax.GradientTransformation(init, update)


def _matrices(dimension_numbers: Any, tree: Any) -> list[MuonDimensionNumbers]:
    entries = resolve(dimension_numbers, tree)
    return [MuonDimensionNumbers() if dims is None else dims for dims in entries]


def _scale_by_dual_norm(
    inputs: Sequence[jax.Array],
    outputs: Sequence[jax.Array],
    dims: Sequence[MuonDimensionNumbers],
) -> list[jax.Array]:
    """Outputs times <input, output> over the leaf, or over all leaves joined with it."""
    products = [jnp.sum(x.conj() * y) for x, y in zip(inputs, outputs, strict=True)]
    joined: dict[str, jax.Array] = {}
    for entry, product in zip(dims, products, strict=True):
        if entry.join is not None:
            joined[entry.join] = joined.get(entry.join, 0) + product
    totals = [
        product if entry.join is None else joined[entry.join]
        for entry, product in zip(dims, products, strict=True)
    ]
    return [total * y for total, y in zip(totals, outputs, strict=True)]


def scale_by_shape(
    weight_dimension_numbers: Any = None,
    consistent_rms: Any = None,
    *,
    scale_mode: ScaleMode = "width_transfer",
    extra_scale_factor: Any = 1.0,
) -> optax.GradientTransformation:
    """Multiply updates by a factor of the fan-in and fan-out that Newton-Schulz saw.

    Args:
      weight_dimension_numbers: as in ``scale_by_muon``.
      consistent_rms, scale_mode, extra_scale_factor: as in ``muon``.

    Returns:
      A stateless ``GradientTransformation``.

    Raises:
      ValueError: arguments that contradict each other.
    """
    factor = scale_function(scale_mode, extra_scale_factor, consistent_rms)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        leaves = jax.tree.leaves(updates)
        structure: Any = jax.tree.structure(updates)
        plan = make_plan(
            [leaf.shape for leaf in leaves], _matrices(weight_dimension_numbers, updates)
        )
        scales = scale_per_leaf(plan, factor)
        scaled = [s.astype(u.real.dtype) * u for s, u in zip(scales, leaves, strict=True)]
        return structure.unflatten(scaled), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def muon(
    learning_rate: Any,
    ns_coeffs: Any = SIMPLE,
    ns_steps: int = 5,
    beta: Any = 0.95,
    eps: Any = 1e-8,
    weight_decay: Any = 0.0,
    weight_decay_mask: Any = None,
    mu_dtype: Any = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: Preconditioning = "frobenius",
    adam_b1: Any = 0.9,
    adam_b2: Any = 0.999,
    adam_eps_root: Any = 0.0,
    adam_weight_decay: Any = 0.0,
    adam_learning_rate: Any = None,
    muon_weight_dimension_numbers: Any = None,
    consistent_rms: Any = None,
    nesterov_style: NesterovStyle = "ema",
    bias_correction: bool = True,
    eps_mode: EpsMode = "add",
    ns_dtype: NsDtype = "momentum",
    cast_before_norm: bool = False,
    ns_rounding: NsRounding = "fused",
    scale_mode: ScaleMode = "width_transfer",
    extra_scale_factor: Any = 1.0,
    adam_eps: Any = None,
    adam_nesterov: bool | None = None,
    decay_style: DecayStyle = "subtract",
    adam_decay_style: DecayStyle = "subtract",
    adam_weight_decay_mask: Any = None,
    batch_update: bool = True,
    batch_update_size: int = 0,
    clip_grad: float = 0.0,
    use_all_to_all: bool = False,
    mesh: Any = None,
) -> optax.GradientTransformationExtraArgs:
    """Muon for matrices, AdamW for everything else.

    With default arguments this is ``optax.contrib.muon``. One step, in Megatron's order: clip,
    momentum, Nesterov mix, Newton-Schulz, scale, weight decay, learning rate.

    Args:
      learning_rate: scalar or schedule.
      ns_coeffs: Newton-Schulz coefficients: one triple, a row per step, or a name
        (``coefficients.COEFFICIENT_SETS``, and optax's ``standard`` and ``dion``).
      ns_steps: iterations; with rows, at least as many as rows, which then decide.
      beta: momentum decay.
      eps: guard of the norm before Newton-Schulz.
      weight_decay: decoupled decay of Muon leaves, times the learning rate and nothing else.
      weight_decay_mask: tree of bools (or prefix, or function of the parameters): which decay.
      mu_dtype: dtype of the momentum and of Adam's first moment; None is the parameter's.
      nesterov: Nesterov momentum.
      adaptive: multiply by the dual norm, arXiv:2409.20325.
      preconditioning: ``frobenius``, ``spectral``, ``aol`` or ``schatten``.
      adam_b1, adam_b2, adam_eps_root, adam_weight_decay: the AdamW branch.
      adam_learning_rate: its learning rate; None is ``learning_rate``.
      muon_weight_dimension_numbers: tree of ``MuonDimensionNumbers``, a prefix of it, or a function
        of the parameters that returns one. Leaves where it is None, or whose ``optimizer`` is
        ``adam``, belong to AdamW. None as a whole: leaves of rank 2 are Muon's.
      consistent_rms: scale by ``sqrt(max(fan_in, fan_out)) * consistent_rms``, arXiv:2502.16982.
      nesterov_style: ``ema`` keeps ``m = b m + (1-b) g`` and looks ahead to ``b m + (1-b) g``;
        ``sgd`` keeps ``m = b m + g`` and looks ahead to ``b m + g``.
      bias_correction: divide the average of ``ema`` by ``1 - b^t``. The sum of ``sgd`` is no
        average and is never corrected.
      eps_mode: ``add`` divides by ``norm + eps``, ``floor`` by ``max(norm, eps)``.
      ns_dtype: dtype of Newton-Schulz: ``momentum``, ``float32``, ``bfloat16`` or ``float64``.
      cast_before_norm: with bfloat16: cast before the norm (Keller Jordan, torch) rather than after
        it (emerging-optimizers).
      ns_rounding: with bfloat16: ``elementwise`` rounds every intermediate, ``fused`` once per
        multiply-and-add, as ``torch.addmm`` does.
      scale_mode: ``spectral``, ``unit_rms_norm``, ``shape_scaling``, ``width_transfer`` or
        ``consistent_rms`` (Megatron ``--muon-scale-mode``).
      extra_scale_factor: multiplies the scale (Megatron ``--muon-extra-scale-factor``).
      adam_eps: eps of AdamW; None is ``eps``, as in optax.
      adam_nesterov: NAdam in the AdamW branch; None is ``nesterov``, as in optax.
      decay_style: ``subtract`` takes ``lr wd p`` away from a parameter p, as optax; ``factor``
        multiplies p by ``1 - lr wd`` rounded to p's dtype, at least float32, as torch's optimizers.
      adam_decay_style: the same in the AdamW branch.
      adam_weight_decay_mask: which AdamW leaves decay, as ``weight_decay_mask``.
      batch_update: run Newton-Schulz over one stack per matrix shape instead of leaf by leaf.
      batch_update_size: matrices per Newton-Schulz call, at most; 0 is no limit.
      clip_grad: global gradient norm limit over all leaves, Megatron's ``--clip-grad``; 0 is off.
      use_all_to_all: redistribute sharded stacks so that each device holds whole matrices.
      mesh: devices over which stacks of whole matrices are spread, for leaves whose dimension
        numbers carry no sharding; None leaves their stacks to the compiler.

    Returns:
      A ``GradientTransformationExtraArgs`` whose state has optax's structure.

    Raises:
      ValueError: an argument outside its choices, or two that contradict each other.
    """
    if clip_grad < 0:
        raise ValueError(f"clip_grad must be >= 0, got {clip_grad!r}")
    coefficient_rows(ns_coeffs, ns_steps)

    def branches(dims: Any) -> dict[str, optax.GradientTransformation]:
        def fold(tree: Any) -> Any:
            structure: Any = jax.tree.structure(tree)
            return structure.unflatten(fold_leaves(jax.tree.leaves(tree), resolve(dims, tree)))

        matrices = scale_by_muon(
            ns_coeffs,
            ns_steps,
            beta,
            eps,
            mu_dtype,
            nesterov=nesterov,
            adaptive=adaptive,
            preconditioning=preconditioning,
            weight_dimension_numbers=dims,
            nesterov_style=nesterov_style,
            bias_correction=bias_correction,
            eps_mode=eps_mode,
            ns_dtype=ns_dtype,
            cast_before_norm=cast_before_norm,
            ns_rounding=ns_rounding,
            batch_update=batch_update,
            batch_update_size=batch_update_size,
            use_all_to_all=use_all_to_all,
            mesh=mesh,
        )
        scale = scale_by_shape(
            dims, consistent_rms, scale_mode=scale_mode, extra_scale_factor=extra_scale_factor
        )
        adamw = adamw_branch(
            learning_rate if adam_learning_rate is None else adam_learning_rate,
            b1=adam_b1,
            b2=adam_b2,
            eps=eps if adam_eps is None else adam_eps,
            eps_root=adam_eps_root,
            weight_decay=adam_weight_decay,
            weight_decay_mask=adam_weight_decay_mask,
            decay_style=adam_decay_style,
            mu_dtype=mu_dtype,
            nesterov=nesterov if adam_nesterov is None else adam_nesterov,
            fold=fold,
        )
        links = decay_and_rate(
            learning_rate, weight_decay, weight_decay_mask, decay_style, "decay_style"
        )
        return {"muon": optax.chain(matrices, scale, *links), "adam": adamw}

    branches(None)  # every argument is checked here, not at the first step

    def partition(tree: Any) -> tuple[Any, list[MuonDimensionNumbers | None]]:
        dims = _dimension_numbers(muon_weight_dimension_numbers, tree)
        structure: Any = jax.tree.structure(tree)
        labels = structure.unflatten(["muon" if uses_muon(entry) else "adam" for entry in dims])
        return optax.partition(branches(structure.unflatten(dims)), labels), dims

    def init(params: Any) -> Any:
        return partition(params)[0].init(params)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        transform, dims = partition(updates)
        if clip_grad > 0:
            norm = global_norm(jax.tree.leaves(updates), [fold_of(entry) for entry in dims])
            factor = clip_factor(norm, clip_grad)
            updates = jax.tree.map(lambda g: g * factor.astype(g.dtype), updates)
        new_updates, new_state = transform.update(updates, state, params, **extra)
        return new_updates, new_state

    return optax.GradientTransformationExtraArgs(init, update)


def _dimension_numbers(dimension_numbers: Any, tree: Any) -> list[MuonDimensionNumbers | None]:
    """One entry per leaf; without dimension numbers, leaves of rank two are matrices."""
    leaves = jax.tree.leaves(tree)
    if not leaves:
        return []
    if dimension_numbers is None:
        return [MuonDimensionNumbers() if leaf.ndim == 2 else None for leaf in leaves]
    return resolve(dimension_numbers, tree)
