"""The Python that runs MaxText: the one that was named, or one that has what MaxText imports."""

from __future__ import annotations

import os
import shutil
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
enough = sys.version_info >= (3, 11)
print("python", enough, *(n for n in sys.argv[1:] if find_spec(n) is None))
"""
_DEVICES = """
import sys
import jax
try:
    jax.devices(sys.argv[1])
except RuntimeError:
    print("python False", jax.__version__, *{device.platform for device in jax.devices()})
else:
    print("python True")
"""
# Before what the probe says; a shell or an echo does not come to it.
_ANSWER = ("python True", "python False")
_PATIENCE = 120  # seconds; below one on a local disk


def interpreter(python: Path | None, tree: Tree) -> Path:
    """A Python for the tree: ``python`` if it is given, else the tree's own or the current one.

    Raises:
      RunError: it cannot be run or lacks packages; the message names them and --python.
    """
    if python is not None:
        python = _found(python)
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
    enough, *absent = _ask(python, _PROBE, *NEEDED)
    return (*(() if enough == "True" else ("Python 3.11 or later",)), *absent)


def require_device(python: Path, device: str) -> None:
    """Raise RunError unless JAX of that Python finds a device of platform ``device``."""
    if device == "cpu":
        return
    there, *found = _ask(python, _DEVICES, device)
    if there != "True":
        raise RunError(
            f"no {device} for MaxText: JAX {found[0]} of {python} finds {', '.join(found[1:])}; "
            f"leave --device {device} out, or install there the JAX that drives the {device}"
        )


def _ask(python: Path, code: str, *words: str) -> list[str]:
    """The words of the answer that ``code`` prints, after its first.

    Raises:
      RunError: it is no Python that can be run.
    """
    try:
        done = subprocess.run(
            [str(python), "-c", code, *words],
            env=os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            check=False,
        )
    except OSError as error:
        raise RunError(f"{python}: cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise RunError(f"{python}: is no Python: no answer in {_PATIENCE} seconds") from error
    answer = next((s for s in done.stdout.splitlines() if s.startswith(_ANSWER)), None)
    if done.returncode or answer is None:
        said = (done.stderr.strip() or "it says nothing that a Python would").splitlines()[-1]
        raise RunError(f"{python}: is no Python that can be used: {said[:200]}")
    return answer.split()[1:]


def _found(python: Path) -> Path:
    """Where it lies: trainers are started in folders of their own. A link stays one: it is what
    makes a virtual environment."""
    if python.parent == Path() and not python.exists():
        return Path(shutil.which(str(python)) or python)
    return python.absolute()


def _candidates(tree: Tree) -> Iterator[Path]:
    """Of the environment that MaxText is installed in or that lies in the checkout; this one."""
    places = [tree.base.parents[2]] if tree.base.name == "site-packages" else []
    places += [tree.named / name for name in (".venv", "venv")]
    for place in places:
        if (place / "bin" / "python").exists():
            yield place / "bin" / "python"
    yield Path(sys.executable)
