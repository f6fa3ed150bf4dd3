"""Arguments that say something else than the optimizer state and the schedule beside them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from converters.errors import CheckpointError
from converters.megatron.open import open_source
from converters.source import Source
from tests.converters.commands import DATA
from tests.converters.plans import changed, planned

DENSE, ADAM = "dense_td", "adam_distopt_fully_reshardable_td"


def opened(name: str) -> Source:
    return open_source(DATA / name, iteration=20)


def with_group(origin: Source, **fields: Any) -> Source:
    """With other fields in the groups that have them already, or in all if none has."""
    states = origin.run.optimizers
    known = any(fields.keys() <= group.keys() for state in states for group in state.groups)
    optimizers = tuple(
        dataclasses.replace(
            state,
            groups=tuple(
                {**group, **fields} if fields.keys() <= group.keys() or not known else group
                for group in state.groups
            ),
        )
        for state in states
    )
    return dataclasses.replace(origin, run=dataclasses.replace(origin.run, optimizers=optimizers))


def with_schedule(origin: Source, **fields: Any) -> Source:
    schedule = {**origin.run.schedule, **fields}
    return dataclasses.replace(origin, run=dataclasses.replace(origin.run, schedule=schedule))


@pytest.mark.parametrize(
    ("name", "fields", "field"),
    [
        (DENSE, {"momentum": 0.9}, "beta"),
        (DENSE, {"betas": (0.9, 0.95)}, "adam_b2"),
        (DENSE, {"eps": 1e-6}, "adam_eps"),
        (DENSE, {"weight_decay": 0.2}, "weight_decay"),
        (ADAM, {"betas": (0.8, 0.999)}, "adam_b1"),
        (ADAM, {"weight_decay": 0.01}, "adam_weight_decay"),
        (ADAM, {"eps": None}, "adam_eps"),
    ],
)
def test_groups_of_other_numbers_need_a_word(name: str, fields: dict[str, Any], field: str) -> None:
    source = with_group(opened(name), **fields)
    with pytest.raises(CheckpointError, match=rf"^{field}: .*--spec {field}=VALUE"):
        planned(source)


def test_a_chosen_number_holds() -> None:
    source = with_group(opened(DENSE), momentum=0.9)
    assert planned(source, spec_overrides={"beta": 0.9}).maxtext_config["muon_beta"] == 0.9
    assert planned(source, optimizer=False).spec is None


@pytest.mark.parametrize(
    "fields",
    [
        {"amsgrad": True},
        {"maximize": True},
        {"decoupled_weight_decay": False},
        {"lr_mult": 0.5},
        {"is_decoupled_lr": True},
    ],
    ids=lambda fields: next(iter(fields)),
)
@pytest.mark.parametrize("name", [DENSE, ADAM])
def test_groups_of_another_optimizer_are_refused(name: str, fields: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=f"{next(iter(fields))}="):
        planned(with_group(opened(name), **fields))


def test_the_schedule_holds_against_the_arguments() -> None:
    origin = opened(DENSE)
    plan = planned(changed(origin, lr=0.5, min_lr=0.25, lr_decay_style="linear"))
    expected = planned(origin)
    assert plan.maxtext_config == expected.maxtext_config
    assert sum("which is what the run goes on with" in note for note in plan.notes) == 3
    assert not any("goes on with" in note for note in expected.notes)


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"num_steps": 30}, "--rampup-batch-size"),
        ({"lr_decay_steps": 400}, "lr_decay_iters=20 in the arguments, 100 iterations"),
        ({"lr_warmup_steps": 0}, "lr_warmup_iters=2 in the arguments, 0 iterations"),
    ],
)
def test_counts_of_the_schedule_are_told(fields: dict[str, Any], note: str) -> None:
    notes = planned(with_schedule(opened(DENSE), **fields)).notes
    assert [line for line in notes if note in line], notes
