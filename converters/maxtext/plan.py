"""From an open Megatron checkpoint to everything MaxText needs to go on: ``plan_target``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from converters.errors import CheckpointError
from converters.families.detect import detect, named
from converters.families.family import Family
from converters.families.files import read_family
from converters.families.links import EMBEDDING, links
from converters.families.model import features_of, model_of
from converters.mapping import Leaf, prove
from converters.megatron.settled import settled
from converters.source import SetAside, Source, State
from converters.target import TargetState, TargetTensor, leaves
from muon_fork.spec import MuonSpec, SpecError

from .agreement import require_groups, used_arguments
from .config import check_sizes, command_line, config_of, run_config
from .contents import contents_of, dropped
from .options import Options
from .versions import Layout, Version, version_of

__all__ = ["Options", "Plan", "plan_target"]

# Number formats that float32 holds exactly and that need no scales beside them.
_KEPT = ("float32", "bfloat16", "float16")
_KEPT_WIDE = (*_KEPT, "float64")


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
    try:
        return _plan(source, options)
    except (TypeError, ValueError, KeyError, ArithmeticError) as error:
        raise CheckpointError(
            f"{source.folder}: the arguments inside hold a value of a kind that Megatron does not "
            f"write there ({type(error).__name__}: {error})"
        ) from error


def _plan(source: Source, options: Options) -> Plan:
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
    config, notes = config_of(family, model, arguments, vocabulary[0], options.dtype.name)
    found = _with_variables(prove(table, shapes, aside), version, config["model_name"])
    _check_states(source, shapes, _KEPT_WIDE if options.float64 else _KEPT)
    check_sizes(found, config)
    spec, spec_notes = _spec(source, options)
    used, saved_notes = used_arguments(source.run)
    run_keys, run_notes = run_config(used, spec, options.scan, version, layout)
    contents = contents_of(source, options, found, model, spec, layout)
    left = dropped(source, contents, aside, options)
    return Plan(
        state=TargetState(contents.tree, contents.step, options.scan, version.saves_scan_layers),
        leaves=found,
        dropped=(*source.set_aside, *left),
        created=contents.created,
        notes=(
            *_family_notes(family),
            *spec_notes,
            *_momentum_notes(contents.factor),
            *vocabulary[1],
            *notes,
            *run_notes,
            *(() if spec is None else _decay_notes(features, spec)),
            *(() if spec is None else saved_notes),
        ),
        spec=spec,
        momentum_factor=contents.factor,
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


def _decay_notes(features: Collection[str], spec: MuonSpec) -> tuple[str, ...]:
    qk = spec.apply_wd_to_qk_layernorm and "qk_norm" in features
    decaying = spec.adam_weight_decay and (spec.weight_decay_norm_params or qk)
    if "zero_centered" not in features or not decaying:
        return ()
    return ("norms are kept as W + 1: their decay pulls W towards -1 where Megatron's pulls to 0",)


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
    if isinstance(true, int) and true > held > 0:
        raise CheckpointError(
            f"vocab_size={true} in the arguments, but {EMBEDDING} has {held} rows: arguments and "
            "tensors are of different models"
        )
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


def _check_states(
    source: Source, shapes: Mapping[str, tuple[int, ...]], kept: tuple[str, ...]
) -> None:
    for key, tensor in source.tensors.items():
        if tensor.dtype.name not in kept:
            raise CheckpointError(
                f"{key}: {tensor.dtype} ({', '.join(tensor.origin)}): expected one of "
                f"{', '.join(kept)}; scaled numbers are saved unscaled without --fp8-param-gather"
            )
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
        spec, notes = settled(source.run, options.spec_overrides)
        require_groups(source.run, spec, options.spec_overrides)
        return spec, notes
    except SpecError as error:
        raise CheckpointError(
            f"the optimizer cannot be continued: {error} (--no-optimizer converts the weights)"
        ) from error
