"""The table of ``muon-check routing``: Megatron's own rules against the fork's, model by model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from checks.cli import main
from checks.routing.side import Matrices, Side, differences
from checks.routing.table import Row, rows
from converters.maxtext.plan import Options, plan_target
from converters.megatron.open import open_source
from converters.source import Source, State
from muon_fork.dimension_numbers import MuonDimensionNumbers
from tests.checks.routing_answers import answer
from tests.converters.megatron_models import MODELS, source
from tests.converters.plans import changed

DATA = Path(__file__).parents[1] / "data" / "megatron"
SAMPLES = (
    "dense_td",
    "dense_legacy",
    "bf16_td",
    "mla_run",
    "moe_all_td",
    "moe_ep2_td",
    "muon_layerwise_bf16_dp2_td",
    "pp2_td",
    "qknorm_td",
    "v0.16.1_dense_legacy",
    "twins/muon_layer_wise_legacy",
    "twins/muon_vpp_tied_td",
    "adam_distopt_fully_reshardable_td",
    "twins/adam_tp2pp2_legacy",
    "twins/adam_ep2_flat_td",
)
ATTENTION = "decoder/layers/self_attention/{}/kernel"


def table(origin: Source, **change: Any) -> dict[str, Row]:
    """Rows by path, where MaxText is configured with ``change``."""
    plan = plan_target(origin, Options())
    assert plan.spec is not None
    found = rows(origin, plan, answer(origin, plan, plan.spec.replace(**change)))
    return {row.path: row for row in found}


def differing(found: dict[str, Row]) -> dict[str, tuple[str, ...]]:
    return {path: row.differences for path, row in found.items() if row.differences}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"muon_split_qkv": False},
        {"muon_split_head": True, "muon_split_linear_fc1": True},
        {"weight_decay_norm_params": True},
        {"apply_wd_to_qk_layernorm": True},
    ],
    ids=["split", "fused", "head", "norms", "qk norms"],
)
def test_the_fork_routes_every_family_as_megatron_did(
    model: str, arguments: dict[str, Any]
) -> None:
    found = table(changed(source(MODELS[model]), **arguments))
    assert not differing(found)
    assert {row.megatron.optimizer for row in found.values() if row.megatron} >= {"muon", "adam"}


@pytest.mark.parametrize("sample", SAMPLES)
def test_real_checkpoints_are_routed_as_they_were_trained(sample: str) -> None:
    assert not differing(table(open_source(DATA / sample)))


def test_matrices_are_megatrons() -> None:
    found = table(source(MODELS["qwen3_moe"]))
    sizes = {path: row.megatron.matrices for path, row in found.items() if row.megatron}
    assert sizes[ATTENTION.format("query")] == (Matrices(64, 64, 2),)
    assert sizes[ATTENTION.format("key")] == (Matrices(32, 64, 2),)
    assert sizes["decoder/layers/moe_block/wi_0"] == (Matrices(192, 64, 8),)
    assert sizes["decoder/layers/moe_block/wo"] == (Matrices(64, 96, 8),)
    assert sizes["decoder/layers/moe_block/gate/kernel"] == (Matrices(4, 64, 2),)
    assert found["decoder/layers/moe_block/wi_0"].parameters == (
        "decoder.layers.*.mlp.experts.linear_fc1.weight",
    )


@pytest.mark.parametrize(
    ("model", "change", "path", "columns"),
    [
        ("qwen3", {"split_qkv": False}, ATTENTION.format("key"), ("matrices",)),
        ("qwen3", {"split_head": True}, ATTENTION.format("query"), ("matrices",)),
        ("qwen3", {"split_linear_fc1": True}, "decoder/layers/mlp/wi_0/kernel", ("matrices",)),
        ("qwen3", {"scale_mode": "unit_rms_norm"}, "decoder/layers/mlp/wo/kernel", ("scale",)),
        ("qwen3", {"extra_scale_factor": 1.0}, "decoder/layers/mlp/wo/kernel", ("scale",)),
        ("qwen3", {"weight_decay": 0.0}, "decoder/layers/mlp/wo/kernel", ("decay",)),
        ("qwen3", {"decay_all_adam_params": True}, "decoder/decoder_norm/scale", ("decay",)),
        ("llama2", {"unfold_scaled_weights": False}, ATTENTION.format("query"), ("rate",)),
        ("gemma2", {"unfold_scaled_weights": False}, "token_embedder/embedding", ("rate",)),
        (
            "deepseek3",
            {"split_mla_up_proj": True},
            "decoder/moe_layers/self_attention/wq_b/kernel",
            ("matrices",),
        ),
        (
            "qwen3_moe",
            {"include_routers": False},
            "decoder/layers/moe_block/gate/kernel",
            ("optimizer",),
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_each_choice_shows_in_its_column(
    model: str, change: dict[str, Any], path: str, columns: tuple[str, ...]
) -> None:
    assert differing(table(source(MODELS[model]), **change))[path] == columns


def test_a_query_stored_scaled_and_not_known_as_such_moves_too_far() -> None:
    found = table(source(MODELS["llama2"]), unfold_scaled_weights=False)
    side = found[ATTENTION.format("query")].maxtext
    assert side is not None
    assert side.rate == pytest.approx(4.0)  # sqrt(head_dim)


def test_released_dimension_numbers_of_experts_are_told_apart() -> None:
    """Orthogonalising over the expert axis: what some releases do to ``moe_block``."""
    origin = source(MODELS["qwen3_moe"])
    plan = plan_target(origin, Options())
    said = answer(origin, plan)
    path = "decoder/layers/moe_block/wo"
    wrong = {**said.numbers, path: MuonDimensionNumbers((0,), (-1,))}
    found = rows(origin, plan, dataclasses.replace(said, numbers=wrong))
    (row,) = [row for row in found if row.differences]
    assert (row.path, row.differences) == (path, ("matrices",))


def test_parameters_of_one_side_alone_are_rows() -> None:
    origin = source(MODELS["qwen3"])
    plan = plan_target(origin, Options())
    said = answer(origin, plan)
    norm = "decoder/layers/self_attention/query_norm/scale"
    params = {path: shape for path, shape in said.params.items() if path != norm}
    params |= {"decoder/other/kernel": (8, 8), "decoder/decoder_norm/scale": (32,)}
    numbers = {path: said.numbers.get(path) for path in params}
    decays = dict.fromkeys(params, True) | {"decoder/decoder_norm/scale": False}
    other = dataclasses.replace(said, params=params, numbers=numbers, decays=decays)
    found = {row.path: row.differences for row in rows(origin, plan, other)}
    assert found[norm] == ("missing",)
    assert found["decoder/other/kernel"] == ("extra",)
    assert found["decoder/decoder_norm/scale"] == ("shape",)


def test_a_checkpoint_without_states_falls_back_to_megatrons_rule() -> None:
    origin = source(MODELS["qwen3_moe"])
    bare = {key: t for key, t in origin.tensors.items() if key.state is State.WEIGHT}
    origin = dataclasses.replace(origin, tensors=bare)
    plan = plan_target(origin, Options(fill_missing_state=True))
    found = rows(origin, plan, answer(origin, plan))
    assert [row.path for row in found if row.differences] == []


def test_a_buffer_may_not_decay() -> None:
    assert differences(Side("none"), Side("adam")) == ()
    assert differences(Side("none"), Side("adam", weight_decay=0.1)) == ("decay",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([str(DATA / "missing"), "--maxtext", "."], "missing: no such folder"),
        ([str(DATA), "--maxtext", "."], "muon-check: "),
        ([str(DATA / "dense_td"), "--maxtext", str(DATA)], "no MaxText"),
        ([str(DATA / "dense_td"), "--maxtext", "/nowhere"], "/nowhere: no such folder"),
        (
            [str(DATA / "dense_td"), "--maxtext", ".", "--model-config", "scan_layers"],
            "--model-config scan_layers: expected KEY=VALUE",
        ),
    ],
    ids=["no checkpoint", "no iteration", "no MaxText", "no folder", "no value"],
)
def test_command_exits_2_where_it_cannot_run(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["routing", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr
