"""Declare every configuration key of the MuonSpec in ``types.py``, class ``Muon``.

Fields that are there keep their description and get the reference's default; the others are added
at the end of the class. Keys of the AdamW class stay its own.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

import libcst as cst

from codemods.fixer import AnchorNotFound, Context, Fixer
from codemods.fixers._comments import fresh_text
from codemods.fixers._source import Edit, Source, line_end, line_of, parse_slice, splice
from muon_fork.config_keys import CONFIG_KEYS, CONSISTENT_RMS, ConfigKey, config_values

_CLASS = re.compile(r"^class Muon\b", re.MULTILINE)
_NEXT = re.compile(r"^[^\s#]", re.MULTILINE)
_WIDTH = 120


def apply(text: str, context: Context) -> str:
    """The text whose class Muon declares every key of the table."""
    source = _class_source(text)
    owner = source.module.body[0]
    if not isinstance(owner, cst.ClassDef) or not isinstance(owner.body, cst.IndentedBlock):
        raise AnchorNotFound("class Muon has no body", source.line(owner))
    fields = dict(_fields(owner))
    if not fields:
        raise AnchorNotFound("class Muon declares no fields", source.line(owner))
    values = config_values(context.spec)
    edits = [
        edit
        for name, node in fields.items()
        if name in values
        for edit in _renewal(source, node, values[name])
    ]
    edits += _additions(source, owner, fields, values)
    return splice(text, edits)


def _class_source(text: str) -> Source:
    found = list(_CLASS.finditer(text))
    if len(found) != 1:
        line = line_of(text, found[1].start()) if found else None
        raise AnchorNotFound(f"expected one top-level class Muon, found {len(found)}", line)
    start = found[0].start()
    after = _NEXT.search(text, found[0].end())
    return parse_slice(text, start, after.start() if after else len(text))


def _fields(owner: cst.ClassDef) -> Iterator[tuple[str, cst.AnnAssign]]:
    for line in owner.body.body:
        if isinstance(line, cst.SimpleStatementLine) and isinstance(line.body[0], cst.AnnAssign):
            node = line.body[0]
            if isinstance(node.target, cst.Name):
                yield node.target.value, node


def _renewal(source: Source, node: cst.AnnAssign, value: Any) -> Iterator[Edit]:
    """The edits of a field that is there: its default, and a description that is wrong now."""
    for found in re.finditer(r'"[^"\r\n]*"', source.code(node)):
        new = fresh_text(found.group()[1:-1])
        if new != found.group()[1:-1]:
            start = source.start(node) + found.start()
            yield Edit(start, start + len(found.group()), f'"{new}"')
    default = _default(node)
    if default is None:
        raise AnchorNotFound("expected a field with a default", source.line(node))
    try:
        old = ast.literal_eval(source.code(default))
    except (ValueError, SyntaxError):
        raise AnchorNotFound("expected a literal default", source.line(default)) from None
    if old != value or isinstance(old, bool) != isinstance(value, bool):
        yield Edit(source.start(default), source.end(default), _literal(value))


def _default(node: cst.AnnAssign) -> cst.BaseExpression | None:
    if not isinstance(node.value, cst.Call):
        return node.value
    for arg in node.value.args:
        if not arg.star and (arg.keyword is None or arg.keyword.value == "default"):
            return arg.value
    return None


def _additions(
    source: Source, owner: cst.ClassDef, fields: dict[str, cst.AnnAssign], values: dict[str, Any]
) -> list[Edit]:
    """The fields that are nowhere in the file yet."""
    margin = source.margin(next(iter(fields.values())))
    rows: list[tuple[str, str, str]] = [
        (row.key, row.kind.__name__, row.comment) for row in CONFIG_KEYS if _is_missing(source, row)
    ]
    if CONSISTENT_RMS not in fields:
        comment = "Factor of muon_scale_mode consistent_rms, else None."
        rows.append((CONSISTENT_RMS, "None | float", comment))
    last = owner.body.body[-1]
    at = line_end(source.text, source.end(last))
    lines = [line for row in rows for line in _declaration(margin, *row, values[row[0]])]
    new = "".join(f"{line}{source.newline}" for line in lines)
    if new and not source.text.endswith(("\n", "\r"), 0, at):
        new = source.newline + new
    return [Edit(at, at, new)] if new else []


def _is_missing(source: Source, row: ConfigKey) -> bool:
    declared = re.search(rf"^[ \t]+{row.key}[ \t]*:", source.text, re.MULTILINE)
    return not row.shared and declared is None


def _declaration(margin: str, key: str, kind: str, comment: str, value: Any) -> list[str]:
    description = json.dumps(comment, ensure_ascii=False)
    line = f"{margin}{key}: {kind} = Field({_literal(value)}, description={description})"
    if len(line.expandtabs(4)) <= _WIDTH:
        return [line]
    inner = margin + ("\t" if "\t" in margin else "    ")
    return [
        f"{margin}{key}: {kind} = Field(",
        f"{inner}{_literal(value)},",
        f"{inner}description={description},",
        f"{margin})",
    ]


def _literal(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


fixer = Fixer(
    name="config_fields",
    role="config_types",
    summary="declare every Muon key in class Muon of types.py",
    apply=apply,
)
