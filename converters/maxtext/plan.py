"""From an open Megatron checkpoint to everything MaxText needs to go on: ``plan_target``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from converters.errors import CheckpointError
from converters.families.detect import detect, named
from converters.families.family import Family
from converters.families.files import read_family
from converters.families.links import EMBEDDING, links
from converters.families.model import Model, features_of, model_of
from converters.mapping import Leaf, Path, prove
from converters.source import Key, MomentumConvention, SetAside, Source, State
from converters.target import TargetState, TargetTensor, leaves
from muon_fork.megatron_args import settle
from muon_fork.spec import MuonSpec, SpecError

from .config import check_sizes, command_line, config_of, run_config
from .ownership import NEEDED, Owner, missing_state, owners
from .state import Counts, Moments, parameters, train_state, variables
from .tensors import FLOAT, Reading, constant, leaf_tensor
from .versions import NEWEST_RELEASE, Layout, Version, version_of


@dataclass(frozen=True)
class Options:
    """What the user may choose; every default follows from the checkpoint.

    Attributes:
      maxtext_version: a release, or ``main``.
      layout: ``nnx`` or ``linen``; None is the version's own.
      scan: MaxText's ``scan_layers``.
      family: name of a shipped family, or a ``.toml`` file; None detects it.
      vocab_size: rows of embedding and output layer to keep; None keeps Megatron's padding.
      optimizer: convert the optimizer's state too.
      momentum: convention of the saved momentum, where the checkpoint is wrong about it.
      fill_missing_state: start state that the checkpoint lacks at zero, and drop what MaxText's
        optimizer does not keep, instead of refusing.
      spec_overrides: MuonSpec fields that the arguments do not record, and ``allow_blockwise_tp``.
    """

    maxtext_version: str = NEWEST_RELEASE
    layout: Layout | None = None
    scan: bool = True
    family: str | None = None
    vocab_size: int | None = None
    optimizer: bool = True
    momentum: MomentumConvention | None = None
    fill_missing_state: bool = False
    spec_overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A whole conversion, proven complete; no tensor has been read.

    Attributes:
      state: the tree to write.
      leaves: how the parameters map, for the way back.
      dropped: tensors and entries of the checkpoint that are not converted, and why.
      created: leaves that no tensor of the checkpoint holds, and why.
      notes: what was assumed and what MaxText will not reproduce.
      spec: the run's Muon; None without optimizer.
      momentum_factor: what the momentum is multiplied by.
      family, version, layout: what was settled.
      maxtext_config: key to value; the path to load from is the writer's to add.
    """

    state: TargetState
    leaves: tuple[Leaf, ...]
    dropped: tuple[SetAside, ...]
    created: tuple[SetAside, ...]
    notes: tuple[str, ...]
    spec: MuonSpec | None
    momentum_factor: float
    family: str
    version: Version
    layout: Layout
    maxtext_config: Mapping[str, Any]

    @property
    def records(self) -> tuple[TargetTensor, ...]:
        """Every leaf with its sources, transform, shape and dtype."""
        return tuple(leaves(self.state.tree))

    @property
    def load_key(self) -> str:
        """MaxText's key that takes the path of the result."""
        return "load_parameters_path" if self.spec is None else "load_full_state_path"

    @property
    def command(self) -> tuple[str, ...]:
        """``key=value`` words for MaxText's command line."""
        return command_line(self.maxtext_config)


