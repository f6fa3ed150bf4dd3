"""Whose AdamW a checkpoint's run had, by the options in its parameter groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from converters.megatron.inspection import inspect_checkpoint
from converters.megatron.open import open_source
from converters.megatron.run import Run
from converters.megatron.settled import settled
from converters.source import Source
from tests.converters.commands import DATA
from tests.converters.plans import planned

# Saved by every kind of writer, all without Apex and Transformer Engine.
SAMPLES = sorted(path.name for path in DATA.iterdir() if list(path.glob("iter_*")))
FUSED_ADAM = ("lr", "bias_correction", "betas", "eps", "weight_decay", "wd_mult", "step")


def opened(name: str) -> Source:
    return open_source(DATA / name)


def with_groups(run: Run, *changes: Any) -> Run:
    """The run with one optimizer for each change, which maps AdamW's groups to others."""
    (first, *_) = [group for one in run.optimizers for group in one.groups if "betas" in group]
    states = [dataclasses.replace(run.optimizers[0], groups=(change(first),)) for change in changes]
    return dataclasses.replace(run, optimizers=tuple(states))


def torchs(group: Mapping[str, Any]) -> Mapping[str, Any]:
    return group


def fused_adams(group: Mapping[str, Any]) -> Mapping[str, Any]:
    values = {**group, "bias_correction": True, "step": 20}
    return {name: values[name] for name in FUSED_ADAM if name in values}


def torchs_fused(group: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**group, "fused": True}


@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_has_torchs(name: str) -> None:
    spec, notes = settled(opened(name).run, {"allow_blockwise_tp": True})
    assert spec.adam_decay_style == "factor"
    assert notes[-1] == "adam_decay_style=factor: the optimizer's groups are those of torch's AdamW"
    assert not any("not in the arguments: subtract" in note for note in notes)


def test_fused_adam_subtracts() -> None:
    spec, notes = settled(with_groups(opened("dense_td").run, fused_adams), {})
    assert spec.adam_decay_style == "subtract"
    assert notes[-1].endswith("are those of FusedAdam")


@pytest.mark.parametrize("changes", [(torchs, fused_adams), (torchs_fused,), ()])
def test_what_no_group_tells_is_said_to_be_assumed(changes: tuple[Any, ...]) -> None:
    spec, notes = settled(with_groups(opened("dense_td").run, *changes), {})
    assert spec.adam_decay_style == "subtract"
    assert any("adam_decay_style is not in the arguments: subtract" in note for note in notes)


def test_the_user_has_the_last_word() -> None:
    spec, notes = settled(opened("dense_td").run, {"adam_decay_style": "subtract"})
    assert spec.adam_decay_style == "subtract"
    assert not any("adam_decay_style" in note for note in notes)


def test_conversion_and_inspection_agree() -> None:
    source = opened("dense_td")
    assert planned(source).maxtext_config["muon_adam_decay_style"] == "factor"
    assert inspect_checkpoint(DATA / "dense_td")["muon_spec"]["adam_decay_style"] == "factor"
