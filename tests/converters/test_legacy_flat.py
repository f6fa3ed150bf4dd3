"""Where parameters lie in flat buffers, against the Megatron-Core that lays them out."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import pytest
import torch

from checks.references.megatron_cpu import importable
from converters.errors import CheckpointError
from converters.megatron.legacy.flat import Layout, Slot, fit, lay_out

SIZES = (1, 32, 63, 64, 65, 128, 1000, 4096)


def megatrons(sizes: list[int], alone: list[bool], bucket_size: int | None) -> Layout:
    with importable():
        from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    parameters = [torch.nn.Parameter(torch.empty(size)) for size in sizes]
    for parameter, single in zip(parameters, alone, strict=True):
        parameter.shared_embedding = single  # type: ignore[attr-defined]
    made = DistributedOptimizer._compute_per_buffer_param_layout(
        parameters, bucket_size, 4, SimpleNamespace(pad_buckets_for_high_nccl_busbw=False)
    )
    slots = []
    for parameter in parameters:
        start, _, bucket = made.param_index_map[parameter]
        slots.append(Slot(bucket, start - made.bucket_indices[bucket][0]))
    return Layout(tuple(slots), tuple(made.per_bucket_numel_unpadded))


def test_layout_is_megatrons() -> None:
    random = Random(1)
    for _ in range(300):
        sizes = [random.choice(SIZES) for _ in range(random.randint(1, 12))]
        alone = [random.random() < 0.15 for _ in sizes]
        bucket_size = random.choice([None, 64, 500, 5000])
        expected = megatrons(sizes, alone, bucket_size)
        assert lay_out(sizes, alone, bucket_size) == expected
        assert fit(sizes, expected.lengths, "buffer") == expected.slots


@pytest.mark.parametrize("lengths", [(64,), (192,), (128, 64), (127,), ()])
def test_what_does_not_fit_is_refused(lengths: tuple[int, ...]) -> None:
    with pytest.raises(CheckpointError, match="fully-reshardable"):
        fit([64, 64], lengths, "buffer")
    assert fit([64, 64], (128,), "buffer") == (Slot(0, 64), Slot(0, 0))
