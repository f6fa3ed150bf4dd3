"""megatron2orbax and verify from the command line: results, and what verify finds wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.orbax.reader import Saved, open_saved
from converters.orbax.writer import write_state
from converters.target import TargetState
from tests.converters.commands import DENSE, OTHER, assert_refused, run
from tests.converters.states import state_of

WEIGHT = ("params", "params", "token_embedder", "embedding")
ADAM = ("opt_state", "inner_states", "adam", "inner_state")


def test_the_report_says_how_to_go_on(done: Path) -> None:
    report = json.loads((done / "conversion.json").read_text())
    assert report["checkpoint"] == str(done / "20/items")
    assert report["maxtext_config"]["load_full_state_path"] == report["checkpoint"]
    assert "opt_type=muon" in report["maxtext_command"]
    assert report["spec"]["scale_mode"] == "spectral"
    assert {"tensors", "dropped", "created", "versions", "source", "command"} <= report.keys()
    stored = open_saved(done).tensors
    assert {row["target"] for row in report["tensors"]} == {"/".join(path) for path in stored}
    for row in report["tensors"]:
        assert len(row["sha256"]) == 64
        assert row["shape"] == list(stored[tuple(row["target"].split("/"))].shape)


def test_the_result_is_a_sibling_by_default(tmp_path: Path) -> None:
    checkpoint = shutil.copytree(DENSE, tmp_path / "ckpt")
    result = run("megatron2orbax", checkpoint / "iter_0000020", "--no-optimizer", "--json", "-")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["checkpoint"] == str(tmp_path / "ckpt-orbax/19/items")
    assert {p.name for p in tmp_path.iterdir()} == {"ckpt", "ckpt-orbax"}
    assert not any(path[0] == "opt_state" for path in open_saved(tmp_path / "ckpt-orbax").tensors)


def test_a_dry_run_prints_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    result = run("megatron2orbax", DENSE, "--out", tmp_path / "out", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "params/params/token_embedder/embedding  128x32  float32" in result.stdout
    assert "embedding.word_embeddings.weight (weight)" in result.stdout
    assert "in memory" in result.stdout
    assert not list(tmp_path.iterdir())


def test_the_versions_differ_in_layout_and_metadata(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("megatron2orbax", DENSE, "--out", out, "--maxtext-version", "0.2.3", "--no-scan")
    assert result.exit_code == 0, result.output
    saved = open_saved(out)
    assert saved.lists
    assert not saved.metadata
    assert run("verify", DENSE, out).exit_code == 0
    assert run("verify", DENSE, out, "--scan").exit_code == 1


def test_verify_finds_no_difference(done: Path) -> None:
    result = run("verify", DENSE, done)
    assert result.exit_code == 0, result.output
    assert "35 tensors compared, same" in result.stdout


@pytest.mark.parametrize("place", ["20", "20/items"])
def test_verify_takes_a_step_or_its_items(done: Path, place: str) -> None:
    result = run("verify", DENSE, done / place, "--json", "-")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["differences"] == []


Change = Callable[[Saved, TargetState], TargetState]


def edited(path: tuple[str, ...], edit: Callable[[Any], Any]) -> Change:
    """The state with the leaf at ``path`` replaced."""

    def change(saved: Saved, state: TargetState) -> TargetState:
        place = state.tree
        for key in path[:-1]:
            place = place[key]
        leaf = edit(place[path[-1]])
        if leaf is ...:
            del place[path[-1]]
        else:
            place[path[-1]] = leaf
        return state

    return change


def one_bit(leaf: Any) -> Any:
    array = leaf.build().copy()
    array.view(np.uint32)[5, 7] ^= 1
    return replace(leaf, build=lambda: array)


def added(saved: Saved, state: TargetState) -> TargetState:
    leaf = saved.tensors[WEIGHT]
    path = ("params", "params", "extra")
    state.tree["params"]["params"]["extra"] = replace(
        state_of(saved).tree["step"], path=path, shape=leaf.shape, dtype=leaf.dtype, build=leaf.read
    )
    return state


def as_dtype(name: str) -> Callable[[Any], Any]:
    def edit(leaf: Any) -> Any:
        array = leaf.build().astype(name)
        return replace(leaf, dtype=array.dtype, build=lambda: array)

    return edit


def transposed(leaf: Any) -> Any:
    array = np.ascontiguousarray(leaf.build().T)
    return replace(leaf, shape=array.shape, build=lambda: array)


def listed(saved: Saved, state: TargetState) -> TargetState:
    inner = state.tree["opt_state"]["inner_states"]["adam"]
    inner["inner_state"] = [inner["inner_state"]["0"], None, inner["inner_state"]["2"]]
    return state


TAMPERED: dict[str, tuple[Change, str]] = {
    "one bit": (edited(WEIGHT, one_bit), "params/params/token_embedder/embedding[5, 7]:"),
    "no weight": (edited(WEIGHT, lambda leaf: ...), "embedding: missing in the checkpoint"),
    "weight emptied": (edited(WEIGHT, lambda leaf: None), "embedding: missing in the checkpoint"),
    "no step": (edited(("step",), lambda leaf: ...), "step: missing in the checkpoint"),
    "no moment": (
        edited((*ADAM, "0"), lambda branch: {**branch, "nu": {}}),
        "adam/inner_state/0/nu",
    ),
    "a leaf more": (added, "params/params/extra: not a leaf of the state"),
    "half precision": (edited(WEIGHT, as_dtype("float16")), "float16, expected float32"),
    "count of another type": (edited(("step",), as_dtype("int64")), "int64, expected int32"),
    "turned": (edited(WEIGHT, transposed), "shape [32, 128], expected [128, 32]"),
    "list for dictionary": (listed, "should be a dictionary"),
    "other step": (lambda saved, state: replace(state, step=31), "directory 30, expected 20"),
    "other scan_layers": (
        lambda saved, state: replace(state, scan_layers=False),
        "{'scan_layers': False}, expected {'scan_layers': True}",
    ),
    "no scan_layers": (
        lambda saved, state: replace(state, records_scan_layers=False),
        "custom_metadata: {}, expected",
    ),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_verify_names_what_differs(done: Path, tmp_path: Path, case: str) -> None:
    change, message = TAMPERED[case]
    saved = open_saved(done)
    write_state(change(saved, state_of(saved)), tmp_path)
    shutil.copyfile(done / "conversion.json", tmp_path / "conversion.json")
    result = run("verify", DENSE, tmp_path)
    assert result.exit_code == 1, result.output
    assert message in result.stdout
    assert "Traceback" not in result.output


def flip(file: Path, at: float) -> None:
    data = bytearray(file.read_bytes())
    data[int(len(data) * at)] ^= 0x10
    file.write_bytes(data)


def data_files(folder: Path) -> list[Path]:
    return sorted(f for f in folder.rglob("*") if f.is_file() and f.parent.name == "d")


@pytest.mark.parametrize("at", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_verify_never_passes_a_flipped_bit(copied: Path, at: float) -> None:
    largest = max(data_files(copied), key=lambda file: file.stat().st_size)
    flip(largest, at)
    result = run("verify", DENSE, copied)
    assert result.exit_code in (1, 2), result.output
    assert "Traceback" not in result.output


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda p: (p / "20/items/manifest.ocdbt").unlink(), "cannot be opened"),
    "no tree": (lambda p: (p / "20/items/_METADATA").unlink(), "no Orbax checkpoint"),
    "tree cut short": (lambda p: (p / "20/items/_METADATA").write_text('{"tree_'), "_METADATA"),
    "tree of something else": (
        lambda p: (p / "20/items/_METADATA").write_text("{}"),
        "not a tree of Orbax",
    ),
    "no step metadata": (
        lambda p: [f.unlink() for f in p.rglob("_CHECKPOINT_METADATA")],
        "the checkpoint is incomplete",
    ),
    "an unfinished step": (
        lambda p: (p / "20").rename(p / "20.orbax-checkpoint-tmp"),
        "no Orbax checkpoint",
    ),
    "a report that is no JSON": (
        lambda p: (p / "conversion.json").write_text("{"),
        "conversion.json: not JSON",
    ),
    "a report of something else": (
        lambda p: (p / "conversion.json").write_text('{"a": 1}'),
        "not a report of muon-convert",
    ),
    "a report with unknown options": (
        lambda p: (p / "conversion.json").write_text('{"options": {"colour": 1}}'),
        "unknown options",
    ),
    "nothing": (lambda p: shutil.rmtree(p), "no such folder"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_verify_refuses_what_it_cannot_read(copied: Path, case: str) -> None:
    damage, message = BROKEN[case]
    damage(copied)
    assert_refused(run("verify", DENSE, copied), message)


def test_verify_refuses_missing_data(copied: Path) -> None:
    for file in data_files(copied / "20/items/ocdbt.process_0"):
        file.unlink()
    result = run("verify", DENSE, copied)
    assert result.exit_code in (1, 2), result.output
    assert "cannot be" in result.output


def test_verify_against_another_checkpoint(done: Path) -> None:
    result = run("verify", OTHER, done)
    assert result.exit_code in (1, 2)
    assert "Traceback" not in result.output


def test_verify_against_another_iteration(done: Path) -> None:
    result = run("verify", DENSE / "iter_0000020", done)
    assert result.exit_code == 1
    assert "directory 20, expected 19" in result.stdout
