"""The commands as users type them: exit codes, streams, JSON, speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from codemods.cli import cli
from codemods.fixers import FIXERS
from muon_fork.presets import DEFAULT_REFERENCE, PRESETS
from tests.codemods.trees import SMALL, copy_of, migrate, refused, snapshot

ARGUMENTS = Path(__file__).parents[1] / "data" / "megatron_args"


def test_check_writes_nothing_and_tells_by_its_exit_code(tree: Path) -> None:
    before = snapshot(tree)
    result = migrate("apply", tree, "--check")
    assert (result.code, result.err) == (1, "")
    assert "would be changed: maxtext/optimizers/optimizers.py" in result.out
    assert snapshot(tree) == before
    assert migrate("apply", tree).code == 0
    assert migrate("apply", tree, "--check").code == 0


def test_diff_is_a_patch_of_exactly_what_apply_writes(tree: Path, tmp_path: Path) -> None:
    before = snapshot(tree)
    result = migrate("apply", tree, "--diff")
    assert result.code == 0
    assert snapshot(tree) == before
    assert migrate("apply", tree, "--diff", "--check").code == 1
    patched = copy_of(SMALL, tmp_path / "patched")
    patch = ["git", "apply", "--unidiff-zero", "-p1", "-"]
    subprocess.run(patch, cwd=patched, input=result.out, text=True, check=True)
    assert migrate("apply", tree).code == 0
    contents = {name: row[0] for name, row in snapshot(tree).items() if "optax_muon" not in name}
    found = {name: row[0] for name, row in snapshot(patched).items()}
    assert {name: contents[name] for name in found} == found


def test_the_report_names_files_defaults_and_how_megatron_differs(tree: Path) -> None:
    out = migrate("apply", tree).out
    assert "changed: maxtext/configs/base.yml" in out
    assert "muon_scale_mode: consistent_rms" in out
    assert "muon_consistent_rms: 0.2 (was None)" in out
    assert "--reference megatron (Megatron-Core) would differ in:" in out
    assert "coefficient_type: quintic instead of simple" in out
    assert "only muon-migrate's own copies can take the change back" in out


def test_a_rule_that_the_checkout_loses_is_said(tree: Path, tmp_path: Path) -> None:
    lost = "deepseek4 no longer picks its own Newton-Schulz coefficients"
    assert lost in migrate("apply", tree).out
    assert lost not in migrate("apply", tree).out
    older = copy_of("release-0.2.3", tmp_path / "older")
    assert lost not in migrate("apply", older).out


def test_json_says_the_same(tree: Path) -> None:
    document = migrate("apply", tree, "--json").document
    assert document["reference"] == DEFAULT_REFERENCE
    assert document["written"] is True
    kinds = {row["path"]: row["change"] for row in document["changed"]}
    assert kinds["maxtext/configs/types.py"] == "changed"
    assert kinds["maxtext/third_party/optax_muon/spec.py"] == "created"
    assert document["defaults"]["muon_consistent_rms"] == {"value": 0.2, "was": None}
    assert document["differences"]["megatron"]["coefficient_type"] == ["simple", "quintic"]
    second = migrate("apply", tree, "--json").document
    assert second["changed"] == []
    assert {"maxtext/configs/base.yml", "maxtext/utils/muon_utils.py"} <= set(second["unchanged"])


@pytest.mark.parametrize("row", PRESETS, ids=lambda p: p.name)
def test_every_preset_can_be_written_and_read_back(tree: Path, row: object) -> None:
    name = getattr(row, "name", "")
    assert migrate("apply", tree, "--reference", name).code == 0
    assert migrate("status", tree, "--json").document["reference"] == name


def test_the_arguments_of_a_run_settle_every_key(tree: Path) -> None:
    args = ["--megatron-args", ARGUMENTS / "dense.json"]
    result = migrate("apply", tree, *args)
    assert "adam_b2: 0.999 (was 0.95)" in result.out
    assert "note: ns_eps is not recorded" in result.out
    assert "gradient_clipping_threshold=0" in result.out
    assert migrate("status", tree, "--json").document["reference"] == "dense.json"
    again = migrate("apply", tree, *args, "--assume", "ns_eps=1e-15", "--json").document
    assert again["defaults"] == {"muon_ns_eps": {"value": 1e-15, "was": 1e-07}}


def test_a_run_with_adam_settles_the_adamw_branch(tree: Path) -> None:
    args = ARGUMENTS / "adam_distopt_fully_reshardable.json"
    defaults = migrate("apply", tree, "--megatron-args", args, "--json").document["defaults"]
    assert defaults["muon_adam_only"]["value"] is True
    assert defaults["muon_clip_grad"]["value"] == 1.0


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tp2.json", (), "blockwise"),
        ("dense.json", ("--assume", "ns_eps"), "expected FIELD=VALUE"),
        ("dense.json", ("--assume", "ns_epsilon=1"), "ns_epsilon"),
    ],
)
def test_arguments_that_cannot_be_matched_are_refused(
    tree: Path, name: str, options: tuple[str, ...], message: str
) -> None:
    assert message in refused(tree, "--megatron-args", str(ARGUMENTS / name), *options)


def test_status_tells_where_the_tree_stands(tree: Path) -> None:
    assert "not migrated" in migrate("status", tree).out
    migrate("apply", tree)
    result = migrate("status", tree)
    assert result.code == 0
    assert f"defaults: {DEFAULT_REFERENCE}" in result.out
    target = tree / "maxtext" / "optimizers" / "optimizers.py"
    target.write_bytes(target.read_bytes() + b"# mine\n")
    result = migrate("status", tree, "--json")
    assert result.code == 1
    assert result.document["changed_since_apply"] == ["maxtext/optimizers/optimizers.py"]
    assert result.document["can_revert"] is False


def test_the_guide_names_every_option_and_preset() -> None:
    guide = (Path(__file__).parents[2] / "docs/migrate.md").read_text(encoding="utf-8")
    names = [
        option for p in cli.commands["apply"].params for option in p.opts if p.opts[0][0] == "-"
    ]
    assert [name for name in (*names, *cli.commands) if name not in guide] == []
    assert [row.name for row in PRESETS if f"`{row.name}`" not in guide] == []


def test_list_fixers_lists_them_in_order() -> None:
    lines = migrate("list-fixers").out.splitlines()
    assert [line.split()[0] for line in lines] == [fixer.name for fixer in FIXERS]
    rows = migrate("list-fixers", "--json").document["fixers"]
    assert [row["name"] for row in rows] == [fixer.name for fixer in FIXERS]


@pytest.mark.parametrize(
    "arguments",
    [
        ["apply"],
        ["frobnicate"],
        ["apply", ".", "--reference", "megatron", "--megatron-args", "x.json"],
        ["apply", ".", "--reference", "nobody"],
        ["apply", "/nowhere/at/all"],
    ],
)
def test_bad_usage_is_exit_two_with_a_message(arguments: list[str]) -> None:
    result = migrate(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert result.err


def test_errors_come_as_json_too(tmp_path: Path) -> None:
    result = migrate("apply", tmp_path, "--json")
    assert result.code == 2
    (problem,) = result.document["problems"]
    assert problem["path"] == str(tmp_path)
    assert "holds no MaxText" in problem["message"]


def test_only_and_skip_choose_fixers(tree: Path) -> None:
    document = migrate("apply", tree, "--only", "base_yml", "--json").document
    used = [name for row in document["changed"] for name in row["fixers"]]
    assert used == ["base_yml"]
    rest = migrate("apply", tree, "--skip", "base_yml", "--json").document
    used = [name for row in rest["changed"] for name in row["fixers"]]
    assert used
    assert "base_yml" not in used
    assert migrate("apply", tree, "--check").code == 0
    assert "no such fixer: nonsense" in migrate("apply", tree, "--only", "nonsense").err


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    script = (
        "import sys; from codemods.cli import main\n"
        "try: main(['apply', '--help'])\n"
        "finally: print(sorted({'jax', 'torch', 'libcst', 'optax'} & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout.rstrip().endswith("[]")
    command = Path(sys.executable).with_name("muon-migrate")
    seconds = []
    for _ in range(5):  # Of the processor: a busy machine is no fault of the command.
        before = os.times()
        subprocess.run([command, "--help"], capture_output=True, check=True)
        spent = [b - a for a, b in zip(before, os.times(), strict=True)]
        seconds.append(spent[2] + spent[3])  # of children: user, system
    assert min(seconds) <= 0.3, seconds


def test_json_of_every_command_is_one_document(tree: Path) -> None:
    for command in (["status", tree], ["apply", tree], ["revert", tree], ["list-fixers"]):
        document = json.loads(migrate(*command, "--json").out)
        assert document["command"] == command[0]
        assert document["problems"] == []
