"""A Megatron run with ``--optimizer adam`` goes on in real MaxText, with Megatron's decay.

MaxText's own ``opt_type=adamw`` decays norms and clips by another formula; the migrated ``muon``
with every parameter in its AdamW branch does what Megatron does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from converters.maxtext.plan import Options, Plan, plan_target
from converters.megatron import names
from converters.megatron.open import open_source
from converters.source import Key, Source, SourceTensor, State
from tests.real.maxtext import trees
from tests.real.maxtext.continued import (
    Continued,
    expected_structure,
    go_on,
    restored,
    structure,
)
from tests.real.megatron_adam import SAVED_AT, STEPS
from tests.real.megatron_resumes import batch_of

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
# Measured 1.2e-6 over 24 steps.
LOSS_LIMIT = 2e-6
# Of a weight at the end, relative to the largest entry of its leaf; measured 8e-7.
WEIGHT_LIMIT = 4e-6
# The dense sample's arguments, without those of Muon, and with a clip that always acts.
CHANGES = {
    "optimizer": "adam",
    "adam_beta2": 0.95,
    "clip_grad": 0.5,
    "lr_decay_iters": 40,
    "train_iters": 40,
}


@dataclass(frozen=True)
class Case:
    """Options of the Megatron model, and the MaxText that goes on."""

    model: tuple[str, ...]
    release: str
    scan: bool

    def __str__(self) -> str:
        return "-".join((self.release, "scanned" if self.scan else "unscanned", *self.model))


CASES = (Case((), "0.2.5", True), Case(("qknorm",), "0.2.3", False))


@dataclass(frozen=True)
class Ran:
    """Both trainers after the same steps; ``ended`` has the weights of Megatron's last one."""

    plan: Plan
    continued: Continued
    losses: np.ndarray
    ended: Plan


@pytest.fixture(scope="module", params=CASES, ids=str)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    case: Case = request.param
    folder = tmp_path_factory.mktemp(str(case).replace(".", "_"))
    losses, weights = megatron(case, folder)
    options = Options(maxtext_version=case.release, scan=case.scan)
    source = open_source(folder / "ckpt")
    plan = plan_target(source, options)
    tokens = np.stack([batch_of(SAVED_AT + n).numpy() for n in range(STEPS)]).astype(np.int32)
    tree = trees.migrated(trees.shared_folder(tmp_path_factory), case.release, "megatron")
    ended = plan_target(replace(source, tensors=last(source, weights)), options)
    return Ran(plan, go_on(plan, tree, folder, tokens), losses, ended)


def last(source: Source, weights: dict[str, np.ndarray]) -> dict[Key, SourceTensor]:
    """The source's tensors with other weights, by Megatron's names."""
    found = dict(source.tensors)
    for name, weight in weights.items():
        key = Key(names.parse(name).parameter, State.WEIGHT)
        found[key] = replace(found[key], load=lambda weight=weight: weight)
    return found


def megatron(case: Case, folder: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Losses after the checkpoint in ``folder/ckpt``, and the weights at the end."""
    saved = json.loads((ROOT / "tests/data/megatron_args/dense.json").read_text())
    arguments = {k: v for k, v in saved.items() if not k.startswith("muon_")} | CHANGES
    arguments["qk_layernorm"] = "qknorm" in case.model
    (folder / "args.json").write_text(json.dumps(arguments))
    words = [folder / "args.json", folder / "ckpt", folder / "out.npz", *case.model]
    command = [sys.executable, "-m", "tests.real.megatron_adam", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    arrays = dict(np.load(folder / "out.npz"))
    assert (arrays.pop("norms") > CHANGES["clip_grad"]).all()
    return arrays.pop("losses"), arrays


def test_maxtext_restores_every_moment(ran: Ran) -> None:
    for name, (planned, found) in restored(ran.plan, ran.continued.run).items():
        assert np.array_equal(planned, found), name


def test_maxtext_saves_the_planned_tree(ran: Ran) -> None:
    assert structure(ran.continued.saved) == expected_structure(ran.plan)


def test_losses_are_megatrons(ran: Ran) -> None:
    found = ran.continued.run.losses
    assert len(found) == STEPS
    worst = float(np.abs(found - ran.losses).max())
    print(f"largest difference of {STEPS} losses: {worst:.1e}")
    assert worst <= LOSS_LIMIT


def test_weights_end_where_megatrons_do(ran: Ran) -> None:
    worst, where = 0.0, ""
    for target in ran.ended.records:
        if target.path[0] == "params":
            expected, found = target.build(), ran.continued.saved.tensors[target.path].read()
            share = float(np.abs(found - expected).max() / np.abs(expected).max())
            worst, where = max((worst, where), (share, "/".join(target.path)))
    print(f"largest relative difference of a weight: {worst:.1e} at {where}")
    assert worst <= WEIGHT_LIMIT
