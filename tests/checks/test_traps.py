"""Negative controls: each known mistake, switched on alone, fails the right rung by name."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from checks.cases import CASES
from checks.cli import main
from checks.result import Outcome, Rung
from checks.setting import Setting
from checks.traps import TRAPS, Trap
from muon_fork.presets import preset

SETTING = Setting(preset("megatron"))
# The ladder up to the last rung that a trap names.
LADDER = tuple(case.name for case in CASES)
HIGHEST = max(LADDER.index(trap.rung) for trap in TRAPS)


def first_failure(trap: Trap) -> tuple[list[str], Rung]:
    """The rungs that did not see the trap, and the one that did."""
    passed = []
    setting = Setting(SETTING.spec, trap=trap.name)
    for entry in CASES[: HIGHEST + 1]:
        rung = entry.load().run(setting)
        if rung.outcome is not Outcome.PASSED:
            return passed, rung
        passed.append(rung.name)
    raise AssertionError(f"no rung saw {trap.name}: {', '.join(passed)}")


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.name)
def test_a_trap_fails_its_rung_and_is_named(trap: Trap) -> None:
    passed, rung = first_failure(trap)
    assert rung.outcome is Outcome.FAILED, rung.reason
    assert passed == list(LADDER[: LADDER.index(trap.rung)])
    assert rung.name == trap.rung
    assert rung.divergence is not None
    assert (rung.divergence.rung, rung.divergence.term) == (trap.rung, trap.term)
    assert trap.parameter in rung.divergence.parameter
    assert rung.divergence.detail


def test_every_mistake_of_the_list_is_there() -> None:
    names = {trap.name for trap in TRAPS}
    assert len(names) == len(TRAPS)
    assert names >= {
        "bias_correction",
        "momentum_convention",
        "simple_for_quintic",
        "per_head",
        "fc1_split",
        "nadam",
        "folded_query",
        "clip_stored",
        "clip_formula",
        "count_zero",
        "eps_swapped",
        "decayed_norms",
        "bf16_newton_schulz",
    }


def test_a_trap_that_nothing_sees_is_said() -> None:
    words = ["parity", "--case", "newton_schulz", "--trap", "nadam"]
    shown = CliRunner().invoke(main, words)
    assert shown.exit_code == 0
    assert "no rung that ran saw the trap nadam" in shown.stderr
