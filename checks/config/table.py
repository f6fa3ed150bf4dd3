"""Key by key: what the run needs, what the user has, and what to set."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from checks.routing.megatron import has_states
from converters.maxtext.config import command_line
from converters.maxtext.plan import Options, Plan, plan_target
from converters.maxtext.versions import Layout, version_of
from converters.megatron.open import open_source
from converters.source import Source

from .base import Base, base_of
from .computation import computation_rows
from .given import Given, read_given, same
from .keys import IRRELEVANT, KEYS, OPEN, Key
from .row import Row, Verdict, argument_words

# How alike a key must be to one of the table to be taken for a misspelling.
_ALIKE = 0.85


@dataclass(frozen=True)
class Report:
    """
    Attributes:
      checkpoint: what was compared.
      maxtext: its version, and where the defaults are from.
      rows: in the order of the topics.
      notes: what was assumed, and keys that were not compared.
    """

    checkpoint: str
    maxtext: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not any(row.found for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"passed": self.passed}


def compare(
    checkpoint: Path,
    words: Sequence[str],
    maxtext: Path | None,
    version: str | None,
    overrides: Mapping[str, Any] = {},
) -> Report:
    """Compare the configuration of ``words`` with the one that continues a Megatron run.

    Args:
      words: files and ``key=value``.
      maxtext: checkout whose defaults count.
      version: release whose defaults count, where there is no checkout.
      overrides: MuonSpec fields that the checkpoint does not record.

    Raises:
      CheckpointError: the checkpoint cannot be read or converted.
      ConfigError, RunError: the configuration or the checkout cannot be read.
    """
    given = read_given(words)
    base = base_of(given, maxtext, version)
    source = open_source(checkpoint)
    plan = plan_target(source, replace(_options(source, given, base), spec_overrides=overrides))
    rows = [*_rows(source, plan, given, base), *computation_rows(source, plan, given.values)]
    unknown, ignored = _others(plan, given, base)
    notes = [*base.notes, *(n for n in plan.notes if "is not reproduced" not in n)]
    if ignored:
        notes.append(f"not compared: {', '.join(ignored)}")
    return Report(
        checkpoint=str(source.folder),
        maxtext=f"{base.version} ({base.name})" if not base.complete else f"{base.version}",
        rows=(*_by_topic(rows), *unknown),
        notes=tuple(notes),
    )


def _options(source: Source, given: Given, base: Base) -> Options:
    """How the weights lie is the user's choice: the conversion follows it."""

    def chosen(key: str) -> bool:
        return not same(given.values.get(key, base.values.get(key, True)), False)

    version, _ = version_of(base.version, None)
    both = len(version.layouts) > 1
    layout: Layout | None = "linen" if both and not chosen("pure_nnx") else None
    return Options(
        base.version,
        layout=layout,
        scan=chosen("scan_layers"),
        fill_missing_state=not has_states(source),
    )


def _rows(source: Source, plan: Plan, given: Given, base: Base) -> Iterator[Row]:
    further = [name for name in plan.maxtext_config if name not in {key.name for key in KEYS}]
    for key in (*KEYS, *(Key("other", name) for name in further if name not in IRRELEVANT)):
        needed = plan.maxtext_config.get(key.name, key.neutral)
        if needed is OPEN:
            continue
        is_set = key.name in plan.maxtext_config
        if key.name not in given.values and key.name not in base.values and not is_set:
            continue  # this MaxText cannot do otherwise
        yield _row(source.run.arguments, key, needed, given.values, base)


def _row(
    arguments: Mapping[str, Any],
    key: Key,
    needed: Any,
    given: Mapping[str, Any],
    base: Base,
) -> Row:
    value, origin = given.get(key.name), "given"
    if key.name not in given:
        origin = base.name if key.name in base.values else "not set"
        value = base.values.get(key.name)
    return Row(
        topic=key.topic,
        megatron=argument_words(arguments, key.arguments),
        key=key.name,
        needed=needed,
        value=value,
        origin=origin,
        verdict=_verdict(key, needed, value, given, base),
        remedy=command_line({key.name: needed})[0],
    )


def _verdict(key: Key, needed: Any, value: Any, given: Mapping[str, Any], base: Base) -> Verdict:
    if key.name not in base.values and (base.complete or key.name not in given):
        return "no such key" if base.complete else "not set"
    if key.name == "mu_dtype" and same(value, None):
        value = given.get("weight_dtype", base.values.get("weight_dtype"))
    if same(value, needed):
        return "same"
    return "rounding" if key.rounding else "differs"


def _others(plan: Plan, given: Given, base: Base) -> tuple[list[Row], list[str]]:
    """Keys of the user that no row is about: unknown to MaxText, or without an influence."""
    known = {key.name for key in KEYS} | set(plan.maxtext_config)
    unknown, ignored = [], []
    for name, value in given.values.items():
        if name in known or (base.complete and name in base.values):
            if name not in known:
                ignored.append(name)
            continue
        alike = difflib.get_close_matches(name, [*known, *base.values], 1, _ALIKE)
        if alike or base.complete:
            unknown.append(_unknown(name, value, alike))
        else:
            ignored.append(name)
    return unknown, ignored


def _unknown(name: str, value: Any, alike: Sequence[str]) -> Row:
    remedy = f"{alike[0]}?" if alike else ""
    kind: Literal["no such key"] = "no such key"
    return Row("unknown key", "", name, None, value, "given", kind, remedy)


def _by_topic(rows: Sequence[Row]) -> Iterator[Row]:
    topics = dict.fromkeys(row.topic for row in rows)
    for topic in topics:
        yield from (row for row in rows if row.topic == topic)
