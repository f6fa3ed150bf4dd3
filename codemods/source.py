"""Bytes of a file to text and back, and whether the text is Python at all.

Everything outside an edit must survive to the byte: a byte order mark and every line end are kept.
"""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass

from codemods.errors import Problem

_BOM = b"\xef\xbb\xbf"
_LONE_CARRIAGE_RETURN = re.compile(r"\r(?!\n)")


class Unreadable(Exception):
    """A file that no rewrite may touch; ``line`` is 1-based where one is to blame."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line

    def at(self, path: str) -> Problem:
        return Problem(self.message, path, self.line)


@dataclass(frozen=True)
class Source:
    """Text of one file, with what its bytes had in front."""

    text: str
    bom: bool = False

    def encode(self) -> bytes:
        return _BOM * self.bom + self.text.encode()


def decode(data: bytes) -> Source:
    """The text of ``data``, line ends as they are.

    Raises:
      Unreadable: not UTF-8, a NUL, or a carriage return on its own (old Mac line end), which Python
        counts as a line end, other tools do not, and LibCST's parser dies of.
    """
    bom = data.startswith(_BOM)
    body = data[len(_BOM) * bom :]
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise Unreadable(f"is not UTF-8: {error.reason}; save it as UTF-8", line) from None
    if "\0" in text:
        raise Unreadable("holds a NUL character", _line_of(text, text.index("\0")))
    lone = _LONE_CARRIAGE_RETURN.search(text)
    if lone:
        message = "a carriage return without a line feed: save it with one kind of line end"
        raise Unreadable(message, _line_of(text, lone.start()))
    return Source(text, bom)


def _line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def check_python(text: str) -> None:
    """Nothing when ``text`` compiles.

    Grammar newer than this interpreter's (MaxText needs Python 3.12 or later) is left to LibCST.

    Raises:
      Unreadable: it does not compile; message and line are the compiler's.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "<source>", "exec", dont_inherit=True)
    except SyntaxError as error:
        if not _has_newer_grammar(text):
            raise Unreadable(f"is not valid Python: {error.msg}", error.lineno) from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise Unreadable(f"cannot be compiled: {str(error) or type(error).__name__}") from None


def _has_newer_grammar(text: str) -> bool:
    """Type parameters or f-strings that only Python 3.12 or later reads."""
    try:
        ast.parse(text)
        return False  # It parses here: what failed is no matter of grammar.
    except SyntaxError as error:
        in_f_string = (error.msg or "").startswith("f-string")
    import libcst
    import libcst.matchers as m

    try:
        module = libcst.parse_module(text)
    except libcst.ParserSyntaxError:
        return False
    newer = m.OneOf(m.TypeAlias(), m.TypeParameters())
    return in_f_string or bool(m.findall(module, newer))
