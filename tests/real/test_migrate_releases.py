"""Every release of MaxText, migrated and taken back."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.codemods.trees import refused, snapshot
from tests.real.maxtext.trainer import built
from tests.real.maxtext.trees import RELEASES, copy_release, released

pytestmark = pytest.mark.real
MUON_MIGRATE = str(Path(sys.executable).with_name("muon-migrate"))
SECONDS = 3.0


def _run(*arguments: str) -> tuple[int, str, float]:
    """The installed command: exit code, output, seconds of CPU (the machine may be busy)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    answer = subprocess.run([MUON_MIGRATE, *arguments], capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return answer.returncode, answer.stdout + answer.stderr, spent


@pytest.fixture
def tree(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    copy_release(request.param, tmp_path / "tree")
    return tmp_path / "tree"


@pytest.mark.parametrize("tree", RELEASES, indirect=True)
def test_a_release_goes_there_and_back(tree: Path) -> None:
    original = snapshot(tree)
    code, output, _ = _run("apply", str(tree))
    assert code == 0, output
    once = snapshot(tree)
    _check_that_only_targets_changed(original, once)
    _check_that_everything_compiles(tree, [name for name in once if name.endswith(".py")])
    assert _run("apply", str(tree), "--check")[0] == 0
    assert _run("apply", str(tree))[0] == 0
    assert snapshot(tree) == once
    assert _run("revert", str(tree))[0] == 0
    assert snapshot(tree) == original


def _check_that_only_targets_changed(
    original: dict[str, tuple[str, int, int]], now: dict[str, tuple[str, int, int]]
) -> None:
    touched = {name for name, row in original.items() if now[name] != row}
    assert touched == {name for name in _TARGETS if name in original}
    assert all(now[name][1] == original[name][1] for name in touched), "a mode changed"
    added = set(now) - set(original)
    assert {name.split("/")[1] for name in added} == {"third_party"}


_TARGETS = (
    "maxtext/optimizers/optimizers.py",
    "maxtext/utils/muon_utils.py",
    "maxtext/utils/maxtext_muon_utils.py",
    "maxtext/configs/types.py",
    "maxtext/configs/base.yml",
    "maxtext/layers/embeddings.py",
)


def _check_that_everything_compiles(tree: Path, names: list[str]) -> None:
    """By the Python that MaxText runs on, whose grammar is newer than this one's."""
    script = (
        "import sys\n"
        "for name in sys.stdin.read().split('\\n'):\n"
        "    compile(open(name, 'rb').read(), name, 'exec', dont_inherit=True)\n"
    )
    files = "\n".join(str(tree / name) for name in names)
    command = [str(built("maxtext")), "-W", "ignore", "-c", script]
    answer = subprocess.run(command, input=files, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("tree", [RELEASES[0], RELEASES[-1]], indirect=True)
def test_the_optimizer_builds_in_the_checkouts_own_python(tree: Path) -> None:
    code, output, _ = _run("apply", str(tree), "--python", str(built("maxtext")))
    assert code == 0, output


def test_the_release_before_muon_is_refused(tmp_path: Path) -> None:
    copy_release("0.1.0", tmp_path / "tree")
    assert "this MaxText has no Muon to migrate" in refused(tmp_path / "tree")


def test_apply_takes_three_seconds_and_a_check_afterwards_parses_nothing(tmp_path: Path) -> None:
    """The largest release; the best of three, because the machine may be busy."""
    tree = tmp_path / "tree"
    copy_release(RELEASES[-1], tree)
    rounds = []
    for _ in range(3):
        rounds.append((_run("apply", str(tree))[2], _run("apply", str(tree), "--check")[2]))
        assert _run("revert", str(tree))[0] == 0
    applies, checks = zip(*rounds, strict=True)
    assert min(applies) <= SECONDS
    assert min(checks) <= min(applies) / 2


def test_the_releases_themselves_were_left_alone() -> None:
    for version in RELEASES:
        assert not (released(version) / "maxtext" / "third_party").exists()
