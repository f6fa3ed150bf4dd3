"""What passes, what fails, and which step is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from checks.result import Outcome, Rung
from checks.tolerances import limit
from checks.training.gates import Gate, gate_of
from checks.training.how import How
from checks.training.verdict import Compared, judge
from checks.training.windows import Window
from muon_fork.presets import preset

MEGATRON = preset("megatron").replace(ns_dtype="float32")
REFERENCE = np.linspace(3.0, 2.5, 50)
DENSE = Gate("training_dense")


def compared(ours: np.ndarray, floor: np.ndarray | None = None, first: int = 20) -> Compared:
    window = Window(first, first + len(ours), Path("iter_0000020"))
    return Compared(window, REFERENCE, ours, floor)


def verdict(windows: list[Compared], gate: Gate = DENSE, precision: float = 0.0) -> Rung:
    return judge(windows, gate, precision, "MaxText")


def off_by(difference: float, place: int) -> np.ndarray:
    ours = REFERENCE.copy()
    ours[place] += difference
    return ours


def test_equal_curves_pass() -> None:
    rung = verdict([compared(off_by(0.9e-5, 30))])
    assert rung.outcome is Outcome.PASSED
    assert rung.divergence is None
    assert rung.figures[0].step == 50
    assert rung.details["max"] == pytest.approx(0.9e-5)


def test_the_first_step_above_the_limit_is_named() -> None:
    ours = off_by(1.1e-5, 30)
    ours[40] += 1.0
    rung = verdict([compared(ours)])
    assert rung.outcome is Outcome.FAILED
    assert rung.divergence is not None
    assert (rung.divergence.step, rung.divergence.term) == (50, "loss")
    assert rung.figures[0].step == 60


def test_a_nan_of_maxtext_fails() -> None:
    rung = verdict([compared(off_by(float("nan"), 7))])
    assert rung.outcome is Outcome.FAILED
    assert rung.divergence is not None
    assert rung.divergence.step == 27


def test_a_step_whose_loss_is_not_known_is_not_compared() -> None:
    one = compared(off_by(1.0, 7))
    reference = REFERENCE.copy()
    reference[7] = np.nan
    rung = verdict([Compared(one.window, reference, one.ours, None)])
    assert rung.outcome is Outcome.PASSED
    assert rung.details["steps"] == 49


def test_printing_widens_the_limit_by_what_it_hid() -> None:
    assert verdict([compared(off_by(1.04e-5, 3))], precision=5e-7).outcome is Outcome.PASSED
    assert verdict([compared(off_by(1.06e-5, 3))], precision=5e-7).outcome is Outcome.FAILED


def test_the_second_window_may_fail_too() -> None:
    good, bad = compared(REFERENCE), compared(off_by(1.0, 3), first=70)
    rung = verdict([good, bad])
    assert rung.divergence is not None
    assert rung.divergence.step == 73
    assert [figure.passed for figure in rung.figures] == [True, False]


def test_a_run_driven_by_rounding_is_held_to_its_floor_in_max_and_mean() -> None:
    floor = np.zeros(50)
    floor[10] = 1e-3
    gate = Gate("training_over_floor", over_floor=True)
    most = limit("training_over_floor") * 1e-3
    assert verdict([compared(off_by(0.9 * most, 30), floor)], gate).outcome is Outcome.PASSED
    assert verdict([compared(off_by(1.1 * most, 30), floor)], gate).outcome is Outcome.FAILED
    everywhere = verdict([compared(REFERENCE + 0.1 * most, floor)], gate)
    assert [figure.passed for figure in everywhere.figures] == [True, False]
    assert everywhere.outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("arguments", "restarted", "row", "over_floor"),
    [
        ({}, False, "training_dense", False),
        ({"multi_latent_attention": True}, False, "training_dense", False),
        ({"num_experts": 4}, True, "training_window", False),
        ({"num_experts": 4, "multi_latent_attention": True}, True, "training_mla_window", False),
        ({"num_experts": 4}, False, "training_over_floor", True),
        ({"bf16": True}, False, "training_over_floor", True),
    ],
)
def test_the_gate_follows_from_the_run(
    arguments: dict[str, object], restarted: bool, row: str, over_floor: bool
) -> None:
    gate = gate_of(MEGATRON, arguments, How(restarted=restarted))
    assert (gate.row, gate.over_floor) == (row, over_floor)


def test_bfloat16_newton_schulz_is_held_to_the_floor() -> None:
    low = MEGATRON.replace(ns_dtype="bfloat16")
    assert gate_of(low.replace(adam_only=True), {}, How()).row == "training_dense"
    gate = gate_of(low, {}, How())
    assert gate.over_floor
    assert gate.limit(None) == 0.0
