"""Where a checkpoint's arguments and its state may disagree about the run, and which of them holds.

Megatron resumes with the parameter groups and the schedule that the checkpoint saved, whatever its
command line says. The arguments saved beside them are those of that command line.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from converters.errors import CheckpointError
from converters.megatron.run import Run
from muon_fork.spec import MuonSpec

# Key of the saved schedule, and the argument that it comes from.
_RATES = {"max_lr": "lr", "min_lr": "min_lr", "lr_decay_style": "lr_decay_style"}
# What a parameter group must not say.
_UNKNOWN = (("amsgrad", True), ("maximize", True), ("decoupled_weight_decay", False))


def require_groups(run: Run, spec: MuonSpec, chosen: Collection[str]) -> None:
    """Raise CheckpointError where the optimizer's parameter groups are not those of the spec.

    Args:
      run: with its groups.
      spec: of the arguments.
      chosen: fields that the user chose, which hold whatever was saved.
    """
    for state in run.optimizers:
        for group in state.groups:
            for name, value in _UNKNOWN:
                if group.get(name) is value:
                    raise CheckpointError(f"{name}={value} in a parameter group: not reproduced")
            if group.get("lr_mult", 1.0) != 1.0 or group.get("is_decoupled_lr"):
                raise CheckpointError(
                    "a parameter group has a learning rate of its own (lr_mult="
                    f"{group.get('lr_mult')}, is_decoupled_lr={group.get('is_decoupled_lr')}): "
                    "MaxText has one for all"
                )
            for field, saved, expected in _numbers(group, spec):
                if field not in chosen and not _same(saved, expected):
                    raise CheckpointError(
                        f"{field}: {saved!r} in a parameter group of the optimizer, with which the "
                        f"run goes on, and {expected!r} by its arguments: say which holds with "
                        f"--spec {field}=VALUE"
                    )


def _numbers(group: Mapping[str, Any], spec: MuonSpec) -> Iterator[tuple[str, Any, float]]:
    """(field of the spec, what the group says, what it should say)."""
    betas = group.get("betas")
    if isinstance(betas, (tuple, list)) and len(betas) == 2:
        yield "adam_b1", betas[0], spec.adam_b1
        yield "adam_b2", betas[1], spec.adam_b2
        if "eps" in group:
            yield "adam_eps", group["eps"], spec.adam_eps
    for name in ("momentum", "momentum_beta"):
        if betas is None and name in group:
            yield "beta", group[name], spec.beta
    if "weight_decay" in group and "wd_mult" in group:
        field = "weight_decay" if betas is None else "adam_weight_decay"
        yield field, group["weight_decay"], getattr(spec, field) * group["wd_mult"]


def _same(saved: Any, expected: float) -> bool:
    number = isinstance(saved, (int, float))
    return number and math.isclose(saved, expected, rel_tol=1e-9, abs_tol=1e-30)


def used_arguments(run: Run) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The arguments with the rates of the saved schedule, and where these are others."""
    used, notes = dict(run.arguments), []
    for key, name in _RATES.items():
        saved, said = run.schedule.get(key), used.get(name)
        if saved is None or said is None or saved == said:
            continue
        notes.append(
            f"{name}={said!r} in the arguments, {key}={saved!r} in the schedule, which is what the "
            "run goes on with"
        )
        used[name] = saved
    return used, (*notes, *_samples(run))


def _samples(run: Run) -> Iterator[str]:
    """Whether Megatron's schedule, which counts samples, stands where the iteration does."""
    batch, seen = run.arguments.get("global_batch_size"), run.schedule.get("num_steps")
    if not isinstance(batch, int) or not isinstance(seen, int):
        return
    if seen != run.iteration * batch:
        yield (
            f"the schedule has counted {seen} samples, where {run.iteration} iterations of {batch} "
            f"are {run.iteration * batch}: the batch size has changed (--rampup-batch-size), and "
            "MaxText, which counts steps, gives other learning rates"
        )
        return
    for key, name in (("lr_decay_steps", "lr_decay_iters"), ("lr_warmup_steps", "lr_warmup_iters")):
        saved, said = run.schedule.get(key), run.arguments.get(name)
        by_share = name == "lr_warmup_iters" and run.arguments.get("lr_warmup_fraction")
        if saved is None or not isinstance(said, int) or by_share or saved == said * batch:
            continue
        yield (
            f"{name}={said} in the arguments, {saved / batch:g} iterations in the schedule, which "
            "is what the run goes on with: set learning_rate_schedule_steps and "
            "warmup_steps_fraction accordingly"
        )
