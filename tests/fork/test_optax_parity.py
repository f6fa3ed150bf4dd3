"""With default arguments the fork is optax's Muon: the same updates and the same state."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax.contrib import MuonDimensionNumbers as OptaxDimensionNumbers
from optax.contrib import _muon as optax_muon

from muon_fork import MuonDimensionNumbers, MuonState, muon
from muon_fork import orthogonalize_via_newton_schulz as orthogonalize

SHAPES = {
    "wide": (8, 12),
    "tall": (12, 8),
    "square": (16, 16),
    "batched": (3, 8, 12),
    "heads": (8, 3, 4),
    "four": (2, 3, 8, 4),
    "bias": (7,),
    "adam_3d": (2, 8, 12),
    "odd": (37, 5),
}
AXES = {
    "wide": (0, 1),
    "tall": (0, 1),
    "square": ((0,), (1,)),
    "batched": (-2, -1),
    "heads": ((0,), (-2, -1)),
    "four": ((2,), (0, 3)),
    "odd": (0, 1),
}
OPTIONS = [
    {},
    {"nesterov": False},
    {"adaptive": True},
    {"preconditioning": "spectral"},
    {"preconditioning": "aol"},
    {"preconditioning": "schatten"},
    {"consistent_rms": 0.2, "weight_decay": 0.1, "adam_weight_decay": 0.3},
    {"ns_coeffs": "standard", "ns_steps": 3},
    {"ns_coeffs": "dion"},
    {"ns_coeffs": ((3.0, -4.0, 2.0), (2.0, -1.5, 0.5)), "preconditioning": "aol"},
    {"mu_dtype": jnp.bfloat16},
    {"beta": 0.8, "eps": 1e-3, "adam_b1": 0.8, "adam_b2": 0.9, "adam_eps_root": 1e-6},
    {"learning_rate": lambda count: 0.1 / (1 + count), "adam_learning_rate": 0.3},
    {"weight_decay": 0.1, "weight_decay_mask": lambda p: jax.tree.map(lambda x: x.ndim == 2, p)},
]


def tree(seed, dtype=jnp.float32, shapes=SHAPES):
    rng = np.random.default_rng(seed)
    values = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    if jnp.issubdtype(dtype, jnp.complexfloating):
        values = {name: v + 1j * rng.standard_normal(v.shape) for name, v in values.items()}
    return {name: jnp.asarray(v, dtype) for name, v in values.items()}


def dimension_numbers(kind, shapes=SHAPES):
    return {name: kind(*AXES[name]) if name in AXES else None for name in shapes}


def run(transform, steps, dtype=jnp.float32, shapes=SHAPES, wide=False):
    """Updates of each step and the last state; ``wide`` takes the same values in float64."""

    def values(seed):
        drawn = tree(seed, dtype, shapes)
        return jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float64) if wide else x, drawn)

    params = values(0)
    state = transform.init(params)
    update = jax.jit(transform.update)
    trajectory = []
    for step in range(steps):
        updates, state = update(values(step + 1), state, params)
        trajectory.append(updates)
    return trajectory, state


def named_leaves(a_tree):
    paths = jax.tree_util.tree_leaves_with_path(a_tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in paths}


def relative(new, old):
    new, old = np.asarray(new), np.asarray(old)
    if not np.issubdtype(old.dtype, np.inexact):
        new, old = new.astype(np.float64), old.astype(np.float64)
    wide = np.complex128 if np.iscomplexobj(old) else np.float64
    new, old = new.astype(wide), old.astype(wide)
    return np.linalg.norm((new - old).ravel()) / max(np.linalg.norm(old.ravel()), 1e-30)


def assert_same(ours, theirs, bound):
    ours, theirs = named_leaves(ours), named_leaves(theirs)
    assert list(ours) == list(theirs)
    for name, old in theirs.items():
        assert (ours[name].shape, ours[name].dtype) == (old.shape, old.dtype), name
        assert relative(ours[name], old) <= bound, name


# JAX 0.10 compiles both to the same arithmetic, to the bit. JAX 0.12 compiles a product by what is
# around it: 1e-6 apart, and on some shapes optax itself leaves float64 by up to 9e-6, behind a
# spectral norm by 1.3e-5. There the fork may differ from optax, but not leave float64 any farther.
IS_JAX_0_10 = jax.__version_info__ < (0, 11)
FLOAT32 = 1e-6


def assert_same_or_as_near(ours, theirs, bound, exact):
    apart = {k for k, old in theirs.items() if not relative(ours[k], old) <= bound}
    assert not (apart and IS_JAX_0_10), apart
    truth = named_leaves(exact()) if apart else {}
    for name in apart:
        error = relative(ours[name], truth[name])
        # Twice: both are single draws of the same rounding noise.
        assert error <= 2 * max(bound, relative(theirs[name], truth[name])), (name, error)


def compare(options, steps=50, dtype=jnp.float32, bound=FLOAT32, shapes=SHAPES):
    options = {"learning_rate": 0.02, **options}
    dims = dimension_numbers(OptaxDimensionNumbers, shapes)
    ours = muon(
        **options, muon_weight_dimension_numbers=dimension_numbers(MuonDimensionNumbers, shapes)
    )
    theirs = optax.contrib.muon(**options, muon_weight_dimension_numbers=dims)
    compare_runs(ours, theirs, steps, dtype, bound, shapes)


def compare_runs(ours, theirs, steps, dtype, bound, shapes):
    def exact():
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, run(theirs, steps, dtype, shapes, wide=True))

    new, old = run(ours, steps, dtype, shapes), run(theirs, steps, dtype, shapes)
    if dtype == jnp.float32 and bound:
        assert_same_or_as_near(named_leaves(new), named_leaves(old), bound, exact)
    else:
        assert_same(new, old, bound)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "default")
def test_fifty_steps_of_every_option_equal_optax(options):
    compare(options)


def test_default_is_bit_equal_where_the_arithmetic_is():
    compare({}, 50, bound=0.0 if IS_JAX_0_10 else FLOAT32)


@pytest.mark.parametrize("preconditioning", ["frobenius", "spectral", "aol"])
def test_complex_leaves_equal_optax(preconditioning):
    shapes = {name: SHAPES[name] for name in ("wide", "tall", "bias")}
    compare({"preconditioning": preconditioning}, 3, jnp.complex64, shapes=shapes)


def test_complex_schatten_is_unitary_where_optax_overflows():
    x = tree(0, jnp.complex64)["wide"]
    coefficients = jnp.asarray([2.0, -1.5, 0.5])
    y = np.asarray(orthogonalize(x, coefficients, 20, "schatten"))
    np.testing.assert_allclose(y @ y.conj().T, np.eye(8), atol=1e-5)


@pytest.mark.parametrize("mu_dtype", [None, jnp.float32])
def test_bfloat16_parameters_equal_optax(mu_dtype):
    shapes = {name: SHAPES[name] for name in ("wide", "batched", "bias")}
    compare({"mu_dtype": mu_dtype}, 3, jnp.bfloat16, 1e-6 if mu_dtype else 2e-2, shapes)


def test_float64_equals_optax_to_1e_12():
    with jax.enable_x64(True):
        for options in ({"weight_decay": 0.1}, {"ns_coeffs": "dion", "nesterov": False}):
            compare(options, 50, jnp.float64, 1e-12)


@pytest.mark.parametrize(
    ("dims", "shapes"),
    [
        (lambda kind: None, {"w": (4, 6), "b": (6,), "c": (2, 3, 4)}),
        (lambda kind: None, {"b": (6,)}),
        (lambda kind: None, {"w": (4, 6)}),
        (lambda kind: kind(0, 1), {"w": (4, 6), "v": (6, 4)}),
        (
            lambda kind: lambda p: jax.tree.map(lambda x: kind() if x.ndim == 2 else None, p),
            {"w": (4, 6), "b": (6,)},
        ),
    ],
    ids=["none", "only-adam", "only-muon", "one-for-all", "callable"],
)
def test_every_form_of_dimension_numbers_equals_optax(dims, shapes):
    ours = muon(0.1, muon_weight_dimension_numbers=dims(MuonDimensionNumbers))
    theirs = optax.contrib.muon(0.1, muon_weight_dimension_numbers=dims(OptaxDimensionNumbers))
    compare_runs(ours, theirs, 3, jnp.float32, FLOAT32, shapes)


def test_prefix_and_masked_nodes():
    params = {"a": {"x": jnp.ones((2, 3)), "y": jnp.ones((3, 2))}, "b": {"x": jnp.ones((2, 3))}}
    dims = {"a": MuonDimensionNumbers(), "b": None}
    state = muon(0.1, muon_weight_dimension_numbers=dims).init(params)
    mu = state.inner_states["muon"].inner_state[0].mu
    assert isinstance(mu["b"]["x"], optax.MaskedNode)
    assert mu["a"]["y"].shape == (3, 2)
    masked = {**params, "b": {"x": optax.MaskedNode()}}
    updates, _ = muon(0.1).update(masked, muon(0.1).init(masked), masked)
    assert isinstance(updates["b"]["x"], optax.MaskedNode)


def test_optax_and_maxtext_dimension_numbers_are_understood():
    params = {"w": tree(0)["batched"]}
    runs = []
    for kind in (MuonDimensionNumbers, OptaxDimensionNumbers):
        transform = muon(0.1, muon_weight_dimension_numbers={"w": kind(-2, -1)})
        runs.append(transform.update(params, transform.init(params), params)[0])
    np.testing.assert_array_equal(runs[0]["w"], runs[1]["w"])


def test_state_has_the_structure_of_optax():
    params = {"w": jnp.ones((4, 6)), "b": jnp.ones(6)}
    mask = {"w": True, "b": False}
    ours = muon(lambda _: 0.1, clip_grad=1.0, adam_weight_decay=0.1, adam_weight_decay_mask=mask)
    state, reference = ours.init(params), optax.contrib.muon(lambda _: 0.1).init(params)
    assert list(named_leaves(state)) == list(named_leaves(reference))
    as_ours = jax.tree.map(
        lambda node: MuonState(*node) if isinstance(node, optax_muon.MuonState) else node,
        reference,
        is_leaf=lambda node: isinstance(node, optax_muon.MuonState),
    )
    assert jax.tree.structure(state) == jax.tree.structure(as_ours)
    mapped = optax.tree_map_params(muon(0.1), lambda _: None, muon(0.1).init(params))
    assert mapped.inner_states["adam"].inner_state[0].nu["b"] is None


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.complex64])
@pytest.mark.parametrize("shape", [(4, 3), (3, 4)])
def test_converging_coefficients_give_a_unitary_matrix(dtype, shape):
    x = jax.random.normal(jax.random.key(0), shape, dtype)
    y = np.asarray(orthogonalize(x, jnp.asarray([2.0, -1.5, 0.5]), 20, eps=1e-12))
    gram = y.conj().T @ y if shape[0] > shape[1] else y @ y.conj().T
    np.testing.assert_allclose(gram, np.eye(3), atol=1e-5)


def test_reshaped_leaves_move_like_their_matrix():
    matrix = jax.random.normal(jax.random.key(0), (10, 12))
    folded = matrix.reshape(10, 3, 1, 4).transpose(3, 2, 0, 1)
    plain, _ = muon(1e-3).update({"w": matrix}, muon(1e-3).init({"w": matrix}), {"w": matrix})
    dims = {"w": MuonDimensionNumbers((2,), (3, 0))}
    transform = muon(1e-3, muon_weight_dimension_numbers=dims)
    moved, _ = transform.update({"w": folded}, transform.init({"w": folded}), {"w": folded})
    expected = plain["w"].reshape(10, 3, 1, 4).transpose(3, 2, 0, 1)
    np.testing.assert_allclose(moved["w"], expected, atol=1e-8)


@pytest.mark.parametrize("options", [{}, {"adaptive": True}, {"nesterov": False}])
def test_converges_on_a_complex_quadratic(options):
    target = jnp.asarray([[1 + 2j, 0], [-1 + 1j, 1 - 3j]], jnp.complex64)
    transform = muon(1e-2, **options)

    def step(carry, _):
        params, state = carry
        updates, state = transform.update(2 * (params - target), state, params)
        return (optax.apply_updates(params, updates), state), None

    start = jnp.zeros_like(target)
    run_all = jax.jit(lambda c: jax.lax.scan(step, c, length=1000)[0])
    (params, _) = run_all((start, transform.init(start)))
    np.testing.assert_allclose(params, target, atol=3e-2)
