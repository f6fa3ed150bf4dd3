"""Routing of every parameter of every family."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from muon_fork.dimension_numbers import MuonDimensionNumbers
from muon_fork.model_dimensions import (
    DECODER_BLOCKS,
    EMBEDDING_STORED_SCALED,
    GATED_ATTENTION,
    QUERY_STORED_PLAIN,
    QUERY_STORED_SCALED,
)
from muon_fork.rules import UNKNOWN, dimension_numbers_for
from muon_fork.spec import SpecError
from tests.fork.param_trees import FAMILIES, LAYER_AXES, Leaf, dimensions, leaves
from tests.fork.routing import SPECS, answers, everywhere

IN_AXES = ("embed", "embed_attn", "embed_moe", "embed_router")


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


def test_other_scan_axis_is_refused() -> None:
    model = replace(dimensions("llama2"), param_scan_axis=0)
    path = ("decoder", "layers", "mlp", "wo", "kernel")
    with pytest.raises(SpecError, match="param_scan_axis=0"):
        dimension_numbers_for(path, model, SPECS["optax"], (2, 96, 64))
    unscanned = ("decoder", "layers_0", "mlp", "wo", "kernel")
    whole = MuonDimensionNumbers((0,), (-1,))
    assert dimension_numbers_for(unscanned, model, SPECS["optax"], (96, 64)) == whole


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("decoder/layers_0/self_attention/query/kernel", (64, 64)),
        ("decoder/layers_0/mlp/wo/kernel", (2, 96, 64)),
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
