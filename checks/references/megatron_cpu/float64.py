"""Run Megatron-Core in float64: whatever its source calls float32 is float64.

Megatron takes ``params_dtype=float64`` and keeps such weights, gradients, momentum and moments, but
asks for float32 by name where it wants precision: in the rotary table, the cross entropy, the norm
of the gradients; and emerging-optimizers' Newton-Schulz and Megatron's clipping refuse another
dtype. With the name standing for float64 nothing is rounded to float32, and no line is edited.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch


@contextmanager
def float64_for_float32() -> Iterator[None]:
    """Within the block torch's names of float32 mean float64.

    To be entered before Megatron is imported, which takes dtypes as defaults of its arguments, and
    only in a process that trains nothing else.
    """
    usual = torch.get_default_dtype()
    # By which tensors are saved; made from the same names when it is first asked for.
    storages: Any = torch.storage
    storages._dtype_to_storage_type_map()
    with ExitStack() as stack:

        def put(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, value))

        put(torch, "float32", torch.float64)
        put(torch, "float", torch.float64)
        put(torch, "FloatTensor", torch.DoubleTensor)
        put(torch.Tensor, "float", torch.Tensor.double)
        put(torch.Tensor, "type", _as_float(torch.Tensor.type))
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(usual)


def _as_float(function: Any) -> Any:
    """``Tensor.type``, by which gradient clipping recognises a gradient in float32."""

    @functools.wraps(function)
    def wrapper(tensor: Any, *arguments: Any, **keywords: Any) -> Any:
        answer = function(tensor, *arguments, **keywords)
        return "torch.FloatTensor" if answer == "torch.DoubleTensor" else answer

    return wrapper
