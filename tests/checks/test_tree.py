"""The synthetic tree itself: every kind, and two statements of it that agree."""

from __future__ import annotations

import numpy as np
import pytest

from checks.parameters import Kind, Parameter
from checks.sides import layers
from checks.sides.state import in_leaves
from checks.tree import MODELS, TREE
from muon_fork.module_names import Role, locate
from muon_fork.presets import PRESETS
from muon_fork.rules import UNKNOWN, dimension_numbers_for

# Roles whose leaves are optional spellings of others in the tree, or of models without Megatron.
ELSEWHERE = {
    Role.QKV,
    Role.HEADS,
    Role.WHOLE_HEADS,
    Role.GROUPED,
    Role.FC1_FUSED,
    Role.EXPERTS_FC1_FUSED,
}


def leaves_of(parameter: Parameter) -> dict[str, tuple[int, ...]]:
    found = parameter.leaves(np.zeros(parameter.shape))
    return {leaf: array.shape for leaf, array in found.items()}


def test_every_kind_and_role_is_there() -> None:
    assert {parameter.kind for parameter in TREE} == set(Kind)
    places = [locate(leaf.split("/")[1:]) for p in TREE for leaf in leaves_of(p)]
    roles = {place.role for place in places if place is not None}
    assert None not in places
    assert roles == set(Role) - ELSEWHERE


@pytest.mark.parametrize("parameter", TREE, ids=lambda p: p.name)
def test_leaves_hold_every_number_once(parameter: Parameter) -> None:
    numbers = np.arange(np.prod(parameter.shape), dtype=np.float64).reshape(parameter.shape)
    held = np.concatenate([leaf.ravel() for leaf in parameter.leaves(numbers).values()])
    assert np.array_equal(np.sort(held), numbers.ravel())


@pytest.mark.parametrize("row", PRESETS, ids=lambda row: row.name)
def test_rules_and_tree_agree(row: object) -> None:
    spec = row.spec  # type: ignore[attr-defined]
    for parameter in TREE:
        for leaf, shape in leaves_of(parameter).items():
            path = leaf.split("/")[1:]
            answer = dimension_numbers_for(path, MODELS[parameter.model], spec, shape)
            assert answer is not UNKNOWN
            scale = 1.0 if answer is None else answer.update_scale
            assert scale == pytest.approx(parameter.fold(leaf, spec), rel=1e-15), leaf
            muon = answer is not None and answer.optimizer == "muon"
            assert muon == parameter.muon(spec), leaf


def test_scanned_leaves_are_the_layers_in_turn() -> None:
    rng = np.random.default_rng(0)
    apart = {p.name: rng.standard_normal(p.shape) for p in layers.apart(TREE)}
    whole = in_leaves(layers.stacked(apart, TREE), layers.scanned(TREE))
    again, expected = layers.unscanned(whole), in_leaves(apart, layers.apart(TREE))
    assert set(again) == set(expected)
    assert all(np.array_equal(again[leaf], array) for leaf, array in expected.items())
