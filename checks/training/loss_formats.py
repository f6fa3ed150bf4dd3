"""The formats of losses that can be read: numbers, JSON lines, Megatron's log, TensorBoard."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from . import events
from .errors import RunError
from .losses import Format, Losses, from_steps, printed_precision
from .text import read_text

# Keys of a step's number, with the number of the first step.
STEP_KEYS = (("iteration", 1), ("step", 0), ("_step", 1))
LOSS_KEYS = ("lm loss", "loss", "lm_loss", "train_loss")

_PRINTED = re.compile(r"[-+]?(nan|inf(inity)?|[.\d]+(e[-+]?\d+)?)", re.IGNORECASE | re.ASCII)
_ITERATION = re.compile(r"\biteration\s+(\d+)/\s*\d+ \|")
_LM_LOSS = re.compile(r"\| lm loss: ([-+.\w]+) \|")
_TROUBLE = re.compile(r"number of (skipped|nan) iterations:\s+(\d+)")
_START = "before the start of training step"
_VOCABULARY = re.compile(r"padded vocab \(size: \d+\).*\(new size: (\d+)\)")


def _number(word: str) -> Decimal | None:
    """Of text as programs print numbers: Decimal takes 1_0 and other scripts' digits, too."""
    if not _PRINTED.fullmatch(word):
        return None
    try:
        return Decimal(word)
    except InvalidOperation:
        return None


def _head(path: Path) -> str:
    """The first line that is not empty, as far as it is text."""
    try:
        with path.open("rb") as stream:
            lines = (line.strip() for line in stream.read(1 << 16).splitlines())
            return next((line for line in lines if line), b"").decode("utf-8-sig", "replace")
    except OSError:
        return ""


def _is_numbers(path: Path) -> bool:
    return path.is_file() and _number(_head(path)) is not None


def _read_numbers(path: Path, first_step: int) -> Losses:
    numbers = []
    for place, line in enumerate(read_text(path).rstrip().splitlines(), 1):
        number = _number(line.strip())
        if number is None:
            raise RunError(f"{path}:{place}: {line.strip()[:40]!r} is no number, expected a loss")
        numbers.append(number)
    by_step = {first_step + place: float(number) for place, number in enumerate(numbers)}
    return from_steps(path, by_step, precision=printed_precision(numbers))


def _is_json_lines(path: Path) -> bool:
    return path.is_file() and _head(path).startswith("{")


def _read_json_lines(path: Path, _first_step: int) -> Losses:
    by_step: dict[int, Decimal] = {}
    others = repeated = 0
    notes: list[str] = []
    for place, row in _rows(path, notes):
        loss = next((row[key] for key in LOSS_KEYS if key in row), None)
        if loss is None:
            others += 1
            continue
        if not isinstance(loss, (Decimal, int)) or isinstance(loss, bool):
            raise RunError(f"{path}:{place}: the loss is {loss!r}, expected a number")
        step = _step_of(path, place, row)
        repeated += step in by_step
        by_step[step] = Decimal(loss)
    notes += [f"{path.name}: {others} lines without a loss were left out"] if others else []
    notes += [f"{path.name}: {repeated} steps occur again, the later counts"] if repeated else []
    values = {step: float(loss) for step, loss in by_step.items()}
    precision = printed_precision(list(by_step.values()))
    return from_steps(path, values, precision=precision, notes=notes)


def _rows(path: Path, notes: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Lines with their numbers; one that its writer did not come to end is only noted."""
    text = read_text(path)
    lines = text.splitlines()
    for place, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, parse_float=Decimal, parse_constant=Decimal)
        except (ValueError, RecursionError) as error:
            if place == len(lines) and not text.endswith("\n"):
                notes.append(f"{path.name}: its last line was cut off, and left out")
                return
            raise RunError(f"{path}:{place}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise RunError(f"{path}:{place}: {str(row)[:40]} is no JSON object")
        yield place, row


def _step_of(path: Path, place: int, row: dict[str, Any]) -> int:
    for key, first in STEP_KEYS:
        if key in row:
            number = row[key]
            if isinstance(number, bool) or not isinstance(number, int) or number < first:
                raise RunError(
                    f"{path}:{place}: {key} is {number}, expected a whole number from {first}"
                )
            return number - first
    keys = ", ".join(key for key, _ in STEP_KEYS)
    raise RunError(f"{path}:{place}: a loss without its step, expected one of the keys {keys}")


def _is_megatron_log(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            return any(_ITERATION.search(line) for line in stream)
    except OSError:
        return False


def _read_megatron_log(path: Path, _first_step: int) -> Losses:
    """After a start the second line may be the mean of two losses: it is left out.

    Megatron prints the first iteration at once without clearing its sum, so the next line is the
    mean of both.
    """
    numbers: dict[int, Decimal] = {}
    means: set[int] = set()
    vocabulary, since_start, before, repeated = None, 0, None, 0
    with path.open(encoding="utf-8", errors="replace") as stream:
        for place, line in enumerate(stream, 1):
            if found := _VOCABULARY.search(line):
                vocabulary = int(found[1])
            if _START in line:
                since_start = 0
            if not (match := _ITERATION.search(line)):
                continue
            step = int(match[1]) - 1
            since_start = 0 if before is not None and step != before + 1 else since_start
            repeated += step in numbers
            numbers[step] = _printed_loss(path, place, line)
            (means.add if since_start == 1 else means.discard)(step)
            since_start, before = since_start + 1, step
    notes = [f"{path.name}: iteration n of the log is step n - 1, with as many digits as printed"]
    if means:
        which = ", ".join(str(step) for step in sorted(means))
        notes.append(
            f"{path.name}: the second line after a start may be the mean of the first two losses, "
            f"so it is not compared (step {which})"
        )
    if repeated:
        notes.append(f"{path.name}: {repeated} steps were logged again, the later line counts")
    return from_steps(
        path,
        {step: float(number) for step, number in numbers.items()},
        skipped=frozenset(means),
        precision=printed_precision(list(numbers.values())),
        padded_vocab_size=vocabulary,
        notes=notes,
    )


def _printed_loss(path: Path, place: int, line: str) -> Decimal:
    for what, count in _TROUBLE.findall(line):
        if int(count):
            raise RunError(f"{path}:{place}: {count} {what} iterations: no training there")
    found = _LM_LOSS.search(line)
    number = _number(found[1]) if found else None
    if number is None:
        raise RunError(f"{path}:{place}: an iteration without 'lm loss'")
    return number


def _read_events(path: Path, _first_step: int) -> Losses:
    by_step: dict[int, float] = {}
    tag = None
    for step, name, value in events.scalars(path):
        if name in LOSS_KEYS and tag in (None, name):
            tag = name
            by_step[step - 1] = value
    if -1 in by_step:
        raise RunError(f"{path}: {tag!r} at step 0: Megatron counts iterations from 1")
    notes = [f"{path.name}: {tag!r} at iteration n is the loss of step n - 1"] if tag else []
    return from_steps(path, by_step, notes=notes)


FORMATS: tuple[Format, ...] = (
    Format("TensorBoard events", events.is_events, _read_events),
    Format("one number a line", _is_numbers, _read_numbers),
    Format("JSON lines", _is_json_lines, _read_json_lines),
    Format("Megatron's log", _is_megatron_log, _read_megatron_log),
)
