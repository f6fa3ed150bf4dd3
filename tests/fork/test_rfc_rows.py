"""RFC-0023 row by row: what it asks of MaxText's Muon, each against arithmetic written by hand.

S1 momentum, S2 decay mask, S3 fans, S4 batched update, S5 granularity, S6 what the team that wrote
it learned later. Everything goes through the checkout's glue, as a migrated MaxText would.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from muon_fork import muon
from muon_fork.maxtext import adam_weight_decay_mask, dimension_rules, muon_kwargs
from muon_fork.presets import preset
from muon_fork.spec import MuonSpec
from tests.fork.param_trees import config

LEARNING_RATE, DECAY = 0.02, 0.1
# The RFC's Megatron, in float64 so that only the arithmetic counts.
RFC = preset("megatron_rfc").replace(
    ns_dtype="float64", weight_decay=DECAY, adam_weight_decay=DECAY
)
SIMPLE = (3.4445, -4.7750, 2.0315)
ATTENTION = "decoder/layers/self_attention"

Tree = dict[str, np.ndarray]


@pytest.fixture(autouse=True)
def _double_precision() -> Any:
    with jax.enable_x64(True):
        yield


def newton_schulz(x: np.ndarray, eps: float = 1e-7, steps: int = 5) -> np.ndarray:
    wide = x.shape[0] <= x.shape[1]
    y = x if wide else x.T
    y = y / (np.linalg.norm(y) + eps)
    a, b, c = SIMPLE
    for _ in range(steps):
        gram = y @ y.T
        y = a * y + (b * gram + c * gram @ gram) @ y
    return y if wide else y.T


def matrix_update(u: np.ndarray) -> np.ndarray:
    """Orthogonalised and scaled as the RFC's Megatron scales: its fans are those of ``u``."""
    return 0.2 * np.sqrt(max(u.shape)) * newton_schulz(u)


