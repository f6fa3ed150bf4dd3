"""Rung: the same long run in float64, where no rounding can hide a difference."""

from __future__ import annotations

from checks.result import Outcome, Rung
from checks.setting import Case, Setting
from checks.sides.run import follow

NAME = "trajectory_f64"
TITLE = "the same steps in float64"


def run(setting: Setting) -> Rung:
    """Against float64; only a CPU computes in it."""
    if setting.device != "cpu":
        reason = f"float64 is for --device cpu: a {setting.device} has none worth trusting"
        return Rung(NAME, TITLE, Outcome.NOT_RUN, reason=reason)
    return follow(NAME, TITLE, setting, "f64")


CASE = Case(NAME, TITLE, ("quick", "full"), run)
