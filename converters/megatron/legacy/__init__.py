"""Megatron's legacy format ``torch``: one pickle of tensors for every rank."""

from .reader import open_legacy

__all__ = ["open_legacy"]
