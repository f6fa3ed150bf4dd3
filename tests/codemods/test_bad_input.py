"""What users bring: each ends in a message that names the place, exit 2 and an untouched tree."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from codemods.fixer import AnchorNotFound, Context, Fixer
from tests.codemods.trees import SMALL, copy_of, edit, migrate, refused, snapshot

OPTIMIZER = "maxtext/optimizers/optimizers.py"
MUON_UTILS = "maxtext/utils/muon_utils.py"
TYPES = "maxtext/configs/types.py"
BASE_YML = "maxtext/configs/base.yml"
EDITED = (OPTIMIZER, MUON_UTILS, TYPES, BASE_YML)


def _git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run(["git", "-C", root, *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tree: Path) -> Path:
    _git(tree, "init", "-q")
    _git(tree, "add", "-A")
    _git(tree, "commit", "-qm", "start")
    return tree


# Text that must work: every byte outside the edits survives.


def _crlf(data: bytes) -> bytes:
    return data.replace(b"\n", b"\r\n")


def _mixed(data: bytes) -> bytes:
    head, line_end, tail = data.partition(b"\n")
    return head + b"\r" + line_end + tail


def _bom(data: bytes) -> bytes:
    return b"\xef\xbb\xbf" + data


def _no_last_line_end(data: bytes) -> bytes:
    return data.rstrip(b"\n")


@pytest.mark.parametrize("form", [_crlf, _mixed, _bom, _no_last_line_end])
def test_forms_of_text_that_work(
    tree: Path, tmp_path: Path, form: Callable[[bytes], bytes]
) -> None:
    plain = copy_of(SMALL, tmp_path / "plain")
    migrate("apply", plain)
    for name in EDITED:
        edit(tree / name, form)
    before = snapshot(tree)
    result = migrate("apply", tree)
    assert result.code == 0, result.err
    for name in EDITED:
        data = (tree / name).read_bytes()
        assert data.startswith(b"\xef\xbb\xbf") == (form is _bom), name
        assert (form is _crlf) == (data.count(b"\r\n") == data.count(b"\n")), name
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
        assert text.rstrip("\n") == (plain / name).read_text().rstrip("\n"), name
    assert migrate("apply", tree, "--check").code == 0
    migrate("revert", tree)
    assert snapshot(tree) == before


@pytest.mark.parametrize("unit", [b"    ", b"\t"])
def test_forks_with_another_indentation_work(tree: Path, unit: bytes) -> None:
    def reindent(data: bytes) -> bytes:
        return re.sub(rb"(?m)^(?:  )+", lambda m: unit * (len(m[0]) // 2), data)

    for name in (OPTIMIZER, MUON_UTILS, TYPES):
        edit(tree / name, reindent)
    before = snapshot(tree)
    result = migrate("apply", tree)
    assert result.code == 0, result.err
    for name in (OPTIMIZER, MUON_UTILS, TYPES):
        compile((tree / name).read_bytes(), name, "exec")
    migrate("revert", tree)
    assert snapshot(tree) == before


# Text that must be refused.


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (OPTIMIZER, lambda d: d + b"def (:\n", "is not valid Python"),
        (TYPES, lambda d: d.replace(b"\n", b"\r", 1).replace(b"\n", b"\r\n"), "carriage return"),
        (BASE_YML, lambda d: d.replace(b"\n", b"\r", 1), "carriage return"),
        (MUON_UTILS, lambda d: b"# \xff\n" + d, "is not UTF-8"),
        (MUON_UTILS, lambda d: d + b"x = '\0'\n", "NUL"),
        (BASE_YML, lambda d: d + b"muon_beta: 0.9\n", "muon_beta is also on line"),
    ],
)
def test_text_that_no_rewrite_may_touch(
    tree: Path, name: str, change: Callable[[bytes], bytes], message: str
) -> None:
    edit(tree / name, change)
    line = refused(tree)
    assert line.startswith(f"muon-migrate: {name}:")
    assert message in line
    assert line.split(":")[2].strip().isdigit()


_IMPORT = b"from optax.contrib._muon import muon as optax_muon\n"


@pytest.mark.parametrize(
    "imported",
    [
        b"from optax.contrib._muon import *\n",
        b"try:\n  from optax.contrib._muon import muon as optax_muon\n"
        b"except ImportError:\n  optax_muon = None\n",
        b"if True:\n  from optax.contrib._muon import muon as optax_muon\n",
        b"from .own import muon as optax_muon\n",
        b"from .. import contrib\noptax_muon = contrib.muon\n",
        b"from optax import contrib as oc\noptax_muon = oc.muon\n",
        b"import optax.contrib as oc\noptax_muon = oc.muon\n",
        b"import optax as o\noptax_muon = o.contrib.muon\n",
        b"import importlib\noptax_muon = importlib.import_module('optax.contrib').muon\n",
    ],
    ids=[
        *("star", "try", "conditional", "relative", "assigned"),
        *("package renamed", "module renamed", "root renamed", "imported by function"),
    ],
)
def test_imports_that_cannot_be_switched_safely(tree: Path, imported: bytes) -> None:
    edit(tree / OPTIMIZER, lambda d: d.replace(_IMPORT, imported))
    lines = refused(tree).splitlines()
    assert all(re.match(rf"muon-migrate: {OPTIMIZER}:\d+: ", line) for line in lines), lines


def test_a_wrapper_around_muon_is_refused_with_its_line(tree: Path) -> None:
    wrapper = b"\n\ndef own_muon(**kwargs):\n  return optax_muon(**kwargs)\n"
    edit(tree / OPTIMIZER, lambda d: d.replace(b"= optax_muon(", b"= own_muon(") + wrapper)
    assert re.search(rf"{OPTIMIZER}:\d+: ", refused(tree))


def test_a_branch_that_the_forks_rules_would_shadow_is_refused_with_its_line(tree: Path) -> None:
    head = b"def transform_logic("
    text = (tree / MUON_UTILS).read_bytes()
    at = text.index(b"  if ", text.index(head))
    branch = b'  if "query" in path and len(path) > 3:\n    return None\n'
    (tree / MUON_UTILS).write_bytes(text[:at] + branch + text[at:])
    line = text.count(b"\n", 0, at) + 1
    assert f"{MUON_UTILS}:{line}: " in refused(tree)


def test_one_bad_file_does_not_hide_the_others(tree: Path) -> None:
    edit(tree / OPTIMIZER, lambda d: d + b"def (:\n")
    edit(tree / TYPES, lambda d: d.replace(b"class Muon(", b"class Moon("))
    edit(tree / MUON_UTILS, lambda d: b"\r" + d)
    lines = refused(tree).splitlines()
    places = {line.removeprefix("muon-migrate: ").split(":")[0] for line in lines}
    assert places == {OPTIMIZER, TYPES, MUON_UTILS}


def test_a_rewrite_that_panics_is_a_problem_of_that_file(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LibCST's native parser may raise past Exception."""

    class PanicException(BaseException):
        pass

    def panics(text: str, context: Context) -> str:
        raise PanicException("byte index 7 is out of bounds")

    def misses(text: str, context: Context) -> str:
        raise AnchorNotFound("expected something", 3)

    bad = (Fixer("panics", "optimizer", "", panics), Fixer("misses", "muon_utils", "", misses))
    monkeypatch.setattr("codemods.fixers.FIXERS", bad)
    lines = refused(tree).splitlines()
    assert f"muon-migrate: {MUON_UTILS}:3: expected something [misses]" in lines
    assert any(f"{OPTIMIZER}: cannot be rewritten (PanicException: byte index" in x for x in lines)


