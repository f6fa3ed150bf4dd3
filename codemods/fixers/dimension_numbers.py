"""Let the fork's rules decide the dimension numbers in ``muon_utils.py``.

``transform_logic`` asks ``rules`` first and falls back to the checkout's own branches, which all
stay; the functions that walk a model pass the configuration's rules down to it.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from codemods.fixer import AnchorNotFound, Context, Fixer
from codemods.fixers._calls import (
    argument_edits,
    first_statement_edit,
    has_parameter,
    parameter_edit,
    passes,
)
from codemods.fixers._imports import (
    GLUE,
    fork_import,
    glue_edits,
    local_names,
    muon_imports,
    statement_edit,
)
from codemods.fixers._routing import own_tests
from codemods.fixers._source import (
    Edit,
    Source,
    function,
    parse,
    splice,
    walk,
)

LOGIC = "transform_logic"
TREE = "get_transform_tree"
MODEL = "get_muon_weight_dimension_numbers"
PARAMETER = "rules"


def apply(text: str, context: Context) -> str:
    """The text whose dimension numbers come from the fork's rules."""
    source = parse(text)
    if not local_names(source, context, "MuonDimensionNumbers"):
        raise AnchorNotFound("no top-level import of optax's MuonDimensionNumbers")
    logic = function(source, LOGIC)
    edits = [*_import_edits(source, context)]
    if has_parameter(logic, PARAMETER):
        if f"{GLUE}.UNKNOWN" not in source.code(logic):
            raise AnchorNotFound(f"{LOGIC} already takes {PARAMETER}", source.line(logic))
    else:
        edits += [parameter_edit(source, logic, PARAMETER), _hook(source, logic)]
    edits += _model_edits(source, function(source, MODEL))
    edits += _call_edits(source)
    return splice(text, edits)


def _import_edits(source: Source, context: Context) -> Iterator[Edit]:
    yield from glue_edits(source, context)
    for row in muon_imports(source, context):
        statements = [fork_import(context, name, local) for name, local in row.names]
        yield statement_edit(source, row, statements)


def _hook(source: Source, logic: cst.FunctionDef) -> Edit:
    if logic.params.params[0].name.value != "path":
        raise AnchorNotFound(f"{LOGIC} does not take path first", source.line(logic))
    arguments = "path, shape" if has_parameter(logic, "shape") else "path"
    own = own_tests(source, logic)
    lines = [
        "# The fork's rules come first; a path they do not know is left to the code below.",
        *_left_to_checkout(own),
        f"if {PARAMETER} is not None{' and not own' if own else ''}:",
        f"\tdimension_numbers = {PARAMETER}({arguments})",
        f"\tif dimension_numbers is not {GLUE}.UNKNOWN:",
        "\t\treturn dimension_numbers",
    ]
    edit = first_statement_edit(source, logic, lines)
    blank = source.text.startswith(("\n", "\r"), edit.start)
    return edit if blank else Edit(edit.start, edit.end, edit.new + source.newline)


def _left_to_checkout(tests: tuple[str, ...]) -> list[str]:
    """Lines that say which paths this checkout's own branches keep deciding."""
    if len(tests) < 2:
        return [f"own = {test}" for test in tests]
    return ["own = (", *(f"\t\t{'or ' * (n > 0)}({test})" for n, test in enumerate(tests)), ")"]


def _model_edits(source: Source, model: cst.FunctionDef) -> Iterator[Edit]:
    if not has_parameter(model, "config"):
        raise AnchorNotFound(f"{MODEL} does not take config", source.line(model))
    if f"{GLUE}.dimension_rules(" not in source.code(model):
        statement = f"{PARAMETER} = None if config is None else {GLUE}.dimension_rules(config)"
        yield first_statement_edit(source, model, [statement])


def _call_edits(source: Source) -> Iterator[Edit]:
    """Every call of the two routing functions passes the rules on."""
    for node in source.module.body:
        name = node.name.value if isinstance(node, cst.FunctionDef) else None
        if (
            isinstance(node, cst.FunctionDef)
            and name == TREE
            and not has_parameter(node, PARAMETER)
        ):
            yield parameter_edit(source, node, PARAMETER)
        for call in walk(node):
            if not (isinstance(call, cst.Call) and isinstance(call.func, cst.Name)):
                continue
            if call.func.value not in (LOGIC, TREE) or passes(call, PARAMETER):
                continue
            if name not in (TREE, MODEL):
                raise AnchorNotFound(
                    f"{call.func.value} is called from {name or 'the top level'}, where no "
                    f"{PARAMETER} are at hand: call {MODEL} instead",
                    source.line(call),
                )
            yield from argument_edits(source, call, f"{PARAMETER}={PARAMETER}")


fixer = Fixer(
    name="dimension_numbers",
    role="muon_utils",
    summary="let the fork's rules decide the dimension numbers before transform_logic's own",
    apply=apply,
)
