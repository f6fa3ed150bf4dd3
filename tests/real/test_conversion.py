"""Converted checkpoints in real MaxText: what it restores, the step it takes, the tree it saves.

Each case writes a planned state, lets a migrated release train from it with the planned
configuration, and compares what MaxText had before its first step, its losses, and the checkpoint
that it saved at the end.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from converters.maxtext.plan import Options, Plan, plan_target
from converters.maxtext.versions import Layout
from converters.megatron.open import open_source
from converters.source import Source
from muon_fork.config_keys import CONFIG_KEYS
from tests.converters.megatron_models import MODELS, source
from tests.real.maxtext import trees
from tests.real.maxtext.continued import (
    Continued,
    expected_structure,
    go_on,
    restored,
    structure,
)

pytestmark = pytest.mark.real

DATA = Path(__file__).parents[1] / "data" / "megatron"
# The same loss as Megatron's, to the digits that it prints; measured 1.4e-6 after 30 steps.
LOSS_LIMIT = 2e-6
# A weight or a buffer after one step of both trainers, relative to the largest entry of its leaf;
# measured 2.6e-7.
STATE_LIMIT = 2e-6


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
      release, scan, layout: of MaxText.
      origin: folder in tests/data/megatron, or name of a model with random weights.
      losses: of Megatron's next steps.
      after: iteration whose converted checkpoint must be the state after one step.
      changes: arguments of a random model.
    """

    release: str
    origin: str
    scan: bool
    layout: Layout | None = None
    losses: tuple[float, ...] = ()
    after: int | None = None
    changes: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        scan = "scanned" if self.scan else "unscanned"
        return "-".join(filter(None, (self.release, self.origin, scan, self.layout)))

    def open(self, iteration: int = 20) -> Source:
        if self.origin in MODELS:
            return source(MODELS[self.origin] | dict(self.changes))
        return open_source(DATA / self.origin, iteration=iteration)

    def plan(self, iteration: int = 20) -> Plan:
        options = Options(maxtext_version=self.release, scan=self.scan, layout=self.layout)
        return plan_target(self.open(iteration), options)

    def tokens(self, first: int) -> np.ndarray:
        """int32 [steps, batch, length + 1]."""
        if self.origin in MODELS:
            return np.random.default_rng(0).integers(0, 250, (1, 4, 33), dtype=np.int32)
        recorded = DATA / self.origin / "tokens.npy"
        if recorded.exists():
            return np.load(recorded).astype(np.int32)
        return sample_tokens(first)[None]


def sample_tokens(step: int) -> np.ndarray:
    """Batch of a step of the small sample runs (README of the data)."""
    generator = torch.Generator().manual_seed(1234)
    rows = torch.randint(0, 99, (16, 17), generator=generator).numpy().astype(np.int32)
    return rows[[(4 * step + row) % 16 for row in range(4)]]


MLA_LOSSES = tuple(float(x) for x in (DATA / "mla_run" / "losses.txt").read_text().split())

CASES = (
    Case("0.2.5", "dense_td", True, losses=(3.266538,), after=21),
    Case("0.2.3", "qknorm_td", False, losses=(3.205438,), after=21),
    Case("0.2.5", "mla_run", True, losses=MLA_LOSSES),
    Case("0.2.4", "qwen3_moe", False, "linen"),
    Case("0.2.0", "mixtral", True),
    # Without its prediction layer, which doubles the time to compile.
    Case("0.2.5", "deepseek3", True, changes={"mtp_num_layers": None}),
)


@functools.cache
def random_run(model: str) -> Source:
    return source(MODELS[model] | {"lr_decay_style": "linear"})


@pytest.mark.parametrize("release", trees.RELEASES)
def test_every_key_is_one_of_the_release(release: str) -> None:
    """MaxText refuses a key that its base.yml does not have; migration adds the fork's."""
    base = (trees.released(release) / "maxtext/configs/base.yml").read_text()
    known = set(re.findall(r"^(\w+):", base, re.MULTILINE)) | {row.key for row in CONFIG_KEYS}
    for model in MODELS:
        options = Options(maxtext_version=release, family=model if model == "mistral" else None)
        assert set(plan_target(random_run(model), options).maxtext_config) <= known, model


@pytest.fixture(scope="module", params=CASES, ids=str)
def ran(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Case, Plan, Continued]:
    case: Case = request.param
    plan = case.plan()
    tree = trees.migrated(trees.shared_folder(tmp_path_factory), case.release, "megatron")
    folder = tmp_path_factory.mktemp(str(case).replace(".", "_"))
    tokens = case.tokens(plan.state.step)
    return case, plan, go_on(plan, tree, folder, tokens)


def test_maxtext_restores_every_number(ran: tuple[Case, Plan, Continued]) -> None:
    """Silently partial restores end here: parameters, momentum, moments, counts, coefficients."""
    _, plan, continued = ran
    for name, (planned, found) in restored(plan, continued.run).items():
        assert planned.shape == found.shape, name
        assert np.array_equal(planned, found), name


def test_maxtext_saves_the_planned_tree(ran: tuple[Case, Plan, Continued]) -> None:
    _, plan, continued = ran
    found, expected = structure(continued.saved), expected_structure(plan)
    assert {k: v for k, v in found.items() if expected.get(k, "absent") != v} == {}
    assert expected.keys() == found.keys()


def test_losses_are_megatrons(ran: tuple[Case, Plan, Continued]) -> None:
    case, _, continued = ran
    assert np.isfinite(continued.run.losses).all()
    if case.losses:
        worst = np.abs(continued.run.losses - np.array(case.losses)).max()
        print(f"{case}: largest difference of {len(case.losses)} losses {worst:.1e}")
        assert worst <= LOSS_LIMIT


def test_one_step_leads_to_megatrons_next_checkpoint(ran: tuple[Case, Plan, Continued]) -> None:
    case, _, continued = ran
    if case.after is None:
        return
    worst, where = 0.0, ""
    for target in case.plan(case.after).records:
        expected, found = target.build(), continued.saved.tensors[target.path].read()
        if expected.dtype.kind == "i":
            assert np.array_equal(found, expected), target.path
            continue
        share = float(np.abs(found - expected).max() / np.abs(expected).max())
        worst, where = max((worst, where), (share, "/".join(target.path)))
    print(f"{case}: largest relative difference after the step {worst:.1e} at {where}")
    assert worst <= STATE_LIMIT