def test_a_rewrite_that_breaks_a_file_never_reaches_the_disk(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks_python(text: str, context: Context) -> str:
        return text + "def (:\n"

    def breaks_yaml(text: str, context: Context) -> str:
        return text.replace("muon_beta", "muon_bet")

    bad = (
        Fixer("breaks_python", "optimizer", "", breaks_python),
        Fixer("breaks_yaml", "base_yml", "", breaks_yaml),
    )
    monkeypatch.setattr("codemods.fixers.FIXERS", bad)
    message = refused(tree)
    assert f"{OPTIMIZER}:" in message
    assert "the rewrite would break it" in message
    assert f"{BASE_YML}: the edit would drop the key muon_beta" in message


def test_a_line_is_that_of_the_file_and_not_of_a_half_rewritten_text(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inserts(text: str, context: Context) -> str:
        return "# one\n# two\n" + text

    def misses(text: str, context: Context) -> str:
        raise AnchorNotFound("here", 3 + 2)

    bad = (Fixer("inserts", "optimizer", "", inserts), Fixer("misses", "optimizer", "", misses))
    monkeypatch.setattr("codemods.fixers.FIXERS", bad)
    assert f"{OPTIMIZER}:3: here" in refused(tree)


# Trees that are in the wrong state.


def test_a_dirty_target_is_refused_unless_told(checkout: Path) -> None:
    edit(checkout / OPTIMIZER, lambda d: d + b"# mine\n")
    (checkout / "unrelated.py").write_text("")
    message = refused(checkout)
    assert message.strip() == (
        f"muon-migrate: {OPTIMIZER}: has uncommitted changes: commit it, or pass --allow-dirty"
    )
    assert migrate("apply", checkout, "--check").code == 1
    assert migrate("apply", checkout, "--allow-dirty").code == 0


def test_the_tools_own_uncommitted_work_is_not_dirty(checkout: Path) -> None:
    assert migrate("apply", checkout).code == 0
    assert migrate("apply", checkout).code == 0
    assert migrate("apply", checkout, "--reference", "megatron").code == 0
    assert migrate("revert", checkout).code == 0
    status = subprocess.run(
        ["git", "-C", checkout, "status", "--porcelain"], capture_output=True, check=True
    )
    assert status.stdout == b""


def test_the_record_stays_out_of_git(checkout: Path) -> None:
    migrate("apply", checkout)
    status = subprocess.run(
        ["git", "-C", checkout, "status", "--porcelain", "-uall"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "optax_muon/spec.py" in status.stdout
    assert ".muon-migrate" not in status.stdout


def test_git_missing_or_failing_is_not_clean(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert "git is not installed" in refused(checkout)
    monkeypatch.undo()
    (checkout / ".git" / "HEAD").unlink()
    assert "git cannot say" in refused(checkout)
    assert migrate("apply", checkout, "--allow-dirty").code == 0


def test_a_half_applied_tree_is_refused_and_can_be_completed(tree: Path, tmp_path: Path) -> None:
    original = (tree / OPTIMIZER).read_bytes()
    migrate("apply", tree)
    whole = (tree / OPTIMIZER).read_bytes()
    (tree / OPTIMIZER).write_bytes(original)
    message = refused(tree)
    assert f"{MUON_UTILS}: half-applied: this part is migrated" in message
    assert f"{OPTIMIZER}: half-applied: this part is not; take it back" in message
    assert migrate("apply", tree, "--allow-dirty").code == 0
    assert (tree / OPTIMIZER).read_bytes() == whole


def test_a_foreign_third_party_fork_is_not_overwritten(tree: Path) -> None:
    theirs = tree / "maxtext/third_party/optax_muon/_muon.py"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("# theirs\n")
    assert "third_party/optax_muon: is not a copy made by muon-migrate" in refused(tree)


# Arguments.


def test_a_file_of_arguments_that_is_no_json_is_refused(tree: Path, tmp_path: Path) -> None:
    path = tmp_path / "args.json"
    path.write_text('{"muon_momentum": 0.9,\n oops}')
    assert refused(tree, "--megatron-args", str(path)).startswith(
        f"muon-migrate: {path}:2: not JSON: "
    )
    for unreadable in (tmp_path / "absent.json", tmp_path):
        message = refused(tree, "--megatron-args", str(unreadable))
        assert message.count(f"{unreadable}: ") == 1
    path.write_text("{}")
    assert f"{path}: the arguments do not say optimizer" in refused(
        tree, "--megatron-args", str(path)
    )
