"""What a copy of MaxText needs to train in float64, and what to change that nothing is rounded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .errors import RunError


@dataclass(frozen=True)
class Edit:
    """Every ``old`` in ``file``, of which there must be some and no ``new``, becomes ``new``."""

    file: str
    old: str
    new: str


_DTYPE = '  FLOAT16 = "float16"\n'
# Of all configurations one line refuses float64.
ALLOW = (Edit("maxtext/configs/types.py", _DTYPE, f'{_DTYPE}  FLOAT64 = "float64"\n'),)
EXACT = (
    # RMSNorm is in float32 whatever the dtype.
    Edit("maxtext/layers/normalizations.py", "jnp.float32", "jnp.float64"),
    # Added to the number of tokens that the loss is divided by.
    Edit("maxtext/utils/globals.py", "\nEPS = 1e-8 ", "\nEPS = 0.0 "),
)


def allow_float64(base: Path, *, exact: bool = False) -> None:
    """Edit the copy in ``base``.

    Args:
      exact: change too what a dense model's loss differs by in float64.

    Raises:
      RunError: a file does not look as expected.
    """
    for edit in (*ALLOW, *(EXACT if exact else ())):
        file = base / edit.file
        text = file.read_text() if file.is_file() else ""
        if edit.old not in text or edit.new in text:
            raise RunError(
                f"{file}: expected {edit.old.strip()!r}, and {edit.new.strip()!r} nowhere"
            )
        file.write_text(text.replace(edit.old, edit.new))
