"""``muon-convert inspect`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from converters.cli import main

from .hostile import DATA, copy


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["inspect", *map(str, arguments)])


def test_json_has_tensors_arguments_and_spec() -> None:
    result = run(DATA / "dense_td", "--json", "-")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["iteration"] == 21
    shapes = {row["key"]: (row["shape"], row["dtype"]) for row in report["tensors"]}
    assert shapes["decoder.layers.mlp.linear_fc1.weight"] == ([2, 128, 32], "float32")
    assert report["bytes"] == 4 * sum(_size(shape) for shape, _ in shapes.values())
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
    assert "decoder.layers.self_attention.linear_qkv.weight" in result.stdout
    assert "iteration 20" in result.stdout
    assert "scale_mode: spectral" in result.stdout


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
    assert result.stderr.startswith(f"muon-convert: {tmp_path}")
    assert result.stdout == ""


def test_truncated_common_state_exits_2(tmp_path: Path) -> None:
    folder = copy("dense_td", tmp_path)
    file = folder / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:100])
    result = run(folder)
    assert result.exit_code == 2
    assert "cut short" in result.stderr
