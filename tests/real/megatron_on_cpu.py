"""Run Megatron-Core on a machine without a GPU: what asks for CUDA gets the CPU.

Megatron names the CUDA device in some fifty places, none of which matters to arithmetic. Inside
``cpu_for_cuda`` tensors that are asked to be there stay here, and what ``torch.cuda`` offers for
streams, events and random states does nothing or uses the CPU's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode


class _CpuForCuda(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: Any = None
    ) -> Any:
        keywords = dict(keywords or {})
        name = getattr(function, "__name__", "")
        if name == "cuda":
            return arguments[0]
        if _is_cuda(keywords.get("device")):
            keywords["device"] = torch.device("cpu")
        if name == "to":
            arguments = tuple("cpu" if _is_cuda(a) else a for a in arguments)
        answer = function(*arguments, **keywords)
        if name == "type" and len(arguments) == 1:
            # Gradient clipping insists on this name.
            return answer.replace("torch.", "torch.cuda.")
        return answer


def _is_cuda(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.startswith("cuda")


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
        for name, value in _STAND_INS.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        stack.enter_context(mock.patch.object(torch.nn.Module, "cuda", lambda self, *_: self))
        stack.enter_context(_CpuForCuda())
        yield
