"""Everything that an apply would do, worked out in memory."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from codemods import base_yml
from codemods import record as records
from codemods.changes import Change
from codemods.errors import MigrateError, Problem
from codemods.fixer import AnchorNotFound, Context, Fixer
from codemods.fork_copy import FORK, fork_files
from codemods.layout import Layout
from codemods.record import Record
from codemods.source import Source, Unreadable, check_python, decode
from codemods.state import MARKS, is_marked


@dataclass(frozen=True)
class Plan:
    """Changes to make, and files that were looked at and are right already."""

    layout: Layout
    context: Context
    fixers: tuple[Fixer, ...]
    changes: tuple[Change, ...]
    unchanged: tuple[Path, ...]


def make_plan(
    context: Context, fixers: Sequence[Fixer], originals: Mapping[Path, bytes], is_whole: bool
) -> Plan:
    """The plan for a tree, or every reason why there is none.

    Args:
      context: the tree and the values to write.
      fixers: the rewrites to run, in order.
      originals: texts to start from in place of what lies in the tree.
      is_whole: no rewrite was left out, so every part must end up migrated.

    Raises:
      MigrateError: with the problems of all files.
    """
    layout = context.layout
    problems: list[Problem] = []
    changes: list[Change] = []
    for role, path in layout.roles.items():
        own = [fixer for fixer in fixers if fixer.role == role]
        if own:
            start = originals.get(path)
            result = _rewrite(path, role, own, context, start, is_whole, problems)
            changes.append(result)
    if problems:
        raise MigrateError(*dict.fromkeys(problems))
    return _with_fork(context, fixers, changes)


def settled_plan(context: Context, fixers: Sequence[Fixer]) -> Plan:
    """The plan for a tree whose files are known to be right."""
    roles = {fixer.role for fixer in fixers}
    paths = [path for role, path in context.layout.roles.items() if role in roles]
    return _with_fork(context, fixers, [Change(path, None, None) for path in paths])


def _with_fork(context: Context, fixers: Sequence[Fixer], changes: list[Change]) -> Plan:
    found = [*changes, *_copy_of_fork(context.layout)]
    return Plan(
        context.layout,
        context,
        tuple(fixers),
        tuple(c for c in found if c.before != c.after),
        tuple(c.path for c in found if c.before == c.after),
    )


def _rewrite(
    path: Path,
    role: str,
    fixers: Sequence[Fixer],
    context: Context,
    start: bytes | None,
    is_whole: bool,
    problems: list[Problem],
) -> Change:
    """One file through its fixers; what goes wrong is added to ``problems``."""
    name = context.layout.relative(path)
    before = path.read_bytes()
    untouched = Change(path, before, before)
    try:
        source = decode(before if start is None else start)
        if path.suffix == ".py":
            check_python(source.text)
    except Unreadable as error:
        problems.append(error.at(name))
        return untouched
    text, used, found = _run(source.text, name, fixers, context)
    found += _damage(path, source, text, name)
    after = Source(text, source.bom).encode()
    if is_whole and not found and role in MARKS and not is_marked(role, after):
        found.append(Problem("no rewrite found anything to migrate in this file", name))
    problems += found
    return untouched if found else Change(path, before, after, rewrites=used)


def _run(
    text: str, name: str, fixers: Sequence[Fixer], context: Context
) -> tuple[str, tuple[str, ...], list[Problem]]:
    """New text, the fixers that changed it, and what they could not do."""
    original, used, problems = text, [], []
    for fixer in fixers:
        try:
            new = fixer.apply(text, context)
        except AnchorNotFound as error:
            line = _line_before(original, text, error.line)
            problems.append(Problem(f"{error.message} [{fixer.name}]", name, line))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # LibCST's parser may panic past Exception.
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            problems.append(Problem(f"cannot be rewritten ({reason}) [{fixer.name}]", name))
        else:
            if new != text:
                used.append(fixer.name)
            text = new
    return text, tuple(used), problems


def _line_before(original: str, text: str, line: int | None) -> int | None:
    """A line of the text in work as a line of the file on disk."""
    if line is None or text == original:
        return line
    matcher = difflib.SequenceMatcher(a=original.splitlines(), b=text.splitlines())
    best = 0
    for block in matcher.get_matching_blocks():
        if block.size and block.b < line:
            best = block.a + min(line - block.b, block.size)
    return best or line


def _damage(path: Path, source: Source, text: str, name: str) -> list[Problem]:
    """What the rewritten text would break; nothing of it may reach the disk."""
    if path.suffix != ".py":
        unclear = base_yml.unclear(source.text, name)
        return unclear or base_yml.damage(source.text, text, name)
    if text == source.text:
        return []
    try:
        check_python(text)
    except Unreadable as error:
        message = f"the rewrite would break it: {error.message}"
        return [Problem(message, name, _line_before(source.text, text, error.line))]
    return []


def _copy_of_fork(layout: Layout) -> Iterable[Change]:
    """The fork's files, and the packages that they lie in."""
    wanted = {layout.package / key: data for key, data in fork_files().items()}
    third_party = layout.package / FORK.parent / "__init__.py"
    if not third_party.exists():
        wanted[third_party] = b""
    for path, data in wanted.items():
        yield Change(path, records.read(path), data)


def stale_fork_files(layout: Layout, record: Record | None) -> list[Change]:
    """Files of an older copy that the fork no longer has."""
    if record is None:
        return []
    wanted = {layout.package / key for key in fork_files()}
    fork = layout.package / FORK
    paths = [records.path_of(layout, key) for key, row in record.files.items() if row.after]
    gone = [p for p in paths if p.is_relative_to(fork) and p not in wanted]
    contents = [(path, records.read(path)) for path in gone]
    return [Change(path, data, None) for path, data in contents if data is not None]
