"""One iteration of a run, saved by other numbers of processes in other forms, is read as equal."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from checks.measure import Difference, measure
from checks.result import Figure, Outcome, Rung
from checks.tolerances import limit
from checks.trainers.megatron.launch import resave
from checks.trainers.megatron.options import Layout
from checks.trainers.megatron.training import Format, Training
from converters.megatron.open import open_source
from converters.source import Source

GATE = "layouts"
TITLE = "One iteration, loaded and saved by every layout in both forms"
# Every layout in both forms, but the one that the recordings have.
LAYOUTS: tuple[tuple[Layout, Format], ...] = (
    (Layout(1, 1), "torch"),
    (Layout(2, 1), "torch_dist"),
    (Layout(2, 1), "torch"),
    (Layout(1, 2), "torch_dist"),
    (Layout(1, 2), "torch"),
    (Layout(2, 2), "torch_dist"),
    (Layout(2, 2), "torch"),
)


def equal_layouts(
    training: Training,
    iteration: Path,
    layouts: Sequence[tuple[Layout, Format]] = LAYOUTS,
    progress: Callable[[str], None] = lambda _line: None,
) -> Rung:
    """Load the iteration into real Megatron of each layout, save it there, and read it back.

    Args:
      training: the run of the iteration.
      iteration: in torch_dist.

    Raises:
      TrainingFailed: a process ended badly.
    """
    first = open_source(iteration)
    figures = []
    for layout, form in layouts:
        name = f"TP{layout.tensor} PP{layout.pipeline} {form}"
        progress(f"saving as {name}")
        changed = training.replace(layout=layout, form=form, start=str(iteration))
        with tempfile.TemporaryDirectory() as scratch:
            second = open_source(resave(changed, Path(scratch)))
            figures.append(_figure(name, first, second))
    passed = all(figure.passed for figure in figures)
    outcome = Outcome.PASSED if passed else Outcome.FAILED
    return Rung("layouts", TITLE, outcome, tuple(figures))


def _figure(name: str, first: Source, second: Source) -> Figure:
    """The worst tensor; one that only one side has is no number away."""
    subject = f"weights, momentum and moments saved as {name}"
    if first.tensors.keys() != second.tensors.keys() or _counts(first) != _counts(second):
        odd = sorted(map(str, first.tensors.keys() ^ second.tensors.keys()))
        worst, parameter = Difference(*[float("nan")] * 4), ", ".join(odd) or "counts"
        return Figure(subject, worst, GATE, limit(GATE), parameter=parameter)
    found = {
        str(key): measure(second.tensors[key].load(), np.asarray(tensor.load()))
        for key, tensor in first.tensors.items()
    }
    parameter = max(found, key=lambda key: found[key].max_abs)
    return Figure(subject, found[parameter], GATE, limit(GATE), parameter=parameter)


def _counts(source: Source) -> tuple[int, ...]:
    steps = [state.step for state in source.run.optimizers if state.step is not None]
    return (source.run.iteration, *steps)
