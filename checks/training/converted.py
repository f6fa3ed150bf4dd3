"""A Megatron checkpoint as a MaxText checkpoint and the configuration that goes on from it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from converters.errors import CheckpointError
from converters.estimate import estimate, require
from converters.maxtext.plan import Options, Plan, plan_target
from converters.megatron.open import open_source
from converters.source import Array, State
from converters.target import TargetState, TargetTensor

from .errors import RunError

ITEMS = "items"


@dataclass(frozen=True)
class Converted:
    """
    Attributes:
      plan: the whole conversion.
      config: MaxText's keys, the path to load from included.
      arguments: Megatron's.
    """

    plan: Plan
    config: Mapping[str, Any]
    arguments: Mapping[str, Any]


def converted(
    checkpoint: Path, folder: Path, options: Options, *, nudged: bool = False
) -> Converted:
    """Convert into ``folder``.

    Args:
      nudged: every weight is moved by one unit in the last place, up or down.

    Raises:
      RunError: the checkpoint cannot be converted, or disk or memory are too small.
    """
    from converters.orbax.writer import write_state

    # Orbax logs an error once per thread that it passes, before it is raised.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    try:
        source = open_source(checkpoint, optimizer=options.optimizer)
        plan = plan_target(source, options)
        folder.mkdir(parents=True)
        require(estimate([target.bytes for target in plan.records]), folder)
        state = _nudged(plan.state) if nudged else plan.state
        place = write_state(state, folder.resolve()) / ITEMS
    except CheckpointError as error:
        raise RunError(str(error)) from error
    config = {**plan.maxtext_config, plan.load_key: str(place)}
    return Converted(plan, config, source.run.arguments)


def planned(checkpoint: Path, options: Options) -> Plan:
    """The plan alone.

    Raises:
      RunError: the checkpoint cannot be converted.
    """
    try:
        return plan_target(open_source(checkpoint, optimizer=options.optimizer), options)
    except CheckpointError as error:
        raise RunError(str(error)) from error


def _nudged(state: TargetState) -> TargetState:
    return replace(state, tree=_mapped(state.tree))


def _mapped(tree: Any) -> Any:
    if isinstance(tree, TargetTensor):
        is_weight = any(s.state in (State.WEIGHT, State.MASTER) for s in tree.sources)
        return replace(tree, build=lambda: one_ulp_off(tree.build())) if is_weight else tree
    if isinstance(tree, dict):
        return {key: _mapped(child) for key, child in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_mapped(child) for child in tree)
    return tree


def one_ulp_off(array: Array) -> Array:
    """Every entry at its next neighbour, up or down in a reproducible pattern."""
    signs = np.random.default_rng(0).integers(0, 2, array.shape, dtype=np.int8)
    towards = np.where(signs, np.inf, -np.inf).astype(array.dtype)
    moved: Array = np.nextafter(array, towards)
    return moved
