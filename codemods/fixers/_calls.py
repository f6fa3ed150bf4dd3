"""Add a parameter to a function, an argument to a call, a statement after a docstring."""

from __future__ import annotations

import libcst as cst

from codemods.fixer import AnchorNotFound
from codemods.fixers._source import (
    Edit,
    Source,
    block,
    is_docstring,
    line_above,
    line_end,
    line_start,
    rest_of_line,
)

# MaxText's own limit.
WIDTH = 125


def has_parameter(node: cst.FunctionDef, name: str) -> bool:
    """Whether the function takes ``name``."""
    return any(p.name.value == name for p in (*node.params.params, *node.params.kwonly_params))


def parameter_edit(source: Source, node: cst.FunctionDef, name: str) -> Edit:
    """Add ``name=None`` as the last parameter.

    Raises:
      AnchorNotFound: the function takes more than plain parameters.
    """
    params = node.params
    plain = not (
        params.kwonly_params or params.star_kwarg or isinstance(params.star_arg, cst.Param)
    )
    if not params.params or not plain:
        raise AnchorNotFound(
            f"{node.name.value} has unexpected parameters: cannot add {name}", source.line(node)
        )
    last = params.params[-1]
    final = last.default or (last.annotation.annotation if last.annotation else last.name)
    margin = source.margin(last.name)
    return _after(source, final, margin, f"{name}=None")


def argument_edits(source: Source, call: cst.Call, argument: str) -> list[Edit]:
    """Add ``argument`` as the last argument; a line that grows too long is broken at the call.

    Raises:
      AnchorNotFound: the call has no arguments, or ends in ``**kwargs``.
    """
    if not call.args or call.args[-1].star == "**":
        raise AnchorNotFound(f"cannot add {argument} to this call", source.line(call))
    first, last = call.args[0], call.args[-1]
    margin = source.margin(last.keyword or last.value)
    edit = _after(source, last.value, margin, argument)
    text, at = source.text, line_start(source.text, source.start(call))
    line = text[at : source.end(last.value)] + rest_of_line(text, source.end(last.value))
    if "\n" in line or "\r" in line or len(line) + len(edit.new) <= WIDTH:
        return [edit]
    indent = line[: len(line) - len(line.lstrip())]
    hanging = indent + ("\t" if "\t" in indent else "    ")
    start = source.start(first.keyword or first.value)
    broken = Edit(edit.start, edit.end, f"{edit.new}{source.newline}{indent}")
    return [Edit(start, start, f"{source.newline}{hanging}"), broken]


def passes(call: cst.Call, keyword: str) -> bool:
    """Whether the call passes ``keyword``."""
    return any(arg.keyword is not None and arg.keyword.value == keyword for arg in call.args)


def first_statement_edit(source: Source, node: cst.FunctionDef, lines: list[str]) -> Edit:
    """Put ``lines`` first in the body, behind the docstring; a tab is one level of indentation."""
    statements = block(node, source)
    first = statements[0]
    margin = source.margin(first)
    if is_docstring(first):
        at = line_end(source.text, source.end(first))
        if not source.text.endswith(("\n", "\r"), 0, at):
            raise AnchorNotFound(f"{node.name.value} has no body", source.line(node))
    else:
        at = line_start(source.text, source.start(first))
        leading = first.leading_lines if isinstance(first, _WITH_LEADING) else ()
        for _ in leading:
            at = line_above(source.text, at)
    new = [f"{margin}{line}".replace("\t", source.indent) if line else "" for line in (*lines, "")]
    return Edit(at, at, source.newline.join(new))


_WITH_LEADING = (cst.SimpleStatementLine, cst.If, cst.For, cst.With, cst.While, cst.Try)


def _after(source: Source, node: cst.CSTNode, margin: str, new: str) -> Edit:
    end = source.end(node)
    if margin and not margin.strip():
        return Edit(end, end, f",{source.newline}{margin}{new}")
    return Edit(end, end, f", {new}")
