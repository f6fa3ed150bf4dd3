"""S6, what the team that wrote it learned later: plain Adam, a guard of its own, bfloat16."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from tests.fork.rfc.steps import (
    DECAY,
    LEARNING_RATE,
    MATRIX,
    RFC,
    SIMPLE,
    build,
    flat,
    matrix_update,
    muon_state,
    nest,
    newton_schulz,
    random_tree,
    relative,
    run,
)


def test_s6_adam_is_not_nesterov() -> None:
    """Plain Adam: the second step from two different gradients, by hand."""
    shapes = {"token_embedder/embedding": (4, 3)}
    (path,) = shapes
    gradients = [random_tree(shapes, seed)[path] for seed in (1, 2)]
    m, v = np.zeros((4, 3)), np.zeros((4, 3))
    w = np.zeros((4, 3))
    for t, g in enumerate(gradients, start=1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        adam = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        w = w - LEARNING_RATE * (adam + DECAY * w)
    zeros = {path: np.zeros((4, 3))}
    got, _ = run("qwen3", RFC, zeros, lambda s: {path: gradients[s]}, 2)
    assert relative(got[path], w) < 1e-12
    nadam, _ = run(
        "qwen3", RFC.replace(adam_nesterov=True), zeros, lambda s: {path: gradients[s]}, 2
    )
    assert relative(nadam[path], w) > 1e-2


def test_s6_guard_of_the_norm_is_not_adams() -> None:
    tiny = {path: 1e-8 * g for path, g in random_tree(MATRIX, 1).items()}
    (path,) = MATRIX
    zeros = {path: np.zeros((8, 12))}
    spec = RFC.replace(weight_decay=0.0, adam_eps=1e-3)
    after, _ = run("qwen3", spec, zeros, lambda _: tiny)
    assert relative(-after[path] / LEARNING_RATE, matrix_update(1.95 * tiny[path])) < 1e-12
    assert relative(-after[path] / LEARNING_RATE, matrix_update(1e9 * tiny[path])) > 1e-3


def bf16(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def bf16_newton_schulz(x: np.ndarray, coefficients: tuple[float, ...]) -> np.ndarray:
    """Where torch rounds: every elementwise result and, after float32 sums, every product."""
    a, b, c = (np.float32(value) for value in coefficients)
    y = bf16(x.astype(np.float32))
    y = bf16(y / bf16(bf16(np.float32(np.linalg.norm(y))) + np.float32(1e-7)))
    for _ in range(5):
        gram = bf16(y @ y.T)
        square = bf16(bf16(c * gram) @ gram)
        inner = bf16(bf16(b * gram) + square)
        y = bf16(bf16(a * y) + bf16(inner @ y))
    return y


def test_s6_bfloat16_iteration_keeps_float32_coefficients() -> None:
    x = np.random.default_rng(3).standard_normal((24, 40)).astype(np.float32)
    path = "decoder/layers_0/mlp/wo/kernel"
    spec = RFC.replace(ns_dtype="bfloat16", weight_decay=0.0, nesterov=False)
    tree = {"params": nest({path: x})["params"]}
    optimizer = build("qwen3", spec, tree)
    zeros = jax.tree.map(jnp.zeros_like, tree)
    updates, state = optimizer.update(tree, optimizer.init(tree), zeros)
    got = -flat(updates)[path] / np.float32(LEARNING_RATE) / (0.2 * np.sqrt(40))
    kept = np.mean(np.abs(got - bf16_newton_schulz(x, SIMPLE)))
    rounded = np.mean(np.abs(got - bf16_newton_schulz(x, tuple(bf16(np.array(SIMPLE))))))
    exact = np.mean(np.abs(got - newton_schulz(x.astype(np.float64))))
    assert kept < 0.2 * min(rounded, exact)
    assert flat(muon_state(state).mu)[path].dtype == np.float32
