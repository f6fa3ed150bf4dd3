"""Rungs in order, each timed; what a reader must know of the run beside them."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from checks.cases import CASES, Entry
from checks.report.environment import DeviceError
from checks.result import Outcome, Report, Rung
from checks.setting import Setting
from checks.sides.settled import settled
from checks.training.errors import RunError
from muon_fork.spec import SpecError

_BROKE = "it broke:"
_ROOT = Path(__file__).parents[2]
# What the command says in one line: nothing ran that was worth running.
_OF_THE_USER = (DeviceError, RunError, SpecError, ModuleNotFoundError)


class UnknownCase(ValueError):
    """No rung has that name; the message lists those there are."""


def chosen(names: Iterable[str], level: str) -> tuple[Entry, ...]:
    """The rungs of that level, or those that are named, in the order of the ladder.

    Raises:
      UnknownCase: a name that no rung has.
    """
    wanted = tuple(names)
    unknown = [name for name in wanted if name not in {case.name for case in CASES}]
    if unknown:
        known = ", ".join(case.name for case in CASES)
        raise UnknownCase(f"unknown case {', '.join(unknown)}; known: {known}")
    if wanted:
        return tuple(case for case in CASES if case.name in wanted)
    return tuple(case for case in CASES if level in case.levels)


def climb(cases: Iterable[Entry], setting: Setting) -> tuple[Rung, ...]:
    """Every rung, whatever the ones before it found."""
    return tuple(_timed(case, setting) for case in cases)


def _timed(case: Entry, setting: Setting) -> Rung:
    setting.progress(f"{case.name}: {case.title}")
    if case.numeric and setting.dtype == "f64" and setting.device != "cpu":
        reason = f"float64 is for --device cpu: a {setting.device} has none worth trusting"
        return Rung(case.name, case.title, Outcome.NOT_RUN, reason=reason)
    start = time.monotonic()
    try:
        rung = case.load().run(setting)
    except _OF_THE_USER:
        raise
    except Exception as error:  # the rungs after it are still worth their time
        setting.progress(traceback.format_exc())
        reason = f"{_BROKE} {type(error).__name__} in {_place(error)}: {error}"
        rung = Rung(case.name, case.title, Outcome.FAILED, reason=reason)
    return dataclasses.replace(rung, seconds=time.monotonic() - start)


def _place(error: Exception) -> str:
    """Where it came out of the code of this project."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(_ROOT)]
    return f"{Path(own[-1].filename).relative_to(_ROOT)}:{own[-1].lineno}"


def report(
    rungs: tuple[Rung, ...], setting: Setting, environment: Mapping[str, str], command: str
) -> Report:
    recorded = [rung.details["spec"] for rung in rungs if "spec" in rung.details]
    spec: Any = recorded[0] if recorded else dataclasses.asdict(settled(setting).spec)
    return Report(rungs, environment, spec, (command,))


def missed(rungs: tuple[Rung, ...], setting: Setting) -> bool:
    """Whether a trap was switched on and no rung saw it."""
    saw = any(r.outcome is Outcome.FAILED and not r.reason.startswith(_BROKE) for r in rungs)
    return setting.trap is not None and not saw
