"""Sharding changes no loss: eight simulated devices against one, with the fork."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from muon_fork.presets import preset
from tests.real.maxtext import options, trees
from tests.real.maxtext.models import MODELS
from tests.real.maxtext.trainer import Run, train

pytestmark = pytest.mark.real

STEPS = 10
# Adam turns a gradient's rounding into whole steps, so the noise of the losses grows with the rate.
LEARNING_RATE = 0.005
DEVICES = 8
LIMIT = 2e-6


FSDP = {"ici_fsdp_parallelism": DEVICES}
FSDP_TENSOR = {"ici_fsdp_parallelism": DEVICES // 2, "ici_tensor_parallelism": 2}
ALL_TO_ALL = {"muon_type": "maxtext_muon", "muon_use_all_to_all": True}


@pytest.mark.parametrize(
    ("version", "reference", "meshes"),
    [
        ("0.2.5", "megatron_rfc", (FSDP, FSDP | ALL_TO_ALL)),
        ("0.2.5", "megatron", (FSDP_TENSOR,)),
        ("0.2.3", "megatron", (FSDP,)),
    ],
    ids=["0.2.5-megatron_rfc-fsdp", "0.2.5-megatron-fsdp-tensor", "0.2.3-megatron-fsdp"],
)
def test_losses_do_not_depend_on_the_mesh(
    version: str,
    reference: str,
    meshes: tuple[dict[str, object], ...],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    tree = trees.migrated(trees.shared_folder(tmp_path_factory), version, reference)
    spec = preset(reference).replace(ns_dtype="float32", cast_before_norm=False, clip_grad=0.5)
    model = MODELS["llama2"].overrides | {"scan_layers": True, "learning_rate": LEARNING_RATE}
    model |= options.overrides(reference, spec)
    one = train(tree, tmp_path / "one", model | {"per_device_batch_size": DEVICES}, steps=STEPS)
    _check_learns(one)
    for number, mesh in enumerate(meshes):
        sharded = model | mesh | {"per_device_batch_size": 1}
        many = train(tree, tmp_path / f"mesh{number}", sharded, steps=STEPS, devices=DEVICES)
        difference = np.abs(many.losses - one.losses).max()
        print(f"{version} {reference} {mesh}: max |loss difference| {difference:.1e}")
        assert difference <= LIMIT, mesh


def _check_learns(run: Run) -> None:
    assert "maxtext.third_party.optax_muon._muon.MuonState" in run.state_types
    assert np.isfinite(run.losses).all()
    assert np.ptp(run.losses) > 1e-3
