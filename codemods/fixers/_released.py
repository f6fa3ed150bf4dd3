"""What ``transform_logic`` holds in the releases of MaxText."""

from __future__ import annotations

import ast
import hashlib

import libcst as cst

from codemods.fixers._source import Source

# Digests of (test, what it returns at once) of every released branch; test_routing.py takes them
# from the releases again.
RELEASED: dict[str, str] = {
    "5e1c4b392673": "excluded names until 0.2.3",
    "b295029a4f06": "excluded names in 0.2.4",
    "b997c1c4485a": "excluded names in 0.2.5",
    "e60040744747": "vectors in 0.2.5",
    "d4bcb746a105": "experts until 0.2.4",
    "e53a0f4fc256": "their matrices until 0.2.4",
    "acdc40ab264b": "experts in 0.2.5",
    "4756e79cc478": "their matrices in 0.2.5",
    "7f8be67c30f0": "routers in 0.2.5",
    "839b8e6f7d0c": "attention until 0.2.4",
    "412cb69aee81": "attention output until 0.2.4",
    "68490821c972": "projections to heads until 0.2.3",
    "dc70b2eecf2b": "projections to heads in 0.2.4",
    "8f323b5f194f": "grouped matrices from 0.2.4",
    "0f42a0ea6790": "attention in 0.2.5",
    "386d348c4a43": "projections to heads in 0.2.5",
    "d84f48c7208a": "attention output in 0.2.5",
    "4e81d0835c6e": "attention output over heads in 0.2.5",
    "d8110d3184b3": "the default of all",
}

# Name tables that the branches of 0.2.5 consult.
RELEASED_TABLES: dict[str, frozenset[str]] = {
    "EXCLUDED_SUBSTRINGS": frozenset(
        {
            "scale",
            "embedding",
            "logits_dense",
            "post_beta",
            "pre_beta",
            "res_beta",
            "hc_base",
            "sinks",
            "tid2eid",
            "A_log",
            "dt_bias",
            "conv1d",
            "shared_expert_gate",
        }
    ),
    "EXCLUDED_EXACT_SEGMENTS": frozenset({"bias"}),
    "ATTENTION_BLOCK_NAMES": frozenset(
        {
            "self_attention",
            "full_attention",
            "attention",
            "self_attn",
            "attn",
            "attention_mla",
            "GptOssAttention",
        }
    ),
    "ATTENTION_QKV_NAMES": frozenset({"query", "key", "value", "wq_b", "wkv_b", "wkv"}),
    "ATTENTION_OUT_NAMES": frozenset({"out"}),
    "MOE_BLOCK_NAMES": frozenset(
        {"MoeBlock_0", "moe_block", "routed_experts", "GptOssMlp", "routed_moe"}
    ),
}


def digest(test: str, returns: list[str]) -> str:
    """Short name of a branch, the same for every way to write it on lines."""
    parts = [normal(code) for code in (test, *returns)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def branch_digest(source: Source, node: cst.If | cst.Return) -> str:
    """Digest of one branch, or of a return outside any branch."""
    if isinstance(node, cst.Return):
        return digest("True", [_returned(source, node)])
    returns = [
        _returned(source, small)
        for line in node.body.body
        if isinstance(line, cst.SimpleStatementLine)
        for small in line.body
        if isinstance(small, cst.Return)
    ]
    return digest(source.code(node.test), returns)


def _returned(source: Source, node: cst.Return) -> str:
    return "None" if node.value is None else source.code(node.value)


def normal(code: str) -> str:
    """An expression in the one spelling that Python's own printer gives it."""
    try:
        return ast.unparse(ast.parse(f"({code})", mode="eval"))
    except SyntaxError:
        return code
