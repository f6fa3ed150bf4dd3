"""Run Megatron-Core on a machine without a GPU: what asks for CUDA gets the CPU.

Megatron names the CUDA device in some fifty places, none of which matters to arithmetic. Inside
``cpu_for_cuda`` tensors that are asked to be there stay here, and what ``torch.cuda`` offers for
streams, events and random states does nothing or uses the CPU's.

Only the functions that take a device are wrapped. A ``TorchFunctionMode`` would see every
operation, and of a tiny model's step that is half the time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

# What makes a tensor on a device; those that megatron-core calls, and their kin.
_MAKERS = (
    *("arange", "as_tensor", "empty", "empty_like", "eye", "full", "full_like", "linspace"),
    *("ones", "ones_like", "rand", "randint", "randn", "tensor", "zeros", "zeros_like"),
)
_METHODS = ("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros", "to")


def _here(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with every CUDA device among its arguments replaced by the CPU."""

    @functools.wraps(function)
    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        if _is_cuda(keywords.get("device")):
            keywords["device"] = torch.device("cpu")
        return function(*("cpu" if _is_cuda(a) else a for a in arguments), **keywords)

    return wrapper


def _is_cuda(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.startswith("cuda")


def _type(function: Callable[..., Any]) -> Callable[..., Any]:
    """``Tensor.type``: gradient clipping insists on the name of a CUDA type."""

    @functools.wraps(function)
    def wrapper(tensor: Any, *arguments: Any, **keywords: Any) -> Any:
        answer = function(tensor, *arguments, **keywords)
        return answer.replace("torch.", "torch.cuda.") if isinstance(answer, str) else answer

    return wrapper


class _Nothing:
    """A stream, an event, or a context: whatever is done with it, nothing happens."""

    def __init__(self, *_arguments: Any, **_keywords: Any) -> None:
        pass

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_arguments, **_keywords: None


_STAND_INS: dict[str, Any] = {
    "current_device": lambda: torch.device("cpu"),
    "device_count": lambda: 1,
    "synchronize": lambda *_: None,
    "empty_cache": lambda: None,
    "current_stream": _Nothing,
    "default_stream": _Nothing,
    "stream": _Nothing,
    "Stream": _Nothing,
    "Event": _Nothing,
    "get_rng_state": lambda *_, **__: torch.get_rng_state(),
    "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
    "manual_seed": lambda seed: torch.default_generator.manual_seed(int(seed)),
    "is_current_stream_capturing": lambda: False,
    "FloatTensor": torch.FloatTensor,
    "BFloat16Tensor": torch.BFloat16Tensor,
    "HalfTensor": torch.HalfTensor,
}


@contextmanager
def cpu_for_cuda() -> Iterator[None]:
    """Within the block Megatron-Core runs on the CPU; ``megatron_cpu.importable`` imports it."""
    with ExitStack() as stack:

        def put(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, value))

        for name, value in _STAND_INS.items():
            put(torch.cuda, name, value)
        for name in _MAKERS:
            put(torch, name, _here(getattr(torch, name)))
        for name in _METHODS:
            put(torch.Tensor, name, _here(getattr(torch.Tensor, name)))
        put(torch.Tensor, "type", _type(torch.Tensor.type))
        put(torch.Tensor, "cuda", lambda self, *_, **__: self)
        put(torch.nn.Module, "cuda", lambda self, *_: self)
        yield
