"""Drop the Newton-Schulz coefficients that MaxText 0.2.4 and later choose by decoder block.

The configuration chooses them for every decoder now; a DeepSeek-V4 run asks for
``muon_coefficient_type: "deepseekv4"`` and ``muon_num_ns_steps: 10``, or is migrated with
``--reference deepseek_v4``. Comments inside the dropped block stay in its place.
"""

from __future__ import annotations

import libcst as cst

from codemods.fixer import AnchorNotFound, Context, Fixer
from codemods.fixers._source import (
    Edit,
    Source,
    children,
    function,
    line_above,
    line_end,
    line_start,
    parse,
    rest_of_line,
    splice,
    walk,
)

_NAMES = ("ns_coeffs", "ns_steps")
_ENUM = "DecoderBlockType"


def apply(text: str, context: Context) -> str:
    """The text without the choice, once nothing reads it any more."""
    if not any(name in text for name in _NAMES):
        return text
    source = parse(text)
    owner = function(source, "get_optimizer")
    choices = [node for node in walk(owner) if isinstance(node, cst.If) and _assigns(node)]
    if not choices or _reads(owner):
        return text
    if len(choices) > 1 or not _is_pure(choices[0]):
        raise AnchorNotFound(
            f"this if chooses more than {' and '.join(_NAMES)}: move the rest out of it",
            source.line(choices[-1]),
        )
    return splice(text, [_dropped(source, choices[0]), *_unused_import(source, choices[0])])


def _assigns(node: cst.If) -> bool:
    """Whether the first branch itself assigns one of the two names."""
    if not isinstance(node.body, cst.IndentedBlock):
        return False
    return any(
        isinstance(small, cst.Assign) and _targets(small) <= set(_NAMES)
        for line in node.body.body
        if isinstance(line, cst.SimpleStatementLine)
        for small in line.body
    )


def _targets(node: cst.Assign) -> set[str]:
    return {t.target.value if isinstance(t.target, cst.Name) else "?" for t in node.targets}


def _is_pure(node: cst.If | cst.Else) -> bool:
    lines = node.body.body
    smalls = [s for line in lines for s in getattr(line, "body", ())]
    pure = all(isinstance(s, cst.Assign) and _targets(s) <= set(_NAMES) for s in smalls)
    orelse = node.orelse if isinstance(node, cst.If) else None
    return pure and (orelse is None or _is_pure(orelse))


def _reads(owner: cst.FunctionDef) -> bool:
    """Whether something still reads the names: the dictionary is not rewritten yet."""
    written = {
        id(target.target) for n in walk(owner) if isinstance(n, cst.Assign) for target in n.targets
    }
    return any(
        isinstance(n, cst.Name) and n.value in _NAMES and id(n) not in written for n in walk(owner)
    )


def _dropped(source: Source, node: cst.If) -> Edit:
    text, newline = source.text, source.newline
    start, end = line_start(text, source.start(node)), line_end(text, source.end(node))
    inside = (child for child in children(node) if child not in node.leading_lines)
    comments = [c.value for child in inside for c in walk(child) if isinstance(c, cst.Comment)]
    above, below = text[line_above(text, start) : start], rest_of_line(text, end)
    if not (comments or above.strip() or below.strip()):
        end = line_end(text, end)
    margin = source.margin(node)
    return Edit(start, end, "".join(f"{margin}{comment}{newline}" for comment in comments))


def _unused_import(source: Source, dropped: cst.If) -> list[Edit]:
    """The import of the enum goes when only the dropped block used it."""
    inside = {id(node) for node in walk(dropped)}
    edits: list[Edit] = []
    for line in source.module.body:
        alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
        node = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
        if alone and isinstance(node, cst.ImportFrom) and _imports_only_enum(node):
            start, end = source.start(node), source.end(node)
            if not rest_of_line(source.text, end).strip():
                edits.append(Edit(line_start(source.text, start), line_end(source.text, end), ""))
        elif any(
            isinstance(n, cst.Name) and n.value == _ENUM and id(n) not in inside for n in walk(line)
        ):
            return []
    return edits


def _imports_only_enum(node: cst.ImportFrom) -> bool:
    return (
        not isinstance(node.names, cst.ImportStar)
        and len(node.names) == 1
        and node.names[0].evaluated_name == _ENUM
        and node.names[0].asname is None
    )


fixer = Fixer(
    name="decoder_coefficients",
    role="optimizer",
    summary="drop coefficients chosen by decoder block (deepseek4: set muon_coefficient_type)",
    apply=apply,
    note=(
        "deepseek4 no longer picks its own Newton-Schulz coefficients: set "
        "muon_coefficient_type=deepseekv4 muon_num_ns_steps=10, or use --reference deepseek_v4"
    ),
)
