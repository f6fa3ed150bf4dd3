"""Carry a comparison out: convert each checkpoint, train every window, line up the losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from checks.setting import Setting
from converters.maxtext.plan import Options
from muon_fork.spec import MuonSpec

from .converted import Converted, converted, planned
from .folder import RecordedRun
from .gates import Gate, gate_of
from .how import How
from .losses import Losses
from .maxtext import Job, Trained, train
from .released import NOTE, released_config
from .tree import Tree
from .verdict import Compared, Floats
from .windows import Window, cut

_FLOOR_NOTE = (
    "noise floor: MaxText against itself with every weight one unit in the last place off at the "
    "start; the recorded run has none of Megatron for these steps"
)


@dataclass(frozen=True)
class Found:
    """What came of it.

    Attributes:
      spec: the run's Muon; None where the checkpoint has none.
      facts: what trained: package, device, versions.
      notes: of the conversion and of the floor.
    """

    windows: tuple[Compared, ...]
    gate: Gate
    spec: MuonSpec | None
    facts: Mapping[str, Any]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Trial:
    """Everything that one comparison is made from; ``folder`` is empty and may be filled."""

    run: RecordedRun
    windows: tuple[Window, ...]
    tree: Tree
    python: Path
    folder: Path
    setting: Setting
    how: How

    @property
    def recorded_floor(self) -> Losses | None:
        """The run's, from its start on: of a window that starts afresh it says nothing."""
        return None if self.how.restarted else self.run.floor

    def carry_out(self) -> Found:
        """Train; one process of MaxText for all windows.

        Raises:
          RunError: a checkpoint cannot be converted, or MaxText failed.
        """
        states = [self._state(window, nudged=False) for window in self.windows]
        spec, arguments = states[0].plan.spec, states[0].arguments
        gate = gate_of(spec, arguments, self.how)
        is_measured = self.recorded_floor is None and (self.how.floor or gate.over_floor)
        nudged = [self._state(window, nudged=True) for window in self.windows if is_measured]
        trained = self._train([*states, *nudged])
        notes = [NOTE] if self.how.as_released else list(states[0].plan.notes)
        notes += [_FLOOR_NOTE] if is_measured else []
        compared = zip(self.windows, trained.losses, self._floors(trained), strict=False)
        return Found(
            tuple(Compared(w, self._reference(w), ours, floor) for w, ours, floor in compared),
            gate,
            spec,
            trained.facts,
            tuple(notes),
        )

    def _reference(self, window: Window) -> Floats:
        return cut(self.run.losses, window.first, window.end)

    def _state(self, window: Window, *, nudged: bool) -> Converted:
        options = Options(
            maxtext_version=self.tree.version,
            scan=self.how.scan,
            spec_overrides={**self.run.spec, **self.how.spec_overrides},
            optimizer=not self.how.as_released,
            float64=self.how.float64,
        )
        self.setting.progress(f"converting the checkpoint at iteration {window.first}")
        place = self.folder / f"{'nudged' if nudged else 'converted'}-{window.first}"
        state = converted(window.checkpoint, place, options, nudged=nudged)
        if not self.how.as_released:
            return state
        whole = planned(window.checkpoint, replace(options, optimizer=True))
        path = state.config[state.plan.load_key]
        config = released_config(self.tree, state.plan, whole, path)
        return Converted(replace(state.plan, spec=whole.spec), config, state.arguments)

    def _train(self, states: Sequence[Converted]) -> Trained:
        jobs = [
            Job(
                f"window-{number}",
                {**state.config, **self.how.config},
                0 if self.how.as_released else window.first,
                window.steps,
                self.run.tokens_path,
                window.first - self.run.first_batch,
                self.run.tokens.shape[1],
            )
            for number, (state, window) in enumerate(zip(states, self.windows * 2, strict=False))
        ]
        return train(
            self.tree,
            self.python,
            jobs,
            self.folder / "runs",
            device=self.setting.device,
            x64=self.how.float64,
            progress=self.setting.progress,
        )

    def _floors(self, trained: Trained) -> list[Floats | None]:
        """|difference| of one side against itself: of Megatron where it was recorded."""
        recorded, count = self.recorded_floor, len(self.windows)
        if recorded is not None:
            windows = self.windows
            return [np.abs(cut(recorded, w.first, w.end) - self._reference(w)) for w in windows]
        pairs = zip(trained.losses[:count], trained.losses[count:], strict=False)
        return [np.abs(nudged - ours) for ours, nudged in pairs] or [None] * count
