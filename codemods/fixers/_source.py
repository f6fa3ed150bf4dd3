"""Python text, its LibCST tree, and edits by offset.

A rewrite finds nodes in the tree and edits the text between offsets, so that every byte outside its
edits stays as it was, whatever the file's indentation and line ends.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from codemods.fixer import AnchorNotFound

_NEWLINE = re.compile(r"\r\n?|\n")
# A slice of a file keeps its indentation when it is parsed below this line.
_SHELL = "if 1:\n"


@dataclass(frozen=True)
class Edit:
    """Replace ``text[start:end]`` by ``new``; an insertion has ``start == end``."""

    start: int
    end: int
    new: str


@dataclass(frozen=True, eq=False)
class Source:
    """A parsed text, or a parsed slice of one.

    Attributes:
      text: the whole text that offsets refer to.
      module: the tree of the slice.
      offset: where the slice starts in ``text``.
      shell: characters before the slice in what was parsed.
    """

    text: str
    module: cst.Module
    offset: int
    shell: int
    _lines: tuple[int, ...]
    _ranges: Mapping[cst.CSTNode, CodeRange]

    @property
    def newline(self) -> str:
        """The text's own line end."""
        found = _NEWLINE.search(self.text)
        return found.group() if found else "\n"

    @property
    def indent(self) -> str:
        """One level of indentation."""
        return self.module.default_indent

    def start(self, node: cst.CSTNode) -> int:
        """Offset of the first character of ``node``, its parentheses included."""
        position = self._ranges[_parens(node, "lpar")[0]].start
        return self._offset(position.line, position.column)

    def end(self, node: cst.CSTNode) -> int:
        """Offset after the last character of ``node``, its parentheses included."""
        position = self._ranges[_parens(node, "rpar")[-1]].end
        return self._offset(position.line, position.column)

    def code(self, node: cst.CSTNode) -> str:
        """Text of ``node``."""
        return self.text[self.start(node) : self.end(node)]

    def line(self, node: cst.CSTNode) -> int:
        """1-based line of ``node`` in the whole text."""
        return line_of(self.text, self.start(node))

    def margin(self, node: cst.CSTNode) -> str:
        """What stands before ``node`` on its line."""
        start = self.start(node)
        return self.text[line_start(self.text, start) : start]

    def _offset(self, line: int, column: int) -> int:
        return self._lines[line - 1] + column + self.offset - self.shell


def _parens(node: cst.CSTNode, side: str) -> tuple[cst.CSTNode, ...]:
    """Parentheses around an expression, or at the end of an import; else the node itself."""
    found = getattr(node, side, None)
    if isinstance(found, cst.RightParen):
        return (found,)
    return tuple(found) if isinstance(found, list | tuple) and found else (node,)


def parse(text: str) -> Source:
    """Parse a whole file.

    Raises:
      AnchorNotFound: it is not Python that LibCST can take.
    """
    return _parse(text, 0, len(text), indented=False)


def parse_slice(text: str, start: int, end: int, *, indented: bool = False) -> Source:
    """Parse the statements in ``text[start:end]``; ``indented`` ones as a block of their own.

    Raises:
      AnchorNotFound: the slice is not Python that LibCST can take.
    """
    return _parse(text, start, end, indented=indented)


@functools.lru_cache(maxsize=8)
def _parse(text: str, start: int, end: int, *, indented: bool) -> Source:
    shell = _SHELL if indented else ""
    code = shell + text[start:end]
    module = _module(code, line_of(text, start) - (1 if indented else 0))
    ranges = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
    lines = (0, *(found.end() for found in _NEWLINE.finditer(code)))
    # LibCST ends every module with a line end, its own if need be.
    if ranges[module].end.line != len(lines) + (lines[-1] != len(code)):
        raise AnchorNotFound("LibCST counts other lines in this file: are its line ends mixed?")
    return Source(text, module, start, len(shell), lines, ranges)


