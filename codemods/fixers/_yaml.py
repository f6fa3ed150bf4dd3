"""Top-level ``key: value  # comment`` lines of MaxText's ``base.yml``, edited one by one."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from typing import Any

_LINE = re.compile(
    r"""(?P<key>[A-Za-z_]\w*)(?P<colon>[ \t]*:(?=[ \t]|$)[ \t]*)
        (?P<value>"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s#'"][^\r\n]*?|)
        (?P<space>[ \t]*)(?P<comment>(?<=[ \t])\#.*)?""",
    re.VERBOSE,
)
_ENDS = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True)
class Setting:
    """One ``key: value`` line.

    Attributes:
      key, colon, value, space, comment: its pieces; together they are the line without its end.
    """

    key: str
    colon: str
    value: str
    space: str
    comment: str

    def __str__(self) -> str:
        return f"{self.key}{self.colon}{self.value}{self.space}{self.comment}"


def split_lines(text: str) -> list[tuple[str, str]]:
    """Lines and their ends; joined they are ``text`` again."""
    lines, done = [], 0
    for end in _ENDS.finditer(text):
        lines.append((text[done : end.start()], end.group()))
        done = end.end()
    return [*lines, (text[done:], "")] if done < len(text) else lines


def join_lines(lines: list[tuple[str, str]]) -> str:
    """The text of ``split_lines``."""
    return "".join(line + end for line, end in lines)


def setting(line: str) -> Setting | None:
    """The setting on this line, None if it is a comment, a list item, nested or something else."""
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    pieces = found.groupdict()
    return Setting(**{name: piece or "" for name, piece in pieces.items()})


def yaml_literal(value: Any) -> str:
    """``value`` as YAML 1.1 reads it back, in the spelling of ``base.yml``.

    A float keeps its dot: YAML 1.1 reads ``1e-07`` as a string.
    """
    if value is None or isinstance(value, bool | int):
        return str(value)
    if isinstance(value, float):
        digits, exponent, power = repr(value).partition("e")
        return f"{digits if '.' in digits else digits + '.0'}{exponent}{power}"
    return json.dumps(value)


def same_value(text: str, value: Any) -> bool:
    """Whether the YAML scalar ``text`` already means ``value``."""
    words = {"true": True, "false": False, "none": None, "null": None, "~": None, "": None}
    low = text.lower()
    if low in words:
        return words[low] is value and not (value is None and low != "none")
    if isinstance(value, str):
        return text == value or (text[:1] in "'\"" and text[1:-1] == value)
    try:
        number = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    if isinstance(number, bool) or not isinstance(number, int | float):
        return False
    if "e" in low and "." not in low:
        return False
    return not isinstance(value, bool) and value is not None and number == value
