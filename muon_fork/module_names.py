"""What each parameter of a MaxText model is, from the segments of its path.

Names are compared as whole segments, never as substrings: ``attn_gated_norm`` is not a gate and
``biased`` is no bias. A path that no row knows has no role. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple


class Role(Enum):
    """Kind of a parameter; the comment gives its axes without layer axes."""

    BIAS = "bias"
    NORM = "norm scale"
    QK_NORM = "query or key norm scale"
    VECTOR = "vector"
    EMBEDDING = "embedding"
    OUTPUT_LAYER = "output layer"
    CONVOLUTION = "convolution"
    POSITION_TABLE = "learned position table"  # (position, hidden)
    SHARED_GATE = "shared-expert gate"  # (in, 1)
    ROUTER = "router"  # (in, experts)
    MATRIX = "matrix"  # (in, out)
    GROUPED = "grouped matrix"  # (groups, in, out)
    QUERY = "query"  # (in, heads, head_dim)
    KEY_VALUE = "key or value"  # (in, heads, head_dim)
    QKV = "fused query, key and value"  # (in, heads, head_dim)
    HEADS = "projection to heads"  # (in, heads, head_dim), or (in, heads)
    WHOLE_HEADS = "projection to heads, never split"  # (in, heads, head_dim)
    MLA_QUERY_UP = "MLA query up-projection"  # (in, heads, nope + rope)
    MLA_KV_UP = "MLA key and value up-projection"  # (in, heads, nope + value)
    ATTENTION_OUT = "attention output"  # (heads, head_dim, out), or (in, out)
    FC1 = "gate or up projection"  # (in, out)
    FC1_FUSED = "fused gate and up projection"  # (in, 2, out), or (in, out)
    EXPERTS_FC1 = "gate or up projection of experts"  # (experts, in, out)
    EXPERTS_FC1_FUSED = "fused gate and up projection of experts"  # (experts, in, 2 out)
    EXPERTS_FC2 = "down projection of experts"  # (experts, in, out)


class Place(NamedTuple):
    """A parameter: its role, the path of the block that holds it, its owner's name, layer axes."""

    role: Role
    block: tuple[str, ...]
    owner: str
    layer_axes: int


# Containers that a scan stacks: each occurrence adds one layer axis, at position 1 onwards.
SCANNED = frozenset({"layers", "dense_layers", "moe_layers", "scanned_blocks", "local_layers"})

# Encoders of other modalities have modules of the same names and other conventions.
FOREIGN_ROOTS = frozenset({"vision_encoder", "audio_encoder"})

ATTENTION = frozenset(
    {
        "self_attention",
        "self_attention_local",
        "self_attention_global",
        "attention",
        "self_attn",
        "attn",
        "full_attention",
        "attention_mla",
        "GptOssAttention",
    }
)
COMPRESSORS = frozenset({"csa_compressor", "hca_compressor", "indexer"})
MLP = frozenset({"mlp", "mlp_local", "mlp_global", "shared_experts", "shared_expert"})
EXPERTS = frozenset({"MoeBlock_0", "moe_block", "routed_experts", "routed_moe", "GptOssMlp"})
HYPER_CONNECTIONS = frozenset({"mhc_attention", "mhc_mlp", "hc_head"})

# q_norm is that of MLA's compressed query, which Megatron calls q_layernorm as well.
QK_NORMS = frozenset({"query_norm", "key_norm", "query_layernorm", "key_layernorm", "q_norm"})
CONVOLUTIONS = frozenset({"conv1d", "q_conv", "k_conv", "v_conv"})
BIASES = frozenset({"bias", "wi_bias", "wi_0_bias", "wi_1_bias", "wo_bias"})
VECTORS = frozenset(
    {
        "A_log",
        "dt_bias",
        "sinks",
        "tid2eid",
        "hc_base",
        "hc_scale",
        "pre_beta",
        "post_beta",
        "res_beta",
        "pre_alpha_scale",
        "post_alpha_scale",
        "res_alpha_scale",
    }
)

