"""``muon-check replay`` on steps that real Megatron took."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from checks.cli import main
from checks.replay.leaves import read_leaves
from checks.replay.pair import ReplayError, open_pair
from checks.replay.report import Report, compare
from checks.replay.step import replay
from checks.tolerances import limit
from converters.source import State

DATA = Path(__file__).parents[1] / "data" / "megatron"
PAIRS = ("dense_td", "qknorm_td", "moe_mixed_shared_td")
LIMIT = limit("replay")

pytestmark = pytest.mark.real


def folders(name: str) -> tuple[Path, Path]:
    return DATA / name / "iter_0000020", DATA / name / "iter_0000021"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)])


@pytest.fixture(scope="module", params=PAIRS)
def report(request: pytest.FixtureRequest) -> Report:
    return compare(*folders(request.param), LIMIT, {})


def test_the_fork_takes_megatrons_step(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    worst = {
        kind: max(row.difference for row in report.rows if row.optimizer == kind)
        for kind in ("muon", "adam")
    }
    with capsys.disabled():
        print("\n" + json.dumps({"replay": Path(report.after).parent.name, **worst}))
    assert report.passed
    assert max(worst.values()) <= LIMIT
    assert worst["muon"] <= limit("replay_muon")


def test_every_saved_parameter_is_replayed(report: Report) -> None:
    before = open_pair(Path(report.before), Path(report.after), {}).before
    trained = {key.parameter for key in before.tensors}
    assert {name for row in report.rows for name in row.parameters} == trained
    assert all(row.step > 100 * LIMIT for row in report.rows)
    assert len({row.path for row in report.rows}) == len(report.rows)


def test_adams_second_moment_follows(report: Report) -> None:
    moments = [row.second_moment for row in report.rows if row.second_moment is not None]
    assert moments
    assert max(moments) <= LIMIT


QUERY = {"decoder/layers/self_attention/query/kernel"}
ATTENTION = QUERY | {f"decoder/layers/self_attention/{n}/kernel" for n in ("key", "value")}
FC1 = {"decoder/layers/mlp/wi_0/kernel", "decoder/layers/mlp/wi_1/kernel"}
NORMS = {
    "decoder/decoder_norm/scale",
    "decoder/layers/pre_self_attention_layer_norm/scale",
    "decoder/layers/post_self_attention_layer_norm/scale",
}
ADAM = NORMS | {"token_embedder/embedding", "decoder/logits_dense/kernel"}


@pytest.mark.parametrize(
    ("change", "affected"),
    [
        ({"split_qkv": False}, ATTENTION),
        ({"split_linear_fc1": True}, FC1),
        ({"unfold_scaled_weights": False}, QUERY),
        ({"weight_decay_norm_params": True}, NORMS),
        ({"adam_nesterov": True}, ADAM),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_muon_differs_where_it_should(change: dict[str, bool], affected: set[str]) -> None:
    pair = open_pair(*folders("dense_td"), {})
    pair = dataclasses.replace(pair, spec=pair.spec.replace(**change))
    leaves = read_leaves(pair)
    weights, _ = replay(pair, leaves)
    differing = {
        "/".join(leaf.path)
        for leaf in leaves
        if np.abs(weights[leaf.path] - leaf.expected).max() > 10 * LIMIT
    }
    assert differing == affected


def test_command_prints_every_parameter_and_passes() -> None:
    result = run(*folders("dense_td"))
    assert result.exit_code == 0, result.output
    assert "decoder/layers/self_attention/query/kernel" in result.stdout
    assert "within the limit" in result.stdout
    assert "note: ns_eps is not recorded" in result.stdout


def test_command_exits_1_above_the_limit() -> None:
    result = run(*folders("dense_td"), "--limit", "1e-12", "--json", "-")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["passed"] is False
    assert found["worst"] == max(row["difference"] for row in found["rows"])


def test_a_checkpoint_without_optimizer_cannot_be_replayed() -> None:
    pair = open_pair(*folders("dense_td"), {})
    bare = {key: t for key, t in pair.before.tensors.items() if key.state is State.WEIGHT}
    pair = dataclasses.replace(pair, before=dataclasses.replace(pair.before, tensors=bare))
    with pytest.raises(ReplayError, match="no optimizer state by parameter name"):
        read_leaves(pair)


def test_command_exits_2_where_it_cannot_run(tmp_path: Path) -> None:
    before, after = folders("dense_td")
    cases: dict[str, list[str | Path]] = {
        "iterations 20 and 20: expected consecutive": [before, before],
        "iterations 21 and 20: expected consecutive": [after, before],
        "no such folder": [before, tmp_path / "missing"],
        "qk_layernorm: False before, True after: not one run": [before, folders("qknorm_td")[1]],
    }
    for message, arguments in cases.items():
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (2, ""), message
        assert message in result.stderr
        assert "Traceback" not in result.stderr