def nest(tree: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, leaf in tree.items():
        *parents, name = path.split("/")
        node = nested
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = jnp.asarray(leaf)
    return {"params": nested}


def flat(tree: Any) -> Tree:
    rows = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {"/".join(k.key for k in path[1:]): np.asarray(leaf) for path, leaf in rows}


def build(family: str, spec: MuonSpec, params: Any) -> Any:
    """The optimizer as a migrated checkout builds it."""
    cfg = config(family, spec)
    rules = dimension_rules(cfg)
    dims = jax.tree_util.tree_map_with_path(
        lambda path, leaf: rules(tuple(k.key for k in path), leaf.shape), params
    )
    return muon(
        LEARNING_RATE,
        muon_weight_dimension_numbers=dims,
        **muon_kwargs(cfg),
        adam_weight_decay_mask=adam_weight_decay_mask(cfg),
    )


def run(
    family: str, spec: MuonSpec, params: Tree, gradients: Callable[[int], Tree], steps: int = 1
) -> tuple[Tree, Any]:
    """Parameters and optimizer state after some steps."""
    tree = nest(params)
    optimizer = build(family, spec, tree)
    state, update = optimizer.init(tree), jax.jit(optimizer.update)
    for step in range(steps):
        updates, state = update(nest(gradients(step)), state, tree)
        tree = jax.tree.map(jnp.add, tree, updates)
    return flat(tree), state


def zeros_like(tree: Tree) -> Callable[[int], Tree]:
    return lambda _: {path: np.zeros_like(leaf) for path, leaf in tree.items()}


def random_tree(shapes: Mapping[str, tuple[int, ...]], seed: int) -> Tree:
    generator = np.random.default_rng(seed)
    return {path: generator.standard_normal(shape) for path, shape in shapes.items()}


def relative(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.max(np.abs(got - expected)) / np.max(np.abs(expected)))


def muon_state(state: Any) -> Any:
    return state.inner_states["muon"].inner_state[0]


# S1


MATRIX = {"decoder/layers_0/mlp/wo/kernel": (8, 12)}


def reference_run(steps: int) -> tuple[np.ndarray, np.ndarray]:
    (path,) = MATRIX
    w, buffer = random_tree(MATRIX, 0)[path], np.zeros((8, 12))
    for step in range(steps):
        g = random_tree(MATRIX, step + 1)[path]
        buffer = 0.95 * buffer + g
        w = w - LEARNING_RATE * (matrix_update(g + 0.95 * buffer) + DECAY * w)
    return w, buffer


def run_matrix(spec: MuonSpec, steps: int) -> tuple[np.ndarray, np.ndarray]:
    params, state = run(
        "qwen3", spec, random_tree(MATRIX, 0), lambda s: random_tree(MATRIX, s + 1), steps
    )
    (w,), (buffer,) = params.values(), flat(muon_state(state).mu).values()
    return w, buffer


def test_s1_momentum_is_a_sum_without_bias_correction() -> None:
    w, buffer = reference_run(30)
    got, got_buffer = run_matrix(RFC, 30)
    assert relative(got, w) < 1e-12
    assert relative(got_buffer, buffer) < 1e-12


def test_s1_the_running_average_is_another_buffer_and_its_correction_another_run() -> None:
    w, buffer = reference_run(30)
    average = RFC.replace(nesterov_style="ema", ns_eps=1e-30)
    got, got_buffer = run_matrix(average, 30)
    assert relative(got_buffer * average.replace(nesterov_style="sgd").buffer_scale, buffer) < 1e-12
    assert relative(got, w) < 1e-6  # the guard of the norm is all that differs
    corrected, _ = run_matrix(average.replace(bias_correction=True), 30)
    assert relative(corrected, w) > 1e-3


# S2

DECAYING = {
    "token_embedder/embedding": (16, 8),
    "decoder/logits_dense/kernel": (8, 16),
    "decoder/layers/moe_block/gate/kernel": (8, 2, 4),
}
NORMS = {
    "decoder/decoder_norm/scale": (8,),
    "decoder/layers/pre_self_attention_layer_norm/scale": (8, 2),
    f"{ATTENTION}/query_norm/scale": (4, 2),
}
BIASES = {f"{ATTENTION}/query/bias": (2, 2, 4), "decoder/layers/mlp/wo/bias": (8, 2)}


@pytest.mark.parametrize("norms_decay", [False, True])
def test_s2_decay_mask(norms_decay: bool) -> None:
    """With zero gradients a parameter moves by its decay alone."""
    spec = RFC.replace(weight_decay_norm_params=norms_decay, include_routers=False)
    before = random_tree({**DECAYING, **NORMS, **BIASES, **MATRIX}, 0)
    after, _ = run("qwen3", spec, before, zeros_like(before))
    for path, value in before.items():
        decays = path in DECAYING or path in MATRIX or (norms_decay and path in NORMS)
        expected = value * (1 - LEARNING_RATE * DECAY) if decays else value
        assert np.allclose(after[path], expected, rtol=1e-14, atol=0), path


def test_s2_optax_decays_biases_too() -> None:
    before = random_tree(BIASES, 0)
    spec = preset("optax").replace(adam_weight_decay=DECAY)
    after, _ = run("qwen3", spec, before, zeros_like(before))
    for path, value in before.items():
        assert np.allclose(after[path], value * (1 - LEARNING_RATE * DECAY)), path


# S3

QUERY = {f"{ATTENTION}/query/kernel": (6, 2, 3, 4)}  # (in, layer, head, head_dim)


def first_direction(shapes: Mapping[str, tuple[int, ...]]) -> Tree:
    """What Newton-Schulz sees at the first step: g + b * g."""
    return {path: 1.95 * g for path, g in random_tree(shapes, 1).items()}


def one_step(family: str, spec: MuonSpec, shapes: Mapping[str, tuple[int, ...]]) -> Tree:
    """Updates of the first step, divided by ``-lr``; without decay."""
    return _one_step(family, spec, tuple(shapes.items()))


@functools.cache
def _one_step(family: str, spec: MuonSpec, rows: tuple[tuple[str, tuple[int, ...]], ...]) -> Tree:
    zeros = {path: np.zeros(shape) for path, shape in rows}
    after, _ = run(family, spec, zeros, lambda _: random_tree(dict(rows), 1))
    return {path: -value / LEARNING_RATE for path, value in after.items()}


def test_s3_fans_are_those_of_one_head() -> None:
    (path,) = QUERY
    u, got = first_direction(QUERY)[path], one_step("qwen3", RFC, QUERY)[path]
    for layer in range(2):
        for head in range(3):
            expected = 0.2 * np.sqrt(6) * newton_schulz(u[:, layer, head])
            assert relative(got[:, layer, head], expected) < 1e-12


def test_s3_merged_heads_have_other_fans() -> None:
    (path,) = QUERY
    u, got = first_direction(QUERY)[path], one_step("qwen3", RFC.replace(split_head=False), QUERY)
    for layer in range(2):
        expected = 0.2 * np.sqrt(12) * newton_schulz(u[:, layer].reshape(6, 12))
        assert relative(got[path][:, layer].reshape(6, 12), expected) < 1e-12


# S4

MANY = {f"decoder/layers_{i}/mlp/wo/kernel": (4, 6) for i in range(5)} | {
    "decoder/layers_0/mlp/wi_0/kernel": (6, 4)
}


def matmul_count(spec: MuonSpec) -> int:
    tree = nest(random_tree(MANY, 0))
    optimizer = build("qwen3", spec, tree)
    jaxpr = jax.make_jaxpr(optimizer.update)(tree, optimizer.init(tree), tree)
    return str(jaxpr).count("dot_general[")


@pytest.mark.parametrize("size", [0, 1, 2, 16])
def test_s4_batched_update_equals_the_loop(size: int) -> None:
    loop = one_step("qwen3", RFC.replace(batch_update=False), MANY)
    batched = one_step("qwen3", RFC.replace(batch_update=True, batch_update_size=size), MANY)
    for path, expected in loop.items():
        assert relative(batched[path], expected) < 1e-12


def test_s4_batching_makes_one_call_per_shape() -> None:
    looped = matmul_count(RFC.replace(batch_update=False))
    batched = matmul_count(RFC.replace(batch_update_size=16))
    assert looped * len(set(MANY.values())) == len(MANY) * batched


# S5

FC1 = {f"decoder/layers/mlp/{name}/kernel": (6, 2, 5) for name in ("wi_0", "wi_1")}


def test_s5_split_head_is_the_mapping() -> None:
    """Keys and values too, and the output projection stays whole."""
    shapes = {
        f"{ATTENTION}/key/kernel": (6, 2, 2, 4),
        f"{ATTENTION}/value/kernel": (6, 2, 2, 4),
        f"{ATTENTION}/out/kernel": (3, 2, 4, 6),
    }
    u, got = first_direction(shapes), one_step("qwen3", RFC, shapes)
    for name in ("key", "value"):
        path = f"{ATTENTION}/{name}/kernel"
        for layer, head in np.ndindex(2, 2):
            expected = matrix_update(u[path][:, layer, head])
            assert relative(got[path][:, layer, head], expected) < 1e-12
    path = f"{ATTENTION}/out/kernel"
    for layer in range(2):
        expected = matrix_update(u[path][:, layer].reshape(12, 6)).reshape(3, 4, 6)
        assert relative(got[path][:, layer], expected) < 1e-12


def test_s5_split_linear_fc1_is_the_mapping() -> None:
    u, got = first_direction(FC1), one_step("qwen3", RFC, FC1)
    for path in FC1:
        for layer in range(2):
            assert relative(got[path][:, layer], matrix_update(u[path][:, layer])) < 1e-12


def test_s5_fused_fc1_is_one_matrix_per_layer() -> None:
    u, got = first_direction(FC1), one_step("qwen3", RFC.replace(split_linear_fc1=False), FC1)
    gate, up = FC1
    split = one_step("qwen3", RFC, FC1)
    for layer in range(2):
        joined = np.concatenate([u[gate][:, layer], u[up][:, layer]], axis=1)
        expected = np.split(matrix_update(joined), 2, axis=1)
        for path, part in zip(FC1, expected, strict=True):
            assert relative(got[path][:, layer], part) < 1e-12
            assert relative(split[path][:, layer], part) > 0.05


def test_s5_fused_qkv_is_one_matrix_per_layer() -> None:
    shapes = {
        f"{ATTENTION}/query/kernel": (6, 2, 4, 3),
        f"{ATTENTION}/key/kernel": (6, 2, 2, 3),
        f"{ATTENTION}/value/kernel": (6, 2, 2, 3),
    }
    spec = RFC.replace(split_head=False, split_qkv=False)
    u, got = first_direction(shapes), one_step("qwen3", spec, shapes)
    for layer in range(2):
        columns = [u[path][:, layer].reshape(6, -1) for path in shapes]
        joined = matrix_update(np.concatenate(columns, axis=1))
        for path, part in zip(shapes, np.split(joined, [12, 18], axis=1), strict=True):
            assert relative(got[path][:, layer].reshape(6, -1), part) < 1e-12


# S6

MLA = {
    "decoder/moe_layers/self_attention/wq_b/kernel": (24, 2, 4, 20),  # nope 12, rope 8
    "decoder/moe_layers/self_attention/wkv_b/kernel": (16, 2, 4, 32),  # nope 12, value 20
}


def test_s6_mla_components_with_heads_merged_and_layers_apart() -> None:
    u, got = first_direction(MLA), one_step("deepseek3", RFC, MLA)
    for path, shape in MLA.items():
        for layer in range(2):
            for columns in (slice(0, 12), slice(12, None)):
                part = u[path][:, layer, :, columns]
                expected = matrix_update(part.reshape(shape[0], -1)).reshape(part.shape)
                assert relative(got[path][:, layer, :, columns], expected) < 1e-12


def test_s6_mla_whole_is_another_update() -> None:
    whole = one_step("deepseek3", RFC.replace(split_mla_up_proj=False), MLA)
    u = first_direction(MLA)
    split = one_step("deepseek3", RFC, MLA)
    for path, shape in MLA.items():
        expected = matrix_update(u[path][:, 1].reshape(shape[0], -1))
        assert relative(whole[path][:, 1].reshape(shape[0], -1), expected) < 1e-12
        assert relative(whole[path], split[path]) > 0.05


def test_s6_kda_projections_per_head_and_vectors_to_adam() -> None:
    block = "decoder/layers_0/attention"
    shapes = {f"{block}/{name}/kernel": (6, 2, 4) for name in ("q_proj", "g_proj", "gate_proj")}
    vectors = {
        f"{block}/A_log": (2,),
        f"{block}/dt_bias": (8,),
        f"{block}/q_conv/kernel": (4, 1, 8),
    }
    u, got = first_direction(shapes), one_step("qwen3", RFC, {**shapes, **vectors})
    rng = random_tree({**shapes, **vectors}, 1)
    u = {path: 1.95 * rng[path] for path in shapes}
    for path in shapes:
        for head in range(2):
            assert relative(got[path][:, head], matrix_update(u[path][:, head])) < 1e-12
    for path in vectors:  # Adam's first step is the sign
        assert np.allclose(got[path], np.sign(rng[path]), rtol=1e-5), path


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
