"""What a process that failed said last, without the way it came there."""

from __future__ import annotations

import re
import signal

# A line that names an exception, as Python prints it below the frames.
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Failure)\b(: |$)")
_LONGEST = 400


def last_words(text: str, lines: int = 8) -> str:
    """The last exception of ``text`` with what belongs to it, else its last lines."""
    said = [line.rstrip() for line in text.splitlines() if line.strip()]
    starts = [place for place, line in enumerate(said) if _EXCEPTION.match(line)]
    kept = said[starts[-1] :][:lines] if starts else said[-lines:]
    return "\n".join(f"  {_cut(line)}" for line in kept) or "  it said nothing"


def ended(code: int) -> str:
    """How a process ended, by its return code."""
    if code >= 0:
        return f"ended with {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."
