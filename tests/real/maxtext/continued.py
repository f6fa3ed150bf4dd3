"""Continue a converted checkpoint with real MaxText, and look at what it restored and saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from converters.maxtext.plan import Plan
from converters.orbax.reader import Saved, open_saved
from converters.orbax.verification import shape_of
from converters.orbax.writer import write_state
from converters.target import leaves
from tests.real.maxtext.trainer import Run, train

# Keys of a CPU test, not of the run: sparse kernels need an accelerator.
CPU: Mapping[str, object] = {
    "async_checkpointing": False,
    "checkpoint_period": 1_000_000,
    "sparse_matmul": False,
    "megablox": False,
}


@dataclass(frozen=True)
class Continued:
    """A continued run, and the checkpoint that MaxText wrote at its end."""

    run: Run
    saved: Saved


def go_on(plan: Plan, tree: Path, folder: Path, tokens: np.ndarray) -> Continued:
    """Write the plan's state, train MaxText from it on ``tokens``, with the plan's configuration.

    Args:
      tokens: int32 [steps, batch, length + 1], the first batch that the checkpoint has not seen.
    """
    write_state(plan.state, folder / "converted")
    items = folder / "converted" / str(plan.state.step - 1) / "items"
    command = (*plan.command, f"load_full_state_path={items}")
    return trained_on(command, plan.state.step, tree, folder, tokens)


def trained_on(
    command: Sequence[str], step: int, tree: Path, folder: Path, tokens: np.ndarray
) -> Continued:
    """Train MaxText by the words that a conversion says, after ``step`` finished steps."""
    words = dict(word.split("=", 1) for word in command)
    overrides = {**words, **CPU}
    run = train(
        tree, folder, overrides, steps=len(tokens), capture=True, resumed=step, tokens=tokens
    )
    return Continued(run, open_saved(folder / "run" / "checkpoints"))


def structure(saved: Saved) -> dict[str, object]:
    """Keys, containers, shapes and dtypes of a saved state, without NNX's random generators."""
    rows: dict[str, object] = {
        "/".join(path): (tensor.shape, str(tensor.dtype))
        for path, tensor in saved.tensors.items()
        if not _is_random(path)
    }
    rows |= {"/".join(path): None for path in saved.empty if not _is_random(path)}
    rows |= {"/".join((*path, "")): list for path in saved.lists}
    return rows | {"custom_metadata": dict(saved.metadata)}


def expected_structure(plan: Plan) -> dict[str, object]:
    """The same of a planned state."""
    rows: dict[str, object] = {
        "/".join(target.path): (target.shape, str(target.dtype))
        for target in leaves(plan.state.tree)
    }
    empty, lists = shape_of(plan.state.tree)
    rows |= {"/".join(path): None for path in empty}
    rows |= {"/".join((*path, "")): list for path in lists}
    scan = {"scan_layers": plan.state.scan_layers}
    return rows | {"custom_metadata": scan if plan.state.records_scan_layers else {}}


def restored(plan: Plan, run: Run) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """(planned, restored) of every parameter and every leaf of the optimizer's state."""
    step = plan.state.step
    seen = {f"params/{path}": value for path, value in run.tree(step, "param").items()}
    seen |= {f"opt_state/{path}": value for path, value in run.tree(step, "before").items()}
    names = {
        _name(target.path): target
        for target in leaves(plan.state.tree)
        if target.path[0] in ("params", "opt_state")
    }
    assert names.keys() == seen.keys(), names.keys() ^ seen.keys()
    return {name: (target.build(), seen[name]) for name, target in names.items()}


def _is_random(path: tuple[str, ...]) -> bool:
    return path[0] == "nnx_aux" and "rngs" in path


def _name(path: tuple[str, ...]) -> str:
    """A saved leaf as the recorder names it: without Linen's collections."""
    first, *rest = path
    return "/".join((first, *(name for name in rest if name != "params")))
