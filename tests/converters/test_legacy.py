"""The same run saved in two formats is the same table, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from converters.megatron.open import open_source
from converters.source import Key, SourceTensor

from .hostile import DATA

# Two checkpoints of one run: one whose state has no names, and one in another format.
MUON = (
    ("dense_legacy", "dense_td/iter_0000020"),
    ("bf16_legacy", "bf16_td/iter_0000020"),
    ("v0.16.1_dense_legacy", "v0.16.1_dense_td/iter_0000020"),
    ("twins/muon_tp2pp2_bf16_legacy", "twins/muon_tp2pp2_bf16_td"),
    ("twins/muon_ep2_legacy", "twins/muon_ep2_td"),
    ("twins/muon_layer_wise_legacy", "twins/muon_layer_wise_td"),
    ("twins/muon_vpp_tied_legacy", "twins/muon_vpp_tied_td"),
    ("twins/muon_mla_tp2_legacy", "twins/muon_mla_tp2_td"),
    ("twins/muon_uneven_moe_legacy", "twins/muon_uneven_moe_td"),
)
ADAM = (
    ("twins/adam_distopt_legacy", "adam_distopt_fully_reshardable_td"),
    ("twins/adam_distopt_flat_td", "adam_distopt_fully_reshardable_td"),
    ("twins/adam_tp2pp2_legacy", "twins/adam_tp2pp2_flat_td"),
    ("twins/adam_ep2_legacy", "twins/adam_ep2_flat_td"),
)


def differences(one: Mapping[Key, SourceTensor], other: Mapping[Key, SourceTensor]) -> list[str]:
    """Keys that only one of two tables has, and tensors that are not equal bit for bit."""
    found = [f"only once: {key}" for key in set(one) ^ set(other)]
    for key in set(one) & set(other):
        values = [tensor.load() for tensor in (one[key], other[key])]
        same_form = one[key].shape == other[key].shape and one[key].dtype == other[key].dtype
        if not same_form or np.ascontiguousarray(values[0]).tobytes() != values[1].tobytes():
            found.append(str(key))
        assert values[0].shape == one[key].shape
        assert values[0].dtype == one[key].dtype
    return sorted(found)


@pytest.mark.parametrize(("name", "twin"), MUON + ADAM)
def test_both_formats_hold_the_same(name: str, twin: str) -> None:
    one, other = open_source(DATA / name), open_source(DATA / Path(twin))
    assert differences(one.tensors, other.tensors) == []
    assert one.run.iteration == other.run.iteration
    steps = [[o.step for o in source.run.optimizers] for source in (one, other)]
    groups = [[len(o.groups) for o in source.run.optimizers] for source in (one, other)]
    assert (steps[0], groups[0]) == (steps[1], groups[1])
    assert steps[0][-1] == one.run.iteration
    assert one.momentum is None
