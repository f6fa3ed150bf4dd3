"""Adversarial names: routing compares whole segments, so a near miss is no hit."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muon_fork.decay_mask import decays
from muon_fork.module_names import KERNELS, SCANNED, Role, locate
from muon_fork.presets import preset
from muon_fork.rules import UNKNOWN, dimension_numbers_for
from tests.fork.param_trees import FAMILIES, Leaf, dimensions, leaves

OPTAX = preset("optax")
MEGATRON = preset("megatron")
KERNEL_LEAVES = tuple(
    (family, leaf)
    for family in FAMILIES
    for leaf in leaves(family, "unscan")
    if (place := locate(leaf.path)) and any(place.role in roles.values() for _, roles in KERNELS)
)
NAMES = {name for blocks, roles in KERNELS for name in (*blocks, *roles)}


@pytest.mark.parametrize(
    "path",
    [
        "decoder/layers_0/self_attention/scaled_x/kernel",
        "decoder/layers_0/self_attention/biased/kernel",
        "decoder/layers_0/embedding_norm/kernel",
        "decoder/layers_0/attn_gated_norm/kernel",
        "decoder/layers_0/self_attention/query_scale/kernel",
        "decoder/layers_0/my_self_attention/query/kernel",
        "decoder/layers_0/mlp/wi_01/kernel",
        "decoder/layers_0/MoeBlock_01/wi_0",
        "decoder/layers_0/MoeBlock_0/gateway/kernel",
        "decoder/layers_0/experts_shared/wi_0/kernel",
        "decoder/layers_0/self_attention/outer/kernel",
        "decoder/layers_0/cross_attention/out/kernel",
        "vision_encoder/layers_0/self_attention/query/kernel",
        "logits_dense_2/kernel",
        "",
    ],
)
def test_near_misses_are_unknown(path: str) -> None:
    segments = tuple(filter(None, path.split("/")))
    answer = dimension_numbers_for(segments, dimensions("llama2"), OPTAX, (64, 4, 16))
    assert answer is UNKNOWN


@pytest.mark.parametrize("norm", ["embedding_norm", "attn_gated_norm", "query_norm", "moe_block"])
def test_scales_of_any_module_are_norms(norm: str) -> None:
    place = locate(("decoder", "layers_0", norm, "scale"))
    assert place is not None
    assert place.role is (Role.QK_NORM if norm == "query_norm" else Role.NORM)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(KERNEL_LEAVES),
    st.integers(1, 3),
    st.sampled_from(["{}x", "x{}", "{}_", "_{}", "{}_norm", "{}scale", "{}2", "bias_{}"]),
)
def test_a_changed_segment_is_no_longer_known(
    case: tuple[str, Leaf], position: int, pattern: str
) -> None:
    family, leaf = case
    significant = 3 if leaf.path[-1] == "kernel" else 2
    if position > significant or position > len(leaf.path):
        return
    changed = list(leaf.path)
    changed[-position] = pattern.format(changed[-position])
    if changed[-position] in NAMES or "projection" in leaf.name:
        return
    answer = dimension_numbers_for(changed, dimensions(family), OPTAX, leaf.shape)
    assert answer is UNKNOWN, changed


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(KERNEL_LEAVES),
    st.lists(st.text("abc_019", min_size=1).filter(lambda name: name not in SCANNED), max_size=3),
)
def test_outer_modules_do_not_matter(case: tuple[str, Leaf], outer: list[str]) -> None:
    family, leaf = case
    spec = MEGATRON.replace(unfold_scaled_weights=False)
    model = dimensions(family)
    plain = dimension_numbers_for(leaf.path, model, spec, leaf.shape)
    moved = dimension_numbers_for(
        (*leaf.path[:1], *outer, *leaf.path[1:]) if len(leaf.path) > 3 else leaf.path,
        model,
        spec,
        leaf.shape,
    )
    if hasattr(plain, "join") and plain.join:
        plain, moved = plain._replace(join=None), moved._replace(join=None)
    assert moved == plain


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.one_of(st.text(max_size=8), st.sampled_from(sorted(NAMES)), st.integers())),
    st.lists(st.integers(0, 4), max_size=5),
)
@example(["GptOssAttention", "qkv_proj"], [])
@example(["routed_experts", "wi"], [])
def test_any_path_has_an_answer(path: list[object], shape: list[int]) -> None:
    spec = OPTAX.replace(decay_all_adam_params=False)
    dimension_numbers_for(path, dimensions("llama2"), spec, tuple(shape))
    assert decays(path, tuple(shape), spec) in (True, False)