def plan_target(source: Source, options: Options) -> Plan:
    """Everything but the bytes.

    Raises:
      CheckpointError: the checkpoint is of no family, incomplete, or of a run that MaxText cannot
        continue; the message says what to do.
    """
    version, layout = version_of(options.maxtext_version, options.layout)
    arguments = source.run.arguments
    shapes = {k.parameter: t.shape for k, t in source.tensors.items() if k.state is State.WEIGHT}
    shapes |= {k.parameter: t.shape for k, t in source.tensors.items() if k.state is State.MASTER}
    family = family_of(options.family, arguments, shapes)
    if options.scan and not family.scans:
        raise CheckpointError(f"MaxText does not scan the layers of {family.name}: --no-scan")
    features = features_of(arguments, shapes)
    if version.mtp_final_norm:
        features |= {"mtp_final_norm"}
    vocabulary = _vocabulary(source, shapes, options.vocab_size)
    model = model_of(family, arguments, features, options.vocab_size)
    table = links(family, model, options.scan, shapes)
    aside = _unkept_norms(shapes, {link.parameter for link in table}, version)
    config, notes = config_of(family, model, arguments, vocabulary[0])
    found = _with_variables(prove(table, shapes, aside), version, config["model_name"])
    _check_states(source, shapes)
    check_sizes(found, config)
    spec, spec_notes = _spec(source, options)
    run_keys, run_notes = run_config(arguments, spec, options.scan, version, layout)
    written = _write(source, options, found, model, spec, layout)
    dropped = _dropped(source, written, aside, options)
    return Plan(
        state=TargetState(written.tree, written.step, options.scan, version.saves_scan_layers),
        leaves=found,
        dropped=(*source.set_aside, *dropped),
        created=written.created,
        notes=(
            *_family_notes(family),
            *spec_notes,
            *_momentum_notes(written.factor),
            *vocabulary[1],
            *notes,
            *run_notes,
        ),
        spec=spec,
        momentum_factor=written.factor,
        family=family.name,
        version=version,
        layout=layout,
        maxtext_config={**config, **run_keys},
    )


def family_of(chosen: str | None, arguments: Mapping[str, Any], names: Mapping[str, Any]) -> Family:
    """The family that was asked for, or else the one that fits.

    Raises:
      CheckpointError: unknown, does not fit, or no MaxText runs it.
    """
    if chosen is None:
        family = detect(arguments, names)
    else:
        is_file = chosen.endswith(".toml")
        family = read_family(FilePath(chosen)) if is_file else named(chosen)
        misfits = family.misfits(features_of(arguments, names))
        if misfits:
            raise CheckpointError(f"the checkpoint is no {chosen}: that {'; '.join(misfits)}")
    if family.refusal:
        raise CheckpointError(f"cannot be continued: {family.refusal}")
    return family


def _family_notes(family: Family) -> tuple[str, ...]:
    if family.verified:
        return ()
    return (f"family {family.name}: its names were not verified against a real checkpoint",)


def _momentum_notes(factor: float) -> tuple[str, ...]:
    if factor == 1.0:
        return ()
    saved, kept = ("mean", "sum") if factor > 1 else ("sum", "mean")
    return (f"momentum was saved as a {saved} of gradients and is kept as a {kept}: x {factor!r}",)


def _vocabulary(
    source: Source, shapes: Mapping[str, tuple[int, ...]], wanted: int | None
) -> tuple[int, tuple[str, ...]]:
    """MaxText's vocab_size, and what became of the padding."""
    held = shapes.get(EMBEDDING, (0,))[0]
    true = source.run.arguments.get("vocab_size")
    if wanted is not None:
        if not 0 < wanted <= held:
            raise CheckpointError(f"--vocab-size {wanted}: the embedding has {held} rows")
        if isinstance(true, int) and wanted < true:
            raise CheckpointError(f"--vocab-size {wanted}: the run's vocabulary has {true} entries")
        if wanted == held:
            return wanted, ()
        cut = f"vocabulary cut from {held} to {wanted} rows: the softmax had the others too"
        return wanted, (f"{cut}, so the loss changes",)
    if isinstance(true, int) and true < held:
        kept = f"vocab_size={held}: Megatron's padding of {held - true} rows is kept"
        return held, (f"{kept}, since it takes part in the softmax; --vocab-size {true} cuts it",)
    return held, ()


def _unkept_norms(
    shapes: Mapping[str, Any], used: Collection[str], version: Version
) -> dict[str, str]:
    """Final norms of prediction layers, where MaxText has none of their own."""
    reason = f"MaxText {version.name} normalises predictions with the decoder's own norm"
    norms = (n for n in shapes if n.startswith("mtp.") and n.endswith(".final_layernorm.weight"))
    return {name: reason for name in norms if name not in used}


