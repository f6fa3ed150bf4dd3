"""Open a checkpoint of Megatron's legacy ``torch`` format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from converters.errors import CheckpointError
from converters.megatron.archives import Stored
from converters.megatron.integrity import require_one_iteration
from converters.megatron.run import OptimizerState, Run
from converters.source import MomentumConvention, SetAside, Source

from . import distributed, groups, layer_wise
from .groups import Owned
from .parameters import Parameter, parameters
from .ranks import Place, Rank, Ranks, open_ranks
from .table import tabulate, weights_only

_READ = ("args", "checkpoint_version", "iteration", "optimizer", "opt_param_scheduler")
_VARIANTS = {"distributed": distributed.owned, "layer_wise": layer_wise.owned}


def open_legacy(folder: Path, opaque: tuple[str, ...] = (), *, optimizer: bool = True) -> Source:
    """Open ``iter_XXXXXXX`` (or ``release``) with its folders ``mp_rank_*``; no tensor is read.

    Args:
      opaque: qualified names that may be read as inert values beyond the known ones.
      optimizer: False leaves the optimizer's state aside, whole or not.

    Raises:
      CheckpointError: files missing, damaged, refused or of two checkpoints, or an optimizer whose
        state cannot be given to parameters with certainty.
    """
    ranks = open_ranks(folder, opaque)
    found, aside = parameters(ranks)
    variant, owned = owned_of(ranks, found, opaque) if optimizer else ("", weights_only(found))
    run = Run(ranks.arguments, ranks.iteration, _optimizers(ranks), _schedule(ranks))
    require_one_iteration(folder, run)
    return Source(
        folder=folder,
        format="torch" + (f"+{variant}" if variant else ""),
        run=run,
        tensors=tabulate(owned, ranks.sizes, ranks.arguments),
        momentum=_convention(ranks),
        set_aside=aside + _left(ranks, optimizer),
    )


def owned_of(
    ranks: Ranks, found: Mapping[Place, tuple[Parameter, ...]], opaque: tuple[str, ...]
) -> tuple[str, Sequence[Owned]]:
    """Variant of the optimizer's format, and every parameter with its states."""
    with_state = [rank for rank in ranks.ranks if rank.state.get("optimizer") is not None]
    if not with_state:
        return "", weights_only(found)
    if len(with_state) != len(ranks.ranks):
        other = next(rank for rank in ranks.ranks if rank.state.get("optimizer") is None)
        raise CheckpointError(
            f"{other.file}: has no 'optimizer', but {with_state[0].file} has: the files are of two "
            "checkpoints"
        )
    variant = variant_of(ranks)
    owned: list[Owned] = []
    for rank in ranks.ranks:
        own = found[rank.place]
        if variant:
            owned += _VARIANTS[variant](rank, own, ranks, opaque)
        else:
            chain = groups.children(rank.state["optimizer"], str(rank.file))
            owned += groups.assign(chain, own, ranks.arguments, str(rank.file))
        owned += [Owned(parameter, {}) for parameter in own if not parameter.trained]
    return variant, owned


def variant_of(ranks: Ranks) -> str:
    """How the optimizer's state is kept; empty if in the files of the model."""
    if ranks.arguments.get("use_distributed_optimizer"):
        return "distributed"
    files = any(any(rank.folder.glob(layer_wise.FILES)) for rank in ranks.ranks)
    asked = ranks.arguments.get("use_layer_wise_distributed_optimizer")
    dealt = str(ranks.arguments.get("optimizer")).startswith("dist_")
    return "layer_wise" if files or asked or dealt else ""


def _optimizers(ranks: Ranks) -> tuple[OptimizerState, ...]:
    """Groups of the first rank; the step that all ranks agree on."""
    if ranks.ranks[0].state.get("optimizer") is None:
        return ()
    steps: list[set[int]] = []
    for rank in ranks.ranks:
        chain = groups.children(rank.state["optimizer"], str(rank.file))
        for number, child in enumerate(chain):
            if number == len(steps):
                steps.append(set())
            steps[number] |= {_integer(step, rank) for step in _steps(groups.inner(child))}
            if len(steps[number]) > 1:
                raise CheckpointError(
                    f"{rank.file}: optimizer {number} counts steps {sorted(steps[number])}: its "
                    "parameters are of different checkpoints, or were not all trained"
                )
    first = groups.children(ranks.ranks[0].state["optimizer"], str(ranks.ranks[0].file))
    return tuple(
        OptimizerState(
            tuple(_fields(group) for group in groups.inner(child).get("param_groups", ())),
            next(iter(steps[number]), None),
        )
        for number, child in enumerate(first)
    )


def _steps(own: Mapping[str, Any]) -> Iterator[Any]:
    for group in own.get("param_groups", ()):
        if group.get("step") is not None:
            yield group["step"]
    states = own.get("state")
    for state in states.values() if isinstance(states, dict) else ():
        if isinstance(state, dict) and state.get("step") is not None:
            yield state["step"]


def _integer(step: Any, rank: Rank) -> int:
    value = step.read().item() if isinstance(step, Stored) and step.shape == () else step
    if not isinstance(value, (int, float)) or value != value or value != int(value):
        raise CheckpointError(f"{rank.file}: the optimizer's step is {value!r}")
    return int(value)


def _fields(group: Mapping[str, Any]) -> Mapping[str, Any]:
    return {str(key): value for key, value in group.items() if key != "params"}


def _schedule(ranks: Ranks) -> Mapping[str, Any]:
    schedule = ranks.ranks[0].state.get("opt_param_scheduler")
    return {str(k): v for k, v in schedule.items()} if isinstance(schedule, dict) else {}


def _convention(ranks: Ranks) -> MomentumConvention | None:
    """A sum where the optimizer is Moonshot's, else up to the arguments."""
    optimizer = ranks.ranks[0].state.get("optimizer")
    for child in groups.children(optimizer, "") if optimizer is not None else ():
        states = groups.inner(child).get("state")
        for state in states.values() if isinstance(states, dict) else ():
            if isinstance(state, dict) and "muon_buffer" in state:
                return "sum"
    return None


def _left(ranks: Ranks, optimizer: bool) -> tuple[SetAside, ...]:
    keys = [k for k in ranks.ranks[0].state if k not in _READ and not str(k).startswith("model")]
    left = tuple(SetAside(str(key), "state of the trainer, not of the model") for key in keys)
    unwanted = SetAside("optimizer", "optimizer state, and only weights are asked for")
    return left if optimizer or not ranks.ranks[0].state.get("optimizer") else (*left, unwanted)
