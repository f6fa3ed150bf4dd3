"""Released MaxText, migrated by one command, trains with the Muon that the spec describes.

Each case trains a tiny model for two steps, takes the gradients that really entered the optimizer,
and holds every update against float64 NumPy. The second step matters: momentum, look-ahead and bias
correction cannot be told apart in the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from muon_fork.presets import PRESETS, preset
from muon_fork.spec import MuonSpec
from tests.real.maxtext import options, trees
from tests.real.maxtext.expected import Reference
from tests.real.maxtext.models import MODELS
from tests.real.maxtext.trainer import BASE, Run, train

pytestmark = pytest.mark.real

STEPS = 2
# The largest difference of any entry of an update, learning rate included: float32 and float64.
LIMIT = 1e-6
# The same, relative to the largest entry of that leaf's update. Measured 1e-5 for Adam, whose
# 1 - b2^2 is a difference in float32, and 7e-5 for ten Newton-Schulz steps (5e-6 for five).
RELATIVE_LIMIT = 1e-4
# Momentum and moments after the last step: a few roundings of float32, relative.
STATE_LIMIT = 2e-6
# bfloat16 Newton-Schulz moves an update by up to a few percent; below 1e-4 it was not bfloat16.
BF16_RELATIVE = (1e-4, 0.15)


@dataclass(frozen=True)
class Case:
    """One run: a release, a model, layer scan, a reference, and what the run changes of it."""

    release: str
    model: str
    scan: bool
    reference: str
    changes: Mapping[str, object] = field(default_factory=dict)
    keys: Mapping[str, object] = field(default_factory=dict)

    @property
    def spec(self) -> MuonSpec:
        """Decay in both branches, and float32 Newton-Schulz where the reference's is bfloat16."""
        decayed = preset(self.reference).replace(weight_decay=0.1, adam_weight_decay=0.05)
        precise = decayed.replace(ns_dtype="float32", cast_before_norm=False, ns_rounding="fused")
        return precise.replace(**self.changes)

    def __str__(self) -> str:
        scan = "scanned" if self.scan else "unscanned"
        parts = (self.release, self.model, scan, self.reference, *self.changes, *self.keys)
        return "-".join(parts)


BF16 = {"ns_dtype": "bfloat16", "cast_before_norm": True, "ns_rounding": "elementwise"}
FUSED = {"split_qkv": False, "split_attention_gate": False, "nesterov": True}
CLIPPED = {"clip_grad": 0.5, "nesterov": True}

CASES = (
    Case("0.2.0", "llama2", True, "megatron_rfc"),
    Case("0.2.0", "deepseek", False, "megatron"),
    Case("0.2.1", "qwen3", False, "megatron", FUSED),
    Case("0.2.1", "mixtral", True, "moonlight"),
    Case("0.2.2", "qwen3_moe", True, "megatron"),
    Case("0.2.2", "llama2", False, "keller_jordan"),
    Case("0.2.3", "deepseek", True, "megatron_rfc"),
    Case("0.2.3", "qwen3", False, "optax"),
    Case("0.2.4", "llama2", True, "megatron", CLIPPED),
    Case("0.2.4", "mixtral", False, "megatron_rfc"),
    Case("0.2.5", "qwen3", True, "megatron_rfc", BF16),
    Case("0.2.5", "qwen3_moe", False, "moonlight", {}, {"muon_type": "maxtext_muon"}),
    Case("0.2.5", "deepseek", True, "deepseek_v4", {"include_routers": False}),
    Case("0.2.5", "llama2", True, "megatron", FUSED | CLIPPED, {"muon_type": "maxtext_muon"}),
)


def test_cases_cover_every_value_and_the_pairs_that_interact() -> None:
    values = {
        "release": trees.RELEASES,
        "model": tuple(MODELS),
        "scan": (True, False),
        "reference": tuple(row.name for row in PRESETS),
    }
    for name, wanted in values.items():
        assert {getattr(case, name) for case in CASES} == set(wanted), name
    for first in ("release", "model"):
        pairs = set(itertools.product(values[first], values["scan"]))
        assert {(getattr(case, first), case.scan) for case in CASES} == pairs, first


