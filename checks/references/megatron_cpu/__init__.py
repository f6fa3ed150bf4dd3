"""Import Megatron-Core and emerging-optimizers without CUDA, Triton and Python 3.12.

Both packages import Triton and ``typing.override`` at module level and compile helpers with
``torch.compile``, yet their optimizer arithmetic is plain PyTorch. ``importable`` stands in for
what is missing while they are imported, edits neither package, and takes every stand-in away.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import typing
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from .triton_stand_in import stand_in_modules


@contextmanager
def importable() -> Iterator[None]:
    """Within the block ``megatron.core`` and ``emerging_optimizers`` can be imported on a CPU.

    Raises:
      ModuleNotFoundError: torch or typing_extensions is missing.
    """
    import torch
    import typing_extensions

    # PyTorch looks for Triton itself when these load: they must see that there is none.
    importlib.import_module("torch._dynamo")
    importlib.import_module("torch._inductor.runtime.hints")
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if not hasattr(typing, "override"):
            override = typing_extensions.override
            stack.enter_context(mock.patch.object(typing, "override", override, create=True))
        stack.enter_context(mock.patch.object(torch, "compile", _uncompiled))
        if importlib.util.find_spec("triton") is None:
            stack.enter_context(_present(stand_in_modules()))
        yield


def _uncompiled(model: Callable[..., Any] | None = None, **_options: Any) -> Callable[..., Any]:
    """``torch.compile`` without the compiler, bare or with options."""
    return model if model is not None else lambda function: function


@contextmanager
def _present(modules: dict[str, Any]) -> Iterator[None]:
    # Not mock.patch.dict: it would also forget what the block imports.
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            sys.modules.pop(name, None)
