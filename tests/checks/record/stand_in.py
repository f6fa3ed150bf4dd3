"""What the hook meets in Megatron-LM's ``megatron.training.training``, and nothing else of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

Batch = dict[str, torch.Tensor]


class RerunDataIterator:
    """Gives what an iterator gives; Megatron wraps every training iterator so."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self.batches = batches

    def __next__(self) -> Batch:
        return next(self.batches)


def batches(tokens: torch.Tensor) -> Iterator[Batch]:
    """One sequence each of int [steps, batch, length + 1], in their order."""
    for rows in tokens.flatten(0, 1):
        yield {"tokens": rows[None, :-1].long(), "labels": rows[None, 1:].long()}


def training(arguments: SimpleNamespace, **answers: Any) -> ModuleType:
    """A module with ``get_args`` and a ``train_step`` of micro-batches of one sequence.

    Args:
      answers: ``skipped``, steps that do no update; ``again``, steps that run twice.
    """
    module = ModuleType("megatron.training.training")

    def train_step(
        forward_step: Callable[[Any], float], data_iterator: Any, *_rest: Any, **_named: Any
    ) -> tuple[Any, ...]:
        step = arguments.curr_iteration
        for _ in range(2 if step in answers.get("again", ()) else 1):
            losses = [forward_step(data_iterator) for _ in range(arguments.global_batch_size)]
        skipped = int(step in answers.get("skipped", ()))
        mean = torch.tensor(losses).mean()
        return {"lm loss": mean}, skipped, False, False, 0, 1.0, None, 0

    module.get_args = lambda: arguments  # type: ignore[attr-defined]
    module.train_step = train_step  # type: ignore[attr-defined]
    return module


def loss_of(iterator: Any) -> float:
    """A loss that every token moves."""
    batch = next(iterator)
    return float(batch["tokens"].sum() * 1e-3 + batch["labels"][0, -1] * 1e-5)


def run(module: ModuleType, tokens: torch.Tensor, first: int, end: int) -> list[float]:
    """Train the steps as Megatron's loop does; returns what a log would have."""
    arguments = module.get_args()
    iterator = RerunDataIterator(batches(tokens[first:]))
    losses = []
    for step in range(first, end):
        arguments.curr_iteration = step
        answer = module.train_step(loss_of, iterator, None, None, iteration=step)
        losses.append(float(answer[0]["lm loss"]))
    return losses
