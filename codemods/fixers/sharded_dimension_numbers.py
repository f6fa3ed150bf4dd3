"""Let ``maxtext_muon_utils.py`` (0.2.5) attach its shardings to the fork's dimension numbers.

    smdn(reduction_axis=d.reduction_axis, output_axis=d.output_axis, sharding=sharding)
    -> d._replace(sharding=sharding)

so that splits, joins and scales survive. ``transform_logic`` gets the configuration's rules, and
``muon_include_routers``, which the released file forgets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from codemods.fixer import AnchorNotFound, Context, Fixer
from codemods.fixers._calls import argument_edits, first_statement_edit, has_parameter, passes
from codemods.fixers._imports import GLUE, glue_edits, muon_imports
from codemods.fixers._source import (
    Edit,
    Source,
    children,
    function,
    line_end,
    line_start,
    parse,
    splice,
    walk,
)
from codemods.fixers.dimension_numbers import LOGIC, PARAMETER

SHARDED = "ShardedMuonDimensionNumbers"
MODEL = "get_maxtext_muon_weight_dimension_numbers"

_RULES = f"{PARAMETER} = None if config is None else {GLUE}.dimension_rules(config)"
_ROUTERS = 'include_routers = getattr(config, "muon_include_routers", True)'


def apply(text: str, context: Context) -> str:
    """The text whose sharded dimension numbers are the fork's."""
    source = parse(text)
    model = function(source, MODEL)
    if not has_parameter(model, "config"):
        raise AnchorNotFound(f"{MODEL} does not take config", source.line(model))
    edits = [*glue_edits(source, context), *_type_edits(source, context)]
    edits += _logic_edits(source)
    if f"{GLUE}.dimension_rules(" not in source.code(model):
        edits.append(first_statement_edit(source, model, [_RULES, _ROUTERS]))
    return re.sub(rf"\b{SHARDED}\b", "MuonDimensionNumbers", splice(text, edits))


def _type_edits(source: Source, context: Context) -> Iterator[Edit]:
    """Drop the import of the type and build each value from the one it extends."""
    for row in muon_imports(source, context):
        if [name for name, _ in row.names] != [SHARDED]:
            raise AnchorNotFound(f"expected only {SHARDED} here", source.line(row.node))
        text, local = source.text, row.names[0][1]
        start, end = source.start(row.line), source.end(row.line)
        yield Edit(line_start(text, start), line_end(text, end), "")
        for statement in source.module.body:
            if statement is not row.line:
                yield from _constructions(source, statement, local)


def _constructions(source: Source, node: cst.CSTNode, local: str) -> Iterator[Edit]:
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value == local:
        given = {a.keyword.value if a.keyword else "": source.code(a.value) for a in node.args}
        base = given.get("reduction_axis", "").removesuffix(".reduction_axis")
        expected = {
            "reduction_axis": f"{base}.reduction_axis",
            "output_axis": f"{base}.output_axis",
            "sharding": given.get("sharding"),
        }
        if not base.isidentifier() or given != expected:
            raise AnchorNotFound(f"unexpected arguments of {local}", source.line(node))
        new = f"{base}._replace(sharding={given['sharding']})"
        yield Edit(source.start(node), source.end(node), new)
    elif isinstance(node, cst.Name) and node.value == local:
        raise AnchorNotFound(f"{local} is used otherwise than to be built", source.line(node))
    else:
        for child in children(node):
            yield from _constructions(source, child, local)


def _logic_edits(source: Source) -> Iterator[Edit]:
    for node in source.module.body:
        for call in walk(node):
            if not (isinstance(call, cst.Call) and _is_logic(call.func)):
                continue
            if not (isinstance(node, cst.FunctionDef) and node.name.value == MODEL):
                raise AnchorNotFound(f"{LOGIC} is called outside {MODEL}", source.line(call))
            new = [f"{k}={k}" for k in ("include_routers", PARAMETER) if not passes(call, k)]
            if new:
                yield from argument_edits(source, call, ", ".join(new))


def _is_logic(func: cst.BaseExpression) -> bool:
    name = func.attr if isinstance(func, cst.Attribute) else func
    return isinstance(name, cst.Name) and name.value == LOGIC


fixer = Fixer(
    name="sharded_dimension_numbers",
    role="sharded_muon_utils",
    summary="attach MaxText's shardings to the fork's dimension numbers",
    apply=apply,
)
