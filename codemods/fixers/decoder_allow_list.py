"""Let ``types.py`` accept ``opt_type=muon`` for every decoder block that the fork's rules know.

The released list stays; one entry more adds the members of this checkout's enumeration that are in
the fork's own table, so a checkout with fewer families needs no other text.
"""

from __future__ import annotations

import re

import libcst as cst

from codemods.fixer import AnchorNotFound, Context, Fixer
from codemods.fixers._source import (
    Edit,
    Source,
    line_end,
    line_of,
    line_start,
    parse_slice,
    rest_of_line,
    splice,
    walk,
)

_ENUM = "DecoderBlockType"
_TABLE = "DECODER_BLOCKS"
_LOCAL = "MUON_DECODER_BLOCKS"
_ENTRY = f"*(block for block in {_ENUM} if block.value in {_LOCAL})"
_TEST = re.compile(r'^[ \t]+if [^\r\n]*\bopt_type == "muon"[^\r\n]*\bdecoder_block\b', re.MULTILINE)
_IMPORT = re.compile(rf"^from [^\r\n]* import\b[^\r\n]*\b{_ENUM}\b", re.MULTILINE)


def apply(text: str, context: Context) -> str:
    """The text whose allow-list also holds the fork's decoder blocks."""
    source = _statement(text)
    lists = [node for node in walk(source.module) if isinstance(node, cst.List)]
    if not lists or not all(_is_entry(source, e) for e in lists[0].elements):
        where = source.start(lists[0]) if lists else source.offset
        raise AnchorNotFound(f"expected a list of {_ENUM} members", line_of(text, where))
    edits = []
    if _ENTRY not in source.code(lists[0]):
        edits.append(_added_entry(source, lists[0]))
    if not re.search(rf"\bimport {_TABLE} as {_LOCAL}\b", text):
        edits.append(_added_import(text, context, source.newline))
    return splice(text, edits)


def _statement(text: str) -> Source:
    """The ``if`` that holds the list, without the hundreds of checks around it."""
    found = list(_TEST.finditer(text))
    if len(found) != 1:
        line = line_of(text, found[1].start()) if found else None
        raise AnchorNotFound(
            f'expected one line "if ... opt_type == "muon" and ... decoder_block ...", '
            f"found {len(found)}",
            line,
        )
    start = found[0].start()
    margin = re.match(r"[ \t]*", found[0].group())
    assert margin is not None
    end = line_end(text, start)
    while end < len(text) and _continues(rest_of_line(text, end), margin.group()):
        end = line_end(text, end)
    return parse_slice(text, start, end, indented=True)


def _continues(line: str, margin: str) -> bool:
    """Whether the statement that starts at ``margin`` still holds this line."""
    deeper = line.startswith(margin) and line[len(margin) :][:1] in (" ", "\t", "]", ")")
    return deeper or not line.strip()


def _is_entry(source: Source, element: cst.BaseElement) -> bool:
    code = source.code(element.value)
    return code.startswith(f"{_ENUM}.") or f"*{code}" == _ENTRY


def _added_entry(source: Source, node: cst.List) -> Edit:
    if not node.elements:
        raise AnchorNotFound("the list of decoder blocks is empty", source.line(node))
    last = node.elements[-1]
    margin, end = source.margin(last.value), source.end(last.value)
    if margin.strip():
        return Edit(end, end, f", {_ENTRY}")
    return Edit(end, end, f",{source.newline}{margin}{_ENTRY}")


def _added_import(text: str, context: Context, newline: str) -> Edit:
    found = _IMPORT.search(text)
    if found is None:
        raise AnchorNotFound(f"no top-level from ... import {_ENUM}")
    at = line_start(text, found.start())
    statement = f"from {context.module}.model_dimensions import {_TABLE} as {_LOCAL}"
    return Edit(at, at, f"{statement}{newline}")


fixer = Fixer(
    name="decoder_allow_list",
    role="config_types",
    summary="accept opt_type=muon for every decoder block that the fork's rules know",
    apply=apply,
)
