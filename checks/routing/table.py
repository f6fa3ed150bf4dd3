"""Both sides of every parameter, and where they differ."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.training.interpreter import interpreter
from checks.training.tree import Tree, open_tree
from converters.families.detect import named
from converters.families.model import features_of, model_of
from converters.mapping import Leaf
from converters.maxtext.config import command_line
from converters.maxtext.plan import Options, Plan, plan_target
from converters.megatron.open import open_source
from converters.source import Source, State
from muon_fork.dimension_numbers import MuonDimensionNumbers
from muon_fork.model_dimensions import ModelDimensions
from muon_fork.rules import dimension_numbers_for
from muon_fork.spec import MuonSpec

from .maxtext import Answer, RoutingError, ask, sides
from .megatron import has_states, megatron_side
from .side import Side, differences

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True)
class Row:
    """One MaxText parameter.

    Attributes:
      path: its name in MaxText.
      parameters: what Megatron keeps it in, layers as ``*``; empty where it is MaxText's alone.
      megatron, maxtext: None where a side does not have it.
      differences: columns that differ; ``missing``, ``extra`` or ``shape`` where the models do.
    """

    path: str
    parameters: tuple[str, ...]
    megatron: Side | None
    maxtext: Side | None
    differences: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """
    Attributes:
      checkpoint, maxtext: what was compared.
      version, status: of the MaxText; ``migrated``, ``not migrated`` or ``half-applied``.
      optimizer: module of the ``muon`` that it calls.
      rows: in the order of the conversion.
      notes: what was assumed, and what of the configuration the MaxText does not know.
    """

    checkpoint: str
    maxtext: str
    version: str
    status: str
    optimizer: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not any(row.differences for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"passed": self.passed}


def compare(
    checkpoint: Path,
    maxtext: Path,
    python: Path | None,
    given: Mapping[str, str],
    overrides: Mapping[str, Any] = {},
) -> Report:
    """Compare the routing of a Megatron run with the one that ``maxtext`` would use.

    Args:
      given: configuration keys that win over those of the conversion.
      overrides: MuonSpec fields that the checkpoint does not record.

    Raises:
      CheckpointError: the checkpoint cannot be read or converted.
      RunError, RoutingError: the MaxText cannot be run.
    """
    source = open_source(checkpoint)
    tree = open_tree(maxtext)
    scan = given.get("scan_layers", "true").lower() not in ("false", "0")
    options = Options(
        tree.version,
        scan=scan,
        fill_missing_state=not has_states(source),
        spec_overrides=overrides,
    )
    # Before a Python is looked for: what no MaxText could continue needs none.
    plan = plan_target(source, options)
    executable = interpreter(python, tree)
    words, notes = _words(plan, tree, given)
    answer = ask(tree, executable, words)
    return Report(
        checkpoint=str(source.folder),
        maxtext=str(maxtext),
        version=tree.version,
        status=tree.status,
        optimizer=answer.module,
        rows=rows(source, plan, answer),
        notes=(*tree.notes, *_source_notes(source), *notes, *plan.notes),
    )


def _words(
    plan: Plan, tree: Tree, given: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The configuration of the conversion as far as the MaxText knows its keys."""
    known = tree.keys
    if strange := [key for key in given if key not in known]:
        raise RoutingError(f"--model-config: {tree.named} has no key {', '.join(strange)}")
    config = {key: value for key, value in plan.maxtext_config.items() if key not in given}
    unknown = [key for key in config if key not in known]
    words = command_line({key: value for key, value in config.items() if key in known})
    notes = [f"this MaxText does not know {', '.join(unknown)}"] if unknown else []
    if given:
        notes.append(f"given: {' '.join(f'{key}={value}' for key, value in given.items())}")
    return (*words, *(f"{key}={value}" for key, value in given.items())), tuple(notes)


def _source_notes(source: Source) -> Iterator[str]:
    if not has_states(source):
        yield "the checkpoint has no optimizer state: who trained what is Megatron's rule"
    groups = [group for state in source.run.optimizers for group in state.groups]
    rates = sorted({float(g["lr"]) for g in groups if isinstance(g.get("lr"), (int, float))})
    if len(rates) > 1 and not source.run.arguments.get("decoupled_lr"):
        yield f"the parameter groups have learning rates {rates}: MaxText has one for all"


def rows(source: Source, plan: Plan, answer: Answer) -> tuple[Row, ...]:
    """One row per leaf of the plan, and per further parameter of the MaxText."""
    assert plan.spec is not None
    dimensions = _dimensions(source, plan)
    stored = {_name(leaf): _stored(leaf, dimensions, plan.spec) for leaf in plan.leaves}
    theirs = sides(answer, stored)
    found = [_row(source, plan.spec, dimensions, leaf, theirs, answer) for leaf in plan.leaves]
    known = {row.path for row in found}
    extra = [Row(path, (), None, s, ("extra",)) for path, s in theirs.items() if path not in known]
    return (*found, *extra)


def _dimensions(source: Source, plan: Plan) -> ModelDimensions:
    arguments = source.run.arguments
    weights = {k.parameter for k in source.tensors if k.state in (State.WEIGHT, State.MASTER)}
    return model_of(named(plan.family), arguments, features_of(arguments, weights)).dimensions


def _stored(leaf: Leaf, dimensions: ModelDimensions, spec: MuonSpec) -> float:
    """c of ``W_stored = c * W``: a fact of the model, whatever the spec makes of it."""
    unfolding = spec.replace(unfold_scaled_weights=True)
    answer = dimension_numbers_for(leaf.path, dimensions, unfolding, leaf.shape)
    return answer.update_scale if isinstance(answer, MuonDimensionNumbers) else 1.0


def _row(
    source: Source,
    spec: MuonSpec,
    dimensions: ModelDimensions,
    leaf: Leaf,
    theirs: Mapping[str, Side],
    answer: Answer,
) -> Row:
    path = _name(leaf)
    parameters = _patterns([part.link.parameter for part in leaf.parts])
    own = megatron_side(source, spec, dimensions, leaf)
    if leaf.is_variable:
        # Beside the parameters: no optimizer sees it.
        return Row(path, parameters, own, Side("none"), ())
    other = theirs.get(path)
    if other is None:
        return Row(path, parameters, own, None, ("missing",))
    if answer.params[path] != leaf.shape:
        return Row(path, parameters, own, other, ("shape",))
    return Row(path, parameters, own, other, differences(own, other))


def _name(leaf: Leaf) -> str:
    return "/".join(leaf.path)


def _patterns(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_NUMBER.sub("*", name) for name in names))
