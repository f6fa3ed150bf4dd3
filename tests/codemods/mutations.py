"""Ways in which a source can be bent, each drawn from a seeded generator."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable

Mutation = Callable[[random.Random, list[str]], list[str]]
_OF_INTEREST = re.compile(r"(?i)muon|mdn|adam|transform_logic|decoderblock|opt_type")


def trimmed(text: str) -> str:
    """A long module down to its imports and what mentions Muon, methods of classes apart."""
    lines = text.splitlines(keepends=True)
    kept: list[str] = []
    for node in ast.parse(text).body:
        whole = _lines_of(node, lines)
        if isinstance(node, ast.ClassDef) and len(whole) > 200:
            members = [line for part in node.body for line in _wanted(part, lines)]
            head = lines[node.lineno - 1 : node.body[0].lineno - 1]
            kept += [*head, *(members or ["  pass\n"])]
        else:
            kept += _wanted(node, lines)
    return "".join(kept)


def _wanted(node: ast.stmt, lines: list[str]) -> list[str]:
    source = _lines_of(node, lines)
    is_import = isinstance(node, ast.Import | ast.ImportFrom)
    return source if is_import or "muon" in "".join(source).lower() else []


def _lines_of(node: ast.stmt, lines: list[str]) -> list[str]:
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(d.lineno for d in decorators)])
    return lines[first - 1 : node.end_lineno]


def mutate(seed: int, text: str, is_valid: Callable[[str], bool]) -> str:
    """One to three mutations of ``text``; mostly such that it stays valid, if that can be had."""
    draw = random.Random(seed)
    for _ in range(draw.choice((1, 8, 8, 8))):
        lines = text.splitlines(keepends=True)
        for _ in range(draw.choice((1, 1, 2, 3))):
            lines = draw.choice(MUTATIONS)(draw, lines)
        bent = "".join(lines)
        if bent != text and is_valid(bent):
            break
    return bent


def _place(draw: random.Random, lines: list[str]) -> int:
    """A line, more often than not one that the rewrites look at."""
    hot = [n for n, line in enumerate(lines) if _OF_INTEREST.search(line)]
    return draw.choice(hot) if hot and draw.random() < 0.8 else draw.randrange(max(1, len(lines)))


def _delete(draw: random.Random, lines: list[str]) -> list[str]:
    start = _place(draw, lines)
    return lines[:start] + lines[start + draw.choice((1, 1, 2, 5, 20)) :]


def _duplicate(draw: random.Random, lines: list[str]) -> list[str]:
    start, size = _place(draw, lines), draw.choice((1, 1, 3, 15))
    return lines[: start + size] + lines[start:]


def _move(draw: random.Random, lines: list[str]) -> list[str]:
    start, target = _place(draw, lines), _place(draw, lines)
    rest = lines[:start] + lines[start + 1 :]
    return rest[:target] + lines[start : start + 1] + rest[target:]


def _indent(draw: random.Random, lines: list[str]) -> list[str]:
    start, size, by = _place(draw, lines), draw.choice((1, 4, 30)), draw.choice(("  ", " ", "\t"))
    block = [by + line for line in lines[start : start + size]]
    return lines[:start] + block + lines[start + size :]


def _reindent_everything(draw: random.Random, lines: list[str]) -> list[str]:
    unit = draw.choice(("    ", "\t"))

    def widen(line: str) -> str:
        body = line.lstrip(" ")
        return unit * ((len(line) - len(body)) // 2) + body

    return [widen(line) for line in lines]


def _rename(draw: random.Random, lines: list[str]) -> list[str]:
    line = lines[_place(draw, lines)] if lines else ""
    words = re.findall(r"[A-Za-z_]\w+", line)
    if not words:
        return lines
    word = draw.choice(words)
    new = draw.choice((f"{word}_x", word.upper(), "renamed", word[:-1]))
    return [re.sub(rf"\b{word}\b", new, each) for each in lines]


def _strip_characters(draw: random.Random, lines: list[str]) -> list[str]:
    at = _place(draw, lines)
    character = draw.choice("()[]{},:='\"")
    return [line.replace(character, "", 1) if n == at else line for n, line in enumerate(lines)]


def _comment_out(draw: random.Random, lines: list[str]) -> list[str]:
    at = _place(draw, lines)
    return [f"# {line}" if n == at else line for n, line in enumerate(lines)]


def _wrap_in_condition(draw: random.Random, lines: list[str]) -> list[str]:
    at = _place(draw, lines)
    if at >= len(lines):
        return lines
    space = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    return [*lines[:at], f"{space}if True:\n", f"  {lines[at]}", *lines[at + 1 :]]


def _line_ends(draw: random.Random, lines: list[str]) -> list[str]:
    new = draw.choice(("\r\n", "\r\n", "\r"))
    which = draw.choice((lambda n: True, lambda n: n % 2 == 0, lambda n: n == 3))
    return [
        line.rstrip("\r\n") + new if which(n) and line.endswith("\n") else line
        for n, line in enumerate(lines)
    ]


def _truncate(draw: random.Random, lines: list[str]) -> list[str]:
    return lines[: _place(draw, lines)]


def _bom_and_no_last_line_end(draw: random.Random, lines: list[str]) -> list[str]:
    return ["\ufeff" + lines[0], *lines[1:-1], lines[-1].rstrip("\n")] if len(lines) > 1 else lines


MUTATIONS: tuple[Mutation, ...] = (
    _delete,
    _duplicate,
    _move,
    _indent,
    _reindent_everything,
    _rename,
    _strip_characters,
    _comment_out,
    _wrap_in_condition,
    _line_ends,
    _truncate,
    _bom_and_no_last_line_end,
)
