"""Two trainers from one checkpoint on the same tokens: the top rung of the ladder."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from checks.result import Rung
from checks.setting import Setting
from muon_fork.config_keys import CONFIG_KEYS

from .errors import RunError
from .folder import RecordedRun
from .how import How
from .interpreter import interpreter, require_device
from .tree import Tree, migrated_copy, open_tree
from .trial import Trial
from .verdict import judge
from .windows import windows

__all__ = ["How", "compare"]

_PLAIN = How()


def compare(
    run: RecordedRun,
    maxtext: Path,
    python: Path | None,
    steps: int | None,
    setting: Setting,
    how: How = _PLAIN,
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
    _require_usable(tree, how)
    chosen = interpreter(python, tree)
    require_device(chosen, setting.device)
    with tempfile.TemporaryDirectory(prefix="muon-check-") as scratch:
        folder = Path(scratch)
        if tree.status != "migrated" and not how.as_released:
            setting.progress(f"migrating a copy of MaxText {tree.version}")
            tree = migrated_copy(tree, folder / "maxtext")
        found = Trial(run, stretches, tree, chosen, folder, setting, how).carry_out()
    rung = judge(found.windows, found.gate, run.losses.precision, f"MaxText {tree.version}")
    spec = None if found.spec is None else asdict(found.spec)
    return replace(
        rung,
        title=f"MaxText {tree.version} goes on with the Megatron run in {run.folder.name}",
        notes=(*run.notes, *_settled(run, how), *tree.notes, *found.notes, *rung.notes),
        seconds=time.monotonic() - began,
        details={**rung.details, "spec": spec, "trained": {**found.facts, "maxtext": tree.version}},
    )


def _settled(run: RecordedRun, how: How) -> Iterator[str]:
    """What run.json settles of the optimizer, and where the caller settles it otherwise."""
    if how.as_released:
        return
    for name, value in run.spec.items():
        used = how.spec_overrides.get(name, value)
        yield f"{name}={used}: " + ("run.json" if used == value else f"run.json says {value}")


def _require_usable(tree: Tree, how: How) -> None:
    if tree.status == "half-applied":
        raise RunError(
            f"{tree.named}: this MaxText is half migrated: see muon-migrate status {tree.named}"
        )
    missing = [row.key for row in CONFIG_KEYS if row.key not in tree.keys]
    if tree.status == "migrated" and missing and not how.as_released:
        raise RunError(
            f"{tree.named}: migrated by an older muon-migrate, so it has no {missing[0]}: run "
            f"muon-migrate apply {tree.named} --reference megatron"
        )
    if tree.status == "migrated" and how.as_released:
        raise RunError(f"{tree.named}: is migrated: --as-released takes an untouched MaxText")
    if tree.status != "migrated" and not (how.migrate or how.as_released):
        raise RunError(
            f"{tree.named}: this MaxText is not migrated, so it computes another Muon than "
            f"Megatron; run: muon-migrate apply {tree.named} --reference megatron"
        )
