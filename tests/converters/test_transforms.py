"""Transforms: what they compute, that they come back, and what is left out of optimizer state."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converters.errors import CheckpointError
from converters.splits import GroupedHeads, Halves, Whole
from converters.steps import (
    Axes,
    Flip,
    Heads,
    Offset,
    RopeOrder,
    Rows,
    Scale,
    Transpose,
)
from converters.transforms import Transform

DTYPES = (np.float32, np.float64, ml_dtypes.bfloat16)
GROUPS = st.tuples(st.integers(1, 3), st.integers(1, 3), st.sampled_from([2, 4, 6]))


def array(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def one(*steps: Any) -> Transform:
    return Transform(Whole(), (steps,))


@st.composite
def permutations(draw: st.DrawFn) -> tuple[Transform, tuple[int, ...]]:
    """A transform of class P and a shape it takes."""
    a, b, c = (draw(st.integers(1, 4)) for _ in range(3))
    to = draw(st.sampled_from(["pairs", "halves"]))
    groups, per_group, size = draw(GROUPS)
    into = Axes((2, 0, 1))
    qkv = GroupedHeads(groups, per_group, size)
    rope = RopeOrder(1, to)
    return draw(
        st.sampled_from(
            [
                (one(), (a,)),
                (one(Transpose()), (a, b)),
                (one(Transpose()), (a, b, c)),
                (one(Axes((2, 1, 0))), (a, b, c)),
                (one(Flip(2), Axes((2, 1, 0))), (a, b, c)),
                (one(Heads(a), into), (a * b, c)),
                (one(Transpose(), Heads(a)), (c, a * b)),
                (one(RopeOrder(0, to)), (2 * a,)),
                (one(Heads(a), RopeOrder(1, to, b), into), (a * (b + 2 * c), c)),
                (one(RopeOrder(0, to, a), Transpose()), (a + 2 * b, c)),
                (Transform(Halves(-2), ((Transpose(),),) * 2), (a, 2 * b, c)),
                (Transform(Halves(-1), ((), ())), (a, 2 * b)),
                (Transform(qkv, ((rope, into), (rope, into), (into,))), (qkv.rows, a)),
                (Transform(qkv, ((rope,), (rope,), ())), (qkv.rows,)),
            ]
        )
    )


@settings(deadline=None)
@given(permutations(), st.sampled_from(DTYPES), st.integers(0, 99))
def test_permutations_come_back_bit_for_bit(
    case: tuple[Transform, tuple[int, ...]], dtype: Any, seed: int
) -> None:
    transform, shape = case
    source = array(shape, dtype, seed)
    targets = transform.forward(source)
    assert tuple(t.shape for t in targets) == transform.shapes(shape)
    assert {t.dtype for t in targets} == {source.dtype}
    assert sum(t.size for t in targets) == source.size
    back = transform.inverse(targets)
    assert back.dtype == source.dtype
    assert back.tobytes() == source.tobytes()
    assert transform.of_state() is transform
    for index, target in enumerate(targets):
        assert np.array_equal(transform.part(source, index), target)
        assert transform.kinds(index) == ("P",)


@settings(deadline=None)
@given(
    st.sampled_from([Scale(0.25), Scale(1 / np.sqrt(128)), Scale(np.sqrt(2560)), Offset(1.0)]),
    st.sampled_from(DTYPES),
    st.integers(0, 999),
)
def test_unchanged_numbers_come_back_through_a_rounding(step: Any, dtype: Any, seed: int) -> None:
    source = array((5, 7), dtype, seed)
    source[0, :3] = 0, -0.0, 1e-30
    transform = one(step, Transpose())
    (target,) = transform.forward(source)
    back = transform.inverse([target], like=source)
    assert back.dtype == source.dtype
    assert back.tobytes() == source.tobytes()


def test_changed_numbers_come_back_rounded_and_only_these() -> None:
    source = array((4, 6))
    transform = one(Scale(1 / np.sqrt(128)))
    (target,) = transform.forward(source)
    target = target.copy()
    target[1, 2] *= np.float32(1.5)
    back = transform.inverse([target], like=source)
    changed = back != source
    assert np.argwhere(changed).tolist() == [[1, 2]]
    assert abs(back[1, 2] / source[1, 2] - 1.5) < 1e-6


def test_dropped_rows_come_back_from_what_they_were() -> None:
    source = array((6, 3))
    transform = one(Rows(4), Transpose())
    (target,) = transform.forward(source)
    assert target.shape == (3, 4)
    assert np.array_equal(transform.inverse([target + 1], like=source)[4:], source[4:])
    assert transform.inverse([target]).shape == (4, 3)


def test_scale_rounds_once() -> None:
    """The product of float32 numbers in float32 would round the factor first."""
    source, factor = array((1000,)), 1 / np.sqrt(96)
    (target,) = one(Scale(factor)).forward(source)
    assert target.dtype == np.float32
    assert np.array_equal(target, (source.astype(np.float64) * factor).astype(np.float32))
    assert not np.array_equal(target, source * np.float32(factor))


def test_blocks_of_rows_are_one_result() -> None:
    wide = array((3, 1 << 19))
    (target,) = one(Scale(3.0)).forward(wide)
    assert np.array_equal(target, wide * np.float32(3))


def test_optimizer_state_keeps_neither_scale_nor_offset() -> None:
    into = Axes((2, 0, 1))
    transform = Transform(GroupedHeads(2, 2, 4), ((Scale(0.5), into), (into,), (into,)))
    source = array((32, 5))
    weight, state = transform.forward(source), transform.of_state().forward(source)
    assert np.array_equal(weight[0], 0.5 * state[0])
    assert np.array_equal(weight[1], state[1])
    assert transform.kinds(0) == ("S", "P")
    vocabulary = one(Rows(3), Scale(2.0))
    assert vocabulary.of_state() == one(Rows(3))
    assert vocabulary.kinds(0) == ("PAD", "S", "P")


def test_grouped_rows_are_queries_then_key_then_value_of_each_group() -> None:
    groups, per_group, size = 2, 3, 4
    rows = [
        (group, kind, channel)
        for group in range(groups)
        for kind in (*range(per_group), "k", "v")
        for channel in range(size)
    ]
    source = np.arange(len(rows))[:, None]
    query, key, value = Transform(GroupedHeads(groups, per_group, size), ((), (), ())).forward(
        source
    )
    for head in range(groups * per_group):
        group, kind = divmod(head, per_group)
        assert [rows[i] for i in query[head, :, 0]] == [(group, kind, c) for c in range(size)]
    for group in range(groups):
        assert [rows[i] for i in key[group, :, 0]] == [(group, "k", c) for c in range(size)]
        assert [rows[i] for i in value[group, :, 0]] == [(group, "v", c) for c in range(size)]


def rotate(x: np.ndarray, angles: np.ndarray, layout: str) -> np.ndarray:
    """Rotary embedding of one head: channels in halves or in pairs."""
    n = len(angles)
    first, second = (x[:n], x[n:]) if layout == "halves" else (x[::2], x[1::2])
    turned = (
        first * np.cos(angles) - second * np.sin(angles),
        first * np.sin(angles) + second * np.cos(angles),
    )
    return np.concatenate(turned)


@pytest.mark.parametrize("to", ["pairs", "halves"])
def test_reordered_channels_give_the_same_attention(to: str) -> None:
    was = "halves" if to == "pairs" else "pairs"
    query, key = array((8,), np.float64, 1), array((8,), np.float64, 2)
    angles = array((4,), np.float64, 3)
    step = RopeOrder(0, to)  # type: ignore[arg-type]
    expected = rotate(query, angles, was) @ rotate(key, 2 * angles, was)
    moved = rotate(step.apply(query), angles, to) @ rotate(step.apply(key), 2 * angles, to)
    assert abs(expected - moved) < 1e-12
    assert abs(expected - rotate(query, angles, to) @ rotate(key, 2 * angles, to)) > 1e-3


def test_one_part_is_a_view_where_nothing_is_computed() -> None:
    source = array((2, 6, 4))
    gate_up = Transform(Halves(-2), ((Transpose(),),) * 2)
    assert np.shares_memory(gate_up.part(source, 1), source)
    qkv = Transform(GroupedHeads(1, 2, 2), ((), (), ()))
    fused = array((8, 3))
    assert np.shares_memory(qkv.part(fused, 2), fused)


@pytest.mark.parametrize(
    ("transform", "shape", "message"),
    [
        (one(Transpose()), (3,), "a matrix"),
        (one(Heads(4)), (6, 2), "rows in 4 heads"),
        (one(RopeOrder(0, "pairs", 2)), (5,), "even number of rotary channels"),
        (one(Rows(9)), (8, 2), "at least 9 rows"),
        (one(Axes((2, 0, 1))), (3, 2), "3 axes"),
        (Transform(Halves(-2), ((), ())), (3, 2), "gate and up"),
        (Transform(GroupedHeads(2, 2, 4), ((), (), ())), (24, 2), "expected 32 rows: 2 groups"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    transform: Transform, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        transform.shapes(shape)
    with pytest.raises(CheckpointError, match=message):
        transform.forward(array(shape))
