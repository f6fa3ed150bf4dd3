"""Train a real Megatron-Core GPT with Adam alone, save it on the way, and train on.

    python -m tests.real.megatron_adam ARGS.json FOLDER OUT.npz [qknorm]

ARGS holds the arguments of the run, which are saved with it. OUT gets the losses of the steps after
the checkpoint, the weights after the last of them, and the norm of each step's gradients.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np

from checks.trainers.megatron.building import inner
from checks.trainers.megatron.groups import process_group
from checks.trainers.megatron.options import Layout
from checks.trainers.megatron.saving import metadata_of

from .megatron_resumes import build, loss_of

SAVED_AT, STEPS = 5, 24


def main(arguments: Path, folder: Path, out: Path, *options: str) -> None:
    with process_group(Layout(), 0, None, seed=7):
        run = Namespace(**json.loads(arguments.read_text()))
        np.savez(out, **trained(run, folder, frozenset(options)))


def trained(run: Namespace, folder: Path, options: frozenset[str]) -> dict[str, Any]:
    from megatron.core.distributed import finalize_model_grads

    model = build(options)
    optimizer, schedule = optimizer_of(model, run)
    losses, norms = [], []
    for step in range(SAVED_AT + STEPS):
        if step == SAVED_AT:
            save(model, optimizer, schedule, run, folder)
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        finalize_model_grads([model])
        done, norm, _ = optimizer.step()
        assert done
        schedule.step(run.global_batch_size)
        losses.append(loss.item())
        norms.append(float(norm))
    weights = {name: p.detach().numpy() for name, p in inner(model).named_parameters()}
    return {"losses": np.array(losses[SAVED_AT:]), "norms": np.array(norms), **weights}


def optimizer_of(model: Any, run: Namespace) -> tuple[Any, Any]:
    """Adam and its schedule, as Megatron's training script makes them of the arguments."""
    from megatron.core import optimizer as optimizers
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    config = optimizers.OptimizerConfig(
        optimizer=run.optimizer,
        lr=run.lr,
        min_lr=run.min_lr,
        weight_decay=run.weight_decay,
        adam_beta1=run.adam_beta1,
        adam_beta2=run.adam_beta2,
        adam_eps=run.adam_eps,
        clip_grad=run.clip_grad,
    )
    optimizer = optimizers.get_megatron_optimizer(config, [model])
    batch = run.global_batch_size
    schedule = OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=run.lr,
        min_lr=run.min_lr,
        lr_warmup_steps=run.lr_warmup_iters * batch,
        lr_decay_steps=run.lr_decay_iters * batch,
        lr_decay_style=run.lr_decay_style,
        start_wd=run.weight_decay,
        end_wd=run.weight_decay,
        wd_incr_steps=run.train_iters * batch,
        wd_incr_style="constant",
    )
    return optimizer, schedule


def save(model: Any, optimizer: Any, schedule: Any, run: Namespace, folder: Path) -> None:
    from megatron.core import dist_checkpointing

    iteration = folder / f"iter_{SAVED_AT:07d}"
    iteration.mkdir(parents=True)
    metadata = metadata_of()
    tensors = inner(model).sharded_state_dict(metadata=metadata)
    state = {
        **tensors,
        "optimizer": optimizer.sharded_state_dict(tensors, metadata=metadata),
        "opt_param_scheduler": schedule.state_dict(),
        "args": run,
        "iteration": SAVED_AT,
        "checkpoint_version": 3.0,
    }
    dist_checkpointing.save(state, str(iteration))
    (folder / "latest_checkpointed_iteration.txt").write_text(str(SAVED_AT))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
