"""Answers of the rules for the recorded trees, under every reference."""

from __future__ import annotations

from typing import Any

import pytest

from muon_fork.presets import preset
from muon_fork.rules import dimension_numbers_for
from muon_fork.spec import MuonSpec
from tests.fork.param_trees import FAMILIES, LAYOUTS, Leaf, dimensions, leaves

REFERENCES = ("optax", "megatron", "megatron_rfc")
FUSED = preset("megatron").replace(split_qkv=False, split_attention_gate=False)
SPECS = {name: preset(name) for name in REFERENCES} | {"fused": FUSED}

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
