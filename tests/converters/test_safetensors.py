"""safetensors from both sides, read by the safetensors library itself."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors import safe_open

from converters import export
from converters.cli import main
from converters.errors import CheckpointError
from converters.megatron.open import open_source
from converters.orbax import runtime
from converters.orbax.reader import open_saved
from converters.safetensors import Entry, shards, write_file, write_set
from converters.source import State

runtime.start()
DATA = Path(__file__).parents[1] / "data"
BF16, MAXTEXT = DATA / "megatron/bf16_td", DATA / "maxtext/0.2.5"


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def entry(name: str, array: np.ndarray) -> Entry:
    return Entry(name, array.shape, array.dtype, name, lambda: array)


def read(folder: Path, stem: str) -> dict[str, np.ndarray]:
    """Every tensor of a set, by its index; bfloat16 as its bits."""
    index = json.loads((folder / f"{stem}.safetensors.index.json").read_text())
    found = {}
    for file in sorted(set(index["weight_map"].values())):
        with safe_open(folder / file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                assert index["weight_map"][name] == file
                found[name] = opened.get_tensor(name).contiguous().view(-1)
    assert found.keys() == index["weight_map"].keys()
    return found


def raw(tensor: object) -> bytes:
    import torch

    assert isinstance(tensor, torch.Tensor)
    return tensor.view(torch.uint8).numpy().tobytes()


def test_megatron_weights_and_state_are_the_same_bytes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("megatron2safetensors", BF16, "--out", out, "--shard-size", 1e-4)
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(out)
    source = open_source(BF16)
    found = read(out, "model") | read(out, "optimizer")
    assert len(found) == len(source.tensors)
    for key, tensor in source.tensors.items():
        suffix = "" if key.state is State.WEIGHT else f".{key.state.value}"
        assert raw(found[key.parameter + suffix]) == tensor.load().tobytes(), key
    assert len(list(out.glob("optimizer-*.safetensors"))) > 1


def test_maxtext_weights_and_state_are_the_same_bytes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("orbax2safetensors", MAXTEXT, "--out", out)
    assert result.exit_code == 0, result.output
    model, optimizer = read(out, "model"), read(out, "optimizer")
    assert all(name.startswith("params.") for name in model)
    saved = open_saved(MAXTEXT)
    assert len(model) + len(optimizer) == len(saved.tensors)
    for path, tensor in saved.tensors.items():
        name = ".".join(path[1:] if path[0] == "params" else path)
        found = (model if path[0] == "params" else optimizer)[name]
        assert raw(found) == tensor.read().tobytes(), path


def test_weights_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("megatron2safetensors", BF16, "--out", out, "--no-optimizer").exit_code == 0
    assert not list(out.glob("optimizer*"))


def test_the_report_lists_every_tensor(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("megatron2safetensors", BF16, "--out", out, "--json", "-")
    report = json.loads(result.stdout)
    assert report == json.loads((out / "conversion.json").read_text())
    assert {row["target"] for row in report["tensors"]} == {
        *read(out, "model"),
        *read(out, "optimizer"),
    }


def test_the_result_is_a_sibling_of_the_steps() -> None:
    step = Path("/data/run/checkpoints/12")
    expected = Path("/data/run/checkpoints-safetensors")
    for place in (step, step / "items", step.parent):
        assert export.output_for(place, None) == expected


def test_shards_hold_the_limit() -> None:
    entries = [entry(str(n), np.zeros(n, np.float32)) for n in (5, 5, 30, 1, 1)]
    sizes = [[e.bytes for e in part] for part in shards(entries, 48)]
    assert sizes == [[20, 20], [120], [4, 4]]


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16, np.int64, np.bool_])
def test_dtypes_and_odd_shapes(tmp_path: Path, dtype: type) -> None:
    arrays = {
        "scalar": np.asarray(1).astype(dtype),
        "turned": np.arange(12).reshape(3, 4).astype(dtype).T,
        "empty": np.zeros((0, 3), dtype),
    }
    write_file([entry(k, v) for k, v in arrays.items()], tmp_path / "f", lambda e, d: None)
    with safe_open(tmp_path / "f", framework="pt") as opened:
        for name, array in arrays.items():
            tensor = opened.get_tensor(name)
            assert tuple(tensor.shape) == array.shape
            if array.size:
                assert raw(tensor.contiguous().view(-1)) == array.tobytes()


def test_a_dtype_that_the_format_lacks(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="z: safetensors has no complex64"):
        write_set([entry("z", np.zeros(3, np.complex64))], tmp_path, "m", 100, lambda *a: None)
    assert not list(tmp_path.iterdir())


def test_two_of_one_name(tmp_path: Path) -> None:
    twice = [entry("a", np.zeros(3)), entry("a", np.ones(3))]
    with pytest.raises(CheckpointError, match="two tensors would be called a"):
        write_set(twice, tmp_path, "m", 100, lambda *a: None)


@pytest.mark.parametrize("command", ["megatron2safetensors", "orbax2safetensors"])
def test_refusals(tmp_path: Path, command: str) -> None:
    source = BF16 if command.startswith("megatron") else MAXTEXT
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("x")
    for words, message in (
        ((tmp_path / "nothing", "--out", tmp_path / "out"), "no such folder"),
        ((source, "--out", tmp_path / "full"), "exists"),
        ((source, "--out", tmp_path / "full", "--force"), "not a result of muon-convert"),
        ((source, "--out", source / "out"), "inside the source"),
    ):
        result = run(command, *words)
        assert result.exit_code == 2, result.output
        assert message in result.stderr
    assert {p.name for p in tmp_path.iterdir()} == {"full"}
