"""The Python that runs MaxText: the one that was named, or one that has what MaxText imports."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .errors import RunError
from .tree import Tree

# Imported by every release from 0.2.0 on before its first step.
NEEDED = ("jax", "flax", "optax", "orbax", "grain", "omegaconf", "pydantic", "aqt", "qwix")
_PROBE = """
import sys
from importlib.util import find_spec
print(sys.version_info >= (3, 11), *(n for n in sys.argv[1:] if find_spec(n) is None))
"""


def interpreter(python: Path | None, tree: Tree) -> Path:
    """A Python for the tree: ``python`` if it is given, else the tree's own or the current one.

    Raises:
      RunError: it cannot be run or lacks packages; the message names them and --python.
    """
    if python is not None:
        absent = missing(python)
        if absent:
            raise RunError(
                f"--python {python}: {', '.join(absent)} missing: it must be a Python with what "
                "MaxText imports"
            )
        return python
    lacks: list[str] = []
    for candidate in _candidates(tree):
        absent = missing(candidate)
        if not absent:
            return candidate
        lacks.append(f"{candidate} lacks {', '.join(absent)}")
    raise RunError(
        f"no Python that can run MaxText ({'; '.join(lacks)}): name the one of its environment "
        "with --python"
    )


def missing(python: Path) -> tuple[str, ...]:
    """Packages that the interpreter lacks.

    Raises:
      RunError: it is no Python that can be run.
    """
    try:
        done = subprocess.run(
            [str(python), "-c", _PROBE, *NEEDED], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise RunError(f"{python}: cannot be run: {error.strerror}") from error
    words = done.stdout.split()
    if done.returncode or not words:
        raise RunError(f"{python}: is no Python: {done.stderr.strip()[-200:]}")
    return (*(() if words[0] == "True" else ("Python 3.11 or later",)), *words[1:])


def _candidates(tree: Tree) -> Iterator[Path]:
    """Of the environment that MaxText is installed in or that lies in the checkout; this one."""
    places = [tree.base.parents[2]] if tree.base.name == "site-packages" else []
    places += [tree.named / name for name in (".venv", "venv")]
    for place in places:
        if (place / "bin" / "python").exists():
            yield place / "bin" / "python"
    yield Path(sys.executable)
