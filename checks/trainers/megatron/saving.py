"""Checkpoints as Megatron-LM's training script writes them: torch_dist and the older torch."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .building import inner
from .options import Sharding


@dataclass(frozen=True)
class State:
    """What a process trains with, all of which a checkpoint holds.

    ``optimizer`` is Megatron's or has its saving methods; ``scheduler`` is OptimizerParamScheduler.
    ``sharding`` is how the optimizer's state is shared, None if it is not.
    """

    model: Any
    optimizer: Any
    scheduler: Any
    arguments: Namespace
    sharding: Sharding | None = None


def save_torch_dist(state: State, folder: Path, iteration: int) -> None:
    from megatron.core import dist_checkpointing

    if dist.get_rank() == 0:
        folder.mkdir(parents=True)
    dist.barrier()
    tensors, states = _sharded(state, is_loading=False)
    common = {**_common(state, iteration), "opt_param_scheduler": state.scheduler.state_dict()}
    dist_checkpointing.save({**tensors, "optimizer": states, **common}, str(folder))
    dist.barrier()


def save_legacy(state: State, folder: Path, iteration: int) -> None:
    """One file per process that shares the model, and what the optimizer writes beside it."""
    from megatron.core import parallel_state

    tensor = parallel_state.get_tensor_model_parallel_rank()
    pipeline = parallel_state.get_pipeline_model_parallel_rank()
    split = parallel_state.get_pipeline_model_parallel_world_size() > 1
    name = f"mp_rank_{tensor:02d}" + (f"_{pipeline:03d}" if split else "")
    file = folder / name / "model_optim_rng.pt"
    rank = parallel_state.get_data_parallel_rank()
    if rank == 0:
        file.parent.mkdir(parents=True)
    dist.barrier()
    if state.arguments.__dict__.get("use_layer_wise_distributed_optimizer"):
        state.optimizer.save_state_dict_to_file(file.parent / f"layer_wise_optimizer_{rank}.pt")
    elif state.sharding:
        state.optimizer.save_parameter_state(file.parent / "distrib_optim.pt")
    content = {
        **_common(state, iteration),
        "model": inner(state.model).state_dict_for_save_checkpoint(),
        "optimizer": state.optimizer.state_dict(),
        "opt_param_scheduler": state.scheduler.state_dict(),
    }
    if rank == 0:
        torch.save(content, file)
    dist.barrier()


def load_torch_dist(state: State, folder: Path) -> int:
    """Fill the state by Megatron's own loader, whatever layout wrote it; the iteration.

    Before the first step the optimizer has no state to load; the schedule goes on where it was.
    """
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.validation import StrictHandling

    is_fresh = int(folder.name.removeprefix("iter_")) == 0
    tensors, states = _sharded(state, is_loading=not is_fresh)
    wanted = tensors if is_fresh else {**tensors, "optimizer": states}
    strict = StrictHandling.RAISE_UNEXPECTED
    loaded = dist_checkpointing.load(dict(wanted), str(folder), strict=strict)
    inner(state.model).load_state_dict({key: loaded[key] for key in tensors}, strict=False)
    if not is_fresh:
        state.optimizer.load_state_dict(loaded["optimizer"])
    state.scheduler.load_state_dict(loaded["opt_param_scheduler"])
    return int(loaded["iteration"])


def metadata_of(**further: Any) -> dict[str, Any]:
    """What Megatron's sharded state dicts ask for."""
    from megatron.core import parallel_state

    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    return {"chained_optim_avoid_prefix": True, "dp_cp_group": group, **further}


def _sharded(state: State, is_loading: bool) -> tuple[Any, Any]:
    form = {"distrib_optim_sharding_type": state.sharding.form} if state.sharding else {}
    metadata = metadata_of(**form)
    tensors = inner(state.model).sharded_state_dict(metadata=metadata)
    states = state.optimizer.sharded_state_dict(tensors, is_loading=is_loading, metadata=metadata)
    return tensors, states


def _common(state: State, iteration: int) -> dict[str, Any]:
    return {"args": state.arguments, "checkpoint_version": 3.0, "iteration": iteration}
