"""What one process of a run does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .arguments import arguments_of, of_twin
from .building import gpt, transformer_config, wrapped
from .optimizing import core_optimizer, optimizer_config, scheduler_of, subtract_decay
from .saving import State, load_torch_dist, save_legacy, save_torch_dist
from .training import Training

Tokens = NDArray[np.int32]


def train(training: Training, folder: Path, tokens: Tokens, report: Callable[[str], None]) -> None:
    """Train and save; the processes with the loss write ``losses.txt``, all the same numbers.

    Args:
      folder: of the run, which exists.
      tokens: int32 [steps, batch, sequence + 1].
      report: gets a line now and then.
    """
    state = start(training)
    first = load_torch_dist(state, Path(training.start)) if training.start else 0
    if training.nudge:
        nudge(state.model, training.nudge * torch.inf)
    losses = []
    for step in range(first, training.steps + 1):
        if step in training.saves:
            _save(training, state, folder, step)
        if step == training.steps:
            break
        losses.append(take_step(training, state, tokens[step]))
        if step % 100 == 99:
            report(f"step {step + 1}: loss {losses[-1]}")
    if losses and losses[-1] is not None:
        (folder / "losses.txt").write_text("".join(f"{loss!r}\n" for loss in losses))


def start(training: Training) -> State:
    """Model, optimizer and schedule of this process, before any step."""
    dtype = getattr(torch, training.dtype)
    config = transformer_config(training.model, training.layout, dtype)
    model = wrapped(
        config, gpt(training.model, config), training.sharding, layer_wise=training.is_layer_wise
    )
    settings = optimizer_config(training.settings, dtype)
    if training.reference == "rfc":
        from checks.trainers.rfc.optimizer import rfc_optimizer

        optimizer = rfc_optimizer(training, model, config)
    else:
        optimizer = core_optimizer(settings, model)
    if training.optimizer.subtract_decay:
        subtract_decay(optimizer)
    scheduler = scheduler_of(training, optimizer)
    config.finalize_model_grads_func = _finalize
    arguments = arguments_of(training, config, settings)
    return State(model, optimizer, scheduler, arguments, training.sharding)


def nudge(model: Any, towards: float) -> None:
    """Every weight to the next number in that direction."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.nextafter(parameter, torch.full_like(parameter, towards)))


def take_step(training: Training, state: State, batch: Tokens) -> float | None:
    """One optimizer step; the loss of all rows, where this process computes any.

    Args:
      batch: int32 [batch, sequence + 1], of which data-parallel ranks take a part each.

    Raises:
      ValueError: the step was skipped: the loss or the gradient is not finite.
    """
    from megatron.core.pipeline_parallel import get_forward_backward_func

    state.model.zero_grad_buffer()
    state.optimizer.zero_grad()
    seen = get_forward_backward_func()(
        forward_step_func=_forward,
        data_iterator=_rows(batch, training.rows),
        model=[state.model],
        num_microbatches=1,
        seq_length=training.model.sequence,
        micro_batch_size=training.rows,
        forward_only=False,
    )
    taken, _, _ = state.optimizer.step()
    loss = _mean(float(seen[0]), training) if seen else None
    if not taken or (loss is not None and not np.isfinite(loss)):
        raise ValueError(f"the step was not taken: loss {loss!r}")
    state.scheduler.step(increment=training.model.batch)
    return loss


def _rows(batch: Tokens, count: int) -> Iterator[torch.Tensor]:
    """This rank's."""
    from megatron.core import parallel_state

    first = parallel_state.get_data_parallel_rank() * count
    yield torch.from_numpy(batch[first : first + count].astype(np.int64))


def _mean(loss: float, training: Training) -> float:
    """Over data-parallel ranks, which have as many tokens each."""
    from megatron.core import parallel_state

    if training.layout.data == 1:
        return loss
    total = torch.tensor(loss, dtype=torch.float64)
    torch.distributed.all_reduce(total, group=parallel_state.get_data_parallel_group())
    return total.item() / training.layout.data


def _forward(data: Iterator[torch.Tensor], model: Any) -> tuple[torch.Tensor, Any]:
    rows = next(data)
    inputs, targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
    positions = torch.arange(inputs.shape[1]).expand_as(inputs)
    return model(inputs, positions, None, labels=targets), partial(_loss)


def _loss(per_token: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Sum and number of tokens, by which the schedule divides, and their quotient."""
    total = per_token.float().sum()
    count = torch.tensor(per_token.numel(), dtype=torch.int)
    return total, count, (total.detach() / count).item()


def _finalize(*arguments: Any, **keywords: Any) -> None:
    from megatron.core.distributed import finalize_model_grads

    finalize_model_grads(*arguments, **keywords)


def _save(training: Training, state: State, folder: Path, step: int) -> None:
    save = save_legacy if training.form == "torch" else save_torch_dist
    save(state, folder / f"iter_{step:07d}", step)
    for name in training.twins:
        twin = training.twin(name)
        arguments = of_twin(state.arguments, twin)
        written = dataclasses.replace(state, arguments=arguments, sharding=twin.sharding)
        _save(twin, written, folder / name, step)
