"""Each rung passes, and reports what a reader needs of each figure."""

from __future__ import annotations

import math

import pytest

from checks.cases import CASES
from checks.result import Outcome, Rung
from checks.setting import Setting
from muon_fork.presets import preset

# Rows of checks/tolerances.py that the rungs gate on, by name.
GATES = (
    "newton_schulz_f64",
    "newton_schulz_f32",
    "newton_schulz_bf16",
    "step_update_f64",
    "step_state_f64",
    "step_weight_f64",
    "step_update_f32",
    "step_state_f32",
    "step_weight_f32",
    "step_update_bf16",
    "step_state_bf16",
    "step_weight_bf16",
    "alike_update_f64",
    "alike_state_f64",
    "alike_weight_f64",
    "alike_update_f32",
    "alike_state_f32",
    "alike_weight_f32",
    "alike_update_bf16",
    "alike_state_bf16",
    "alike_weight_bf16",
    "checkpoint",
    "trajectory_update_f64",
    "trajectory_state_f64",
    "trajectory_weight_f64",
    "trajectory_update_f32",
    "trajectory_state_f32",
    "trajectory_weight_f32",
    "trajectory_update_bf16",
    "trajectory_state_bf16",
    "trajectory_weight_bf16",
)


def run(name: str, dtype: str = "f32", reference: str = "megatron", **options: str) -> Rung:
    case = {entry.name: entry for entry in CASES}[name].load()
    return case.run(Setting(preset(reference), dtype=dtype, **options))


def assert_whole(rung: Rung) -> None:
    """Passed, with figures that are numbers, beside a floor where one can be measured."""
    assert rung.outcome is Outcome.PASSED, (rung.divergence, rung.reason)
    assert rung.figures
    assert {figure.gate for figure in rung.figures} <= set(GATES)
    for figure in rung.figures:
        assert figure.passed
        assert math.isfinite(figure.difference.max_abs)
        assert figure.floor is not None, figure


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_one_matrix(dtype: str) -> None:
    assert_whole(run("newton_schulz", dtype))


@pytest.mark.parametrize(("dtype", "reference"), [("f32", "megatron"), ("f64", "megatron_rfc")])
def test_one_step(dtype: str, reference: str) -> None:
    assert_whole(run("step", dtype, reference))
