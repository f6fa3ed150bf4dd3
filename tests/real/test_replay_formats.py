"""``muon-check replay`` across formats, parallel layouts, families and optimizers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from checks.cli import main
from checks.replay.leaves import read_leaves
from checks.replay.pair import ReplayError, open_pair
from checks.replay.report import Report, compare
from checks.tolerances import limit
from checks.trainers.megatron.launch import record
from checks.trainers.megatron.models import model
from checks.trainers.megatron.options import RFC, Layout, Optimizer
from checks.trainers.megatron.training import Training
from converters.maxtext.plan import Options, plan_target
from converters.source import Source, SourceTensor, State

DATA = Path(__file__).parents[1] / "data" / "megatron"
# Two steps in, so that momentum and Adam's moments hold something.
TRAININGS = {
    "llama, TP 2, torch": Training(
        model("llama"), layout=Layout(tensor=2), form="torch", steps=3, saves=(2, 3)
    ),
    "deepseek with yarn, torch": Training(
        model("deepseek_yarn"), form="torch", steps=3, saves=(2, 3)
    ),
    "mixtral, PP 2": Training(model("mixtral"), layout=Layout(pipeline=2), steps=3, saves=(2, 3)),
    "RFC-0023": Training(
        model("llama"), Optimizer(rfc=RFC), reference="rfc", steps=3, saves=(2, 3)
    ),
    "Adam alone, torch": Training(
        model("llama"),
        Optimizer(changes={"optimizer": "adam"}),
        form="torch",
        steps=3,
        saves=(2, 3),
    ),
}
# The reference of RFC-0023 runs Newton-Schulz in the dtype of the weights, which no argument says.
OVERRIDES = {"RFC-0023": {"ns_dtype": "float32"}}
DENSE = DATA / "dense_td"

pytestmark = pytest.mark.real


def replayed(before: Path, after: Path, overrides: dict[str, str] | None = None) -> Report:
    return compare(before, after, None, overrides or {})


@pytest.fixture(scope="module", params=TRAININGS)
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = record(TRAININGS[request.param], tmp_path_factory.mktemp("pair"))
    pair = folder / "iter_0000002", folder / "iter_0000003"
    return replayed(*pair, OVERRIDES.get(request.param))


def test_the_fork_takes_megatrons_step(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print("\n" + json.dumps({"format": report.notes[-2], "worst": report.worst}))
    assert report.passed, [row for row in report.rows if row.difference > report.limit]
    assert report.limit in (limit("replay"), limit("replay_decayed_norms"))
    assert all(row.step > 100 * limit("replay") for row in report.rows)
    muon = [row.difference for row in report.rows if row.optimizer == "muon"]
    assert max(muon, default=0.0) <= limit("replay_muon")
    moments = [row.second_moment for row in report.rows if row.second_moment is not None]
    assert max(moments) <= limit("replay")


def test_every_parameter_with_a_state_is_replayed(report: Report) -> None:
    source = open_pair(Path(report.before), Path(report.after), {}).before
    trained = {k.parameter for k in source.tensors if k.state is not State.WEIGHT}
    assert {name for row in report.rows for name in row.parameters} == trained


def test_one_checkpoint_may_be_torch_and_the_next_torch_dist() -> None:
    """The same run, saved in both formats."""
    report = replayed(DATA / "dense_legacy/iter_0000020", DENSE / "iter_0000021")
    assert report.passed
    assert "formats: torch, torch_dist" in report.notes


@pytest.mark.parametrize("sample", ["dense_td", "qknorm_td"])
def test_the_leaves_are_those_of_the_conversion(sample: str) -> None:
    pair = open_pair(DATA / sample / "iter_0000020", DATA / sample / "iter_0000021", {})
    assert pair.leaves == plan_target(pair.before, Options()).leaves


def test_a_saved_sum_is_read_as_one() -> None:
    """A buffer of the other convention is the mean times 1 / (1 - beta)."""
    pair = open_pair(DENSE / "iter_0000020", DENSE / "iter_0000021", {})
    plain = {leaf.path: leaf for leaf in read_leaves(pair)}
    scale = 1.0 / (1.0 - pair.spec.beta)
    sums = dataclasses.replace(
        pair,
        before=_with_sums(pair.before, scale),
        after=_with_sums(pair.after, scale),
        momentum_factor=1.0 / scale,
    )
    for leaf in read_leaves(sums):
        np.testing.assert_allclose(leaf.first, plain[leaf.path].first, rtol=1e-12)
        np.testing.assert_allclose(leaf.gradient, plain[leaf.path].gradient, rtol=1e-9, atol=1e-12)


def _with_sums(source: Source, scale: float) -> Source:
    def scaled(tensor: SourceTensor) -> SourceTensor:
        return dataclasses.replace(tensor, load=lambda: tensor.load().astype(np.float64) * scale)

    tensors = {k: scaled(t) if k.state is State.MOMENTUM else t for k, t in source.tensors.items()}
    return dataclasses.replace(source, tensors=tensors)


def test_another_run_of_the_same_arguments_does_not_pass() -> None:
    """Other weights: the stages of a pipeline draw theirs in another order."""
    report = replayed(DATA / "pp2_td/iter_0000020", DENSE / "iter_0000021")
    assert report.worst > 1e-3


def test_a_vocabulary_padded_for_another_layout_is_refused() -> None:
    pair = open_pair(DENSE / "iter_0000020", DENSE / "iter_0000021", {})
    key = next(key for key in pair.after.tensors if key.parameter.startswith("embedding"))
    wider = np.zeros((160, 32), np.float32)
    tensors = {
        k: dataclasses.replace(t, shape=wider.shape, load=lambda: wider) if k == key else t
        for k, t in pair.after.tensors.items()
    }
    pair = dataclasses.replace(pair, after=dataclasses.replace(pair.after, tensors=tensors))
    with pytest.raises(ReplayError, match=r"shape \[128, 32\] before, \[160, 32\] after"):
        read_leaves(pair)


def test_bad_words_cannot_run() -> None:
    pair = (str(DENSE / "iter_0000020"), str(DENSE / "iter_0000021"))
    for word, message in (
        ("nonsense=1", "unknown override nonsense"),
        ("ns_dtype", "--spec ns_dtype: expected FIELD=VALUE"),
        ("ns_dtype=float8", "ns_dtype='float8'"),
    ):
        result = CliRunner().invoke(main, ["replay", *pair, "--spec", word])
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr
        assert "Traceback" not in result.stderr
