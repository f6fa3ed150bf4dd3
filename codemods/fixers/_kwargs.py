"""The dictionary of keyword arguments that ``get_optimizer`` hands to ``muon()``."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from codemods.fixer import AnchorNotFound, Context
from codemods.fixers._imports import local_names
from codemods.fixers._source import Source, children, function, walk


@dataclass(frozen=True)
class MuonKwargs:
    """Where the keyword arguments are made.

    Attributes:
      name: variable that holds them.
      config: what ``get_optimizer`` calls its configuration.
      model: ``model`` if it takes one, whose mesh the optimizer then knows; else None.
      literal: the dictionary display.
      later: displays merged in afterwards, ``name = name | {...}``.
    """

    name: str
    config: str
    model: str | None
    literal: cst.Dict
    later: tuple[cst.Dict, ...]


def find_kwargs(source: Source, context: Context) -> MuonKwargs:
    """The one dictionary behind every call of ``muon()`` in ``get_optimizer``.

    Raises:
      AnchorNotFound: there is none, or the file does something with muon or with the dictionary
        that a changed dictionary would not reach.
    """
    owner = function(source, "get_optimizer")
    if not owner.params.params:
        raise AnchorNotFound("get_optimizer takes no config", source.line(owner))
    name = _dictionary_of_calls(source, context, owner)
    literals, later = [], []
    for assignment in _assignments(owner, name):
        value = assignment.value
        if isinstance(value, cst.Dict):
            literals.append(value)
        elif _is_merge(value, name):
            assert isinstance(value, cst.BinaryOperation)
            assert isinstance(value.right, cst.Dict)
            later.append(value.right)
    if len(literals) != 1:
        raise AnchorNotFound(
            f"expected one {name} = {{...}} in get_optimizer, found {len(literals)}",
            source.line(owner),
        )
    names = [parameter.name.value for parameter in owner.params.params]
    model = "model" if "model" in names else None
    found = MuonKwargs(name, names[0], model, literals[0], tuple(later))
    _refuse_other_uses(source, owner, found, local_names(source, context, "muon"))
    return found


def key_of(element: cst.BaseDictElement, source: Source) -> str | None:
    """Key of a dictionary entry, None for ``**other``.

    Raises:
      AnchorNotFound: the key is not a plain string.
    """
    if not isinstance(element, cst.DictElement):
        return None
    if isinstance(element.key, cst.SimpleString):
        value = element.key.evaluated_value
        if isinstance(value, str):
            return value
    raise AnchorNotFound("expected a plain string as key", source.line(element))


def _dictionary_of_calls(source: Source, context: Context, owner: cst.FunctionDef) -> str:
    muons = local_names(source, context, "muon")
    if not muons:
        raise AnchorNotFound("no top-level import of optax's or MaxText's own muon")
    inside = {id(node) for node in walk(owner)}
    names: list[str] = []
    calls: set[int] = set()
    for node in walk(source.module):
        if not (isinstance(node, cst.Call) and _is_name(node.func, muons)):
            continue
        calls.add(id(node.func))
        name = _only_double_star(node)
        if name is None or id(node) not in inside:
            raise AnchorNotFound(
                "muon() is called otherwise than with one **dictionary in get_optimizer",
                source.line(node),
            )
        names.append(name)
    _refuse_other_names(source, muons, calls)
    if len(set(names)) != 1:
        raise AnchorNotFound(
            f"expected calls muon(**kwargs) with one dictionary in get_optimizer, found {names}",
            source.line(owner),
        )
    return names[0]


def _only_double_star(call: cst.Call) -> str | None:
    if len(call.args) == 1 and call.args[0].star == "**":
        value = call.args[0].value
        return value.value if isinstance(value, cst.Name) else None
    return None


def _refuse_other_names(source: Source, muons: tuple[str, ...], allowed: set[int]) -> None:
    """A wrapper, partial or table of optimizers that holds muon would see other arguments."""
    for statement in source.module.body:
        for node in _references(statement):
            if _is_name(node, muons) and id(node) not in allowed:
                raise AnchorNotFound(
                    "muon is used otherwise than as muon(**kwargs) in get_optimizer",
                    source.line(node),
                )


def _references(node: cst.CSTNode) -> list[cst.Name]:
    """Names that are looked up or bound below ``node``, imports and attribute names left out."""
    if isinstance(node, cst.ImportFrom | cst.Import):
        return []
    if isinstance(node, cst.Name):
        return [node]
    below = children(node)
    if isinstance(node, cst.Attribute | cst.Arg):
        below = [node.value]
    return [name for child in below for name in _references(child)]


def _assignments(owner: cst.FunctionDef, name: str) -> list[cst.Assign]:
    return [
        node
        for node in walk(owner)
        if isinstance(node, cst.Assign)
        and len(node.targets) == 1
        and _is_name(node.targets[0].target, (name,))
    ]


def _is_merge(value: cst.BaseExpression, name: str) -> bool:
    return (
        isinstance(value, cst.BinaryOperation)
        and isinstance(value.operator, cst.BitOr)
        and _is_name(value.left, (name,))
        and isinstance(value.right, cst.Dict)
    )


def _refuse_other_uses(
    source: Source, owner: cst.FunctionDef, found: MuonKwargs, muons: tuple[str, ...]
) -> None:
    allowed: set[int] = set()
    for node in walk(owner):
        if isinstance(node, cst.Assign) and (
            isinstance(node.value, cst.Dict) or _is_merge(node.value, found.name)
        ):
            allowed.add(id(node.targets[0].target))
            if isinstance(node.value, cst.BinaryOperation):
                allowed.add(id(node.value.left))
        elif isinstance(node, cst.Call) and _only_double_star(node) == found.name:
            if not _is_name(node.func, muons):
                called = f"{source.code(node.func)}(**{found.name})"
                raise AnchorNotFound(
                    f"{called} is no muon that this file imports by name", source.line(node)
                )
            allowed.add(id(node.args[0].value))
    for name in _references(owner):
        if name.value == found.name and id(name) not in allowed:
            raise AnchorNotFound(
                f"{found.name} is also used here, past its literal: move that into the literal",
                source.line(name),
            )


def _is_name(node: cst.CSTNode, names: tuple[str, ...]) -> bool:
    return isinstance(node, cst.Name) and node.value in names
