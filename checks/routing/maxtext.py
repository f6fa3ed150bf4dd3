"""MaxText's side: the real one, asked in its own Python, in Megatron's units."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.training.last_words import ended, last_words
from checks.training.tree import Tree
from muon_fork.dimension_numbers import MuonDimensionNumbers
from muon_fork.packing import Plan, make_plan
from muon_fork.scaling import scale_function

from .side import Side, gathered

Shape = tuple[int, ...]
TRAINERS = Path(__file__).parents[1] / "trainers"
CHILD = TRAINERS / "routing" / "__main__.py"
STAND_INS = TRAINERS / "stand_ins"
_TIMEOUT = 600  # seconds; 15 on an idle core
# A CPU machine without data, checkpoints or services.
_SURROUNDINGS: Mapping[str, Any] = {
    "run_name": "routing",
    "hardware": "cpu",
    "skip_jax_distributed_system": True,
    "attention": "dot_product",
    "dataset_type": "synthetic",
    "per_device_batch_size": 1,
    "enable_checkpointing": False,
    "enable_goodput_recording": False,
    "opt_type": "muon",
}


class RoutingError(Exception):
    """The MaxText cannot be asked; the message says why."""


@dataclass(frozen=True)
class Answer:
    """What the checkout said (``checks/trainers/routing``).

    Attributes:
      config: plain configuration values.
      params: shape by path.
      module: where its ``muon`` comes from.
      arguments: what it is called with, dimension numbers and masks apart.
      numbers: dimension numbers by path, None in the AdamW branch.
      decays: of the AdamW branch, by path.
    """

    config: Mapping[str, Any]
    params: Mapping[str, Shape]
    module: str
    arguments: Mapping[str, Any]
    numbers: Mapping[str, MuonDimensionNumbers | None]
    decays: Mapping[str, bool]


def ask(tree: Tree, python: Path, words: Sequence[str]) -> Answer:
    """The routing that ``tree`` gives the model of ``words``, ``key=value`` each.

    Raises:
      RoutingError: it fails; the message ends with its last words.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "routing.json"
        given = {word.partition("=")[0] for word in words}
        surroundings = [f"{k}={v}" for k, v in _SURROUNDINGS.items() if k not in given]
        argv = [str(tree.base_yml), f"base_output_directory={folder}", *surroundings, *words]
        # -P: what lies beside the script must not hide MaxText's own packages.
        _run([str(python), "-P", str(CHILD), str(out), *argv], tree, Path(folder))
        return answer_of(json.loads(out.read_text()))


def _run(command: list[str], tree: Tree, folder: Path) -> None:
    search = [str(tree.base), *([str(STAND_INS)] if tree.needs_tensorflow else [])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(search),
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_PLATFORMS": "cpu",
    }
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            timeout=_TIMEOUT,
            capture_output=True,
            text=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RoutingError(f"{tree.named}: cannot be run by {command[0]}: {error}") from error
    if done.returncode:
        raise RoutingError(
            f"{tree.named}: this MaxText cannot build the model; it {ended(done.returncode)}:\n"
            f"{last_words(done.stderr)}"
        )


def answer_of(said: Mapping[str, Any]) -> Answer:
    """An answer from its JSON."""
    return Answer(
        config=said["config"],
        params={path: tuple(shape) for path, shape in said["params"].items()},
        module=said["muon"]["module"],
        arguments=said["muon"]["arguments"],
        numbers={path: _numbers(fields) for path, fields in said["numbers"].items()},
        decays=said["decays"],
    )


def _numbers(fields: Mapping[str, Any] | None) -> MuonDimensionNumbers | None:
    if fields is None:
        return None
    plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    return MuonDimensionNumbers(**plain)


def sides(answer: Answer, stored: Mapping[str, float]) -> dict[str, Side]:
    """Every parameter of the model.

    Args:
      answer: of the checkout.
      stored: c of ``W_stored = c * W`` where it is not 1: a trainer that does not know of it moves
        W by 1 / c of what it moves the stored weight.

    Raises:
      RoutingError: its dimension numbers fit no matrices.
    """
    muon = [path for path, numbers in answer.numbers.items() if _is_muon(numbers)]
    try:
        plan = make_plan([answer.params[p] for p in muon], [_certain(answer, p) for p in muon])
    except ValueError as error:
        raise RoutingError(f"its dimension numbers do not fit: {error}") from error
    found = {path: _muon_side(answer, plan, index) for index, path in enumerate(muon)}
    found |= {path: _adam_side(answer, path) for path in answer.params if path not in found}
    return {path: _in_source_units(found[path], answer, path, stored) for path in answer.params}


def _is_muon(numbers: MuonDimensionNumbers | None) -> bool:
    return numbers is not None and numbers.optimizer == "muon"


def _certain(answer: Answer, path: str) -> MuonDimensionNumbers:
    numbers = answer.numbers[path]
    assert numbers is not None
    return numbers


def _muon_side(answer: Answer, plan: Plan, leaf: int) -> Side:
    told = answer.arguments
    factor = scale_function(
        told.get("scale_mode", "width_transfer"),
        told.get("extra_scale_factor", 1.0),
        told.get("consistent_rms"),
    )
    units = [unit for unit in plan.units if leaf in {member.leaf for member in unit.members}]
    matrices = gathered((unit.fan_out, unit.fan_in, unit.batch) for unit in units)
    scales = tuple(float(factor(m.fan_in, m.fan_out)) for m in matrices)
    return Side("muon", matrices, scales, float(told.get("weight_decay") or 0.0))


def _adam_side(answer: Answer, path: str) -> Side:
    decay = float(answer.arguments.get("adam_weight_decay") or 0.0)
    return Side("adam", weight_decay=decay if answer.decays[path] else 0.0)


def _in_source_units(side: Side, answer: Answer, path: str, stored: Mapping[str, float]) -> Side:
    numbers = answer.numbers[path]
    known = 1.0 if numbers is None else numbers.update_scale
    rate = known / stored.get(path, 1.0)
    return Side(side.optimizer, side.matrices, side.scales, side.weight_decay, rate)
