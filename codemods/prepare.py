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
from codemods.fork_copy import FORK, tool_identity
from codemods.layout import Layout, detect
from codemods.plan import Plan, make_plan, settled_plan, stale_fork_files
from codemods.record import Record, digest
from codemods.reference import Reference, from_base_yml, from_preset
from codemods.state import TreeState, examine, is_marked, stray_fork
from muon_fork.config_keys import CONFIG_KEYS
from muon_fork.presets import DEFAULT_REFERENCE

Fixers = tuple[Fixer, ...]


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
    """A plan, and what has to be known about carrying it out.

    Attributes:
      state: of the tree before.
      is_whole: no fixer was left out.
    """

    plan: Plan
    reference: Reference
    state: TreeState
    notes: tuple[str, ...]
    is_whole: bool


def prepare(
    path: Path,
    reference: Reference | None,
    selection: Selection,
    fixers: Fixers,
    allow_dirty: bool,
) -> Applied:
    """Everything up to, and not including, the first write.

    Raises:
      MigrateError: the tree cannot be migrated as it is; nothing has been touched.
    """
    layout = detect(path)
    selection.of(fixers)
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
    plan = _plan(context, state, reference, selection, fixers)
    removed = stale_fork_files(layout, state.record)
    plan = dataclasses.replace(plan, changes=(*plan.changes, *removed))
    notes = (
        *reference.notes,
        *_fixer_notes(plan),
        *_clip_note(reference),
        *_git_notes(layout),
    )
    return Applied(plan, reference, state, notes, is_whole=not selection)


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


def _plan(
    context: Context, state: TreeState, reference: Reference, selection: Selection, fixers: Fixers
) -> Plan:
    """The cheapest plan that is sure to be right.

    A tree exactly as this very tool left it needs no parsing. One that another version, or another
    reference, left whole is done anew from its originals, so that no trace of the earlier one
    stays. Any other tree is rewritten as it is found.
    """
    record = state.record
    is_known = record is not None and not selection and state.is_explained
    if record is None or not is_known or not _is_whole(record, fixers):
        return make_plan(context, selection.of(fixers), {}, is_whole=not selection)
    is_same = record.tool == tool_identity() and record.settings == reference.settings
    if is_same and _is_all_known(context.layout, record, fixers):
        return settled_plan(context, fixers)
    return make_plan(context, fixers, {} if is_same else _originals(context.layout, record), True)


def _is_whole(record: Record, fixers: Fixers) -> bool:
    """Whether every fixer ran, and nobody edited a file between two runs."""
    names = {fixer.name for fixer in fixers}
    return set(record.fixers) == names and not any(row.edited for row in record.files.values())


def _is_all_known(layout: Layout, record: Record, fixers: Fixers) -> bool:
    """Whether each file that a fixer would look at holds what it held after the last apply."""
    known = {key: row.after for key, row in record.files.items()} | dict(record.unchanged)
    roles = {fixer.role for fixer in fixers}
    paths = [path for role, path in layout.roles.items() if role in roles]
    return all(known.get(records.key_of(layout, p)) == digest(records.read(p)) for p in paths)


def _originals(layout: Layout, record: Record) -> Mapping[Path, bytes]:
    rows = record.files.items()
    found = {records.path_of(layout, key): records.original(layout, row) for key, row in rows}
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


def _fixer_notes(plan: Plan) -> tuple[str, ...]:
    used = {name for change in plan.changes for name in change.rewrites}
    return tuple(fixer.note for fixer in plan.fixers if fixer.note and fixer.name in used)


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
