"""Where and how precisely the fork computes: pinned, never assumed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from checks.report.environment import find_device
from checks.setting import Setting
from muon_fork.spec import MuonSpec


def prefer(name: str) -> None:
    """Keep JAX from looking for other devices than the CPU, if that is what is wanted.

    It would take the process a while, and ``muon_fork`` follows JAX's default device.
    """
    import jax

    if name == "cpu":
        update: Any = jax.config.update
        with contextlib.suppress(RuntimeError):
            update("jax_platforms", "cpu")


@contextlib.contextmanager
def pinned(setting: Setting, dtype: str) -> Iterator[Any]:
    """Within the block JAX computes on the setting's device, products at full precision.

    Yields:
      the device.

    Raises:
      DeviceError: it is not there.
    """
    import jax

    prefer(setting.device)
    device = find_device(setting.device)
    with (
        jax.enable_x64(dtype == "f64"),
        jax.default_matmul_precision("highest"),
        jax.default_device(device),
    ):
        yield device


def numpy_dtype(dtype: str) -> Any:
    """Of weights and states: bf16 is Newton-Schulz's alone."""
    return np.float64 if dtype == "f64" else np.float32


def spec_in(spec: MuonSpec, dtype: str) -> MuonSpec:
    """The spec with Newton-Schulz in the dtype of the check."""
    return spec.replace(ns_dtype={"f64": "float64", "f32": "float32", "bf16": "bfloat16"}[dtype])
