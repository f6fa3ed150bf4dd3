"""Change numbers inside a pickle: everything else keeps its bytes, and nothing is executed."""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from . import pickles


class Whole(int):
    """An integer that knows which bytes of its program push it."""

    begin: int
    end: int


class Real(float):
    """A float that knows which bytes of its program push it."""

    begin: int
    end: int


Number = Whole | Real


def locate(
    program: bytes, names: pickles.Names, persistent_load: Callable[[Any], Any] | None = None
) -> Any:
    """As ``pickles.load`` of a program without frames, with ``Whole`` and ``Real`` for numbers.

    Raises:
      CheckpointError: a name that is refused, or bytes that are not a whole pickle.
    """
    unpickler = _Locating(program, names)
    if persistent_load is not None:
        unpickler.persistent_load = persistent_load  # type: ignore[method-assign, assignment]
    return pickles.loaded(unpickler.load, names.source)


def without_frames(program: bytes, source: str) -> bytes:
    """The same program in one run; frames only say how many bytes to read at once."""

    def cut() -> bytes:
        kept, last = [], 0
        for opcode, _, position in pickletools.genops(program):
            if opcode.name == "FRAME":
                assert position is not None
                kept.append(program[last:position])
                last = position + 9
        return b"".join((*kept, program[last:]))

    found: bytes = pickles.loaded(cut, source)
    return found


def replaced(program: bytes, changes: Sequence[tuple[Number, float]]) -> bytes:
    """The program that ``locate`` read, with other numbers; integers stay integers."""
    parts, last = [], 0
    for number, value in sorted(changes, key=lambda change: change[0].begin):
        new = int(value) if isinstance(number, Whole) else float(value)
        parts += [program[last : number.begin], pickle.dumps(new, 2)[2:-1]]
        last = number.end
    return b"".join((*parts, program[last:]))


class _Locating(pickle._Unpickler):
    """Python's own unpickler, which can be asked where it is."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {**pickle._Unpickler.dispatch}

    def __init__(self, program: bytes, names: pickles.Names) -> None:
        self._program = io.BytesIO(program)
        super().__init__(self._program)
        self._names = names

    def find_class(self, module: str, name: str) -> Any:
        return self._names.find(module, name)


def _located(load: Callable[[Any], None]) -> Callable[[Any], None]:
    def load_number(unpickler: Any) -> None:
        begin = unpickler._program.tell() - 1
        load(unpickler)
        value = unpickler.stack[-1]
        if type(value) in (int, float):
            number: Number = Whole(value) if type(value) is int else Real(value)
            number.begin, number.end = begin, unpickler._program.tell()
            unpickler.stack[-1] = number

    return load_number


for _opcode in (
    pickle.INT,
    pickle.BININT,
    pickle.BININT1,
    pickle.BININT2,
    pickle.LONG,
    pickle.LONG1,
    pickle.LONG4,
    pickle.FLOAT,
    pickle.BINFLOAT,
):
    _Locating.dispatch[_opcode[0]] = _located(pickle._Unpickler.dispatch[_opcode[0]])