# (segments the parameter may lie in, {name of the parameter or its module: role})
KERNELS: tuple[tuple[frozenset[str], dict[str, Role]], ...] = (
    (
        ATTENTION,
        {
            "query": Role.QUERY,
            "key": Role.KEY_VALUE,
            "value": Role.KEY_VALUE,
            "qkv_proj": Role.QKV,
            "query_key_value": Role.QKV,
            "out": Role.ATTENTION_OUT,
            "dense": Role.ATTENTION_OUT,
            "o_proj": Role.ATTENTION_OUT,
            "wq_a": Role.MATRIX,
            "wkv_a": Role.MATRIX,
            "wq_b": Role.MLA_QUERY_UP,
            "wkv_b": Role.MLA_KV_UP,
            "wkv": Role.WHOLE_HEADS,
            "o_a_proj": Role.GROUPED,
            "o_b_proj": Role.MATRIX,
            # Linear attention: gated delta net, Kimi delta attention.
            "in_proj_qkvz": Role.MATRIX,
            "in_proj_ba": Role.MATRIX,
            "out_proj": Role.MATRIX,
            "q_proj": Role.HEADS,
            "k_proj": Role.HEADS,
            "v_proj": Role.HEADS,
            "g_proj": Role.HEADS,
            "gate_proj": Role.HEADS,
            "b_proj": Role.MATRIX,
        },
    ),
    (
        COMPRESSORS,
        {
            "gate_proj": Role.MATRIX,
            "kv_proj": Role.MATRIX,
            "q_proj": Role.MATRIX,
            "weights_proj": Role.MATRIX,
            "position_bias": Role.MATRIX,
            "wq_b": Role.WHOLE_HEADS,
            "wk": Role.MATRIX,
        },
    ),
    (
        MLP,
        {
            "wi": Role.FC1_FUSED,
            "wi_0": Role.FC1,
            "wi_1": Role.FC1,
            "wo": Role.MATRIX,
            "shared_expert_gate": Role.SHARED_GATE,
        },
    ),
    (
        EXPERTS,
        {
            "gate": Role.ROUTER,
            "wi": Role.EXPERTS_FC1_FUSED,
            "wi_0": Role.EXPERTS_FC1,
            "wi_1": Role.EXPERTS_FC1,
            "wo": Role.EXPERTS_FC2,
        },
    ),
    (
        HYPER_CONNECTIONS,
        {
            "pre_alpha": Role.MATRIX,
            "post_alpha": Role.MATRIX,
            "res_alpha": Role.MATRIX,
            "hc_fn": Role.MATRIX,
        },
    ),
    (frozenset({"decoder"}), {"logits_dense": Role.OUTPUT_LAYER}),
    (frozenset({"token_embedder"}), {"embedding": Role.EMBEDDING}),
    (frozenset({"position_embedder"}), {"embedding": Role.POSITION_TABLE}),
)

# Matrices that lie directly in a numbered or scanned layer.
IN_LAYER = frozenset({"layer_up_projection"})
_MTP_PROJECTION = re.compile(r"mtp_\d+_projection")


def locate(path: Iterable[object]) -> Place | None:
    """The place of a parameter, or None if no row knows its path.

    Args:
      path: segments from the root, with or without leading ``params`` collections and a trailing
        ``value``.
    """
    segments = clean_path(path)
    if not segments or segments[0] in FOREIGN_ROOTS:
        return None
    if segments[-1] == "kernel":
        segments = segments[:-1]
        role = _role_of_kernel(segments)
    else:
        role = _role_of_leaf(segments)
    if role is None:
        return None
    owner = segments[-2:-1] if segments[-1] in ("scale", "bias") else segments[-1:]
    return Place(role, segments[:-1], "".join(owner), sum(name in SCANNED for name in segments))


def clean_path(path: Iterable[object]) -> tuple[str, ...]:
    """Segments as strings, without leading ``params`` and trailing ``value``."""
    segments = tuple(str(segment) for segment in path)
    while segments and segments[0] == "params":
        segments = segments[1:]
    return segments[:-1] if segments and segments[-1] == "value" else segments


def _role_of_leaf(segments: tuple[str, ...]) -> Role | None:
    leaf, owner = segments[-1], segments[-2] if len(segments) > 1 else ""
    if leaf in BIASES:
        return Role.BIAS
    if leaf == "scale":
        return Role.QK_NORM if owner in QK_NORMS else Role.NORM
    return Role.VECTOR if leaf in VECTORS else _role_of_kernel(segments)


def _role_of_kernel(segments: tuple[str, ...]) -> Role | None:
    *_, block, name = ("", *segments)
    if name in CONVOLUTIONS:
        return Role.CONVOLUTION
    if name in IN_LAYER or _MTP_PROJECTION.fullmatch(name):
        return Role.MATRIX
    for blocks, roles in KERNELS:
        if block in blocks and name in roles:
            return roles[name]
    return None
