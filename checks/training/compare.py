"""Two trainers from one checkpoint on the same tokens: the top rung of the ladder."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from checks.result import Rung
from checks.setting import Setting
from converters.maxtext.plan import Options

from .converted import Converted, converted
from .errors import RunError
from .folder import RecordedRun
from .gates import Gate, gate_of
from .interpreter import interpreter
from .maxtext import Job, Trained, train
from .tree import Tree, migrated_copy, open_tree
from .verdict import NAME, Compared, Floats, judge
from .windows import Window, cut, windows


@dataclass(frozen=True)
class How:
    """What may be chosen besides.

    Attributes:
      restarted: one window from each checkpoint to the next instead of one free run.
      migrate: train a migrated copy where the tree is not migrated, instead of refusing.
      scan: MaxText's ``scan_layers``.
      config: MaxText keys on top of what the run's arguments give; for negative controls.
      spec_overrides: MuonSpec fields that Megatron's arguments do not record, such as ``ns_eps``.
      floor: measure the noise floor with MaxText where the run has none: it trains a second time
        with every weight moved by one unit in the last place. Done anyway where the limit is a
        multiple of the floor.
    """

    restarted: bool = False
    migrate: bool = True
    scan: bool = True
    config: Mapping[str, Any] = field(default_factory=dict)
    spec_overrides: Mapping[str, Any] = field(default_factory=dict)
    floor: bool = False


def compare(
    run: RecordedRun,
    maxtext: Path,
    python: Path | None,
    steps: int | None,
    setting: Setting,
    how: How = How(),
) -> Rung:
    """Train real MaxText on the recorded run's checkpoint and tokens; compare loss by loss.

    Of the setting only ``device`` and ``progress`` matter: everything else is the checkpoint's.

    Args:
      maxtext: a checkout or an unpacked release; it is only read.
      python: of MaxText's environment; None looks for one.
      steps: how many to compare; None is all that were recorded.

    Raises:
      RunError: the run or the MaxText cannot be used.
    """
    began = time.monotonic()
    stretches = windows(run, steps, restarted=how.restarted)
    tree = open_tree(maxtext)
    if tree.status == "half-applied" or (tree.status != "migrated" and not how.migrate):
        raise RunError(
            f"{maxtext}: this MaxText is {tree.status}: it computes another Muon than Megatron; "
            f"run: muon-migrate apply {maxtext} --reference megatron"
        )
    chosen = interpreter(python, tree)
    with tempfile.TemporaryDirectory(prefix="muon-check-") as scratch:
        folder = Path(scratch)
        if tree.status != "migrated":
            setting.progress(f"migrating a copy of MaxText {tree.version}")
            tree = migrated_copy(tree, folder / "maxtext")
        trial = Trial(run, stretches, tree, chosen, folder, setting, how)
        found, gate, facts, notes = trial.carry_out()
    rung = judge(found, gate, run.losses.precision)
    details = {**rung.details, "maxtext": tree.version, "trained": dict(facts)}
    everything = (*run.notes, *tree.notes, *notes, *rung.notes)
    return Rung(
        NAME,
        f"MaxText {tree.version} goes on with the Megatron run in {run.folder.name}",
        rung.outcome,
        rung.figures,
        rung.divergence,
        rung.reason,
        everything,
        rung.curves,
        time.monotonic() - began,
        details,
    )


@dataclass(frozen=True)
class Trial:
    """Everything that one comparison is made from."""

    run: RecordedRun
    windows: tuple[Window, ...]
    tree: Tree
    python: Path
    folder: Path
    setting: Setting
    how: How

    def carry_out(self) -> tuple[tuple[Compared, ...], Gate, Mapping[str, Any], tuple[str, ...]]:
        states = [self._converted(window, nudged=False) for window in self.windows]
        gate = gate_of(states[0].plan.spec, states[0].arguments, restarted=self.how.restarted)
        needs_floor = self.run.floor is None and (self.how.floor or gate.over_floor)
        nudged = [self._converted(w, nudged=True) for w in self.windows if needs_floor]
        trained = self._train([*states, *nudged])
        count = len(self.windows)
        floors = self._floors(trained, count, needs_floor)
        found = tuple(
            Compared(window, cut(self.run.losses, window.first, window.end), ours, floor)
            for window, ours, floor in zip(
                self.windows, trained.losses[:count], floors, strict=True
            )
        )
        notes = list(states[0].plan.notes)
        if needs_floor:
            notes.append(
                "noise floor: MaxText against itself with every weight one unit in the last place "
                "off at the start; the recorded run has none of Megatron"
            )
        return found, gate, trained.facts, tuple(notes)

    def _converted(self, window: Window, *, nudged: bool) -> Converted:
        options = Options(
            maxtext_version=self.tree.version,
            scan=self.how.scan,
            spec_overrides=self.how.spec_overrides,
        )
        kind = "nudged" if nudged else "converted"
        self.setting.progress(f"converting the checkpoint at iteration {window.first}")
        place = self.folder / f"{kind}-{window.first}"
        return converted(window.checkpoint, place, options, nudged=nudged)

    def _train(self, states: Sequence[Converted]) -> Trained:
        jobs = []
        for number, state in enumerate(states):
            window = self.windows[number % len(self.windows)]
            jobs.append(
                Job(
                    f"window-{number}",
                    {**state.config, **self.how.config},
                    window.first,
                    window.steps,
                    self.run.tokens_path,
                    window.first - self.run.first_batch,
                    self.run.tokens.shape[1],
                )
            )
        folder, device = self.folder / "runs", self.setting.device
        return train(
            self.tree, self.python, jobs, folder, device=device, progress=self.setting.progress
        )

    def _floors(self, trained: Trained, count: int, measured: bool) -> list[Floats | None]:
        if measured:
            pairs = zip(trained.losses[:count], trained.losses[count:], strict=True)
            return [np.abs(nudged - ours) for ours, nudged in pairs]
        if self.run.floor is None:
            return [None] * count
        recorded = self.run.floor
        return [
            np.abs(cut(recorded, w.first, w.end) - cut(self.run.losses, w.first, w.end))
            for w in self.windows
        ]
