"""Stands in for TensorFlow, which MaxText up to 0.2.3 imports but no synthetic run uses."""

from __future__ import annotations

from typing import Any


class StandIn:
    """Whatever an import, a default argument or an annotation asks of it."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def __getattr__(self, name: str) -> StandIn:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_args: Any, **_kwargs: Any) -> StandIn:
        return self

    def __or__(self, _other: Any) -> StandIn:
        return self


_anything = StandIn()


def __getattr__(name: str) -> StandIn:
    return StandIn.__getattr__(_anything, name)
