"""Two checkpoints one step apart, and everything of their run that the step depends on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters.errors import CheckpointError
from converters.families.detect import detect
from converters.families.links import links
from converters.families.model import features_of, model_of
from converters.mapping import Leaf, prove
from converters.maxtext.contents import momentum_factor
from converters.megatron.open import open_source
from converters.megatron.run import Run
from converters.megatron.settled import settled
from converters.source import Source, State
from muon_fork.model_dimensions import ModelDimensions
from muon_fork.spec import MuonSpec, SpecError

# Fields of the schedule that may change: the position, and the length of a constant weight decay.
_MOVING = ("num_steps", "wd_incr_steps")
# Arguments by which two checkpoints are of one run: those that shape the model or the step.
_SAME_ARGUMENTS = re.compile(
    "num_|hidden_size|kv_channels|ffn_|moe_|qk_|q_lora|kv_lora|v_head|optimizer$|muon_|adam_|clip_"
)
# Of these, what counts, and what says how the work was shared: each checkpoint may be of its own
# format and parallel layout.
_OWN_ARGUMENTS = re.compile(
    "num_floating_point_operations_so_far|num_workers|num_dataset_builder_threads|muon_tp_mode|"
    "num_distributed_optimizer_instances|num_.*(virtual|pipeline).*|moe_token_dispatcher_type"
)


Groups = Sequence[Mapping[str, Any]]


class ReplayError(Exception):
    """The step between two checkpoints cannot be replayed; the message says why."""


@dataclass(frozen=True)
class Pair:
    """An open pair.

    Attributes:
      before, after: the checkpoints.
      spec: of the run, with the weight decays of this step; clipping is off, since the gradient
        that the buffers hold is the clipped one.
      notes: how the spec was settled.
      dimensions: of the model, with MaxText's decoder block.
      leaves: MaxText's scanned leaves, and the tensors they are made from.
      momentum_factor: from the saved momentum to the buffer that ``spec`` keeps.
      muon_rate, adam_rate: learning rates of the step; the same where only one optimizer ran.
      adam_count: steps that Adam had taken before.
    """

    before: Source
    after: Source
    spec: MuonSpec
    notes: tuple[str, ...]
    dimensions: ModelDimensions
    leaves: tuple[Leaf, ...]
    momentum_factor: float
    muon_rate: float
    adam_rate: float
    adam_count: int


def open_pair(before: Path, after: Path, overrides: Mapping[str, Any]) -> Pair:
    """Open both checkpoints.

    Args:
      before, after: ``iter_XXXXXXX`` folders, or folders above one.
      overrides: MuonSpec fields that the arguments do not record (``ns_eps``).

    Raises:
      ReplayError: not consecutive steps of one run, or a run that cannot be replayed.
    """
    try:
        first, second = open_source(before), open_source(after)
        run = first.run
        _require_consecutive(run, second.run)
        spec, notes = settled(run, overrides)
        dimensions, leaves = _leaves(first)
    except (CheckpointError, SpecError) as error:
        raise ReplayError(str(error)) from error
    muon, adam = _groups(run, is_adam=False), _groups(run, is_adam=True)
    if not muon and not adam:
        raise ReplayError("no parameter groups: saved without optimizer (--no-save-optim)?")
    _require_momentum(muon, spec)
    return Pair(
        before=first,
        after=second,
        spec=_of_this_step(spec, muon, adam),
        notes=notes,
        dimensions=dimensions,
        leaves=leaves,
        momentum_factor=momentum_factor(first, spec, None),
        muon_rate=_agreed(muon or adam, "lr"),
        adam_rate=_agreed(adam or muon, "lr"),
        adam_count=_adam_count(first),
    )


def _of_this_step(spec: MuonSpec, muon: Groups, adam: Groups) -> MuonSpec:
    """The groups of a checkpoint are set for the step to come, since it is written after the
    scheduler's step."""
    decays = [float(group["weight_decay"]) for group in adam]
    return spec.replace(
        weight_decay=_agreed(muon, "weight_decay") if muon else spec.weight_decay,
        adam_weight_decay=max(decays, default=spec.adam_weight_decay),
        clip_grad=0.0,
    )


def _leaves(source: Source) -> tuple[ModelDimensions, tuple[Leaf, ...]]:
    """Scanned leaves of the family that fits, also of one that MaxText does not run.

    The rows are those of the conversion; a prediction layer's final norm is one of them.
    """
    weights = (State.WEIGHT, State.MASTER)
    shapes = {k.parameter: t.shape for k, t in source.tensors.items() if k.state in weights}
    arguments = source.run.arguments
    family = detect(arguments, shapes)
    features = features_of(arguments, shapes) | {"mtp_final_norm"}
    model = model_of(family, arguments, features)
    return model.dimensions, prove(links(family, model, family.scans, shapes), shapes)


def _require_consecutive(run: Run, next_run: Run) -> None:
    if next_run.iteration != run.iteration + 1:
        raise ReplayError(
            f"iterations {run.iteration} and {next_run.iteration}: expected consecutive ones; "
            "save every step for two steps (--save-interval 1)"
        )
    for name, value in run.arguments.items():
        other = next_run.arguments.get(name)
        # Values that are no plain data have no equality worth asking.
        if _of_the_model(name) and repr(value) != repr(other):
            raise ReplayError(f"{name}: {value!r} before, {other!r} after: not one run")
    schedules = [{k: v for k, v in r.schedule.items() if k not in _MOVING} for r in (run, next_run)]
    changed = [k for k in schedules[0] if schedules[0][k] != schedules[1].get(k)]
    if changed:
        raise ReplayError(f"the schedule changed between the checkpoints: {', '.join(changed)}")


def _of_the_model(name: str) -> bool:
    return bool(_SAME_ARGUMENTS.match(name)) and not _OWN_ARGUMENTS.fullmatch(name)


def _groups(run: Run, is_adam: bool) -> Groups:
    return [
        group
        for state in run.optimizers
        for group in state.groups
        if (group.get("betas") is not None) == is_adam
    ]


def _agreed(groups: Groups, name: str) -> float:
    values = {float(group[name]) for group in groups}
    if len(values) != 1:
        raise ReplayError(f"parameter groups differ in {name}: {sorted(values)}")
    return values.pop()


def _require_momentum(groups: Groups, spec: MuonSpec) -> None:
    for group in groups:
        saved = group.get("momentum", group.get("momentum_beta"))
        if saved is not None and saved != spec.beta:
            raise ReplayError(
                f"momentum {saved!r} in the optimizer, {spec.beta!r} in the arguments"
            )


def _adam_count(source: Source) -> int:
    """Steps that Adam has taken; 0 where nothing has its state."""
    if all(key.state is not State.EXP_AVG for key in source.tensors):
        return 0
    steps = [state.step for state in source.run.optimizers if state.step is not None]
    if not steps:
        raise ReplayError("Adam's step count is in neither the state nor the groups")
    return steps[0]
