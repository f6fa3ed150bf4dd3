"""Which parameter each nameless entry of an optimizer belongs to.

A saved optimizer numbers its parameters through its groups; within a group they keep the order of
``named_parameters()``. Which parameters a group has follows from its fields, and counts, shapes and
(with masters, when they are read) values have to agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from converters.errors import CheckpointError
from converters.megatron import names
from converters.megatron.archives import Stored
from converters.source import State

from .kept import Kept, kept
from .parameters import Parameter

# Advice of every refusal here.
ADVICE = "save with --ckpt-format torch_dist, which keeps names"


class Group(NamedTuple):
    """What distinguishes a group's parameters from those of the others.

    Attributes:
      muon: updated by Muon.
      expert: parameters of experts that are spread over ranks.
      decays: has weight decay.
      decoupled: embedding and output layer with a learning rate of their own.
    """

    muon: bool
    expert: bool
    decays: bool
    decoupled: bool


@dataclass(frozen=True)
class Owned:
    """A parameter and what an optimizer keeps about it."""

    parameter: Parameter
    states: Mapping[State, Kept]


class Saved(NamedTuple):
    """One group as saved: its fields, and states and masters of its parameters in order."""

    optimizer: int
    fields: Mapping[str, Any]
    states: tuple[Mapping[str, Any], ...]
    masters: tuple[Stored, ...]


def children(optimizer: Any, file: str) -> tuple[Mapping[str, Any], ...]:
    """The chained optimizers; Megatron saves an only one bare.

    Raises:
      CheckpointError: something else.
    """
    chain = optimizer if isinstance(optimizer, list) else [optimizer]
    if not chain or not all(isinstance(child, dict) for child in chain):
        raise CheckpointError(f"{file}: 'optimizer' is no optimizer's state; {ADVICE}")
    return tuple(chain)


def inner(child: Mapping[str, Any]) -> Mapping[str, Any]:
    """The optimizer's own state; mixed precision wraps it once more."""
    wrapped = child.get("optimizer")
    return wrapped if isinstance(wrapped, dict) else child


def assign(
    optimizers: Sequence[Mapping[str, Any]],
    parameters: Sequence[Parameter],
    arguments: Mapping[str, Any],
    file: str,
) -> tuple[Owned, ...]:
    """Every trained parameter of one rank with its states.

    Raises:
      CheckpointError: groups that nobody can tell apart, or counts or shapes that do not agree.
    """
    trained = [p for p in parameters if p.trained]
    owned: list[Owned] = []
    seen: set[Group] = set()
    for saved in [g for n, o in enumerate(optimizers) for g in saved_groups(n, o, file)]:
        group = kind_of(saved, arguments, file)
        if not saved.states:
            continue
        if group in seen:
            raise CheckpointError(
                f"{file}: two optimizer groups have the same fields ({group}), so their parameters "
                f"cannot be told apart: {ADVICE}"
            )
        seen.add(group)
        members = [p for p in trained if group_of(p, arguments) == group]
        owned += _matched(saved, members, group, file)
    missing = {id(p) for p in trained} - {id(o.parameter) for o in owned}
    if missing:
        name = next(p.name for p in trained if id(p) in missing)
        raise CheckpointError(
            f"{file}: no optimizer holds the state of {len(missing)} parameters, among them "
            f"{name}: an optimizer of the chain is missing; copy the file again, or {ADVICE}"
        )
    return tuple(owned)


def group_of(parameter: Parameter, arguments: Mapping[str, Any]) -> Group:
    """The group that Megatron puts a parameter in."""
    end = parameter.name.endswith(("word_embeddings.weight", "output_layer.weight"))
    rank = len(parameter.tensor.shape)
    decays = rank != 1 and not parameter.key.endswith(".bias")
    if arguments.get("apply_wd_to_qk_layernorm"):
        decays = decays or "q_layernorm." in parameter.key or "k_layernorm." in parameter.key
    return Group(
        muon="muon" in str(arguments.get("optimizer")) and rank == 2 and not end,
        expert=parameter.is_expert and (arguments.get("expert_model_parallel_size") or 1) > 1,
        decays=decays,
        decoupled=end and arguments.get("decoupled_lr") is not None,
    )


