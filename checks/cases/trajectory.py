"""Rung: a long run of every kind of parameter, in the setting's dtype."""

from __future__ import annotations

from checks.result import Rung
from checks.setting import Case, Setting
from checks.sides.run import follow

NAME = "trajectory"
TITLE = "many steps of every kind of parameter"


def run(setting: Setting) -> Rung:
    """Against float64, and against the real optimizers where they compute the same spec."""
    return follow(NAME, TITLE, setting, setting.dtype)


CASE = Case(NAME, TITLE, ("quick", "full"), run)
