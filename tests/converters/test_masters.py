"""A master that is not its weight's is refused when it is read."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from converters.errors import CheckpointError
from converters.megatron.masters import rounds_to, with_matching_masters
from converters.megatron.open import open_source
from converters.source import Key, State
from tests.converters.commands import DATA

NAME = "decoder.layers.1.mlp.linear_fc2.weight"
MASTER, WEIGHT = Key(NAME, State.MASTER), Key(NAME, State.WEIGHT)


@pytest.mark.parametrize("name", ["bf16_td", "bf16_legacy", "muon_layerwise_bf16_dp2_td"])
def test_real_masters_round_to_their_weights(name: str) -> None:
    tensors = open_source(DATA / name).tensors
    masters = [key for key in tensors if key.state is State.MASTER]
    assert masters
    for key in masters:
        weight = tensors[Key(key.parameter, State.WEIGHT)].load()
        assert rounds_to(tensors[key].load(), weight)


def test_one_of_another_save_is_refused() -> None:
    """A step moves a weight by more than its last digit: the next one's is seen."""
    tensors = dict(open_source(DATA / "bf16_td").tensors)
    weight = tensors[WEIGHT].load()
    moved = weight.copy()
    moved.view(np.uint16)[3, 5] ^= 1  # the last digit of a bfloat16
    tensors[WEIGHT] = dataclasses.replace(tensors[WEIGHT], load=lambda: moved)
    with pytest.raises(CheckpointError, match=rf"{NAME}.*not the float32 form of its weight.*copy"):
        with_matching_masters(tensors)[MASTER].load()
    assert np.array_equal(tensors[MASTER].load().astype(weight.dtype), weight)


def test_scalars_and_shapes() -> None:
    one = np.array(1.0009765625, np.float32)
    assert rounds_to(one, one.astype(np.float16))
    assert not rounds_to(one, np.array(1.5, np.float16))
    assert not rounds_to(np.ones((2, 3), np.float32), np.ones((3, 2), np.float16))
