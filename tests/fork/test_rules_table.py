"""Routing of one layer of each kind, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from muon_fork.dimension_numbers import MuonDimensionNumbers
from muon_fork.rules import UNKNOWN, dimension_numbers_for
from tests.fork.param_trees import FAMILIES, dimensions, leaves
from tests.fork.routing import REFERENCES, SPECS, everywhere

M = MuonDimensionNumbers
PLAIN, HEADS, OUT, EACH = M((0,), (-1,)), M((0,), (-2, -1)), M((0, -2), (-1,)), M((-2,), (-1,))
L0 = "decoder/layers_0"
# (family, path, shape) -> (optax, megatron, megatron_rfc)
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


def test_table_names_real_families() -> None:
    assert {row[0] for row in TABLE} <= set(FAMILIES)
