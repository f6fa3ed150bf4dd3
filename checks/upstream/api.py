"""The interface that the fork shares with ``optax.contrib._muon``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from muon_fork import _muon as fork
from muon_fork.dimension_numbers import MuonDimensionNumbers

# Arguments and fields that only the fork has (muon_fork/UPSTREAM.md).
ADDITIONS = frozenset(
    {
        "nesterov_style",
        "bias_correction",
        "eps_mode",
        "ns_dtype",
        "cast_before_norm",
        "ns_rounding",
        "scale_mode",
        "extra_scale_factor",
        "adam_eps",
        "adam_nesterov",
        "decay_style",
        "adam_decay_style",
        "adam_weight_decay_mask",
        "batch_update",
        "batch_update_size",
        "clip_grad",
        "use_all_to_all",
        "mesh",
        "component_splits",
        "join",
        "update_scale",
        "optimizer",
        "sharding",
    }
)
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "muon": fork.muon,
    "scale_by_muon": fork.scale_by_muon,
    "scale_by_shape": fork.scale_by_shape,
}
TUPLES: Mapping[str, Any] = {
    "MuonDimensionNumbers": MuonDimensionNumbers,
    "MuonState": fork.MuonState,
}
_NOTHING = inspect.Parameter.empty


@dataclass(frozen=True)
class Argument:
    """One argument or field: where it may stand, and its default."""

    name: str
    by_keyword: bool
    default: Any


@dataclass(frozen=True)
class Change:
    """One way in which optax differs from what the fork follows.

    Attributes:
      where: function or tuple, with the argument where it is about one.
      what: ``missing``, ``added``, ``default``, ``kind``, ``order`` or ``numbers``.
      detail: both values, in words.
    """

    where: str
    what: str
    detail: str


def interface_changes(module: Any) -> tuple[Change, ...]:
    """What differs in the interface of ``module``, which stands for ``optax.contrib._muon``."""
    found: list[Change] = []
    for name, own in FUNCTIONS.items():
        other = getattr(module, name, None)
        if not callable(other):
            found.append(Change(name, "missing", "optax has no such function"))
            continue
        found += _compare(name, _arguments(own), _arguments(other))
    for name, own in TUPLES.items():
        other = getattr(module, name, None)
        if not hasattr(other, "_fields"):
            found.append(Change(name, "missing", "optax has no such named tuple"))
            continue
        found += _compare(name, _fields(own), _fields(other))
    return tuple(found)


def _arguments(function: Callable[..., Any]) -> tuple[Argument, ...]:
    parameters = inspect.signature(function).parameters.values()
    kind = inspect.Parameter.KEYWORD_ONLY
    return tuple(Argument(p.name, p.kind is kind, p.default) for p in parameters)


def _fields(kind: Any) -> tuple[Argument, ...]:
    defaults = kind._field_defaults
    return tuple(Argument(name, False, defaults.get(name, _NOTHING)) for name in kind._fields)


def _compare(where: str, own: tuple[Argument, ...], other: tuple[Argument, ...]) -> list[Change]:
    followed = {a.name: a for a in own if a.name not in ADDITIONS}
    theirs = {a.name: a for a in other}
    found = [
        Change(f"{where}.{name}", "missing", "optax no longer has it; the fork does")
        for name in followed
        if name not in theirs
    ]
    for name, argument in theirs.items():
        if name not in followed:
            found.append(Change(f"{where}.{name}", "added", _added(where, argument)))
        else:
            found += _argument_changes(f"{where}.{name}", followed[name], argument)
    common = [name for name in followed if name in theirs]
    if common != [name for name in theirs if name in followed]:
        found.append(Change(where, "order", f"optax has {', '.join(theirs)}"))
    return found


def _added(where: str, argument: Argument) -> str:
    clash = "the fork has one of that name" if argument.name in ADDITIONS else "the fork has not"
    return f"new in optax, default {_word(argument.default)}; {clash}"


def _argument_changes(where: str, own: Argument, other: Argument) -> list[Change]:
    found = []
    if not _equal(own.default, other.default):
        detail = f"optax {_word(other.default)}, the fork {_word(own.default)}"
        found.append(Change(where, "default", detail))
    if own.by_keyword != other.by_keyword:
        words = ("also by position", "by keyword only")
        detail = f"optax {words[other.by_keyword]}, the fork {words[own.by_keyword]}"
        found.append(Change(where, "kind", detail))
    return found


def _equal(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and bool(one == other))


def _word(value: Any) -> str:
    return "none, it must be given" if value is _NOTHING else repr(value)
