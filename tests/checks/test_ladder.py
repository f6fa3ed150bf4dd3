"""Each rung passes, and reports what a reader needs of each figure."""

from __future__ import annotations

import functools
import math
import re
from types import SimpleNamespace

import pytest

from checks.cases import CASES
from checks.parity.ladder import climb, missed
from checks.result import Outcome, Rung
from checks.setting import Case, Setting
from muon_fork.presets import preset
from muon_fork.spec import SpecError

# Rows of checks/tolerances.py that the rungs gate on, by name.
GATES = (
    "newton_schulz_f64",
    "newton_schulz_f32",
    "newton_schulz_bf16",
    "newton_schulz_bf16_released",
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


@functools.cache
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


@pytest.mark.parametrize("name", ["trajectory_f64", "batching", "scanning", "sharding"])
def test_longer_rungs(name: str) -> None:
    assert_whole(run(name))


def test_a_trajectory_meets_the_real_optimizers() -> None:
    rung = run("trajectory")
    assert_whole(rung)
    subjects = " ".join(figure.subject for figure in rung.figures)
    assert "Megatron-Core" in subjects
    assert "torch.optim.AdamW" in subjects


def test_optax_is_met_under_its_own_preset() -> None:
    rung = run("step", "f64", "optax")
    assert_whole(rung)
    assert any("optax.contrib.muon" in figure.subject for figure in rung.figures)


def test_sharded_leaves_are_really_cut() -> None:
    rung = run("sharding")
    assert set(rung.details["leaves cut"]) == {
        "fsdp 8",
        "fsdp 4 x tensor 2",
        "expert 4 x fsdp 2",
    }
    for cut in rung.details["leaves cut"].values():
        some, of, all_leaves = cut.split()
        assert of == "of"
        assert int(some) >= int(all_leaves) - 1
    assert all(kinds["all-to-all"] for kinds in rung.details["collectives"].values())


@pytest.mark.parametrize("reference", ["megatron", "megatron_rfc", "optax"])
def test_routing_is_megatrons(reference: str) -> None:
    rung = run("routing", reference=reference)
    assert rung.outcome is Outcome.PASSED, rung.details["differences"][:3]
    assert rung.details["routes"] > 600


def test_a_wrong_route_is_found() -> None:
    rung = run("routing", trap="decayed_norms")
    assert rung.outcome is Outcome.FAILED
    assert rung.divergence is not None
    assert rung.divergence.term == "routing"
    assert {row["theirs"] for row in rung.details["differences"]} == {"AdamW, does not decay"}


def test_a_converted_checkpoint_is_its_source() -> None:
    rung = run("checkpoint")
    assert_whole(rung)
    assert {figure.subject.partition(",")[0] for figure in rung.figures} == {
        "weight",
        "momentum_buffer",
        "exp_avg",
        "exp_avg_sq",
        "count",
    }


def test_float64_is_not_run_elsewhere() -> None:
    numeric = [case for case in CASES if case.numeric]
    setting = Setting(preset("megatron"), device="tpu", dtype="f64")
    for rung in (run("trajectory_f64", device="tpu"), *climb(numeric, setting)):
        assert rung.outcome is Outcome.NOT_RUN
        assert "--device cpu" in rung.reason


def test_a_rung_that_breaks_does_not_take_the_others_along() -> None:
    def breaks(_: Setting) -> Rung:
        raise IndexError("none of these")

    broken = Case("broken", "ends in an error", (), breaks)
    entry = SimpleNamespace(name="broken", title=broken.title, numeric=False, load=lambda: broken)
    sound = next(case for case in CASES if case.name == "newton_schulz")
    said: list[str] = []
    first, second = climb((entry, sound), Setting(preset("megatron"), progress=said.append))
    assert first.outcome is Outcome.FAILED
    assert re.search(r"IndexError in tests/checks/test_ladder.py:\d+: none of these", first.reason)
    assert missed((first, second), Setting(preset("megatron"), trap="nadam"))
    assert any("Traceback" in line for line in said)
    assert second.outcome is Outcome.PASSED


def test_what_the_user_must_mend_ends_the_ladder() -> None:
    def breaks(_: Setting) -> Rung:
        raise SpecError("a field and its value")

    case = Case("broken", "a mistake of the user's", (), breaks)
    entry = SimpleNamespace(name="broken", title=case.title, numeric=False, load=lambda: case)
    with pytest.raises(SpecError, match="a field"):
        climb((entry,), Setting(preset("megatron")))


def test_a_trajectory_names_the_step() -> None:
    """From a zero buffer bias correction only scales the first input of Newton-Schulz."""
    rung = run("trajectory_f64", trap="bias_correction")
    assert rung.outcome is Outcome.FAILED
    assert rung.divergence is not None
    assert (rung.divergence.step, rung.divergence.term) == (1, "momentum")
