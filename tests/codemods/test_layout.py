"""Layout detection on trees of empty files."""

from __future__ import annotations

from pathlib import Path

import pytest

from codemods.errors import MigrateError
from codemods.layout import LAYOUTS, REQUIRED, Arrangement, detect


def _plant(base: Path, *places: str, text: str = "# muon\n") -> None:
    for place in places:
        (base / place).parent.mkdir(parents=True, exist_ok=True)
        (base / place).write_text(text)


def _places(arrangement: Arrangement) -> list[str]:
    return [place for role, place in arrangement.places if role in REQUIRED]


@pytest.mark.parametrize("arrangement", LAYOUTS, ids=lambda a: a.name)
@pytest.mark.parametrize("below", ["", "src", "lib/python3.12/site-packages"])
def test_every_layout_is_found_wherever_users_point(
    tmp_path: Path, arrangement: Arrangement, below: str
) -> None:
    base = tmp_path / below
    _plant(base, *_places(arrangement))
    pointers = [tmp_path, base, base / arrangement.package]
    layouts = {detect(pointer).name for pointer in pointers}
    packages = {detect(pointer).package for pointer in pointers}
    assert layouts == {arrangement.name}
    assert packages == {base / arrangement.package}
    assert set(REQUIRED) <= set(detect(tmp_path).roles)


def test_tests_of_a_checkout_belong_to_it_but_not_those_of_site_packages(tmp_path: Path) -> None:
    _plant(tmp_path / "src", *_places(LAYOUTS[0]))
    _plant(tmp_path, "tests/unit/muon_utils_test.py", "tests/muon_test.py")
    layout = detect(tmp_path)
    assert layout.root == tmp_path
    assert layout.relative(layout.roles["muon_utils_test"]) == "tests/unit/muon_utils_test.py"
    assert "optimizers_test" not in layout.roles


def test_the_new_package_wins_over_its_old_shim(tmp_path: Path) -> None:
    _plant(tmp_path, *_places(LAYOUTS[0]), "MaxText/train.py", "MaxText/optimizers.py")
    assert detect(tmp_path).name == "maxtext"


def test_a_symlink_to_a_tree_is_that_tree(tmp_path: Path) -> None:
    _plant(tmp_path / "real", *_places(LAYOUTS[0]))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert detect(tmp_path / "link").root == tmp_path / "real"


def test_the_case_of_the_package_matters_on_every_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _plant(tmp_path, *_places(LAYOUTS[0]))
    monkeypatch.setattr("os.listdir", lambda _: ["MAXTEXT"])
    with pytest.raises(MigrateError):
        detect(tmp_path)


def test_an_unknown_layout_names_each_missing_place(tmp_path: Path) -> None:
    _plant(tmp_path, "maxtext/optimizers/optimizers.py", "maxtext/configs/types.py")
    with pytest.raises(MigrateError) as caught:
        detect(tmp_path)
    paths = {Path(p.path or "").relative_to(tmp_path).as_posix() for p in caught.value.problems}
    assert paths == {"maxtext/utils/muon_utils.py", "maxtext/configs/base.yml"}
    assert all("nearest is maxtext" in p.message for p in caught.value.problems)


def test_a_maxtext_without_muon_says_so(tmp_path: Path) -> None:
    _plant(tmp_path, "MaxText/optimizers.py", "MaxText/configs/base.yml", text="adamw\n")
    with pytest.raises(MigrateError, match="no Muon to migrate"):
        detect(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "does not exist"),
        ("file.txt", "is not a directory"),
        ("maxtext-0.2.5-py3-none-any.whl", "unpack it first"),
        ("empty", "holds no MaxText"),
    ],
)
def test_what_is_no_maxtext_is_named(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").touch()
    (tmp_path / "maxtext-0.2.5-py3-none-any.whl").touch()
    with pytest.raises(MigrateError, match=message):
        detect(tmp_path / name)
