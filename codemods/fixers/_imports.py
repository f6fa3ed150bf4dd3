"""Which names of a file are Muon's, where they come from, and how to import the fork's instead."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from codemods.fixer import AnchorNotFound, Context
from codemods.fixers._source import Edit, Source, line_start, rest_of_line, walk

GLUE = "megatron_muon"

# Name in optax or MaxText -> (module of the fork, its name there).
FORK_NAMES: dict[str, tuple[str, str]] = {
    "muon": ("_muon", "muon"),
    "scale_by_muon": ("_muon", "scale_by_muon"),
    "scale_by_shape": ("_muon", "scale_by_shape"),
    "MuonState": ("_muon", "MuonState"),
    "orthogonalize_via_newton_schulz": ("newton_schulz", "orthogonalize_via_newton_schulz"),
    "MuonDimensionNumbers": ("dimension_numbers", "MuonDimensionNumbers"),
    "ShardedMuonDimensionNumbers": ("dimension_numbers", "MuonDimensionNumbers"),
}

# Modules that hold nothing but a Muon, and the one that also holds other optimizers.
_MUON_MODULES = ("optax.contrib._muon", "maxtext.optimizers.muon", "MaxText.optimizers.muon")
_SHARED_MODULE = "optax.contrib"
_PARENTS = ("maxtext.optimizers", "MaxText.optimizers")


@dataclass(frozen=True)
class MuonImport:
    """One top-level ``from MODULE import ...`` that brings in names of a Muon.

    Attributes:
      node: the statement.
      line: the whole logical line it stands on.
      module: dotted name of MODULE.
      names: (name, name it is bound to) of those that the fork replaces.
      others: names of the same statement that stay where they are.
    """

    node: cst.ImportFrom
    line: cst.SimpleStatementLine
    module: str
    names: tuple[tuple[str, str], ...]
    others: tuple[cst.ImportAlias, ...]


def muon_imports(source: Source, context: Context) -> tuple[MuonImport, ...]:
    """Imports of a Muon that is not the fork, in order.

    Raises:
      AnchorNotFound: one that cannot be switched: star, relative, conditional, of a whole module.
    """
    return _muon_imports(source, context.module)


@functools.lru_cache(maxsize=8)
def _muon_imports(source: Source, fork: str) -> tuple[MuonImport, ...]:
    found = tuple(_from_imports(source))
    top = {id(row.node) for row in found}
    homes = {*_MUON_MODULES, _SHARED_MODULE, "contrib", *_names_of_shared_module(source)}
    for node in walk(source.module):
        if isinstance(node, cst.ImportFrom) and id(node) not in top:
            _refuse_from(node, source, fork)
        elif isinstance(node, cst.Import):
            _refuse_module(node, source)
        elif isinstance(node, cst.Attribute):
            _refuse_attribute(node, source, homes)
    return found


def local_names(source: Source, context: Context, name: str) -> tuple[str, ...]:
    """What ``name`` is called in this file, imported from the fork or still to be switched."""
    bound = [local for row in muon_imports(source, context) for n, local in row.names if n == name]
    for _, node in _top_level_from(source):
        if _module_name(node).startswith(f"{context.module}."):
            bound += [local for n, local, _ in _aliases(node) if n == name]
    return tuple(bound)


def fork_import(context: Context, name: str, local: str) -> str:
    """The statement that imports the fork's version of ``name`` as ``local``."""
    module, own = FORK_NAMES[name]
    alias = "" if own == local else f" as {local}"
    return f"from {context.module}.{module} import {own}{alias}"


def glue_edits(source: Source, context: Context) -> tuple[Edit, ...]:
    """The edit that imports the fork's MaxText glue, none if it is imported already.

    Raises:
      AnchorNotFound: the file has no top-level import to stand beside.
    """
    before: cst.CSTNode | None = None
    for line, node in _top_level_from(source):
        module = _module_name(node)
        if module == context.module and any(local == GLUE for _, local, _ in _aliases(node)):
            return ()
        if before is None and (module.startswith(f"{context.module}.") or _is_muon(node)):
            before = line
    if before is None:
        raise AnchorNotFound("no top-level import of optax's or MaxText's own Muon")
    start = line_start(source.text, source.start(before))
    statement = f"from {context.module} import maxtext as {GLUE}{source.newline}"
    return (Edit(start, start, statement),)


