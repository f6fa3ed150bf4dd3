"""Everything up to the first write: which tree, whose Muon, what is in the way."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from codemods import git
from codemods import record as records
from codemods.changes import Change
from codemods.errors import MigrateError, Problem
from codemods.fixer import Context, Fixer
from codemods.fork_copy import FORK
from codemods.layout import Layout, detect
from codemods.plan import Plan, make_plan, stale_fork_files
from codemods.record import digest
from codemods.reference import Reference, from_base_yml, from_preset
from codemods.state import TreeState, examine, is_marked, stray_fork
from muon_fork.config_keys import CONFIG_KEYS
from muon_fork.presets import DEFAULT_REFERENCE
from muon_fork.version import VERSION


@dataclass(frozen=True)
class Selection:
    """Which fixers to run; empty tuples mean all and none."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.only or self.skip)

    def of(self, fixers: Sequence[Fixer]) -> tuple[Fixer, ...]:
        """The chosen fixers in their order.

        Raises:
          MigrateError: a name that no fixer has.
        """
        known = {fixer.name for fixer in fixers}
        unknown = [name for name in (*self.only, *self.skip) if name not in known]
        if unknown:
            message = f"no such fixer: {', '.join(unknown)}; known: {', '.join(sorted(known))}"
            raise MigrateError(Problem(message))
        wanted = set(self.only or known) - set(self.skip)
        return tuple(fixer for fixer in fixers if fixer.name in wanted)


@dataclass(frozen=True)
class Applied:
    """A plan, and what has to be known about carrying it out."""

    plan: Plan
    reference: Reference
    state: TreeState
    notes: tuple[str, ...]


def prepare(
    path: Path,
    reference: Reference | None,
    selection: Selection,
    fixers: Sequence[Fixer],
    allow_dirty: bool,
) -> Applied:
    """Everything up to, and not including, the first write.

    Raises:
      MigrateError: the tree cannot be migrated as it is; nothing has been touched.
    """
    layout = detect(path)
    chosen = selection.of(fixers)
    state = examine(layout)
    _refuse_half_applied(layout, state, selection, allow_dirty)
    reference = reference or _kept_or_default(layout, state)
    context = Context(
        layout=layout,
        spec=reference.spec,
        package=layout.package.name,
        module=".".join((layout.package.name, *FORK.parts)),
        shared_keys=reference.shared_keys,
    )
    originals = _originals(layout, state, reference, selection, fixers)
    plan = make_plan(context, chosen, originals, is_whole=not selection)
    removed = stale_fork_files(layout, state.record)
    plan = dataclasses.replace(plan, changes=(*plan.changes, *removed))
    notes = (*reference.notes, *_clip_note(reference), *_git_notes(layout))
    return Applied(plan, reference, state, notes)


def _refuse_half_applied(
    layout: Layout, state: TreeState, selection: Selection, allow_dirty: bool
) -> None:
    stray = stray_fork(layout)
    if stray:
        message = "is not a copy made by muon-migrate: move it away, or rename it"
        raise MigrateError(Problem(message, layout.relative(stray)))
    if state.record is not None and state.record.state == "applying":
        message = "an apply was interrupted here: run muon-migrate revert, then apply again"
        raise MigrateError(Problem(message, str(layout.root)))
    if state.progress == "half-applied" and not (state.is_explained or selection or allow_dirty):
        hint = "take it back (muon-migrate revert, git checkout) or complete it with --allow-dirty"
        raise MigrateError(
            *(Problem("half-applied: this part is migrated", name) for name in state.done),
            *(Problem(f"half-applied: this part is not; {hint}", name) for name in state.open),
        )


def _kept_or_default(layout: Layout, state: TreeState) -> Reference:
    """Without a word from the user a migrated tree keeps its values."""
    base_yml = layout.roles["base_yml"]
    data = base_yml.read_bytes()
    if not is_marked("base_yml", data):
        return from_preset(DEFAULT_REFERENCE)
    settled = state.record.settings if state.record else {}
    shared = frozenset(row.key for row in CONFIG_KEYS if row.shared and row.key in settled)
    text = data.decode(errors="replace")
    kept = from_base_yml(text, layout.relative(base_yml), shared)
    if state.record and state.record.settings == kept.settings:
        return dataclasses.replace(kept, label=state.record.reference)
    return kept


def label_of_tree(layout: Layout, state: TreeState) -> str | None:
    """What the defaults of a migrated tree are called, None where it has none."""
    if not is_marked("base_yml", layout.roles["base_yml"].read_bytes()):
        return None
    try:
        return _kept_or_default(layout, state).label
    except MigrateError:
        return "contradictory"


def _originals(
    layout: Layout,
    state: TreeState,
    reference: Reference,
    selection: Selection,
    fixers: Sequence[Fixer],
) -> Mapping[Path, bytes]:
    """Texts from before the last apply, where redoing it from them is both possible and needed.

    Another reference or another version of the tool then leaves no trace of the earlier one.
    """
    record = state.record
    if record is None or not state.is_explained or selection:
        return {}
    is_whole = set(record.fixers) == {fixer.name for fixer in fixers}
    is_same = record.version == VERSION and record.settings == reference.settings
    rows = record.files.values()
    if is_same or not is_whole or any(row.edited for row in rows):
        return {}
    found = {
        records.path_of(layout, key): records.original(layout, row)
        for key, row in record.files.items()
    }
    return {path: data for path, data in found.items() if data is not None}


def _clip_note(reference: Reference) -> tuple[str, ...]:
    limit = reference.spec.clip_grad
    if not limit:
        return ()
    note = (
        f"muon_clip_grad is {limit}: a Muon run then needs gradient_clipping_threshold=0 "
        "(kept as it is, because AdamW runs read it too); with both set it refuses to start"
    )
    return (note,)


def _git_notes(layout: Layout) -> tuple[str, ...]:
    if git.is_work_tree(layout):
        return ()
    return ("not a git checkout: only muon-migrate's own copies can take the change back",)


def refuse_dirty(applied: Applied) -> None:
    """Raise unless git could give every file to be changed back.

    What the last apply wrote, and nobody has touched since, does not count.
    """
    layout = applied.plan.layout
    if not git.is_work_tree(layout):
        return
    files = applied.state.record.files if applied.state.record else {}

    def is_own(change: Change) -> bool:
        row = files.get(records.key_of(layout, change.path))
        return row is not None and row.after == digest(change.before)

    theirs = [c.path for c in applied.plan.changes if c.before is not None and not is_own(c)]
    problems = git.dirty(layout, theirs)
    if problems:
        raise MigrateError(*problems)
