"""Where parameters lie in the flat buffers of Megatron's distributed optimizer.

A buffer holds one dtype of one model chunk, its parameters in reverse order of
``named_parameters()``, each starting at a multiple of 64 elements. It is cut in buckets, and what
is saved is each bucket without the padding at its end. The gaps between parameters hold garbage.
Nothing in a buffer has a name; but ``param`` there is the fp32 master of a weight that is saved
with one, and a table built from these places refuses to be read where the two differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from converters.errors import CheckpointError
from converters.source import State

_ALIGNMENT = 64
# Names of the flat tensors.
FLAT_STATES = {
    "param": State.MASTER,
    "exp_avg": State.EXP_AVG,
    "exp_avg_sq": State.EXP_AVG_SQ,
}
ADVICE = (
    "save with --ckpt-format torch_dist --dist-ckpt-optim-fully-reshardable, or convert the "
    "weights alone (--no-optimizer)"
)


class Slot(NamedTuple):
    """Place of a parameter: which bucket, and the first element in it."""

    bucket: int
    start: int


class Layout(NamedTuple):
    """Slots in the order of ``named_parameters()``; buckets' lengths without end padding."""

    slots: tuple[Slot, ...]
    lengths: tuple[int, ...]


def lay_out(sizes: Sequence[int], alone: Sequence[bool], bucket_size: int | None) -> Layout:
    """The layout that Megatron makes.

    Args:
      sizes: elements of each parameter, in the order of ``named_parameters()``.
      alone: which of them get a bucket of their own (embeddings that two stages share).
      bucket_size: elements after which a bucket is closed; None for one bucket.
    """
    slots: list[Slot] = []
    lengths: list[int] = []
    end = 0
    for size, single in zip(reversed(sizes), reversed(alone), strict=True):
        start = _aligned(end)
        if single and end:
            lengths.append(start)
            start = 0
        slots.append(Slot(len(lengths), start))
        end = start + size
        if single or (bucket_size is not None and end >= bucket_size):
            lengths.append(end)
            end = 0
    if end:
        lengths.append(end)
    return Layout(tuple(reversed(slots)), tuple(lengths))


def fit(sizes: Sequence[int], lengths: Sequence[int], source: str) -> tuple[Slot, ...]:
    """Slots in buckets whose lengths are known.

    Args:
      sizes: elements of each parameter, in the order of ``named_parameters()``.
      lengths: of the buckets, without end padding.

    Raises:
      CheckpointError: the parameters do not fill the buckets exactly.
    """
    slots: list[Slot] = []
    bucket = end = 0
    for size in reversed(sizes):
        start = _aligned(end)
        end = start + size
        if bucket == len(lengths) or end > lengths[bucket]:
            raise CheckpointError(_misfit(sizes, lengths, source))
        slots.append(Slot(bucket, start))
        if lengths[bucket] in (end, _aligned(end)):
            bucket, end = bucket + 1, 0
    if bucket != len(lengths):
        raise CheckpointError(_misfit(sizes, lengths, source))
    return tuple(reversed(slots))


def _aligned(start: int) -> int:
    return -(-start // _ALIGNMENT) * _ALIGNMENT


def _misfit(sizes: Sequence[int], lengths: Sequence[int], source: str) -> str:
    return (
        f"{source}: {len(sizes)} parameters of {sum(sizes)} elements do not fill the distributed "
        f"optimizer's buckets of {list(lengths)[:8]} elements, so which is which is not certain: "
        f"{ADVICE}"
    )
