"""Migrated with ``--reference optax``, a release trains exactly as it did before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.real.maxtext import trees
from tests.real.maxtext.models import MODELS
from tests.real.maxtext.trainer import train

pytestmark = pytest.mark.real

STEPS = 5
LIMIT = 1e-6


@pytest.mark.parametrize(
    ("version", "keys"),
    [
        ("0.2.3", {}),
        ("0.2.5", {"muon_type": "optax_muon", "muon_consistent_rms": 0.2}),
        ("0.2.5", {"muon_type": "maxtext_muon"}),
    ],
    ids=["0.2.3", "0.2.5-optax_muon", "0.2.5-maxtext_muon"],
)
def test_optax_reference_changes_nothing(
    version: str, keys: dict[str, object], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tree = trees.migrated(trees.shared_folder(tmp_path_factory), version, "optax")
    model = MODELS["llama2"].overrides | {"scan_layers": True, "muon_weight_decay": 0.1} | keys
    before = train(trees.released(version), tmp_path / "before", model, steps=STEPS)
    spelled = {"muon_scale_mode": "consistent_rms"} if "muon_consistent_rms" in keys else {}
    after = train(tree, tmp_path / "after", model | spelled, steps=STEPS)
    assert not any("third_party" in name for name in before.state_types)
    assert "maxtext.third_party.optax_muon._muon.MuonState" in after.state_types
    difference = np.abs(after.losses - before.losses).max()
    print(f"{version} {keys}: losses {before.losses}, max |difference| {difference:.1e}")
    assert difference <= LIMIT
    # The run must have learnt something, or equality would say nothing.
    assert np.ptp(before.losses) > 1e-3
