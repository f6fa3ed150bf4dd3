"""S3 fans, S4 batched update, S5 and S6 granularity: which entries are one matrix."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from muon_fork.spec import MuonSpec
from tests.fork.rfc.steps import (
    ATTENTION,
    RFC,
    build,
    first_direction,
    matrix_update,
    nest,
    newton_schulz,
    one_step,
    random_tree,
    relative,
)

# S3

QUERY = {f"{ATTENTION}/query/kernel": (6, 2, 3, 4)}  # (in, layer, head, head_dim)


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
    "decoder/layers_0/mlp/wi_0/kernel": (6, 4),
    "decoder/layers_1/mlp/wi_0/kernel": (6, 3),
}


def matmul_count(spec: MuonSpec) -> int:
    """Matrix products in the program for an accelerator; one CPU takes one matrix at a time."""
    tree = nest(random_tree(MANY, 0))
    optimizer = build("qwen3", spec, tree)
    traced = jax.jit(optimizer.update).trace(tree, optimizer.init(tree), tree)
    return traced.lower(lowering_platforms=("tpu",)).as_text().count("stablehlo.dot_general")


@pytest.mark.parametrize("size", [0, 1, 2, 16])
def test_s4_batched_update_equals_the_loop(size: int) -> None:
    loop = one_step("qwen3", RFC.replace(batch_update=False), MANY)
    batched = one_step("qwen3", RFC.replace(batch_update=True, batch_update_size=size), MANY)
    for path, expected in loop.items():
        assert relative(batched[path], expected) < 1e-12


def test_s4_batching_makes_one_call_per_shape() -> None:
    """A matrix and one of the transposed shape go together."""
    shapes = {tuple(sorted(shape)) for shape in MANY.values()}
    looped = matmul_count(RFC.replace(batch_update=False))
    batched = matmul_count(RFC.replace(batch_update_size=16))
    assert looped * len(shapes) == len(MANY) * batched


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
