"""What happened, as text for a reader and as data for a program."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from codemods import base_yml
from codemods.changes import Change
from codemods.errors import Problem
from codemods.fixer import Fixer
from codemods.fork_copy import FORK
from codemods.layout import Layout
from codemods.plan import Plan
from codemods.prepare import Applied
from codemods.source import decode
from codemods.state import TreeState
from muon_fork.presets import DEFAULT_REFERENCE, preset

_COMPARED = "megatron"


def problem_rows(problems: Sequence[Problem]) -> list[dict[str, Any]]:
    return [{"path": p.path, "line": p.line, "message": p.message} for p in problems]


def applied_document(applied: Applied, is_written: bool) -> dict[str, Any]:
    """``apply --json``."""
    plan = applied.plan
    return {
        "command": "apply",
        "root": str(plan.layout.root),
        "layout": plan.layout.name,
        "reference": applied.reference.label,
        "written": is_written,
        "changed": [_change_row(plan.layout, change) for change in plan.changes],
        "unchanged": [plan.layout.relative(path) for path in plan.unchanged],
        "defaults": defaults_written(plan),
        "differences": {_COMPARED: {k: list(v) for k, v in differences(applied).items()}},
        "notes": list(applied.notes),
        "problems": [],
    }


def _change_row(layout: Layout, change: Change) -> dict[str, Any]:
    name, kind = layout.relative(change.path), _kind(change)
    return {"path": name, "change": kind, "fixers": list(change.rewrites)}


def _kind(change: Change) -> str:
    if change.before is None:
        return "created"
    return "changed" if change.after is not None else "removed"


def defaults_written(plan: Plan) -> dict[str, dict[str, Any]]:
    """Keys of ``base.yml`` that get another value: ``{key: {"value": new, "was": old}}``.

    A new key has no ``was``.
    """
    path = plan.layout.roles["base_yml"]
    for change in plan.changes:
        if change.path == path and change.before is not None and change.after is not None:
            old = base_yml.values(decode(change.before).text)
            new = base_yml.values(decode(change.after).text)
            return {
                key: _setting(key, value, old)
                for key, value in new.items()
                if old.get(key, ...) != value
            }
    return {}


def _setting(key: str, value: Any, old: Mapping[str, Any]) -> dict[str, Any]:
    return {"value": value, "was": old[key]} if key in old else {"value": value}


def differences(applied: Applied) -> dict[str, tuple[Any, Any]]:
    """How the default reference differs from Megatron-Core: ``{field: (written, megatron)}``."""
    if applied.reference.label != DEFAULT_REFERENCE:
        return {}
    return applied.reference.spec.differences(preset(_COMPARED))


def applied_lines(applied: Applied, is_written: bool) -> Iterator[str]:
    """``apply`` for a reader."""
    plan = applied.plan
    yield f"{plan.layout.root}: layout {plan.layout.name}, reference {applied.reference.label}"
    if not plan.changes:
        yield f"nothing to change: {len(plan.unchanged)} files are as they should be"
    yield from _change_lines(plan, "" if is_written else "would be ")
    written = defaults_written(plan)
    if written:
        yield "defaults in base.yml:"
        yield from (f"  {key}: {_shown(setting)}" for key, setting in written.items())
    if plan.changes and differences(applied):
        yield f"--reference {_COMPARED} (Megatron-Core) would differ in:"
        rows = differences(applied).items()
        yield from (f"  {field}: {other} instead of {own}" for field, (own, other) in rows)
    yield from (f"note: {note}" for note in applied.notes)
    if is_written and plan.changes:
        yield f"take it back with: muon-migrate revert {shlex.quote(str(plan.layout.root))}"


def _change_lines(plan: Plan, modal: str) -> Iterator[str]:
    fork = plan.layout.package / FORK
    copied = [change for change in plan.changes if change.path.is_relative_to(fork)]
    for change in plan.changes:
        if change not in copied:
            names = f"  [{', '.join(change.rewrites)}]" if change.rewrites else ""
            yield f"{modal}{_kind(change)}: {plan.layout.relative(change.path)}{names}"
    if copied:
        count = f"{len(copied)} file{'s' if len(copied) > 1 else ''}"
        yield f"{modal}copied: {plan.layout.relative(fork)} ({count})"


def _shown(setting: Mapping[str, Any]) -> str:
    was = f" (was {setting['was']})" if "was" in setting else ""
    return f"{setting['value']}{was}"


def diff(plan: Plan) -> Iterator[str]:
    """Unified diff of the rewritten files; the copied fork is left out."""
    fork = plan.layout.package / FORK
    for change in plan.changes:
        if change.path.is_relative_to(fork):
            continue
        name = plan.layout.relative(change.path)
        old, new = _lines(change.before), _lines(change.after)
        names = ("/dev/null" if change.before is None else f"a/{name}", f"b/{name}")
        for line in difflib.unified_diff(old, new, *names):
            yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(data: bytes | None) -> list[str]:
    """Lines by line feed only; other separators are part of a line, as git sees it."""
    if not data:
        return []
    parts = data.decode().split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def state_document(layout: Layout, state: TreeState, reference: str | None) -> dict[str, Any]:
    """``status --json``."""
    return {
        "command": "status",
        "root": str(layout.root),
        "layout": layout.name,
        "status": state.progress,
        "reference": reference,
        "version": state.version,
        "migrated": list(state.done),
        "not_migrated": list(state.open),
        "changed_since_apply": list(state.changed),
        "can_revert": state.record is not None and not state.changed,
        "problems": [],
    }


def state_lines(layout: Layout, state: TreeState, reference: str | None) -> Iterator[str]:
    """``status`` for a reader."""
    yield f"{layout.root}: layout {layout.name}, {state.progress}"
    if reference:
        yield f"defaults: {reference}; fork version {state.version}"
    if state.progress == "half-applied":
        yield from (f"migrated: {name}" for name in state.done)
        yield from (f"not migrated: {name}" for name in state.open)
    yield from (f"changed since apply: {name}" for name in state.changed)
    if state.record is not None and state.record.state == "applying":
        yield f"an apply was interrupted: run muon-migrate revert {layout.root}"


def reverted_document(
    layout: Layout, changes: Sequence[Change], left: Sequence[str]
) -> dict[str, Any]:
    """``revert --json``."""
    return {
        "command": "revert",
        "root": str(layout.root),
        "layout": layout.name,
        "changed": [_change_row(layout, change) for change in changes],
        "left": list(left),
        "problems": [],
    }


def reverted_lines(layout: Layout, changes: Sequence[Change], left: Sequence[str]) -> Iterator[str]:
    """``revert`` for a reader."""
    if not changes:
        yield f"{layout.root}: nothing to take back"
        return
    removed = sum(change.after is None for change in changes)
    yield f"{layout.root}: {len(changes) - removed} files restored, {removed} removed"
    yield from (f"left, because it holds other files: {name}" for name in left)


def fixer_rows(fixers: Sequence[Fixer]) -> list[dict[str, str]]:
    return [{"name": f.name, "role": f.role, "summary": f.summary} for f in fixers]
