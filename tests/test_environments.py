"""``environments/build.py``: what it prints, and what it says where it cannot."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BUILD = Path(__file__).parents[1] / "environments" / "build.py"


@pytest.fixture
def build() -> ModuleType:
    found = importlib.util.spec_from_file_location("build", BUILD)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    done = subprocess.run(
        [sys.executable, str(BUILD), "nothing"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    for name in ("toolkit", "maxtext", "maxtext-tpu", "releases", "browser"):
        assert f"build.py {name}" in done.stderr


@pytest.mark.parametrize("name", ["chromium", "google-chrome"])
def test_a_browser_on_the_path_is_taken(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / name).write_text("#!/bin/sh\n")
    (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build.browser() == tmp_path / name


def test_without_a_browser_it_says_what_to_install(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(build.SetUpError, match="install the package chromium"):
        build.browser()


def test_root_installs_one(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An apt-get that puts the browser where it belongs, and notes what it was asked."""
    browser, asked = tmp_path / "chromium", tmp_path / "asked"
    (tmp_path / "apt-get").write_text(
        f'#!/bin/sh\necho "$@" >> {asked}\n'
        f'case "$*" in *install*) echo > {browser}; /bin/chmod 755 {browser};; esac\n'
    )
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert build.browser() == browser
    assert asked.read_text().splitlines() == [
        "-qq update",
        "-qq install --yes --no-install-recommends chromium",
    ]