def _with_variables(found: Sequence[Leaf], version: Version, model_name: str) -> tuple[Leaf, ...]:
    """Buffers that MaxText keeps as variables have their layers first."""
    if not model_name.startswith(version.bias_variables or ("-",)):
        return tuple(found)
    return tuple(leaf.as_variable() if leaf.is_buffer else leaf for leaf in found)


def _check_states(source: Source, shapes: Mapping[str, tuple[int, ...]]) -> None:
    for key, tensor in source.tensors.items():
        expected = shapes.get(key.parameter)
        if expected is None:
            raise CheckpointError(f"{key}: state of a parameter that the checkpoint does not have")
        if tensor.shape != expected:
            raise CheckpointError(
                f"{key}: shape {list(tensor.shape)}, the weight has {list(expected)} "
                f"({', '.join(tensor.origin)})"
            )


def _spec(source: Source, options: Options) -> tuple[MuonSpec | None, tuple[str, ...]]:
    if not options.optimizer:
        return None, ()
    try:
        return settle(source.run.arguments, options.spec_overrides)
    except SpecError as error:
        raise CheckpointError(
            f"the optimizer cannot be continued: {error} (--no-optimizer converts the weights)"
        ) from error


@dataclass(frozen=True)
class _Written:
    leaves: Sequence[Leaf]
    tree: Any
    step: int
    created: tuple[SetAside, ...]
    surplus: Mapping[Key, str]
    factor: float


def _write(
    source: Source,
    options: Options,
    found: Sequence[Leaf],
    model: Model,
    spec: MuonSpec | None,
    layout: Layout,
) -> _Written:
    by_path = {leaf.path: leaf for leaf in found}
    weights = Reading(source, State.WEIGHT)

    def weight(path: Path, parameter: Path) -> TargetTensor:
        return leaf_tensor(path, by_path[parameter], weights)

    paths = tuple(by_path)
    iteration = source.run.iteration
    if spec is None:
        tree = parameters(paths, weight)
        # Nothing but parameters: MaxText starts at step 0 from a directory that is numbered freely.
        return _Written(found, tree, max(iteration, 1), (), {}, 1.0)
    trained = [leaf for leaf in found if not leaf.is_variable]
    owner = owners(trained, model.dimensions, spec)
    filled, created, surplus = _settle_ownership(source, trained, owner, options.fill_missing_state)
    factor = momentum_factor(source, spec, options.momentum)
    states = (State.MOMENTUM, State.EXP_AVG, State.EXP_AVG_SQ)
    makes = [_state_maker(source, state, factor, by_path, filled) for state in states]
    tree = train_state(
        [leaf.path for leaf in trained],
        owner,
        weight,
        Moments(*makes),
        _counts(source),
        spec,
        layout,
    )
    tree |= variables([leaf.path for leaf in found if leaf.is_variable], weight)
    return _Written(found, tree, iteration, created, surplus, factor)


def _state_maker(
    source: Source,
    state: State,
    factor: float,
    by_path: Mapping[Path, Leaf],
    filled: frozenset[tuple[Path, State]],
) -> Any:
    reading = Reading(source, state, factor if state is State.MOMENTUM else 1.0)

    def make(path: Path, parameter: Path) -> TargetTensor:
        leaf = by_path[parameter]
        if (parameter, state) in filled:
            return constant(path, 0.0, FLOAT, leaf.shape)
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


def _dropped(
    source: Source, written: _Written, aside: Mapping[str, str], options: Options
) -> tuple[SetAside, ...]:
    copies = {name for leaf in written.leaves for part in leaf.parts for name in part.link.alike}
    found = []
    for key in source.tensors:
        reason = aside.get(key.parameter) or written.surplus.get(key)
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


_MOMENTS = (State.MOMENTUM, State.EXP_AVG, State.EXP_AVG_SQ)
