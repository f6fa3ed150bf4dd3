"""Loops of a compiled program, read from its HLO text: what they multiply and communicate."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
# A TPU's compiler writes a matrix product as a convolution.
_PRODUCTS = ("dot", "convolution")
# One step of Newton-Schulz: X X^T, its square, and the product with X.
_STEP_PRODUCTS = 3

_COMMENT = re.compile(r"/\*.*?\*/")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$|^(?:ENTRY )?%?([\w.\-]+) \{$")
_OPERATION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (?:\(.*?\)|\S+) ([a-z][\w\-]*)\(")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition|called_computations)=\{?%?([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_BODY = re.compile(r"\bbody=%?([\w.\-]+)")
_NAME = re.compile(r'\bop_name="([^"]*)"')
# JAX names what is differentiated jvp(...): the model's own loops, not the optimizer's.
_MODEL = "jvp("


@dataclass(frozen=True)
class Operation:
    """``calls``: computations that it runs; ``body``: of a while loop, else ""."""

    kind: str
    name: str
    calls: tuple[str, ...]
    body: str


@dataclass(frozen=True)
class Loop:
    """A Newton-Schulz loop.

    Attributes:
      body: its computation.
      products: matrix products in one turn.
      collectives: how many of each kind in one turn; empty where the loop needs no other chip.
      names: where JAX says that these come from.
    """

    body: str
    products: int
    collectives: Mapping[str, int]
    names: tuple[str, ...]


def newton_schulz_loops(text: str) -> tuple[Loop, ...]:
    """Innermost loops of the optimizer that multiply matrices at least three times a turn.

    Args:
      text: HLO of a compiled train step, as ``jax.stages.Compiled.as_text`` returns it.
    """
    program = parse(text)
    whiles = (op for operations in program.values() for op in operations if op.body)
    bodies = [op.body for op in whiles if _MODEL not in op.name]
    loops = [_loop(program, body) for body in dict.fromkeys(bodies)]
    return tuple(loop for loop in loops if loop is not None)


def parse(text: str) -> dict[str, list[Operation]]:
    """Operations of every computation, by its name."""
    program: dict[str, list[Operation]] = {}
    current: list[Operation] | None = None
    for line in _COMMENT.sub("", text).splitlines():
        if not line.startswith(" "):
            start = _COMPUTATION.match(line)
            current = program.setdefault(start[1] or start[2], []) if start else None
        elif current is not None and (found := _OPERATION.match(line)):
            current.append(_operation(found[1], line))
    return program


def _operation(kind: str, line: str) -> Operation:
    branches = [name.strip(" %") for row in _BRANCHES.findall(line) for name in row.split(",")]
    body, name = _BODY.search(line), _NAME.search(line)
    return Operation(
        kind=kind.removesuffix("-start"),
        name=name[1] if name else "",
        calls=(*_CALLED.findall(line), *branches),
        body=body[1] if body and kind == "while" else "",
    )


def _loop(program: Mapping[str, list[Operation]], body: str) -> Loop | None:
    """None if it is no Newton-Schulz loop, or contains one."""
    inside = list(_inside(program, body, set()))
    products = [op for op in inside if op.kind in _PRODUCTS]
    if len(products) < _STEP_PRODUCTS or any(op.kind == "while" for op in inside):
        return None
    found = [op for op in inside if op.kind in COLLECTIVES]
    names = tuple(dict.fromkeys(op.name for op in found))
    return Loop(body, len(products), dict(Counter(op.kind for op in found)), names)


def _inside(
    program: Mapping[str, list[Operation]], computation: str, seen: set[str]
) -> Iterator[Operation]:
    """Everything that a computation runs, once a computation."""
    if computation in seen:
        return
    seen.add(computation)
    for operation in program.get(computation, ()):
        yield operation
        for called in operation.calls:
            yield from _inside(program, called, seen)
