"""The branches of every release are recognised, each by its own digest."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import libcst as cst
import pytest

from codemods.fixers._released import RELEASED, RELEASED_TABLES, branch_digest, digest
from codemods.fixers._routing import is_known, own_tests
from codemods.fixers._source import Source, function, parse, walk
from tests.codemods.fixers.tools import TREES, before

RELEASES = ("0.2.0", "0.2.1", "0.2.2", "0.2.3", "0.2.4", "0.2.5")


@functools.cache
def releases() -> Path:
    """Folder of the unpacked releases."""
    script = Path(__file__).parents[3] / "environments" / "build.py"
    run = subprocess.run(
        [sys.executable, str(script), "releases"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return Path(run.stdout.strip())


def released(version: str) -> Source:
    return parse((releases() / version / "maxtext" / "utils" / "muon_utils.py").read_text())


def digests(source: Source) -> set[str]:
    """Digest of every branch, and of what the function returns at its end."""
    logic = function(source, "transform_logic")
    found = {branch_digest(source, node) for node in walk(logic) if isinstance(node, cst.If)}
    last = logic.body.body[-1]
    assert isinstance(last, cst.SimpleStatementLine)
    assert isinstance(last.body[0], cst.Return)
    return found | {branch_digest(source, last.body[0])}


@pytest.mark.parametrize("version", RELEASES)
def test_releases_hold_nothing_of_their_own(version: str) -> None:
    source = released(version)
    assert own_tests(source, function(source, "transform_logic")) == ()
    assert digests(source) <= RELEASED.keys()


def test_no_digest_is_left_over() -> None:
    assert set().union(*(digests(released(version)) for version in RELEASES)) == RELEASED.keys()


def test_tables_are_those_of_the_release() -> None:
    names = {
        target.target.value
        for node in walk(released("0.2.5").module)
        if isinstance(node, cst.Assign)
        for target in node.targets
        if isinstance(target.target, cst.Name) and target.target.value.isupper()
    }
    assert names == RELEASED_TABLES.keys()


@pytest.mark.parametrize("tree", [tree for tree in TREES if tree != "rfc-fork"])
def test_golden_trees_are_like_the_releases(tree: str) -> None:
    assert digests(parse(before(tree, "muon_utils"))) <= RELEASED.keys()


def test_digest_ignores_layout_only() -> None:
    assert digest('"a" in path', ["None"]) == digest("(\n    'a'\n    in path)", ["(None)"])
    assert digest('"a" in path', ["None"]) != digest('"b" in path', ["None"])
    assert digest('"a" in path', ["None"]) != digest('"a" in path', ["mdn((0,), (-1,))"])


@pytest.mark.parametrize(
    "segment", ["query", "wo", "layers", "layers_3", "moe_block", "scale", "kernel", "conv1d"]
)
def test_known(segment: str) -> None:
    assert is_known(segment)


@pytest.mark.parametrize("segment", ["ours", "queries", "layers_", "attn_gated_norm", "lora_a"])
def test_unknown(segment: str) -> None:
    assert not is_known(segment)
