"""Reading base.yml without a YAML library, judged by one."""

from __future__ import annotations

import pytest
import yaml

from codemods import base_yml
from muon_fork.config_keys import config_values
from muon_fork.presets import PRESETS, Preset
from muon_fork.spec import SpecError

_TEXT = """\
# Settings
run_name: ''
adam_eps: 1.0e-8 # epsilon
muon_consistent_rms: None  # or a float
flags: "a # b" # no comment inside
steps: 150_001
on: true
list: ['a', 'b']
nested:
  inner: 1
  - item
# muon_beta: 0.9
muon_beta: 0.95
"""


def test_top_level_entries_have_values_and_lines() -> None:
    rows = {entry.key: (entry.value, entry.line) for entry in base_yml.entries(_TEXT)}
    assert rows["adam_eps"] == ("1.0e-8", 3)
    assert rows["flags"] == ('"a # b"', 5)
    assert rows["muon_beta"] == ("0.95", 13)
    assert "inner" not in rows


def test_line_ends_do_not_change_what_is_read() -> None:
    assert base_yml.values(_TEXT.replace("\n", "\r\n")) == base_yml.values(_TEXT)


@pytest.mark.parametrize(
    "value",
    ["1", "-2", "0.95", "1.0e-20", "true", "False", "~", "null", "'x'", '"y z"', "spectral"],
)
def test_scalars_read_as_yaml_reads_them(value: str) -> None:
    assert base_yml.scalar(value) == yaml.safe_load(value)


def test_none_as_maxtext_writes_it() -> None:
    assert base_yml.scalar("None") is None


@pytest.mark.parametrize("row", PRESETS, ids=lambda p: p.name)
def test_every_preset_survives_base_yml(row: Preset) -> None:
    text = "".join(f"{key}: {value}\n" for key, value in config_values(row.spec).items())
    assert base_yml.spec_of(text) == row.spec


def test_a_missing_key_is_named() -> None:
    with pytest.raises(SpecError, match="muon_"):
        base_yml.spec_of("muon_beta: 0.95\n")


def test_damage_sees_lost_doubled_and_tabbed_lines() -> None:
    before = "a: 1\nb: 2\n"
    assert not base_yml.damage(before, "a: 3\nb: 2\nc: 4\n", "f")
    assert "drop the key b" in str(base_yml.damage(before, "a: 1\n", "f"))
    assert "write c twice" in str(base_yml.damage(before, before + "c: 1\nc: 2\n", "f"))
    assert "tab" in str(base_yml.damage(before, before + "\tc: 1\n", "f"))


def test_a_space_before_the_colon_is_no_part_of_the_key() -> None:
    assert base_yml.values("muon_beta : 0.95\n") == {"muon_beta": 0.95}


@pytest.mark.parametrize("line", ['"muon_beta": 0.9', "'adam_eps' : 1.0e-8"])
def test_a_key_of_ours_in_quotes_is_refused_with_its_line(line: str) -> None:
    (problem,) = base_yml.unclear(f"x: 1\n{line}\n'run_name': a\n", "f")
    assert "f:2: write the key" in str(problem)


def test_a_doubled_key_of_ours_names_both_lines() -> None:
    (problem,) = base_yml.unclear("muon_beta: 1\nx: 1\nx: 2\nmuon_beta: 2\n", "f")
    assert str(problem) == "f:4: muon_beta is also on line 1: keep one of them"
