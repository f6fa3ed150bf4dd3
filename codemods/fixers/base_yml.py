"""Write every configuration key of the MuonSpec into ``base.yml``.

Keys that are there keep their line and comment and get the reference's value; the others follow
the last ``muon_`` key. ``TODO(not-yet-wired)`` goes, because now they are wired. Keys that other
optimizers read too change only where the reference really settles them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from codemods.fixer import AnchorNotFound, Context, Fixer
from codemods.fixers._comments import fresh_comment
from codemods.fixers._yaml import (
    Setting,
    join_lines,
    same_value,
    setting,
    split_lines,
    yaml_literal,
)
from muon_fork.config_keys import CONFIG_KEYS, CONSISTENT_RMS, config_values

_ANCHOR = "muon_beta"
_COMMENTS = {row.key: row.comment for row in CONFIG_KEYS}
_SHARED = frozenset(row.key for row in CONFIG_KEYS if row.shared)


def apply(text: str, context: Context) -> str:
    """The text with every key of the table, at the reference's value."""
    lines = split_lines(text)
    places = _places(lines)
    if _ANCHOR not in places:
        raise AnchorNotFound(f"no top-level key {_ANCHOR}: where is the Muon section?")
    values = config_values(context.spec)
    changed = list(lines)
    for key, at in places.items():
        if key in values or key.startswith("muon_"):
            found = setting(lines[at][0])
            assert found is not None
            changed[at] = (str(_renewed(found, values, context, at + 1)), lines[at][1])
    _refresh_comments(changed, places)
    _add_missing(changed, places, values)
    return join_lines(changed)


def _places(lines: list[tuple[str, str]]) -> dict[str, int]:
    places: dict[str, int] = {}
    for at, (line, _) in enumerate(lines):
        found = setting(line)
        if found is None:
            continue
        if found.key in places and (found.key.startswith("muon_") or found.key in _COMMENTS):
            raise AnchorNotFound(
                f"{found.key} is set twice, also on line {places[found.key] + 1}", at + 1
            )
        places[found.key] = at
    return places


def _renewed(found: Setting, values: dict[str, Any], context: Context, line: int) -> Setting:
    comment = fresh_comment(found.comment)
    if comment == "#":
        comment = f"# {_COMMENTS.get(found.key, '')}".rstrip().removesuffix("#").rstrip()
    found = replace(found, comment=comment, space=found.space if comment else "")
    if found.key not in values or (found.key in _SHARED and found.key not in context.shared_keys):
        return found
    value = values[found.key]
    if same_value(found.value, value):
        return found
    if not found.value or found.value[0] in "[{|>&*!":
        raise AnchorNotFound(
            f"{found.key}: expected a plain value, found {found.value or 'none'}", line
        )
    colon = found.colon if found.colon[-1:] in (" ", "\t") else f"{found.colon} "
    return replace(found, colon=colon, value=yaml_literal(value))


def _refresh_comments(lines: list[tuple[str, str]], places: dict[str, int]) -> None:
    """Renew what the comments right above the Muon keys say about defaults."""
    at = min(place for key, place in places.items() if key.startswith("muon_")) - 1
    while at >= 0 and lines[at][0].startswith("#"):
        lines[at] = (fresh_comment(lines[at][0]), lines[at][1])
        at -= 1


def _add_missing(
    lines: list[tuple[str, str]], places: dict[str, int], values: dict[str, Any]
) -> None:
    missing = [key for key in values if key not in places]
    if not missing:
        return
    at = _section_end(lines, places)
    line, end = lines[at]
    newline = end or next((e for _, e in lines if e), "\n")
    new = [(_new_line(key, values[key]), newline) for key in missing]
    lines[at] = (line, newline)
    if not end:
        new[-1] = (new[-1][0], "")
    lines[at + 1 : at + 1] = new


def _section_end(lines: list[tuple[str, str]], places: dict[str, int]) -> int:
    """Line of the last ``muon_`` key that follows the anchor without another key between."""
    at = last = places[_ANCHOR]
    while at + 1 < len(lines):
        at += 1
        line = lines[at][0]
        if re.match(r"muon_\w+[ \t]*:", line):
            last = at
        elif line.strip() and not line.startswith(("#", " ", "\t")):
            break
    return last


def _new_line(key: str, value: Any) -> str:
    comment = _COMMENTS.get(key, "")
    if key == CONSISTENT_RMS:
        comment = "Factor of muon_scale_mode consistent_rms, else None."
    return f"{key}: {yaml_literal(value)}" + (f" # {comment}" if comment else "")


fixer = Fixer(
    name="base_yml",
    role="base_yml",
    summary="write every Muon key and the reference's defaults, drop TODO(not-yet-wired)",
    apply=apply,
)
