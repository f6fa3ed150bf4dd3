"""Modules named like Triton's, enough to define kernels and never able to run one."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_DECORATORS = ("jit", "autotune", "heuristics")


class _Name:
    """Any other name that a kernel definition mentions: ``tl.constexpr``, ``triton.Config``."""

    def __call__(self, *_arguments: Any, **_options: Any) -> _Name:
        return self

    def __getattr__(self, name: str) -> _Name:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _decorator if name in _DECORATORS else _Name()


def _decorator(*arguments: Any, **options: Any) -> Any:
    """Returns the decorated function untouched, with or without options."""
    if len(arguments) == 1 and callable(arguments[0]) and not options:
        return arguments[0]
    return lambda function: function


def stand_in_modules() -> dict[str, ModuleType]:
    """``sys.modules`` entries of ``triton`` and ``triton.language``.

    The version is below 3.4, the first that emerging-optimizers would use.
    """
    triton, language = _StandIn("triton"), _StandIn("triton.language")
    for module in (triton, language):
        module.__spec__ = ModuleSpec(module.__name__, loader=None)
        module.__path__ = []
    triton.__dict__.update(__version__="0.0.0", language=language)
    return {"triton": triton, "triton.language": language}
