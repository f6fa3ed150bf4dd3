"""Tiled copies hold the same numbers as NumPy's."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converters.copying import copy


@settings(deadline=None, max_examples=60)
@given(
    st.permutations(range(3)),
    st.tuples(st.integers(0, 5), st.integers(1, 300), st.integers(1, 300)),
    st.sampled_from([np.float32, np.float64, ml_dtypes.bfloat16]),
    st.booleans(),
)
def test_a_copy_is_the_source(
    order: list[int], shape: tuple[int, ...], dtype: Any, flipped: bool
) -> None:
    source = np.arange(np.prod(shape)).reshape(shape).astype(dtype).transpose(order)
    source = source[::-1] if flipped else source
    layers = np.full((*source.shape[:1], 2, *source.shape[1:]), -1, np.float32)
    copy(layers[:, 1], source)
    assert np.array_equal(layers[:, 1], source.astype(np.float32))
    assert (layers[:, 0] == -1).all()


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"cannot copy shape \(2, 3\) to \(3, 2\)"):
        copy(np.zeros((3, 2)), np.zeros((2, 3)))


def test_a_scalar_is_copied() -> None:
    target = np.zeros(())
    copy(target, np.ones(()))
    assert target == 1
