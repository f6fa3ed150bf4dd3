"""Apply, apply again, take it back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from codemods.fork_copy import FORK, fork_files
from codemods.record import MANIFEST, STATE_DIRECTORY
from tests.codemods.trees import SMALL, copy_of, migrate, refused, snapshot

OPTIMIZER = "maxtext/optimizers/optimizers.py"
STATE = f"maxtext/{STATE_DIRECTORY.as_posix()}"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = copy_of(SMALL, tmp_path / "tree")
    (root / OPTIMIZER).chmod(0o750)
    os.utime(root / OPTIMIZER, ns=(10**18, 10**18))
    return root


def _files(root: Path) -> dict[str, tuple[str, int, int]]:
    """Without the tool's own record, which notes the last reference."""
    return {name: row for name, row in snapshot(root).items() if not name.startswith(STATE)}


def _contents(root: Path) -> dict[str, str]:
    return {name: row[0] for name, row in _files(root).items()}


def test_a_second_apply_touches_nothing(tree: Path) -> None:
    assert migrate("apply", tree).code == 0
    once = snapshot(tree)
    assert migrate("apply", tree).code == 0
    assert snapshot(tree) == once


def test_a_second_apply_of_a_fresh_clone_changes_no_text(tree: Path) -> None:
    """The record is not committed, so the rewrites themselves must see that they are done."""
    migrate("apply", tree)
    shutil.rmtree(tree / STATE)
    once = _contents(tree)
    result = migrate("apply", tree, "--json")
    assert (result.code, result.document["changed"]) == (0, [])
    assert _contents(tree) == once


def test_touched_files_keep_their_mode_and_others_their_time(tree: Path) -> None:
    (tree / "maxtext" / "other.py").write_text("x = 1\n")
    before = snapshot(tree)
    migrate("apply", tree)
    after = snapshot(tree)
    assert after[OPTIMIZER][1] == 0o750
    assert after["maxtext/other.py"] == before["maxtext/other.py"]


def test_revert_restores_every_byte_mode_and_time(tree: Path) -> None:
    before = snapshot(tree)
    migrate("apply", tree)
    cache = tree / "maxtext/third_party/optax_muon/__pycache__"
    cache.mkdir()
    (cache / "spec.cpython-312.pyc").write_bytes(b"")
    assert migrate("revert", tree).code == 0
    assert snapshot(tree) == before
    assert "nothing to take back" in migrate("revert", tree).out


def test_another_reference_changes_only_defaults(tree: Path) -> None:
    migrate("apply", tree)
    document = migrate("apply", tree, "--reference", "megatron", "--json").document
    paths = {row["path"] for row in document["changed"]}
    assert paths == {"maxtext/configs/base.yml", "maxtext/configs/types.py"}


def test_another_reference_leaves_no_trace_of_the_first(tree: Path, tmp_path: Path) -> None:
    """deepseek_v4 also sets adam_eps, a key that the default reference does not touch."""
    migrate("apply", tree, "--reference", "deepseek_v4")
    assert "adam_eps: 1.0e-20" in (tree / "maxtext/configs/base.yml").read_text()
    migrate("apply", tree, "--reference", "moonlight")
    fresh = copy_of(SMALL, tmp_path / "fresh")
    migrate("apply", fresh, "--reference", "moonlight")
    assert _contents(tree) == _contents(fresh)


def test_revert_after_two_references_restores_the_original(tree: Path) -> None:
    before = snapshot(tree)
    migrate("apply", tree, "--reference", "deepseek_v4")
    migrate("apply", tree, "--reference", "megatron")
    assert migrate("revert", tree).code == 0
    assert snapshot(tree) == before


def test_parts_written_for_two_references_are_made_one(tree: Path, tmp_path: Path) -> None:
    migrate("apply", tree, "--only", "base_yml", "--reference", "optax")
    migrate("apply", tree, "--skip", "base_yml", "--reference", "megatron")
    assert migrate("apply", tree, "--reference", "megatron").code == 0
    fresh = copy_of(SMALL, tmp_path / "fresh")
    migrate("apply", fresh, "--reference", "megatron")
    assert _contents(tree) == _contents(fresh)


@pytest.mark.parametrize("has_record", [True, False])
def test_an_older_copy_of_the_fork_is_brought_up_to_date(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_record: bool
) -> None:
    before = snapshot(tree)
    older = {**fork_files(), FORK / "given_up.py": b"x = 1\n", FORK / "spec.py": b"# older\n"}
    monkeypatch.setattr("codemods.plan.fork_files", lambda: older)
    monkeypatch.setattr("codemods.commit.tool_identity", lambda: "older")
    migrate("apply", tree)
    monkeypatch.undo()
    if not has_record:
        shutil.rmtree(tree / STATE)
        (tree / "maxtext" / FORK / "given_up.py").unlink()
    assert migrate("apply", tree).code == 0
    fresh = copy_of(SMALL, tmp_path / "fresh")
    migrate("apply", fresh)
    assert _contents(tree) == _contents(fresh)
    if has_record:
        assert migrate("revert", tree).code == 0
        assert snapshot(tree) == before


