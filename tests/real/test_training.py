"""The top rung: real released MaxText goes on with recorded runs of real Megatron."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from checks.result import Outcome, Rung
from checks.setting import Setting
from checks.tolerances import limit
from checks.training.compare import How, compare
from checks.training.errors import RunError
from checks.training.folder import open_run
from muon_fork.presets import preset
from tests.real.maxtext import trees
from tests.real.maxtext.trainer import built

pytestmark = pytest.mark.real

RUNS = Path(__file__).parents[1] / "data" / "runs"
SETTING = Setting(preset("megatron"))


@dataclass(frozen=True)
class Case:
    """A recorded run, the release that goes on with it, and for how many steps (None: all)."""

    run: str
    release: str
    how: How
    steps: int | None = None

    def __str__(self) -> str:
        return f"{self.run}-{self.release}-{'scanned' if self.how.scan else 'unscanned'}"


CASES = (
    Case("qwen3", "0.2.5", How()),
    Case("llama", "0.2.5", How(scan=False, floor=True)),
    Case("mla", "0.2.5", How()),
    Case("llama", "0.2.3", How(), 300),
)


def migrated(factory: pytest.TempPathFactory, release: str) -> Path:
    return trees.migrated(trees.shared_folder(factory), release, "megatron")


@pytest.fixture(scope="module", params=CASES, ids=str)
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Case, Rung]:
    case: Case = request.param
    tree = migrated(tmp_path_factory, case.release)
    run = open_run(RUNS / case.run)
    return case, compare(run, tree, built("maxtext"), case.steps, SETTING, case.how)


def test_every_loss_is_megatrons(trained: tuple[Case, Rung]) -> None:
    case, rung = trained
    (figure,) = rung.figures
    largest, mean, steps = (rung.details[key] for key in ("max", "mean", "steps"))
    print(f"{case}: {steps} steps, largest difference {largest:.1e}, mean {mean:.1e}")
    assert rung.outcome is Outcome.PASSED, rung.divergence
    assert steps == (case.steps or 1300)
    assert figure.value <= limit("training_dense")
    assert rung.curves[0].first_step == 20
    assert len(rung.curves[0].ours) == steps
    assert rung.details["trained"]["platform"] == "cpu"


def test_the_noise_floor_is_measured_where_it_is_asked_for(trained: tuple[Case, Rung]) -> None:
    case, rung = trained
    floor = rung.figures[0].floor
    if not case.how.floor:
        assert floor is None
        return
    print(f"{case}: noise floor {floor:.1e}")
    assert 0.0 < floor < 1e-4
    assert any("noise floor: MaxText against itself" in note for note in rung.notes)


def test_a_released_maxtext_is_migrated_in_a_copy_and_a_trap_is_caught() -> None:
    """After 20 steps bias correction is a small mistake: it takes some more to be seen."""
    how = How(config={"muon_bias_correction": True})
    release = trees.released("0.2.5")
    before = (release / "maxtext/configs/base.yml").read_bytes()
    rung = compare(open_run(RUNS / "qwen3"), release, built("maxtext"), 20, SETTING, how)
    assert rung.outcome is Outcome.FAILED
    assert rung.divergence is not None
    assert 20 < rung.divergence.step < 40
    assert rung.divergence.term == "loss"
    assert any("is not migrated: a copy was" in note for note in rung.notes)
    assert (release / "maxtext/configs/base.yml").read_bytes() == before


def test_a_released_maxtext_is_refused_where_no_copy_is_wanted() -> None:
    how = How(migrate=False)
    with pytest.raises(RunError, match=r"is not migrated, .* muon-migrate apply"):
        compare(open_run(RUNS / "qwen3"), trees.released("0.2.5"), None, 20, SETTING, how)


def test_a_python_without_maxtexts_packages_is_refused(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    tree = migrated(tmp_path_factory, "0.2.5")
    run = open_run(RUNS / "qwen3")
    for python in (None, Path(sys.executable)):
        with pytest.raises(RunError, match=r"--python.*|no Python.*--python"):
            compare(run, tree, python, 20, SETTING)
    with pytest.raises(RunError, match="cannot be run"):
        compare(run, tree, Path("/nowhere/python"), 20, SETTING)


@pytest.mark.parametrize("path", ["nothing", "empty"])
def test_a_folder_without_maxtext_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=r"no such folder|no MaxText that can be trained"):
        compare(open_run(RUNS / "qwen3"), tmp_path / path, None, 20, SETTING)