def _module(code: str, first_line: int) -> cst.Module:
    try:
        return cst.parse_module(code)
    except cst.ParserSyntaxError as error:
        line = first_line + _line_of_error(code, error) - 1
        raise AnchorNotFound("syntax error", line) from error
    except BaseException as error:
        # LibCST's native parser panics with a BaseException of its own.
        if type(error).__name__ != "PanicException":
            raise
        raise AnchorNotFound("LibCST cannot take this file: are its line ends mixed?") from error


def _line_of_error(code: str, error: cst.ParserSyntaxError) -> int:
    """The compiler's line where it also objects: LibCST names the token behind the error."""
    try:
        ast.parse(code)
    except SyntaxError as found:
        return found.lineno or error.raw_line
    except ValueError:
        pass
    return error.raw_line


def splice(text: str, edits: Iterable[Edit]) -> str:
    """``text`` with all edits made; those at one place keep their order."""
    pieces: list[str] = []
    done = 0
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        if edit.start < done:
            raise AnchorNotFound("two edits overlap", line_of(text, edit.start))
        pieces += [text[done : edit.start], edit.new]
        done = edit.end
    return "".join([*pieces, text[done:]])


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """``node`` and everything below it, each before what it holds."""
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        pending += reversed(children(node))


def children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """What ``node`` holds, in the order of its fields; its own ``children`` copies the tree."""
    found: list[cst.CSTNode] = []
    for name in node.__dataclass_fields__:
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [item for item in value if isinstance(item, cst.CSTNode)]
    return found


def line_of(text: str, offset: int) -> int:
    """1-based line of ``offset``."""
    return 1 + sum(1 for _ in _NEWLINE.finditer(text, 0, offset))


def line_start(text: str, offset: int) -> int:
    """Offset of the first character of the line that holds ``offset``."""
    return max(text.rfind("\n", 0, offset), text.rfind("\r", 0, offset)) + 1


def line_above(text: str, start: int) -> int:
    """Offset of the line before the one that begins at ``start``; 0 for the first."""
    return line_start(text, max(0, start - (2 if text.endswith("\r\n", 0, start) else 1)))


def line_end(text: str, offset: int) -> int:
    """Offset after the line end that follows ``offset``, or the end of the text."""
    found = _NEWLINE.search(text, offset)
    return found.end() if found else len(text)


def rest_of_line(text: str, offset: int) -> str:
    """What follows ``offset`` on its line, without the line end."""
    found = _NEWLINE.search(text, offset)
    return text[offset : found.start() if found else len(text)]


def function(source: Source, name: str) -> cst.FunctionDef:
    """The one top-level function called ``name``.

    Raises:
      AnchorNotFound: there is none, or there are several.
    """
    found = [
        node
        for node in source.module.body
        if isinstance(node, cst.FunctionDef) and node.name.value == name
    ]
    if not found:
        raise AnchorNotFound(f"no top-level function {name}")
    if len(found) > 1:
        raise AnchorNotFound(f"{name} is defined twice", source.line(found[1]))
    return found[0]


def block(node: cst.FunctionDef, source: Source) -> tuple[cst.BaseStatement, ...]:
    """Statements of a function written on lines of their own.

    Raises:
      AnchorNotFound: its body stands on the line of ``def``.
    """
    if not isinstance(node.body, cst.IndentedBlock):
        raise AnchorNotFound(
            f"{node.name.value} has its body on the line of def", source.line(node)
        )
    return tuple(node.body.body)


def is_docstring(statement: cst.CSTNode) -> bool:
    """Whether ``statement`` is nothing but a string."""
    return (
        isinstance(statement, cst.SimpleStatementLine)
        and len(statement.body) == 1
        and isinstance(statement.body[0], cst.Expr)
        and isinstance(statement.body[0].value, cst.SimpleString | cst.ConcatenatedString)
    )
