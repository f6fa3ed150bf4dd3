"""Optimizer state that two data-parallel ranks of real Megatron-Core share: replayed, converted.

Every run is saved in all the forms that Megatron writes of it, and once more by ranks that share
the batch alone and keep the whole state each.
"""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner

from checks.cli import main
from checks.replay.pair import open_pair
from checks.replay.report import compare
from checks.tolerances import limit
from checks.trainers.megatron.launch import TrainingFailed, record
from checks.trainers.megatron.models import model
from checks.trainers.megatron.options import Layout, Optimizer, Sharding
from checks.trainers.megatron.training import Training
from converters.maxtext.plan import Options, Plan, plan_target
from converters.megatron.open import open_source
from converters.source import State

pytestmark = pytest.mark.real

# Ranks sum the norm in another order than one does. Where it clips, the last digit of every master
# is another one, and where a master is half way between two bfloat16 numbers, so is the next step.
_UNCLIPPED = {"clip_grad": 100.0}
_ADAM = Training(
    model("llama"),
    Optimizer({"optimizer": "adam", **_UNCLIPPED}),
    Layout(data=2),
    steps=3,
    saves=(2, 3),
)
# Layer-wise Muon is for bfloat16 weights: with others Megatron-Core 0.19 forgets its own wrapper.
_MUON = _ADAM.replace(optimizer=Optimizer(_UNCLIPPED), dtype="bfloat16")
RUNS = {
    "Adam": _ADAM.replace(sharding=Sharding(), twins=("fully_reshardable", "torch")),
    "Muon": _MUON.replace(sharding=Sharding(), twins=("fully_reshardable", "torch")),
    # Without a twin in the older format, which Megatron does not write of it.
    "Muon, layout": _MUON.replace(sharding=Sharding(layout=True), twins=("fully_reshardable",)),
    "Adam, whole": _ADAM,
    "Muon, whole": _MUON,
    "Adam, one process": _ADAM.replace(layout=Layout(), saves=()),
}


class Form(NamedTuple):
    """A run, the folder of the twin in it, and the format that the replay finds there."""

    run: str
    twin: str
    format: str


FORMS = (
    Form("Adam", "", "torch_dist+dp_reshardable"),
    Form("Adam", "fully_reshardable", "torch_dist"),
    Form("Adam", "torch", "torch+distributed"),
    Form("Muon", "", "torch_dist"),
    Form("Muon", "fully_reshardable", "torch_dist"),
    Form("Muon", "torch", "torch+layer_wise"),
    Form("Muon, layout", "", "torch_dist+dp_reshardable"),
    Form("Muon, layout", "fully_reshardable", "torch_dist"),
)
# What the second rank wrote, or for both; where it alone is of another iteration, nothing fits.
_SECOND = {
    FORMS[0]: "__1_0.distcp",
    FORMS[2]: "mp_rank_00/distrib_optim.pt",
    FORMS[3]: "__1_0.distcp",
    FORMS[5]: "mp_rank_00/layer_wise_optimizer_1.pt",
    FORMS[6]: "__1_0.distcp",
}

Recorded = Callable[[str], Path]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The folder of a run, which is recorded when it is first asked for."""

    @functools.cache
    def folder(run: str) -> Path:
        return record(RUNS[run], tmp_path_factory.mktemp("sharded"))

    return folder


def pair_of(recorded: Recorded, form: Form) -> tuple[Path, Path]:
    folder = recorded(form.run) / form.twin
    return folder / "iter_0000002", folder / "iter_0000003"


@pytest.mark.parametrize("form", FORMS, ids=map(", ".join, FORMS))
def test_the_fork_takes_megatrons_step(
    form: Form, recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = pair_of(recorded, form)
    report = compare(before, after, None, {})
    muon = [row.difference for row in report.rows if row.optimizer == "muon"]
    moments = [row.second_moment for row in report.rows if row.second_moment is not None]
    with capsys.disabled():
        print(
            "\n" + json.dumps({"form": form, "worst": report.worst, "muon": max(muon, default=0)})
        )
    assert report.passed, [row for row in report.rows if row.difference > report.limit]
    assert report.limit == limit("replay")
    assert max(muon, default=0.0) <= limit("replay_muon")
    assert max(moments) <= limit("replay")
    assert all(row.step > 100 * limit("replay") for row in report.rows)
    assert f"formats: {form.format}, {form.format}" in report.notes
    assert bool(muon) == form.run.startswith("Muon")
    trained = {
        key.parameter
        for key in open_pair(before, after, {}).before.tensors
        if key.state is not State.WEIGHT
    }
    assert {name for row in report.rows for name in row.parameters} == trained


@pytest.mark.parametrize("form", FORMS, ids=map(", ".join, FORMS))
def test_it_converts_to_the_bits_of_the_whole_state(form: Form, recorded: Recorded) -> None:
    whole = recorded(f"{form.run.split(',')[0]}, whole") / "iter_0000003"
    expected, found = (
        plan_target(open_source(path), Options()) for path in (whole, pair_of(recorded, form)[1])
    )
    assert (found.spec, found.maxtext_config) == (expected.spec, expected.maxtext_config)
    arrays, others = _arrays(expected), _arrays(found)
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        assert others[name].dtype == array.dtype, name
        np.testing.assert_array_equal(others[name], array, err_msg=name)


def _arrays(plan: Plan) -> dict[str, np.ndarray]:
    return {"/".join(leaf.path): leaf.build() for leaf in plan.records}


def test_two_ranks_train_like_one(recorded: Recorded) -> None:
    """They have half of the rows each, and report the mean loss of all of them."""
    one, two, whole = (
        np.loadtxt(recorded(run) / "losses.txt")
        for run in ("Adam, one process", "Adam", "Adam, whole")
    )
    assert np.abs(one - two).max() <= limit("layouts_trained")
    np.testing.assert_array_equal(two, whole)


@pytest.mark.parametrize(
    ("form", "word"),
    [(FORMS[0], "adam_b2=0.9"), (FORMS[3], "num_ns_steps=4"), (FORMS[6], "split_qkv=false")],
    ids=["Adam", "Muon", "Muon, layout"],
)
def test_another_spec_does_not_pass(form: Form, word: str, recorded: Recorded) -> None:
    words = ["replay", *map(str, pair_of(recorded, form)), "--spec", word]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 1, result.output


@pytest.mark.parametrize("form", _SECOND, ids=map(", ".join, _SECOND))
def test_a_rank_of_another_iteration_is_noticed(
    form: Form, recorded: Recorded, tmp_path: Path
) -> None:
    before, after = pair_of(recorded, form)
    mixed = tmp_path / after.name
    shutil.copytree(after, mixed)
    shutil.copyfile(before / _SECOND[form], mixed / _SECOND[form])
    result = CliRunner().invoke(main, ["replay", str(before), str(mixed)])
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.stderr


def test_megatron_does_not_write_layer_wise_buffers_in_the_older_format(tmp_path: Path) -> None:
    muon = RUNS["Muon, layout"].replace(layout=Layout(), twins=())
    training = muon.replace(form="torch", steps=0, saves=(0,))
    with pytest.raises(TrainingFailed, match="no attribute 'save_state_dict_to_file'"):
        record(training, tmp_path)
