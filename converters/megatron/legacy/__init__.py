"""Megatron's legacy format ``torch``: one pickle of tensors for every rank."""

from .reader import open_legacy
from .reshardable import read_reshardable
from .writer import write_legacy

__all__ = ["open_legacy", "read_reshardable", "write_legacy"]
