"""Runs without Muon: every format of Adam's state becomes the same train state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from converters.megatron.open import open_source
from converters.source import State
from tests.converters.commands import DATA
from tests.converters.plans import built, planned

TWINS = DATA / "twins"
PAIRS = ("adam_distopt", "adam_ep2", "adam_tp2pp2")
INNER = "opt_state/inner_states"
FORMS = (
    DATA / "adam_distopt_fully_reshardable_td",
    DATA / "adam_torch_dcp_fsdp2",
    DATA / "adam_bf16_fsdp_dtensor",
    *(TWINS / f"{pair}_{form}" for pair in PAIRS for form in ("flat_td", "legacy")),
)


@pytest.mark.parametrize("folder", FORMS, ids=lambda folder: folder.name)
@pytest.mark.parametrize("version", ["0.2.5", "0.2.3"])
def test_all_of_the_state_is_in_the_adamw_branch(folder: Path, version: str) -> None:
    source = open_source(folder)
    plan = planned(source, maxtext_version=version)
    config = plan.maxtext_config
    assert (config["opt_type"], config["muon_adam_only"]) == ("muon", True)
    assert config["muon_clip_grad"] == source.run.arguments["clip_grad"]
    assert config["gradient_clipping_threshold"] == 0
    leaves = {"/".join(target.path): target for target in plan.records}
    muon = {name.rpartition("/")[2] for name in leaves if name.startswith(f"{INNER}/muon/")}
    assert muon == {"count", "ns_coeffs"}
    weights = sum(name.startswith("params/") for name in leaves)
    for moment in ("mu", "nu"):
        root = f"{INNER}/adam/inner_state/0/{moment}/"
        assert sum(name.startswith(root) for name in leaves) == weights
    assert not [entry for entry in plan.dropped if State.EXP_AVG.value in entry.name]
    assert plan.created == ()


@pytest.mark.parametrize("pair", PAIRS)
def test_both_forms_of_a_run_are_one_state(pair: str) -> None:
    flat, legacy = (
        built(planned(open_source(TWINS / f"{pair}_{f}"))) for f in ("flat_td", "legacy")
    )
    assert flat.keys() == legacy.keys()
    for name, array in flat.items():
        assert np.array_equal(array, legacy[name]), name
