"""The spec that both sides of a rung compute: the setting's, where it says nothing completed."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from checks.setting import Setting
from checks.traps import NO_TRAP, Trap, trap
from muon_fork.spec import MuonSpec

from .devices import spec_in

# What presets leave to the run. The clipping limit is so small that Megatron's 1e-6 shows in it.
_OF_THE_RUN: dict[str, Any] = {"weight_decay": 0.1, "adam_weight_decay": 0.1, "clip_grad": 1e-3}


@dataclass(frozen=True)
class Settled:
    """What a rung computes.

    Attributes:
      spec: of the reference, Newton-Schulz in the rung's dtype.
      trap: in the fork's side.
      notes: what was completed.
    """

    spec: MuonSpec
    trap: Trap
    notes: tuple[str, ...]


def settled(setting: Setting, dtype: str | None = None) -> Settled:
    """The setting's spec, completed; ``dtype`` in place of the setting's."""
    chosen = trap(setting.trap) if setting.trap else NO_TRAP
    missing = {name: v for name, v in _OF_THE_RUN.items() if not getattr(setting.spec, name)}
    needed = {n: v for n, v in chosen.needs.items() if getattr(setting.spec, n) != v}
    spec = spec_in(setting.spec.replace(**missing, **needed), dtype or setting.dtype)
    notes = []
    if missing:
        values = ", ".join(f"{name}={value:g}" for name, value in missing.items())
        notes.append(f"the reference leaves {values} to the run: chosen for the check")
    if needed:
        values = ", ".join(f"{name}={value}" for name, value in needed.items())
        notes.append(f"both sides: {values}, without which {chosen.name} changes nothing")
    if setting.trap:
        notes.append(f"a known mistake is switched on: {chosen.title}")
    return Settled(spec, chosen, tuple(notes))


@functools.cache
def is_mistake(setting: Setting) -> bool:
    """Whether the setting's trap changes what the fork computes."""
    plan = settled(setting)
    return plan.trap.changes(plan.spec)