def test_values_set_by_hand_survive_an_apply_without_reference(tree: Path) -> None:
    migrate("apply", tree)
    base_yml = tree / "maxtext/configs/base.yml"
    base_yml.write_text(
        base_yml.read_text().replace("muon_num_ns_steps: 5", "muon_num_ns_steps: 7")
    )
    once = base_yml.read_bytes()
    assert migrate("apply", tree).code == 0
    assert base_yml.read_bytes() == once
    assert migrate("status", tree, "--json").document["reference"] == "custom"


def test_revert_refuses_to_lose_an_edit_and_names_the_file(tree: Path) -> None:
    migrate("apply", tree)
    with (tree / OPTIMIZER).open("a") as file:
        file.write("# mine\n")
    before = snapshot(tree)
    result = migrate("revert", tree)
    assert result.code == 2
    assert f"{OPTIMIZER}: was changed after apply" in result.err
    assert snapshot(tree) == before


def test_revert_takes_files_that_git_put_back_already_as_done(tree: Path) -> None:
    before = snapshot(tree)
    original = (tree / OPTIMIZER).read_bytes()
    migrate("apply", tree)
    (tree / OPTIMIZER).write_bytes(original)
    assert migrate("revert", tree).code == 0
    assert {k: v[:2] for k, v in snapshot(tree).items()} == {k: v[:2] for k, v in before.items()}


def test_revert_without_a_record_points_to_git(tree: Path) -> None:
    migrate("apply", tree)
    shutil.rmtree(tree / STATE)
    result = migrate("revert", tree)
    assert result.code == 2
    assert "take the change back with git" in result.err


def test_revert_leaves_files_that_are_not_ours(tree: Path) -> None:
    migrate("apply", tree)
    mine = tree / "maxtext/third_party/mine.py"
    mine.write_text("x = 1\n")
    result = migrate("revert", tree)
    assert result.code == 0
    assert "left, because it holds other files: maxtext/third_party" in result.out
    assert mine.exists()


@pytest.mark.parametrize(
    "damage",
    [
        {"format": 99},
        {"state": "dancing"},
        {"files": {"../../../elsewhere": {"before": None, "after": None}}},
        {"directories": ["../.."]},
        {"directories": [["maxtext"]]},
        {"fixers": [1]},
        {"unchanged": []},
        {"files": {"configs/base.yml": {"before": 1, "after": None}}},
        {"files": {"configs/base.yml": {"before": None, "after": None, "mode": "rw"}}},
        {"files": {"configs/base.yml": {"before": None, "after": None, "mtime_ns": 1e400}}},
    ],
)
def test_a_manifest_that_cannot_be_trusted_is_refused(
    tree: Path, damage: dict[str, object]
) -> None:
    migrate("apply", tree)
    path = tree / "maxtext" / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    result = migrate("revert", tree)
    assert result.code == 2
    assert "manifest" in result.err
    path.write_text("not json")
    assert "unreadable" in refused(tree)


def test_a_moved_tree_can_still_be_reverted(tree: Path, tmp_path: Path) -> None:
    before = snapshot(tree)
    migrate("apply", tree)
    moved = tmp_path / "moved"
    tree.rename(moved)
    assert migrate("revert", moved / "maxtext").code == 0
    assert snapshot(moved) == before


_KILLED = """\
import os, sys
from codemods.cli import main
real, calls = os.replace, []
def replace(source, target):
    calls.append(target)
    if len(calls) == int(sys.argv[2]):
        os._exit(9)
    real(source, target)
os.replace = replace
main(["apply", sys.argv[1], *sys.argv[3:]])
"""


@pytest.mark.parametrize("is_second", [False, True])
def test_a_killed_apply_is_seen_refused_and_reverted(tree: Path, is_second: bool) -> None:
    before = snapshot(tree)
    if is_second:
        migrate("apply", tree)
    writes = _number_of_state_files(tree) + 2
    command = [sys.executable, "-c", _KILLED, str(tree), str(writes), "--reference", "optax"]
    assert subprocess.run(command, check=False).returncode == 9
    status = migrate("status", tree)
    assert status.code == 1
    assert "an apply was interrupted" in status.out
    assert "run muon-migrate revert" in refused(tree)
    assert migrate("revert", tree).code == 0
    assert snapshot(tree) == before


def _number_of_state_files(tree: Path) -> int:
    """Renames before the first rename of a target: originals, .gitignore and the manifest."""
    if (tree / STATE).exists():
        return 1
    document = migrate("apply", tree, "--check", "--json").document
    return 2 + sum(row["change"] == "changed" for row in document["changed"])
