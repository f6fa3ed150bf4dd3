"""Routing of every parameter of every family."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from muon_fork.dimension_numbers import MuonDimensionNumbers
from muon_fork.model_dimensions import (
    DECODER_BLOCKS,
    EMBEDDING_STORED_SCALED,
    GATED_ATTENTION,
    QUERY_STORED_PLAIN,
    QUERY_STORED_SCALED,
    ModelDimensions,
)
from muon_fork.presets import preset
from muon_fork.rules import UNKNOWN, dimension_numbers_for
from muon_fork.spec import MuonSpec, SpecError
from tests.fork.param_trees import FAMILIES, LAYER_AXES, LAYOUTS, Leaf, dimensions, leaves

REFERENCES = ("optax", "megatron", "megatron_rfc")
FUSED = preset("megatron").replace(split_qkv=False, split_attention_gate=False)
SPECS = {name: preset(name) for name in REFERENCES} | {"fused": FUSED}
IN_AXES = ("embed", "embed_attn", "embed_moe", "embed_router")

everywhere = pytest.mark.parametrize(
    ("family", "layout"), [(family, layout) for family in FAMILIES for layout in LAYOUTS]
)


def answers(family: str, layout: str, spec: MuonSpec) -> dict[Leaf, Any]:
    """Answers for a tree; a fused query leaf cannot be unfolded, so that one is not asked to."""
    if family == "llama2_fused":
        spec = spec.replace(unfold_scaled_weights=False)
    model = dimensions(family)
    return {
        leaf: dimension_numbers_for(leaf.path, model, spec, leaf.shape)
        for leaf in leaves(family, layout)
    }


def is_muon(answer: Any) -> bool:
    return isinstance(answer, MuonDimensionNumbers) and answer.optimizer == "muon"


def positions(axes: Any, rank: int) -> list[int]:
    return [axis % rank for axis in ((axes,) if isinstance(axes, int) else axes)]


@everywhere
@pytest.mark.parametrize("reference", SPECS)
def test_every_parameter_has_a_rule(family: str, layout: str, reference: str) -> None:
    unknown = [
        leaf.name
        for leaf, answer in answers(family, layout, SPECS[reference]).items()
        if answer is UNKNOWN
    ]
    assert unknown == []


@everywhere
@pytest.mark.parametrize("reference", SPECS)
def test_matrices_agree_with_the_logical_axis_names(
    family: str, layout: str, reference: str
) -> None:
    """MaxText names its axes; layers, experts and groups are batch, and inputs are one side."""
    for leaf, answer in answers(family, layout, SPECS[reference]).items():
        if not is_muon(answer):
            continue
        rank = len(leaf.shape)
        rows = positions(answer.reduction_axis, rank)
        columns = positions(answer.output_axis, rank)
        assert rows, leaf.name
        assert columns, leaf.name
        assert len({*rows, *columns}) == len(rows) + len(columns), leaf.name
        if answer.component_splits:
            assert sum(answer.component_splits) == leaf.shape[columns[-1]], leaf.name
        if leaf.axes is None:
            continue
        batch = {name for i, name in enumerate(leaf.axes) if i not in (*rows, *columns)}
        for name in LAYER_AXES | {"exp", "o_groups"}:
            assert (name in leaf.axes) == (name in batch), (leaf.name, answer)
        inputs = [i for i, name in enumerate(leaf.axes) if name in IN_AXES]
        assert all(i in rows for i in inputs) or all(i in columns for i in inputs), leaf.name


@everywhere
def test_vectors_of_the_source_are_never_muon(family: str, layout: str) -> None:
    for leaf, answer in answers(family, layout, SPECS["megatron"]).items():
        if leaf.axes is not None:
            source = [name for name in leaf.axes if name not in LAYER_AXES]
            if len(source) < 2:
                assert not is_muon(answer), leaf.name


@everywhere
def test_heads_are_batch_exactly_when_asked(family: str, layout: str) -> None:
    per_head, whole = (answers(family, layout, SPECS[n]) for n in ("megatron_rfc", "megatron"))
    for leaf, answer in per_head.items():
        if leaf.path[-2:-1] and leaf.path[-2] in ("query", "key", "value") and is_muon(answer):
            mla = dimensions(family).is_mla
            assert positions(answer.output_axis, len(leaf.shape)) == (
                [len(leaf.shape) - 2, len(leaf.shape) - 1] if mla else [len(leaf.shape) - 1]
            )
            assert len(positions(whole[leaf].output_axis, len(leaf.shape))) == 2


@everywhere
@pytest.mark.parametrize("reference", ["megatron", "fused"])
def test_joins_hold_exactly_one_layers_parts(family: str, layout: str, reference: str) -> None:
    groups: dict[str, list[tuple[Leaf, MuonDimensionNumbers]]] = defaultdict(list)
    for leaf, answer in answers(family, layout, SPECS[reference]).items():
        if is_muon(answer) and answer.join:
            groups[answer.join].append((leaf, answer))
    for name, members in groups.items():
        owners, blocks = set(), set()
        for leaf, _ in members:
            *block, owner = leaf.path[:-1] if leaf.path[-1] == "kernel" else leaf.path
            owners.add(owner)
            blocks.add("/".join(block))
        expected = {"query", "key", "value"} if name.endswith("qkv") else {"wi_0", "wi_1"}
        assert owners == expected, name
        assert len(members) == len(expected), name
        assert len(blocks) == 1, name
        assert name.startswith(blocks.pop()), name
    assert groups or family in ("llama2_fused", "mixtral_prefuse")


def test_split_reference_joins_nothing() -> None:
    for family in FAMILIES:
        for leaf, answer in answers(family, "scan", SPECS["megatron_rfc"]).items():
            assert answer is None or answer.join is None, leaf.name


# One layer of each kind, by hand: (path, shape) -> (optax, megatron, megatron_rfc).
M = MuonDimensionNumbers
PLAIN, HEADS, OUT, EACH = M((0,), (-1,)), M((0,), (-2, -1)), M((0, -2), (-1,)), M((-2,), (-1,))
L0 = "decoder/layers_0"
TABLE: tuple[tuple[str, str, tuple[int, ...], Any, Any, Any], ...] = (
    (
        "qwen3",
        f"{L0}/self_attention/query/kernel",
        (64, 4, 16),
        HEADS,
        HEADS,
        PLAIN,
    ),
    ("qwen3", f"{L0}/self_attention/out/kernel", (4, 16, 64), OUT, OUT, OUT),
    (
        "qwen3",
        f"{L0}/mlp/wi_1/kernel",
        (64, 96),
        PLAIN,
        PLAIN._replace(join=f"{L0}/mlp/linear_fc1"),
        PLAIN,
    ),
    ("qwen3", f"{L0}/mlp/wo/kernel", (96, 64), PLAIN, PLAIN, PLAIN),
    (
        "llama2",
        "decoder/layers/self_attention/query/kernel",
        (64, 2, 4, 16),
        HEADS,
        HEADS._replace(update_scale=0.25),
        PLAIN._replace(update_scale=0.25),
    ),
    ("llama2", "token_embedder/embedding", (256, 64), None, None, None),
    (
        "gemma2",
        "token_embedder/embedding",
        (256, 64),
        None,
        M(update_scale=8.0, optimizer="adam"),
        M(update_scale=8.0, optimizer="adam"),
    ),
    (
        "gemma2",
        "decoder/layers/self_attention_local/query/kernel",
        (64, 2, 4, 16),
        HEADS,
        HEADS._replace(update_scale=0.25),
        PLAIN._replace(update_scale=0.25),
    ),
    (
        "mixtral",
        "decoder/layers/MoeBlock_0/wi_0",
        (4, 2, 64, 96),
        EACH,
        EACH._replace(join="decoder/layers/MoeBlock_0/experts/linear_fc1"),
        EACH,
    ),
    ("mixtral", "decoder/layers/MoeBlock_0/wo", (4, 2, 96, 64), EACH, EACH, EACH),
    ("mixtral", "decoder/layers/MoeBlock_0/gate/kernel", (64, 2, 4), PLAIN, PLAIN, PLAIN),
    (
        "mixtral_prefuse",
        "decoder/layers/MoeBlock_0/wi",
        (4, 2, 64, 192),
        EACH._replace(component_splits=(96, 96)),
        EACH,
        EACH._replace(component_splits=(96, 96)),
    ),
    (
        "deepseek3",
        "decoder/moe_layers/self_attention/wq_b/kernel",
        (24, 2, 4, 20),
        HEADS,
        HEADS,
        HEADS._replace(component_splits=(12, 8)),
    ),
    (
        "deepseek3",
        "decoder/moe_layers/self_attention/wkv_b/kernel",
        (16, 2, 4, 32),
        HEADS,
        HEADS,
        HEADS._replace(component_splits=(12, 20)),
    ),
    ("deepseek3", "decoder/moe_layers/self_attention/wq_a/kernel", (64, 2, 24), *[PLAIN] * 3),
    (
        "deepseek2",
        "decoder/dense_layers_0/self_attention/query/kernel",
        (64, 4, 20),
        HEADS,
        HEADS,
        HEADS._replace(component_splits=(12, 8)),
    ),
    (
        "deepseek3",
        "mtp_block/mtp_layer_1/mtp_1_projection/kernel",
        (128, 64),
        *[PLAIN] * 3,
    ),
    (
        "gpt3",
        "decoder/position_embedder/embedding",
        (32, 64),
        None,
        M((-1,), (0,)),
        M((-1,), (0,)),
    ),
    (
        "qwen3_next",
        f"{L0}/mlp/shared_expert_gate/kernel",
        (64, 1),
        None,
        PLAIN,
        PLAIN,
    ),
    (
        "qwen3_next",
        "decoder/layers_3/attention/attention/query/kernel",
        (64, 4, 32),
        HEADS,
        HEADS._replace(component_splits=(16, 16)),
        PLAIN._replace(component_splits=(16, 16)),
    ),
    ("qwen3_next", "decoder/layers_3/attention/attention/out/kernel", (64, 64), *[PLAIN] * 3),
    ("qwen3_next", f"{L0}/attention/conv1d/kernel", (4, 1, 64), None, None, None),
    (
        "deepseek4",
        "decoder/scanned_blocks/layers_0/self_attention/o_a_proj/kernel",
        (4, 1, 32, 16),
        *[EACH] * 3,
    ),
    ("deepseek4", f"{L0}/self_attention/wkv/kernel", (64, 1, 32), *[HEADS] * 3),
    ("deepseek4", f"{L0}/mhc_mlp/res_alpha", (256, 16), *[PLAIN] * 3),
    ("deepseek4", f"{L0}/mhc_mlp/res_beta", (4, 4), None, None, None),
    ("gpt_oss", f"{L0}/GptOssMlp/wi_0_bias", (4, 48), None, None, None),
    # Ling: no released MaxText has it; names and shapes from its public fork.
    ("qwen3", f"{L0}/attention/q_proj/kernel", (64, 4, 16), HEADS, HEADS, PLAIN),
    ("qwen3", "decoder/moe_layers/layers_1/attention/g_proj/kernel", (64, 5, 4), *[PLAIN] * 3),
    ("qwen3", f"{L0}/attention/o_proj/kernel", (4, 16, 64), OUT, OUT, OUT),
    ("qwen3", f"{L0}/attention/q_conv/kernel", (4, 1, 64), None, None, None),
    ("qwen3", f"{L0}/attention/A_log", (4,), None, None, None),
    (
        "llama2_fused",
        f"{L0}/attention/query_key_value/kernel",
        (64, 8, 16),
        M((0,), (-1, -2), component_splits=(4, 2, 2)),
        UNKNOWN,
        UNKNOWN,
    ),
)


@pytest.mark.parametrize(
    ("family", "path", "shape", "expected"),
    [(row[0], row[1], row[2], row[3:]) for row in TABLE],
    ids=[f"{row[0]}:{row[1]}" for row in TABLE],
)
def test_table(family: str, path: str, shape: tuple[int, ...], expected: Any) -> None:
    for reference, answer in zip(REFERENCES, expected, strict=True):
        if answer is not UNKNOWN:
            spec = SPECS[reference]
            got = dimension_numbers_for(path.split("/"), dimensions(family), spec, shape)
            assert got == answer, reference


@everywhere
def test_known_paths_of_the_table_exist(family: str, layout: str) -> None:
    """Rows of the table that name a real family, in the layout they are written in, are real."""
    real = {leaf.name: leaf.shape for leaf in leaves(family, layout)}
    for row_family, path, shape, *_ in TABLE:
        if row_family == family and path in real:
            assert real[path] == shape


@everywhere
def test_all_forms_of_a_path_are_one(family: str, layout: str) -> None:
    spec, model = SPECS["optax"], dimensions(family)
    for leaf in leaves(family, layout):
        plain = dimension_numbers_for(leaf.path, model, spec, leaf.shape)
        for form in (("params", *leaf.path), ("params", "params", *leaf.path, "value")):
            assert dimension_numbers_for(form, model, spec, leaf.shape) == plain


@everywhere
def test_without_shapes_the_answer_is_the_same_or_unknown(family: str, layout: str) -> None:
    spec, model = SPECS["optax"], dimensions(family)
    for leaf in leaves(family, layout):
        blind = dimension_numbers_for(leaf.path, model, spec)
        assert blind in (UNKNOWN, dimension_numbers_for(leaf.path, model, spec, leaf.shape))


@pytest.mark.parametrize("family", FAMILIES)
def test_routers_follow_the_spec(family: str) -> None:
    spec = SPECS["megatron"].replace(include_routers=False)
    changed = {
        leaf.path[-3:]
        for leaf, answer in answers(family, "scan", SPECS["megatron"]).items()
        if answer != answers(family, "scan", spec)[leaf]
    }
    routers = {
        leaf.path[-3:] for leaf in leaves(family, "scan") if leaf.path[-2:] == ("gate", "kernel")
    }
    assert changed == routers


def test_only_scaled_blocks_unfold() -> None:
    for family in FAMILIES:
        if family == "llama2_fused":
            continue
        model = dimensions(family)
        for leaf, answer in answers(family, "unscan", SPECS["megatron"]).items():
            scale = answer.update_scale if isinstance(answer, MuonDimensionNumbers) else 1.0
            expected = 1.0
            if model.decoder_block in QUERY_STORED_SCALED and "query" in leaf.path:
                expected = 1 / math.sqrt(model.head_dim)
            if model.decoder_block in EMBEDDING_STORED_SCALED and "embedding" in leaf.path:
                expected = math.sqrt(model.emb_dim)
            assert scale == pytest.approx(expected), leaf.name


def test_folded_query_bias_is_unfolded() -> None:
    model = dimensions("llama2")
    path = (*L0.split("/"), "self_attention", "query", "bias")
    answer = dimension_numbers_for(path, model, SPECS["megatron"], (4, 16))
    assert answer == M(update_scale=0.25, optimizer="adam")
    assert dimension_numbers_for(path, model, SPECS["optax"], (4, 16)) is None


def test_gemma2_27b_divides_by_144() -> None:
    keys = {
        "model_name": "gemma2-27b",
        "decoder_block": "gemma2",
        "emb_dim": 4608,
        "num_query_heads": 32,
        "num_kv_heads": 16,
        "head_dim": 128,
        "attention_type": "global",
        "qk_nope_head_dim": 0,
        "qk_rope_head_dim": 0,
        "v_head_dim": 0,
        "param_scan_axis": 1,
    }
    model = ModelDimensions.from_config(SimpleNamespace(**keys))
    assert model.query_scale == pytest.approx(1 / 12)
    assert model.embedding_scale == pytest.approx(math.sqrt(4608))
    del keys["head_dim"]
    with pytest.raises(SpecError, match="head_dim"):
        ModelDimensions.from_config(SimpleNamespace(**keys))


def test_fused_query_cannot_be_unfolded() -> None:
    path = (*L0.split("/"), "self_attention", "qkv_proj", "kernel")
    with pytest.raises(SpecError, match=r"qkv_proj.*muon_unfold_scaled_weights=False"):
        dimension_numbers_for(path, dimensions("llama2_fused"), SPECS["megatron"], (64, 8, 16))


def test_unknown_block_is_an_error_only_when_unfolding() -> None:
    model = ModelDimensions("brand_new", 64, 4, 2, 16)
    path = (*L0.split("/"), "self_attention", "query", "kernel")
    assert dimension_numbers_for(path, model, SPECS["optax"], (64, 4, 16)) == HEADS
    with pytest.raises(SpecError, match="brand_new"):
        dimension_numbers_for(path, model, SPECS["megatron"], (64, 4, 16))


def test_other_scan_axis_is_refused() -> None:
    model = replace(dimensions("llama2"), param_scan_axis=0)
    path = ("decoder", "layers", "mlp", "wo", "kernel")
    with pytest.raises(SpecError, match="param_scan_axis=0"):
        dimension_numbers_for(path, model, SPECS["optax"], (2, 96, 64))
    unscanned = (*L0.split("/"), "mlp", "wo", "kernel")
    assert dimension_numbers_for(unscanned, model, SPECS["optax"], (96, 64)) == PLAIN


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        (f"{L0}/self_attention/query/kernel", (64, 64)),
        (f"{L0}/mlp/wo/kernel", (2, 96, 64)),
        ("decoder/layers/MoeBlock_0/wo", (4, 96, 64)),
    ],
)
def test_unexpected_rank_is_unknown(path: str, shape: tuple[int, ...]) -> None:
    spec = SPECS["optax"]
    assert dimension_numbers_for(path.split("/"), dimensions("llama2"), spec, shape) is UNKNOWN


def test_registries_know_every_family() -> None:
    blocks = {dimensions(family).decoder_block for family in FAMILIES}
    assert blocks == set(DECODER_BLOCKS)
    assert blocks <= QUERY_STORED_SCALED | QUERY_STORED_PLAIN
    assert not QUERY_STORED_SCALED & QUERY_STORED_PLAIN
    assert EMBEDDING_STORED_SCALED | GATED_ATTENTION <= QUERY_STORED_SCALED | QUERY_STORED_PLAIN
    assert {row[0] for row in TABLE} <= set(FAMILIES)
