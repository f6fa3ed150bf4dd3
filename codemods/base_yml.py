"""The top level of MaxText's ``base.yml``, read line by line.

A YAML library would lose comments and spacing on the way back, and reading needs only
``key: scalar`` lines, so none is needed.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

from codemods.errors import Problem
from muon_fork.config_keys import CONFIG_KEYS, CONSISTENT_RMS, Config, spec_from_config
from muon_fork.spec import MuonSpec

Scalar = str | int | float | bool | None

_ENTRY = re.compile(r"^(?P<key>[A-Za-z_][\w.-]*)[ \t]*:(?:[ \t]+(?P<rest>.*?))?[ \t]*\r?$")
_QUOTED_KEY = re.compile(r"""^(?P<q>['"])(?P<key>\w+)(?P=q)[ \t]*:""")
_QUOTED = re.compile(r"""(?P<q>['"]).*?(?P=q)""")
_COMMENT = re.compile(r"(?:^|[ \t])#.*$")
_NONE = {"", "~", "null", "none"}


@dataclass(frozen=True)
class Entry:
    """One ``key: value`` line of the top level; nested values read as the empty text."""

    key: str
    value: str
    line: int


@functools.lru_cache(maxsize=4)
def entries(text: str) -> tuple[Entry, ...]:
    """Every top-level entry, in order."""
    found = ((number, _ENTRY.match(line)) for number, line in enumerate(text.split("\n"), 1))
    return tuple(Entry(m["key"], _bare(m["rest"] or ""), number) for number, m in found if m)


def _bare(rest: str) -> str:
    """A value without its comment; quotes stay."""
    quoted = _QUOTED.match(rest)
    return quoted[0] if quoted else _COMMENT.sub("", rest).strip()


def scalar(value: str) -> Scalar:
    """A YAML 1.1 scalar as Python, as far as MaxText's flat settings go."""
    if value[:1] in ("'", '"'):
        return value[1:-1]
    lowered = value.lower()
    if lowered in _NONE:
        return None
    if lowered in ("true", "false"):
        return lowered == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def values(text: str) -> dict[str, Scalar]:
    """Every top-level value; the last of two entries with one key wins, as in YAML."""
    return {entry.key: scalar(entry.value) for entry in entries(text)}


def spec_of(text: str) -> MuonSpec:
    """The MuonSpec that a migrated ``base.yml`` asks for.

    Raises:
      SpecError: a key is missing or has a value that the spec does not admit.
    """
    wanted = {row.key for row in CONFIG_KEYS} | {CONSISTENT_RMS}
    found = {key: value for key, value in values(text).items() if key in wanted}
    return spec_from_config(cast(Config, SimpleNamespace(**found)))


def damage(before: str, after: str, path: str) -> list[Problem]:
    """What an edit broke: keys lost or doubled, tabs as indentation."""
    old = Counter(entry.key for entry in entries(before))
    new = Counter(entry.key for entry in entries(after))
    problems = [
        Problem(f"the edit would drop the key {key}", path) for key in old if key not in new
    ]
    for entry in entries(after):
        if new[entry.key] > max(1, old[entry.key]):
            problems.append(Problem(f"the edit would write {entry.key} twice", path, entry.line))
    return problems + _tabs_added(before, after, path)


def unclear(text: str, path: str) -> list[Problem]:
    """Keys of ours that the file holds twice (which of them counts is the user's to say) or in
    quotes (no edit would find them)."""
    seen: dict[str, int] = {}
    ours = {row.key for row in CONFIG_KEYS} | {CONSISTENT_RMS}
    problems = [
        Problem(f"write the key {found['key']} without quotes", path, number)
        for number, line in enumerate(text.split("\n"), 1)
        if (found := _QUOTED_KEY.match(line)) and found["key"] in ours
    ]
    for entry in entries(text):
        if entry.key in seen and entry.key in ours:
            message = f"{entry.key} is also on line {seen[entry.key]}: keep one of them"
            problems.append(Problem(message, path, entry.line))
        seen.setdefault(entry.key, entry.line)
    return problems


def _tabs_added(before: str, after: str, path: str) -> list[Problem]:
    known = set(before.splitlines())
    message = "the edit would indent with a tab, which YAML forbids"
    return [
        Problem(message, path, number)
        for number, line in enumerate(after.splitlines(), 1)
        if line.startswith("\t") and line not in known
    ]
