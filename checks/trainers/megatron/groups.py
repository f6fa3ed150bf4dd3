"""Processes that train together on one machine, over gloo."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from checks.references.megatron_cpu import importable
from checks.references.megatron_cpu.cuda_stand_in import cpu_for_cuda

from .options import Layout


@contextmanager
def process_group(layout: Layout, rank: int, meeting: Path | None, seed: int) -> Iterator[None]:
    """Within the block Megatron-Core can be imported and its parallel groups exist.

    Args:
      meeting: a file that does not exist yet, the same for all processes; None for a single one.
    """
    # The models are tiny: more threads would only wait for each other.
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE=str(layout.processes))
    stores: Any = dist  # whose stubs forget them
    alone = meeting is None
    store = stores.HashStore() if alone else stores.FileStore(str(meeting), layout.processes)
    with importable(), cpu_for_cuda():
        dist.init_process_group(
            _backend(alone), store=store, rank=rank, world_size=layout.processes
        )
        try:
            with _random_numbers(), _uneven_gathers():
                _start(layout, seed)
                yield
        finally:
            dist.destroy_process_group()


def _backend(alone: bool) -> str:
    """With nobody to talk to, torch's stand-in, which copies at once where gloo asks a thread."""
    if alone:
        importlib.import_module("torch.testing._internal.distributed.fake_pg")
    return "fake" if alone else "gloo"


@contextmanager
def _random_numbers() -> Iterator[None]:
    """Megatron's own random states are the CPU's."""
    from megatron.core.tensor_parallel import random

    def take(*_arguments: Any, **_keywords: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def put(state: torch.Tensor, *_arguments: Any, **_keywords: Any) -> None:
        torch.set_rng_state(state)

    with (
        mock.patch.object(random, "_get_cuda_rng_state", take),
        mock.patch.object(random, "_set_cuda_rng_state", put),
    ):
        yield


@contextmanager
def _uneven_gathers() -> Iterator[None]:
    """Tensors of several sizes are gathered one after the other: gloo wants them all alike.

    NCCL, which Megatron counts on, gathers any; layer-wise ranks have matrices of any size.
    """
    gather = dist.all_gather

    def all_gather(
        parts: list[torch.Tensor], own: torch.Tensor, group: Any = None, async_op: bool = False
    ) -> Any:
        if async_op or len({part.shape for part in parts}) == 1:
            return gather(parts, own, group, async_op)
        parts[dist.get_rank(group)].copy_(own)
        for rank, part in enumerate(parts):
            dist.broadcast(part, group=group, group_src=rank)
        return None

    with mock.patch.object(dist, "all_gather", all_gather):
        yield


def _start(layout: Layout, seed: int) -> None:
    from megatron.core import parallel_state, tensor_parallel

    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor, pipeline_model_parallel_size=layout.pipeline
    )
    tensor_parallel.model_parallel_cuda_manual_seed(seed)
    torch.manual_seed(seed)
