"""``muon-convert inspect`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from converters.cli import main

from .hostile import DATA, DISTRIBUTED, copy, rename


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["inspect", *map(str, arguments)])


def test_json_has_tensors_arguments_and_spec() -> None:
    result = run(DATA / "dense_td", "--json", "-")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["iteration"] == 21
    shapes = {(row["key"], row["state"]): (row["shape"], row["dtype"]) for row in report["tensors"]}
    fc1 = "decoder.layers.1.mlp.linear_fc1.weight"
    assert shapes[fc1, "weight"] == shapes[fc1, "momentum_buffer"] == ([128, 32], "float32")
    assert report["bytes"] == 4 * sum(_size(shape) for shape, _ in shapes.values())
    assert (report["format"], report["megatron"]) == ("torch_dist", "0.19 or later")
    assert report["layout"]["tensor"] == report["layout"]["world"] == 1
    assert (report["model"]["decoder_block"], report["model"]["hidden_size"]) == ("llama2", 32)
    assert report["optimizer"] == {
        "kind": "muon",
        "distributed": False,
        "muon_parameters": 8,
        "adam_parameters": 7,
        "masters": 0,
        "momentum": "ema",
    }
    assert report["problems"] == []
    assert {aside["name"].partition("/")[0] for aside in report["set_aside"]} >= {"rng_state"}
    assert report["muon_spec"]["coefficient_type"] == "quintic"
    assert report["muon_spec"]["ns_dtype"] == "float32"
    assert report["args"]["exp_avg_dtype"] == "torch.float32"
    assert any("ns_eps" in note for note in report["notes"])


def _size(shape: list[int]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


def test_the_table_is_for_reading() -> None:
    result = run(DATA / "v0.18.2_dense_td")
    assert result.exit_code == 0, result.output
    assert "decoder.layers.0.self_attention.linear_qkv.weight" in result.stdout
    assert "layout: tensor 1, pipeline 1" in result.stdout
    assert "model: family llama, decoder_block llama2" in result.stdout
    assert "iteration 20" in result.stdout
    assert "scale_mode: spectral" in result.stdout


LEGACY = tuple(sorted(p.parent.parent.name for p in DATA.glob("*/iter_0000020/mp_rank_00")))


@pytest.mark.parametrize("name", [*DISTRIBUTED, *LEGACY])
def test_every_format_is_described(name: str) -> None:
    result = run(DATA / name, "--iteration", "20", "--json", "-")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["iteration"] == 20
    assert report["model"]["decoder_block"]
    optimizer = report["optimizer"]
    assert optimizer["adam_parameters"] > 0
    assert (optimizer["muon_parameters"] > 0) == (optimizer["kind"] == "muon")
    # Newton-Schulz per tensor-parallel shard cannot be matched; the note says so.
    settled = name != "tp2_td"
    assert (report["muon_spec"] is not None) == settled
    assert settled or any("no MuonSpec" in note for note in report["notes"])
    masters = (
        "bf16_td",
        "bf16_legacy",
        "muon_layerwise_bf16_dp2_td",
        "adam_distopt_fully_reshardable_td",
    )
    assert (optimizer["masters"] > 0) == (name in masters)


def test_a_missing_optimizer_is_a_problem_not_an_end(tmp_path: Path) -> None:
    folder = copy("dense_td", tmp_path)
    rename(folder, "optimizer.state.momentum_buffer.", "optimizer.state.momentum_buffr.")
    result = run(folder, "--json", "-")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert "momentum_buffr" in report["problems"][0]
    assert {row["state"] for row in report["tensors"]} == {"weight"}


def test_json_goes_to_a_file(tmp_path: Path) -> None:
    result = run(DATA / "dense_td", "--json", tmp_path / "report.json")
    assert (result.exit_code, result.stdout) == (0, "")
    assert json.loads((tmp_path / "report.json").read_text())["iteration"] == 21


@pytest.mark.parametrize("wrong", ["no_such_folder", "unwritable"])
def test_what_cannot_run_exits_2_without_traceback(wrong: str, tmp_path: Path) -> None:
    arguments: list[str | Path] = [tmp_path / wrong]
    if wrong == "unwritable":
        arguments = [DATA / "dense_td", "--json", tmp_path / "missing" / "report.json"]
    result = run(*arguments)
    assert result.exit_code == 2
    assert str(tmp_path) in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_truncated_common_state_exits_2(tmp_path: Path) -> None:
    folder = copy("dense_td", tmp_path)
    file = folder / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:100])
    result = run(folder)
    assert result.exit_code == 2
    assert "cut short" in result.stderr
