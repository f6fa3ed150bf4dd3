"""What goes into a MaxText train state, and what of the checkpoint does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from converters.errors import CheckpointError
from converters.families.links import EMBEDDING
from converters.families.model import Model
from converters.mapping import Leaf, Path
from converters.source import Key, MomentumConvention, SetAside, Source, State
from converters.target import TargetTensor
from muon_fork.spec import MuonSpec

from .options import Options
from .ownership import NEEDED, Owner, missing_state, owners
from .state import Counts, Moments, parameters, train_state, variables
from .tensors import Reading, constant, leaf_tensor
from .versions import Layout

_MOMENTS = (State.MOMENTUM, State.EXP_AVG, State.EXP_AVG_SQ)


@dataclass(frozen=True)
class Contents:
    """The tree of a plan, and what it leaves over.

    Attributes:
      leaves: the parameters in it.
      tree: of TargetTensors.
      step: finished steps.
      created: leaves that no tensor holds.
      surplus: state that MaxText's optimizer does not keep, and why.
      factor: of the momentum.
    """

    leaves: Sequence[Leaf]
    tree: Any
    step: int
    created: tuple[SetAside, ...]
    surplus: Mapping[Key, str]
    factor: float


def contents_of(
    source: Source,
    options: Options,
    found: Sequence[Leaf],
    model: Model,
    spec: MuonSpec | None,
    layout: Layout,
) -> Contents:
    """The tree of all leaves, with optimizer state if there is a spec.

    Raises:
      CheckpointError: the optimizer's state is not what MaxText keeps.
    """
    by_path = {leaf.path: leaf for leaf in found}
    weights = Reading(source, State.WEIGHT, dtype=options.dtype)

    def weight(path: Path, parameter: Path) -> TargetTensor:
        return leaf_tensor(path, by_path[parameter], weights)

    paths = tuple(by_path)
    iteration = source.run.iteration
    if spec is None:
        tree = parameters(paths, weight)
        # Nothing but parameters: MaxText starts at step 0 from a directory that is numbered freely.
        return Contents(found, tree, max(iteration, 1), (), {}, 1.0)
    if iteration < 1:
        raise CheckpointError(
            f"{source.folder}: iteration {iteration}, and MaxText resumes after the first step at "
            "the earliest: --no-optimizer converts the weights, from which it starts anew"
        )
    trained = [leaf for leaf in found if not leaf.is_variable]
    owner = owners(trained, model.dimensions, spec)
    filled, created, surplus = _settle_ownership(source, trained, owner, options.fill_missing_state)
    factor = momentum_factor(source, spec, options.momentum)
    factors = {State.MOMENTUM: factor}
    readings = [Reading(source, s, factors.get(s, 1.0), options.dtype) for s in _MOMENTS]
    makes = [_state_maker(reading, by_path, filled) for reading in readings]
    tree = train_state(
        [leaf.path for leaf in trained],
        owner,
        weight,
        Moments(*makes),
        _counts(source),
        spec,
        layout,
        options.dtype,
    )
    tree |= variables([leaf.path for leaf in found if leaf.is_variable], weight)
    return Contents(found, tree, iteration, created, surplus, factor)


def _state_maker(
    reading: Reading, by_path: Mapping[Path, Leaf], filled: frozenset[tuple[Path, State]]
) -> Any:
    def make(path: Path, parameter: Path) -> TargetTensor:
        leaf = by_path[parameter]
        if (parameter, reading.state) in filled:
            return constant(path, 0.0, reading.dtype, leaf.shape)
        return leaf_tensor(path, leaf, reading)

    return make


def _settle_ownership(
    source: Source, found: Sequence[Leaf], owner: Mapping[Path, Owner], fill: bool
) -> tuple[frozenset[tuple[Path, State]], tuple[SetAside, ...], dict[Key, str]]:
    """What is made up, what of it is reported, and state that no leaf takes."""
    missing = missing_state(source, found, owner)
    refused = [
        f"  {'/'.join(entry.leaf.path)}: {entry.reason}"
        for entry in missing
        if not entry.leaf.is_buffer
    ]
    surplus = {
        Key(
            part.link.parameter, state
        ): f"MaxText gives {'/'.join(leaf.path)} to {owner[leaf.path]}"
        for leaf in found
        for part in leaf.parts
        for state in (State.MOMENTUM, State.EXP_AVG, State.EXP_AVG_SQ)
        if state not in NEEDED[owner[leaf.path]]
        and Key(part.link.parameter, state) in source.tensors
    }
    refused += [f"  {key}: {why}" for key, why in surplus.items()]
    if refused and not fill:
        shown = refused[:12] + ([f"  and {len(refused) - 12} more"] if len(refused) > 12 else [])
        raise CheckpointError(
            "optimizer state does not match what MaxText keeps:\n"
            + "\n".join(shown)
            + "\n--fill-missing-state starts these at zero, --no-optimizer converts weights alone"
        )
    created = tuple(
        SetAside(f"{'/'.join(m.leaf.path)} ({m.state.value})", f"zeros: {m.reason}")
        for m in missing
    )
    return frozenset((m.leaf.path, m.state) for m in missing), created, surplus


def momentum_factor(source: Source, spec: MuonSpec, override: MomentumConvention | None) -> float:
    """What the saved momentum is multiplied by to be the one that ``spec`` keeps."""
    own: MomentumConvention = "sum" if spec.nesterov_style == "sgd" else "ema"
    saved = override or source.momentum or own
    if saved == own:
        return 1.0
    return spec.buffer_scale if own == "sum" else 1.0 - spec.beta


def _counts(source: Source) -> Counts:
    iteration = source.run.iteration
    steps = [state.step for state in source.run.optimizers if state.step is not None]
    return Counts(iteration, iteration, steps[0] if steps else iteration, iteration)


def dropped(
    source: Source, contents: Contents, aside: Mapping[str, str], options: Options
) -> tuple[SetAside, ...]:
    """Every tensor of the source that is in no leaf, and why."""
    copies = {name for leaf in contents.leaves for part in leaf.parts for name in part.link.alike}
    found = []
    for key in source.tensors:
        reason = aside.get(key.parameter) or contents.surplus.get(key)
        if key.parameter in copies:
            reason = f"second copy of {EMBEDDING}, which it must equal"
        has_master = Key(key.parameter, State.MASTER) in source.tensors
        if reason is None and key.state is State.WEIGHT and has_master:
            reason = "its fp32 master is converted instead"
        elif reason is None and not options.optimizer and key.state in _MOMENTS:
            reason = "optimizer state is not converted (--no-optimizer)"
        if reason is not None:
            found.append(SetAside(str(key), reason))
    return tuple(found)
