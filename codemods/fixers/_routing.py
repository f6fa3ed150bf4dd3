"""Which branches of ``transform_logic`` are the checkout's own, and can they keep their say?

The fork's rules are asked first. A branch that a release has may then be overruled: that is the
migration. A branch of the checkout's own must not be, so paths that meet its test are left to the
checkout's code. Where that test may hold for a parameter that the fork's rules know by name, the
two disagree about a known matrix; such a branch is refused with its line, never overruled.
"""

from __future__ import annotations

import ast
import re

import libcst as cst

from codemods.fixer import AnchorNotFound
from codemods.fixers._released import RELEASED, RELEASED_TABLES, branch_digest, normal
from codemods.fixers._source import Source, block, is_docstring
from muon_fork import module_names


def own_tests(source: Source, owner: cst.FunctionDef) -> tuple[str, ...]:
    """Tests of the branches that no release has, as expressions on one line each.

    Raises:
      AnchorNotFound: the first branch, default or statement whose say cannot be kept.
    """
    path = owner.params.params[0].name.value
    scope = _Scope(source, path, _tables(source))
    _check_block(block(owner, source), scope, inside_own=False)
    return tuple(dict.fromkeys(scope.own))


class _Scope:
    """One pass over ``transform_logic``: where it looks things up, and the tests it has found."""

    def __init__(self, source: Source, path: str, tables: dict[str, frozenset[str]]) -> None:
        self.source = source
        self.path = path
        self.tables = tables
        self.own: list[str] = []

    def refuse(self, node: cst.CSTNode, what: str) -> AnchorNotFound:
        return AnchorNotFound(
            f"{what} is no release's and may decide a parameter that the fork's rules know: "
            "test for a path segment of your own, or remove it",
            self.source.line(node),
        )


def is_known(segment: str) -> bool:
    """Whether the fork's rules know a module or parameter of that name."""
    return (
        segment in _KNOWN
        or re.fullmatch(r"(layers|mtp_layer|mtp)_\d+(_projection)?", segment) is not None
    )


def _known_names() -> frozenset[str]:
    names = {"kernel", "scale", "decoder", "params", "value"}
    for table in vars(module_names).values():
        if isinstance(table, frozenset):
            names |= {name for name in table if isinstance(name, str)}
    for blocks, roles in module_names.KERNELS:
        names |= blocks | set(roles)
    return frozenset(names)


_KNOWN = _known_names()


def _one_line(code: str) -> str:
    return code if len(code.splitlines()) == 1 else normal(code)


def _check_block(statements: tuple[cst.CSTNode, ...], scope: _Scope, *, inside_own: bool) -> None:
    for statement in statements:
        if isinstance(statement, cst.If):
            _check_if(statement, scope, inside_own=inside_own)
        elif inside_own or is_docstring(statement):
            continue
        elif not isinstance(statement, cst.SimpleStatementLine):
            raise scope.refuse(statement, "this statement")
        else:
            _check_line(statement, scope)


def _check_line(line: cst.SimpleStatementLine, scope: _Scope) -> None:
    for small in line.body:
        if isinstance(small, cst.Return):
            if branch_digest(scope.source, small) not in RELEASED:
                raise scope.refuse(small, "this return")
        elif not isinstance(small, cst.Pass):
            raise scope.refuse(small, "this statement")


def _check_if(node: cst.If, scope: _Scope, *, inside_own: bool) -> None:
    own = not inside_own and _is_own(node.test, scope)
    released = not (own or inside_own) and branch_digest(scope.source, node) in RELEASED
    if not (own or inside_own or released):
        raise scope.refuse(node, "this branch")
    if own:
        scope.own.append(_one_line(scope.source.code(node.test)))
    body = tuple(node.body.body)
    if released:
        # What it returns at once is part of the digest.
        body = tuple(s for s in body if not _only_returns(s))
    _check_block(body, scope, inside_own=own or inside_own)
    if isinstance(node.orelse, cst.If):
        _check_if(node.orelse, scope, inside_own=inside_own)
    elif isinstance(node.orelse, cst.Else):
        _check_block(tuple(node.orelse.body.body), scope, inside_own=inside_own)


def _only_returns(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and all(
        isinstance(small, cst.Return) for small in statement.body
    )


def _is_own(test: cst.BaseExpression, scope: _Scope) -> bool:
    """Whether ``test`` can only hold for a path with a segment that the fork does not know."""
    if isinstance(test, cst.BooleanOperation):
        sides = [_is_own(side, scope) for side in (test.left, test.right)]
        return any(sides) if isinstance(test.operator, cst.And) else all(sides)
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        target = test.comparisons[0]
        if isinstance(target.operator, cst.In) and _is(target.comparator, scope.path):
            return _are_own(test.left, scope)
        if isinstance(target.operator, cst.Equal):
            return _are_own(test.left, scope) or _are_own(target.comparator, scope)
    if (
        isinstance(test, cst.Call)
        and _is(test.func, "_is_path_contain_any")
        and len(test.args) == 2
    ):
        return _is(test.args[1].value, scope.path) and _are_own(test.args[0].value, scope)
    return False


def _is(node: cst.BaseExpression, name: str) -> bool:
    return isinstance(node, cst.Name) and node.value == name


def _are_own(node: cst.BaseExpression, scope: _Scope) -> bool:
    if isinstance(node, cst.Name):
        names = scope.tables.get(node.value)
        return names is not None and not any(map(is_known, names))
    if isinstance(node, cst.SimpleString):
        return isinstance(node.evaluated_value, str) and not is_known(node.evaluated_value)
    if isinstance(node, cst.Tuple | cst.List | cst.Set):
        return bool(node.elements) and all(_are_own(e.value, scope) for e in node.elements)
    return False


def _tables(source: Source) -> dict[str, frozenset[str]]:
    """Name tables at the top of the file; the released ones must still hold what they held."""
    tables: dict[str, frozenset[str]] = {}
    for line in source.module.body:
        if not isinstance(line, cst.SimpleStatementLine):
            continue
        for small in line.body:
            if isinstance(small, cst.Assign) and isinstance(small.targets[0].target, cst.Name):
                names = _strings(source.code(small.value))
                if names is not None:
                    tables[small.targets[0].target.value] = names
                    _check_table(source, small, small.targets[0].target.value, names)
    return tables


def _strings(code: str) -> frozenset[str] | None:
    try:
        value = ast.literal_eval(f"({code})")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if isinstance(value, tuple | list | set) and all(isinstance(v, str) for v in value):
        return frozenset(value)
    return None


def _check_table(source: Source, node: cst.Assign, name: str, names: frozenset[str]) -> None:
    released = RELEASED_TABLES.get(name)
    if released is None:
        return
    missing = sorted(released - names)
    # Some tables hold parts of names.
    known = sorted(n for n in names - released if any(n in name for name in _KNOWN))
    if missing or known:
        raise AnchorNotFound(
            f"{name} was changed ({', '.join(missing + known)}) for paths that the fork's rules "
            "decide: restore it",
            source.line(node),
        )
