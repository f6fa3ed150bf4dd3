"""What the fork adds to optax: each option against NumPy in float64, or against its definition."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muon_fork import MuonDimensionNumbers, muon

SIMPLE = (3.4445, -4.7750, 2.0315)


def reference_newton_schulz(x, steps=5, eps=1e-8):
    flip = x.shape[0] > x.shape[1]
    y = (x.T if flip else x) / (np.linalg.norm(x) + eps)
    a, b, c = SIMPLE
    for _ in range(steps):
        gram = y @ y.T
        y = a * y + (b * gram + c * gram @ gram) @ y
    return y.T if flip else y


def arrays(*shapes, dtype=jnp.float32, seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


def one_step(params, dims=None, gradients=None, **options):
    transform = muon(1.0, muon_weight_dimension_numbers=dims, **options)
    gradients = params if gradients is None else gradients
    return transform.update(gradients, transform.init(params), params)[0]


def test_sgd_style_equals_numpy_over_1000_steps_in_float64():
    with jax.enable_x64(True):
        (w,) = arrays((3, 5), dtype=jnp.float64)
        transform = muon(1e-2, nesterov_style="sgd", weight_decay=0.1, consistent_rms=0.2)

        def step(carry, gradient):
            params, state = carry
            updates, state = transform.update(gradient, state, params)
            return (params + updates, state), None

        gradients = np.random.default_rng(1).standard_normal((1000, 3, 5))
        run = jax.jit(lambda c, g: jax.lax.scan(step, c, g)[0])
        (final, _) = run((w, transform.init(w)), jnp.asarray(gradients))
        expected, buffer = np.asarray(w), np.zeros((3, 5))
        for gradient in gradients:
            buffer = 0.95 * buffer + gradient
            update = reference_newton_schulz(gradient + 0.95 * buffer) * np.sqrt(5) * 0.2
            expected = expected - 1e-2 * (update + 0.1 * expected)
        assert np.abs(np.asarray(final) - expected).max() <= 1e-12 * np.abs(expected).max()


@pytest.mark.parametrize("batch", [{}, {"batch_update": False}, {"batch_update_size": 2}])
def test_joined_leaves_are_one_matrix_per_batch_index(batch):
    gate, up = arrays((8, 3, 5), (8, 3, 7))
    dims = {name: MuonDimensionNumbers((0,), (-1,), join="fc1") for name in ("gate", "up")}
    options = {"scale_mode": "spectral", **batch}
    apart = one_step({"gate": gate, "up": up}, dims, **options)
    fused = one_step(
        {"w": jnp.concatenate([gate, up], -1)}, {"w": MuonDimensionNumbers((0,), (-1,))}, **options
    )["w"]
    np.testing.assert_allclose(jnp.concatenate([apart["gate"], apart["up"]], -1), fused, atol=1e-6)


def test_components_are_matrices_of_their_own():
    (w,) = arrays((8, 2, 6))
    dims = {"w": MuonDimensionNumbers((0,), (1, 2), component_splits=(4, 2))}
    whole = one_step({"w": w}, dims, scale_mode="unit_rms_norm")["w"]
    for part, width in ((slice(0, 4), 8), (slice(4, 6), 4)):
        alone = one_step({"w": w[..., part].reshape(8, width)}, scale_mode="unit_rms_norm")["w"]
        np.testing.assert_allclose(whole[..., part].reshape(8, width), alone, atol=1e-6)


def test_scaled_weights_move_like_their_source():
    source = dict(zip("wen", arrays((8, 6), (10, 8), (8,)), strict=True))
    gradients = dict(zip("wen", arrays((8, 6), (10, 8), (8,), seed=1), strict=True))
    folds = {"w": 0.25, "e": 8.0, "n": 1.0}
    kinds = {"w": "muon", "e": "adam", "n": "adam"}
    dims = {k: MuonDimensionNumbers(update_scale=c, optimizer=kinds[k]) for k, c in folds.items()}
    plain = {k: d._replace(update_scale=1.0) for k, d in dims.items()}
    options = {"clip_grad": 0.5, "weight_decay": 0.1, "adam_weight_decay": 0.2}
    expected = one_step(source, plain, gradients, **options)
    stored = {k: v * folds[k] for k, v in source.items()}
    got = one_step(stored, dims, {k: g / folds[k] for k, g in gradients.items()}, **options)
    for name, fold in folds.items():
        np.testing.assert_allclose(got[name], fold * expected[name], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("mode", "factor"),
    [
        ("spectral", np.sqrt(9)),
        ("consistent_rms", np.sqrt(9)),
        ("unit_rms_norm", np.sqrt(4 / 9)),
        ("shape_scaling", 1.0),
        ("width_transfer", 1.0),
    ],
)
def test_scale_modes(mode, factor):
    (w,) = arrays((9, 4))
    got = one_step({"w": w}, scale_mode=mode, extra_scale_factor=0.3)["w"]
    expected = -0.3 * factor * reference_newton_schulz(np.asarray(w, np.float64))
    np.testing.assert_allclose(got, expected, atol=5e-6)


def test_clipping_counts_every_leaf_by_megatrons_formula():
    params = dict(zip("wb", arrays((4, 6), (5,)), strict=True))
    transform = muon(1.0, clip_grad=0.5, nesterov_style="sgd")
    _, state = transform.update(params, transform.init(params), params)
    norm = np.sqrt(sum(np.sum(np.asarray(v, np.float64) ** 2) for v in params.values()))
    mu = state.inner_states["muon"].inner_state[0].mu["w"]
    np.testing.assert_allclose(mu, params["w"] * 0.5 / (norm + 1e-6), rtol=1e-6)


def test_bfloat16_gradients_of_float32_state_keep_every_dtype():
    params = dict(zip("wb", arrays((4, 6), (5,), dtype=jnp.bfloat16), strict=True))
    transform = muon(1.0, ns_dtype="bfloat16")
    start = transform.init(params)
    gradients = jax.tree.map(lambda p: p.astype(jnp.float32), params)
    _, state = transform.update(gradients, start, params)
    assert [x.dtype for x in jax.tree.leaves(state)] == [x.dtype for x in jax.tree.leaves(start)]


@pytest.mark.parametrize("ns_rounding", ["elementwise", "fused"])
@pytest.mark.parametrize("cast_before_norm", [True, False])
def test_bfloat16_newton_schulz_is_near_float32(cast_before_norm, ns_rounding):
    (w,) = arrays((16, 40))
    exact = one_step({"w": w})["w"]
    how = {"cast_before_norm": cast_before_norm, "ns_rounding": ns_rounding}
    rough = one_step({"w": w}, ns_dtype="bfloat16", **how)["w"]
    error = float(jnp.linalg.norm(rough - exact) / jnp.linalg.norm(exact))
    assert 1e-3 < error < 6e-2  # eps of bfloat16 is 4e-3; five steps amplify it about tenfold


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scale_mode": "spectral", "consistent_rms": 0.2}, "contradicts scale_mode='spectral'"),
        ({"nesterov_style": "nag"}, "nesterov_style='nag'"),
        ({"ns_coeffs": "octic"}, "unknown ns_coeffs preset 'octic'"),
        ({"ns_steps": 0}, "ns_steps must be"),
        ({"ns_rounding": "up"}, "ns_rounding='up'"),
        ({"clip_grad": -1.0}, "clip_grad must be >= 0, got -1.0"),
        ({"batch_update_size": -2}, "batch_update_size must be"),
    ],
)
def test_bad_arguments_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        muon(0.1, **options)


def test_joined_leaves_that_disagree_are_named():
    dims = {name: MuonDimensionNumbers(join="fc1") for name in "ab"}
    params = dict(zip("ab", arrays((4, 6), (5, 6)), strict=True))
    with pytest.raises(ValueError, match="joined as 'fc1' disagree"):
        one_step(params, dims)


def test_a_batch_without_matrices_stays_empty() -> None:
    params = {"w": jnp.zeros((0, 4, 6)), "v": jnp.ones((1, 4, 6))}
    dims = dict.fromkeys(params, MuonDimensionNumbers((1,), (2,)))
    transform = muon(1e-2, muon_weight_dimension_numbers=dims)
    updates, _ = transform.update(params, transform.init(params), params)
    assert updates["w"].shape == (0, 4, 6)
    assert jnp.all(updates["v"] < 0)