def kind_of(saved: Saved, arguments: Mapping[str, Any], file: str) -> Group:
    fields = saved.fields
    if "use_muon" in fields:
        muon = bool(fields["use_muon"])
    else:
        muon = "momentum" in fields or "momentum_beta" in fields
    if not muon and "betas" not in fields:
        raise CheckpointError(
            f"{file}: group of optimizer {saved.optimizer} is neither Muon's nor Adam's "
            f"(fields {', '.join(sorted(fields))}): only these two are converted"
        )
    own_rate = arguments.get("decoupled_lr")
    decoupled = bool(fields.get("is_decoupled_lr")) or (
        own_rate is not None and fields.get("max_lr") == own_rate != arguments.get("lr")
    )
    expert = bool(fields.get("is_expert_parallel"))
    return Group(muon, expert, fields.get("wd_mult", 1.0) != 0, decoupled)


def saved_groups(number: int, child: Mapping[str, Any], file: str) -> list[Saved]:
    own = inner(child)
    groups, states = own.get("param_groups"), own.get("state")
    if not isinstance(groups, list) or not isinstance(states, dict):
        raise CheckpointError(f"{file}: optimizer {number} has no groups or no state: {ADVICE}")
    masters = child.get("fp32_from_fp16_params", [()] * len(groups))
    if len(masters) != len(groups):
        raise CheckpointError(
            f"{file}: optimizer {number} has {len(groups)} groups and masters of {len(masters)}"
        )
    saved, used = [], 0
    for group, own_masters in zip(groups, masters, strict=True):
        indices = group.get("params") if isinstance(group, dict) else None
        if not isinstance(indices, list) or any(i not in states for i in indices):
            raise CheckpointError(
                f"{file}: optimizer {number} lacks the state of some of its parameters: the run "
                f"had not trained them yet, or the file is incomplete"
            )
        used += len(indices)
        saved.append(Saved(number, group, tuple(states[i] for i in indices), tuple(own_masters)))
    if used != len(states):
        raise CheckpointError(
            f"{file}: optimizer {number} has {len(states)} states, its groups name {used}"
        )
    return saved


def _matched(saved: Saved, members: Sequence[Parameter], group: Group, file: str) -> list[Owned]:
    if len(members) != len(saved.states):
        raise CheckpointError(
            f"{file}: optimizer {saved.optimizer} has a group of {len(saved.states)} parameters, "
            f"but the model has {len(members)} of its kind ({group}): which is which is not "
            f"certain; {ADVICE}"
        )
    halves = [p for p in members if p.tensor.dtype.itemsize == 2]
    if saved.masters and len(saved.masters) != len(halves):
        raise CheckpointError(
            f"{file}: optimizer {saved.optimizer} has {len(saved.masters)} fp32 masters in a "
            f"group, the model {len(halves)} parameters of 16 bits"
        )
    masters = iter(saved.masters)
    owned = []
    for parameter, state in zip(members, saved.states, strict=True):
        states = states_of(parameter, state, file)
        if saved.masters and parameter.tensor.dtype.itemsize == 2:
            states[State.MASTER] = checked(parameter, "fp32_param", next(masters), file)
        owned.append(Owned(parameter, states))
    return owned


def states_of(parameter: Parameter, state: Any, file: str) -> dict[State, Kept]:
    if not isinstance(state, dict):
        raise CheckpointError(f"{file}: the optimizer's state of {parameter.name} is no dictionary")
    found: dict[State, Kept] = {}
    for key, value in state.items():
        if key == "step":
            continue
        if key not in names.STATES:
            raise CheckpointError(
                f"{file}: the optimizer keeps {key!r} of {parameter.name}: only Muon's and Adam's "
                "states are converted"
            )
        found[names.STATES[key]] = checked(parameter, key, value, file)
    muon = State.MOMENTUM in found
    if not muon and not {State.EXP_AVG, State.EXP_AVG_SQ} <= found.keys():
        raise CheckpointError(
            f"{file}: the optimizer keeps only {sorted(state)} of {parameter.name}"
        )
    return found


def checked(parameter: Parameter, key: str, value: Any, file: str) -> Kept:
    """The state's tensor, named after its parameter, if it has the parameter's shape."""
    if not isinstance(value, Stored) or value.shape != parameter.tensor.shape:
        shape = value.shape if isinstance(value, Stored) else type(value).__name__
        raise CheckpointError(
            f"{file}: {key} of {parameter.name} has shape {shape}, the weight has "
            f"{parameter.tensor.shape}: the order of the optimizer's parameters is not the one "
            f"known; {ADVICE}"
        )
    origin = f"{file}: optimizer {key} of {parameter.key}"
    return kept(value, origin)