def statement_edit(source: Source, row: MuonImport, statements: list[str]) -> Edit:
    """Put ``statements`` where ``row`` stands, with the comment at its end kept at the last."""
    if row.others:
        names = ", ".join(source.code(alias).rstrip(", ") for alias in row.others)
        statements = [f"from {row.module} import {names}", *statements]
    start, end = source.start(row.node), source.end(row.node)
    if rest_of_line(source.text, end).lstrip().startswith(";") or source.margin(row.node).strip():
        raise AnchorNotFound("this import shares its line with other code", source.line(row.node))
    return Edit(start, end, source.newline.join(statements))


def _from_imports(source: Source) -> Iterator[MuonImport]:
    for line, node in _top_level_from(source):
        if not _is_muon(node):
            continue
        module = _module_name(node)
        names, others = [], []
        for name, local, alias in _aliases(node):
            if name in FORK_NAMES:
                names.append((name, local))
            elif module == _SHARED_MODULE:
                others.append(alias)
            else:
                raise AnchorNotFound(
                    f"{name} of {module} has no counterpart in the fork", source.line(node)
                )
        yield MuonImport(node, line, module, tuple(names), tuple(others))


def _top_level_from(source: Source) -> Iterator[tuple[cst.SimpleStatementLine, cst.ImportFrom]]:
    for line in source.module.body:
        if not isinstance(line, cst.SimpleStatementLine):
            continue
        for node in line.body:
            if isinstance(node, cst.ImportFrom) and _is_absolute(node):
                yield line, node


def _is_absolute(node: cst.ImportFrom) -> bool:
    return not node.relative and not isinstance(node.names, cst.ImportStar)


def _is_muon(node: cst.ImportFrom) -> bool:
    module = _module_name(node)
    if module == _SHARED_MODULE:
        return any(name in FORK_NAMES for name, _, _ in _aliases(node))
    return module in _MUON_MODULES


def _aliases(node: cst.ImportFrom) -> list[tuple[str, str, cst.ImportAlias]]:
    if isinstance(node.names, cst.ImportStar):
        return []
    return [
        (alias.evaluated_name, alias.evaluated_alias or alias.evaluated_name, alias)
        for alias in node.names
    ]


def _module_name(node: cst.ImportFrom) -> str:
    return "" if node.module is None else _dotted(node.module)


def _dotted(node: cst.BaseExpression) -> str:
    if isinstance(node, cst.Attribute):
        return f"{_dotted(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else "?"


def _refuse_from(node: cst.ImportFrom, source: Source, fork: str) -> None:
    module, line = _module_name(node), source.line(node)
    names = {name for name, _, _ in _aliases(node)}
    if module.startswith(fork):
        return
    if isinstance(node.names, cst.ImportStar):
        if module in (*_MUON_MODULES, _SHARED_MODULE):
            raise AnchorNotFound(f"star import of {module}: import the names you use", line)
    elif node.relative:
        if names & FORK_NAMES.keys() or "muon" in module.split("."):
            raise AnchorNotFound("relative import of a Muon: make it absolute", line)
    elif _is_muon(node):
        raise AnchorNotFound(f"import of {module} is not at top level: move it there", line)
    if (module == _SHARED_MODULE and "_muon" in names) or (module in _PARENTS and "muon" in names):
        raise AnchorNotFound("import Muon by name: from optax.contrib._muon import muon", line)


def _refuse_module(node: cst.Import, source: Source) -> None:
    for alias in node.names:
        if alias.evaluated_name in _MUON_MODULES:
            raise AnchorNotFound(
                f"import Muon by name: from {alias.evaluated_name} import muon", source.line(node)
            )


def _names_of_shared_module(source: Source) -> Iterator[str]:
    """What ``optax.contrib`` is called in this file."""
    package, _, own = _SHARED_MODULE.rpartition(".")
    for node in walk(source.module):
        if isinstance(node, cst.ImportFrom) and _module_name(node) == package:
            yield from (local for name, local, _ in _aliases(node) if name == own)
        elif isinstance(node, cst.Import):
            for alias in node.names:
                local = alias.evaluated_alias or alias.evaluated_name
                if alias.evaluated_name == package:
                    yield f"{local}.{own}"
                elif alias.evaluated_name == _SHARED_MODULE:
                    yield local


def _refuse_attribute(node: cst.Attribute, source: Source, homes: set[str]) -> None:
    dotted = _dotted(node)
    head, _, tail = dotted.rpartition(".")
    if tail in FORK_NAMES and head in homes:
        raise AnchorNotFound(f"{dotted}: import it by name at top level", source.line(node))
