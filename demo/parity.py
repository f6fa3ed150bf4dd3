"""The demo's last word: the first rungs of the ladder and the continued run, as one page."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

from checks.cases import CASES
from checks.parity import ladder
from checks.report import page
from checks.report.environment import describe
from checks.result import Report, Rung
from checks.setting import Setting
from checks.sides import devices
from checks.training.compare import compare
from checks.training.folder import open_run
from muon_fork.spec import MuonSpec

# The rungs that take seconds.
RUNGS = ("newton_schulz", "step")
COMMANDS = (
    "make demo",
    "muon-check parity --level full",
    "muon-check parity --run tests/data/megatron/mla_run --maxtext out/demo/maxtext",
)


def climb(spec: MuonSpec, progress: Callable[[str], None]) -> tuple[Rung, ...]:
    """The fork against what Megatron computes under ``spec``."""
    devices.prefer("cpu")
    setting = Setting(spec, progress=progress)
    return ladder.climb((case for case in CASES if case.name in RUNGS), setting)


def training(
    run: Path, tree: Path, python: Path, spec: MuonSpec, progress: Callable[[str], None]
) -> Rung:
    """The migrated MaxText in ``tree`` goes on with the recorded run, loss by loss."""
    return compare(open_run(run), tree, python, None, Setting(spec, progress=progress))


def write(file: Path, rungs: tuple[Rung, ...], spec: MuonSpec) -> Report:
    """The page, in ``file``."""
    report = Report(rungs, describe("cpu"), dataclasses.asdict(spec), COMMANDS)
    file.write_text(page.render(report), encoding="utf-8")
    return report


def spec_of(conversion: Path) -> MuonSpec:
    """What the converted run computes, from the report beside its checkpoint."""
    return MuonSpec(**json.loads(conversion.read_text())["spec"])
