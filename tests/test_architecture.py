"""The house rules that a machine can hold: who imports whom, what --help may load, registries."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.tolerances import TOLERANCES

ROOT = Path(__file__).parents[1]
PACKAGES = ("muon_fork", "codemods", "converters", "checks")
# Which of our packages each package may import from.
ALLOWED = {
    "muon_fork": set(),
    "codemods": {"codemods", "muon_fork"},
    "converters": {"converters", "muon_fork"},
    "checks": {"checks", "converters", "muon_fork"},
}
# Files of the fork that every tool reads without JAX.
STDLIB_ONLY = (
    "spec.py",
    "coefficients.py",
    "presets.py",
    "config_keys.py",
    "megatron_args.py",
    "version.py",
)
# Where the heavy things may be imported.
TORCH_HOMES = ("checks/references/", "checks/trainers/")
LIBCST_HOMES = ("codemods/",)
HEAVY = ("jax", "jaxlib", "optax", "torch", "libcst", "numpy", "megatron", "emerging_optimizers")
COMMANDS = {"codemods": "muon-migrate", "converters": "muon-convert", "checks": "muon-check"}


def sources(*packages: str) -> Iterator[Path]:
    for package in packages:
        yield from sorted((ROOT / package).rglob("*.py"))


def imported(file: Path) -> Iterator[str]:
    """Absolute names of everything the file imports, at any depth."""
    package = file.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *(node.module or "").split("."))).strip(".")
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package: str) -> None:
    wrong = [
        f"{name(file)} imports {module}"
        for file in sources(package)
        for module in imported(file)
        if module.partition(".")[0] in {*PACKAGES, "tests"} - ALLOWED[package] - {package}
    ]
    assert not wrong


def test_the_fork_imports_itself_relatively() -> None:
    wrong = [
        name(file)
        for file in sources("muon_fork")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and not node.level
        if (node.module or "").partition(".")[0] == "muon_fork"
    ]
    assert not wrong


def test_nothing_imports_a_command_line() -> None:
    wrong = [
        f"{name(file)} imports {module}"
        for file in sources(*PACKAGES)
        if file.name != "__main__.py"
        for module in imported(file)
        if module in {f"{package}.cli" for package in PACKAGES}
        or (".commands" in module and file.parent.name != "commands")
    ]
    assert not wrong


def test_only_command_lines_print_exit_or_read_arguments() -> None:
    """A cli.py, or a folder of commands where there are many."""
    wrong = []
    for file in sources(*PACKAGES):
        if file.name in ("cli.py", "__main__.py") or file.parent.name == "commands":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            text = ast.unparse(node) if isinstance(node, (ast.Call, ast.Attribute)) else ""
            if text.startswith(("print(", "sys.exit(", "exit(")) or text == "sys.argv":
                wrong.append(f"{name(file)}:{node.lineno} {text[:40]}")
    assert not wrong


def test_the_specs_need_only_the_standard_library() -> None:
    known = set(sys.stdlib_module_names) | {"muon_fork"}
    wrong = [
        f"{file} imports {module}"
        for file in STDLIB_ONLY
        for module in imported(ROOT / "muon_fork" / file)
        if module.partition(".")[0] not in known
    ]
    assert not wrong


@pytest.mark.parametrize(("heavy", "homes"), [("torch", TORCH_HOMES), ("libcst", LIBCST_HOMES)])
def test_heavy_packages_stay_in_their_rooms(heavy: str, homes: tuple[str, ...]) -> None:
    users = {
        name(file)
        for file in sources(*PACKAGES)
        for module in imported(file)
        if module.partition(".")[0] == heavy
    }
    assert users
    assert not [user for user in users if not user.startswith(homes)]


@pytest.mark.parametrize("package", COMMANDS)
@pytest.mark.parametrize("words", [["--help"], ["--version"]], ids=lambda words: words[0])
def test_help_loads_nothing_heavy(package: str, words: list[str]) -> None:
    code = (
        "import sys\n"
        f"from {package}.cli import main\n"
        f"sys.argv = ['{COMMANDS[package]}', *{words!r}]\n"
        "try:\n    main()\n"
        "except SystemExit as stop:\n    assert not stop.code, stop.code\n"
        f"print('loaded', *[m for m in {HEAVY!r} if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "loaded"


def test_files_are_small_rooms() -> None:
    long = {name(f): len(f.read_text().splitlines()) for f in sources(*PACKAGES)}
    assert not {file: lines for file, lines in long.items() if lines > 400}


def test_every_tolerance_has_a_measured_reason_and_a_user() -> None:
    names = [row.name for row in TOLERANCES]
    assert len(set(names)) == len(names)
    used = "".join(f.read_text() for f in (ROOT / "tests").rglob("*.py"))
    for row in TOLERANCES:
        assert "easured" in row.reason, row.name
        assert f'"{row.name}"' in used, row.name
