"""Flat optimizer state of torch_dist: what does not fit the model's weights is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from converters.errors import CheckpointError
from converters.megatron.open import open_source

from . import hostile
from .legacy_files import copy

SAMPLE = "twins/adam_tp2pp2_flat_td"
BUCKET = "optimizer.distributed.dp_group_idx_{}.gbuf_idx_0.dtype_({}).bucket_idx_0.{}"
DTYPES = "torch.float32, torch.float32"
PARAM, AVERAGE, SQUARE = (BUCKET.format(0, DTYPES, s) for s in ("param", "exp_avg", "exp_avg_sq"))
Damage = Callable[[Path], object]


def values(key: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Damage:
    """Change every piece of a bucket."""
    return lambda folder: hostile.rebuild(folder, {key: hostile.edit_tensor(change)})


def renamed(old: str, new: str) -> Damage:
    return lambda folder: hostile.rename(folder, old, new)


def exchanged(folder: Path) -> None:
    """The buckets of two tensor-parallel ranks, which have the same shapes."""
    hostile.rename(folder, "dp_group_idx_0.gbuf", "dp_group_idx_9.gbuf")
    hostile.rename(folder, "dp_group_idx_1.gbuf", "dp_group_idx_0.gbuf")
    hostile.rename(folder, "dp_group_idx_9.gbuf", "dp_group_idx_1.gbuf")


def dropped(key: str) -> Damage:
    def edit(metadata: object) -> None:
        entries = metadata.state_dict_metadata  # type: ignore[attr-defined]
        del entries[key]

    return lambda folder: hostile.edit_metadata(folder, edit)


def flipped(key: str) -> Damage:
    def damage(folder: Path) -> None:
        file, start, length = hostile.place_of(folder, key)
        data = bytearray(file.read_bytes())
        # In the tensor's values, which torch puts behind the pickle.
        data[start + length // 2] ^= 4
        file.write_bytes(data)

    return damage


CASES: dict[str, tuple[Damage, str]] = {
    "of another iteration": (values(PARAM, lambda t: t + 0.5), "fp32_param.*fully-reshardable"),
    "of another tensor rank": (exchanged, "fp32_param.*fully-reshardable"),
    "NaN in a moment": (values(AVERAGE, lambda t: t * float("nan")), r"exp_avg\): nan"),
    "negative second moment": (values(SQUARE, lambda t: -t - 1), r"exp_avg_sq\)"),
    "bucket of no rank": (renamed("dp_group_idx_3.gbuf", "dp_group_idx_4.gbuf"), "flat state"),
    "second buffer": (renamed("gbuf_idx_0", "gbuf_idx_1"), "flat state"),
    "unknown state": (renamed("exp_avg_sq", "max_avg_sq"), "max_avg_sq.*Adam's"),
    "no second moment": (dropped(SQUARE), "flat state|of another save"),
    "flipped": (flipped(PARAM), "damaged|archive|pickle|checkpoint"),
}


def read_all(folder: Path) -> None:
    for tensor in open_source(folder).tensors.values():
        tensor.load()


@pytest.mark.parametrize("name", CASES)
def test_damage_is_named(name: str, tmp_path: Path) -> None:
    damage, message = CASES[name]
    folder = copy(SAMPLE, tmp_path)
    damage(folder)
    with pytest.raises(CheckpointError) as caught:
        read_all(folder)
    assert re.search(message, str(caught.value)), str(caught.value)


def test_weights_alone_need_no_decoding(tmp_path: Path) -> None:
    folder = copy(SAMPLE, tmp_path)
    exchanged(folder)
    source = open_source(folder, optimizer=False)
    assert {key.state.value for key in source.tensors} == {"weight"}
    for tensor in source.tensors.values():
        tensor.load()
