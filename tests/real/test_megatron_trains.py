"""Real Megatron-Core trains, real MaxText goes on, and both have the same losses.

``make proof`` runs the whole table for 1300 steps; here are the first steps of what takes its own
way through the code: experts in windows, look-ahead off, AdamW alone, the optimizer of RFC-0023,
models that processes share.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from checks.proof.layouts import equal_layouts
from checks.proof.running import Place, run
from checks.proof.table import row
from checks.result import Outcome, Rung
from checks.tolerances import limit
from checks.trainers.megatron.launch import TrainingFailed, record
from checks.trainers.megatron.models import model
from checks.trainers.megatron.options import RFC, Layout, Optimizer
from checks.trainers.megatron.training import Reference, Training
from checks.training.folder import open_run
from tests.real.maxtext.trainer import built

pytestmark = pytest.mark.real

# Of the table, cut to so many steps.
SHORT = {
    "qwen3_moe_windows": (100, (20, 60)),
    "rfc": (80, (20,)),
    "nesterov_off": (80, (20,)),
    "gpu_decay": (80, (20,)),
    "adam": (80, (20,)),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("proof")
    return Place(folder, built("releases"), built("maxtext"), lambda _line: None)


@pytest.mark.parametrize("name", SHORT)
def test_maxtext_goes_on(name: str, place: Place) -> None:
    full = row(name)
    steps, saves = SHORT[name]
    cut = full.training.replace(steps=steps, saves=saves)
    rung = run(dataclasses.replace(full, training=cut, floor=False), place)
    print(f"{name}: {shown(rung)}")
    assert rung.outcome is Outcome.PASSED, rung.reason or rung.divergence
    assert rung.details["steps"] == steps - saves[0]
    assert len(rung.curves) == len(saves)


def shown(rung: Rung) -> str:
    return f"max {rung.details.get('max')}, mean {rung.details.get('mean')}"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Training, Path]:
    """Twenty steps and the iterations around them, by one process."""
    training = Training(model("qwen3"), steps=40, saves=(0, 20))
    return training, record(training, tmp_path_factory.mktemp("alone"))


def test_the_noise_floor_starts_where_maxtext_does(tmp_path: Path) -> None:
    record(Training(model("qwen3"), steps=6, saves=(3,)), tmp_path, floor=True)
    run = open_run(tmp_path)
    assert run.floor is not None
    apart = np.abs(run.floor.values - run.losses.values)
    assert not apart[:3].any()
    assert 0 < apart[3:].max() < limit("training_dense")


def test_other_layouts_save_the_same_bits(alone: tuple[Training, Path]) -> None:
    training, folder = alone
    layouts = ((Layout(2, 1), "torch"), (Layout(1, 2), "torch_dist"), (Layout(2, 2), "torch"))
    rung = equal_layouts(training, folder / "iter_0000020", layouts)
    for figure in rung.figures:
        assert figure.value <= limit("layouts"), figure
    assert rung.outcome is Outcome.PASSED


def test_two_processes_train_like_one(alone: tuple[Training, Path], tmp_path: Path) -> None:
    training, folder = alone
    start = str(folder / "iter_0000000")
    shared = training.replace(layout=Layout(2, 1), start=start, saves=())
    record(shared, tmp_path)
    first, second = (np.loadtxt(place / "losses.txt") for place in (folder, tmp_path))
    assert len(first) == len(second) == 40
    worst = float(np.abs(first - second).max())
    print(f"two processes: largest difference {worst:.1e}")
    assert worst <= limit("layouts_trained")


@pytest.mark.parametrize("reference", ["core", "rfc"])
def test_a_run_goes_on_from_its_checkpoint(reference: Reference, tmp_path: Path) -> None:
    """Weights, buffers and counts: without any of them the next losses would be others."""
    optimizer = Optimizer(rfc=RFC if reference == "rfc" else {})
    whole = Training(model("qwen3"), optimizer, steps=9, saves=(5,), reference=reference)
    record(whole, tmp_path / "whole")
    start = str(tmp_path / "whole" / "iter_0000005")
    record(whole.replace(saves=(), start=start), tmp_path / "rest")
    losses, rest = (np.loadtxt(tmp_path / name / "losses.txt") for name in ("whole", "rest"))
    assert len(rest) == 4
    np.testing.assert_array_equal(rest, losses[5:])


def test_a_run_that_cannot_be_trained_says_why(tmp_path: Path) -> None:
    shared = Training(model("qwen3"), Optimizer({"optimizer": "mu"}), steps=1, saves=())
    with pytest.raises(TrainingFailed, match="mu"):
        record(shared, tmp_path)