@pytest.mark.parametrize("case", CASES, ids=str)
def test_update_is_the_references(
    case: Case, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tree = trees.migrated(trees.shared_folder(tmp_path_factory), case.release, case.reference)
    chosen = options.overrides(case.reference, case.spec)
    model = MODELS[case.model].overrides | {"scan_layers": case.scan}
    run = train(tree, tmp_path, {**model, **chosen, **case.keys}, steps=STEPS, capture=True)
    _check_fork_ran(run)
    assert options.spec_of(run.config) == case.spec
    assert np.isfinite(run.losses).all(), run.losses
    rate = float(str(BASE["learning_rate"]))
    reference = Reference(case.spec, rate, MODELS[case.model].query_scale)
    absolute, relative, worst = _differences(reference, run)
    buffers = _state_difference(reference, run)
    print(f"{case}: max |difference| {absolute:.1e}, relative {relative:.1e}, at {worst}")
    print(f"{case}: momentum and moments, relative {buffers:.1e}")
    assert buffers <= STATE_LIMIT
    if case.spec.ns_dtype == "bfloat16":
        low, high = BF16_RELATIVE
        assert low < relative < high, worst
    else:
        assert absolute <= LIMIT, worst
        assert relative <= RELATIVE_LIMIT, worst


def _check_fork_ran(run: Run) -> None:
    """The state's own type says whose code made it; its tree is optax's."""
    (state_type,) = (name for name in run.state_types if name.endswith(".MuonState"))
    assert state_type == "maxtext.third_party.optax_muon._muon.MuonState"
    assert not any("optax.contrib" in name for name in run.state_types)
    state = run.tree(STEPS - 1, "state")
    counts = {path: int(value) for path, value in state.items() if path.endswith("/count")}
    branches = {"muon": ("0", "3"), "adam": ("0", "2")}
    wanted = {f"inner_states/{b}/inner_state/{i}/count" for b, two in branches.items() for i in two}
    assert counts == dict.fromkeys(wanted, STEPS)
    momenta = [p for p in state if p.startswith("inner_states/muon/inner_state/0/mu/")]
    assert momenta
    grads = run.tree(0, "grad")
    for path in momenta:
        assert state[path].shape == grads[path.split("/mu/", 1)[1]].shape
        assert state[path].dtype == np.float32


def _state_difference(reference: Reference, run: Run) -> float:
    """Largest difference of any buffer after the last step, relative to its largest entry.

    From a zero start the sum and the mean of gradients give one update; only the buffers tell.
    """
    expected = reference.state({p: g.shape for p, g in run.tree(0, "grad").items()})
    actual = run.tree(STEPS - 1, "state")
    counted = {p for p in actual if p.endswith(("/count", "/ns_coeffs"))}
    assert expected.keys() == actual.keys() - counted
    return max(
        float(np.abs(value - actual[path]).max() / (np.abs(value).max() or 1.0))
        for path, value in expected.items()
    )


def _differences(reference: Reference, run: Run) -> tuple[float, float, str]:
    """Largest absolute and largest relative difference of any leaf over all steps."""
    absolute, relative, worst = 0.0, 0.0, ""
    for step in range(STEPS):
        expected = reference.step(run.tree(step, "grad"), run.tree(step, "param"))
        actual = run.tree(step, "update")
        assert expected.keys() == actual.keys()
        for path, value in expected.items():
            difference = float(np.abs(value - actual[path]).max())
            share = difference / max(float(np.abs(value).max()), np.finfo(np.float32).tiny)
            if share > relative:
                relative, worst = share, f"step {step} {path}"
            absolute = max(absolute, difference)
    return absolute, relative, worst
