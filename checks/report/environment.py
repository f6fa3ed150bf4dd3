"""Where a check ran: versions, device, precision. No name of the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from muon_fork.version import VERSION

if TYPE_CHECKING:
    import jax

# Distributions whose version a result may depend on, where they are installed.
DISTRIBUTIONS = (
    "jax",
    "jaxlib",
    "libtpu",
    "optax",
    "numpy",
    "torch",
    "megatron-core",
    "emerging-optimizers",
)


class DeviceError(ValueError):
    """JAX finds no such device here; the message says which ones it finds."""


def find_device(name: str) -> jax.Device:
    """The first device of platform ``name``: ``cpu``, ``gpu`` or ``tpu``.

    Raises:
      DeviceError: there is none.
    """
    import jax

    try:
        return jax.devices(name)[0]
    except RuntimeError:
        found = sorted({device.platform for device in jax.devices()})
        raise DeviceError(
            f"no {name} here: JAX {jax.__version__} finds {', '.join(found)}; "
            f"take one of these, or install the JAX that drives the {name}"
        ) from None


def describe(device: str) -> Mapping[str, str]:
    """What the result may depend on, by name, for a run on platform ``device``.

    Raises:
      DeviceError: JAX finds no such device.
    """
    import jax

    first = find_device(device)
    facts = {
        "device": f"{first.platform} x {len(jax.devices(device))}",
        "device kind": first.device_kind,
        "matmul precision": str(_setting("jax_default_matmul_precision") or "default"),
        "float64": "on" if _setting("jax_enable_x64") else "off",
    }
    return facts | _toolkit()


def of_trainer(facts: Mapping[str, Any]) -> Mapping[str, str]:
    """Of a MaxText that trained in its own Python, whose device need not be one of ours.

    Args:
      facts: what it said of itself: platform, device, devices, versions by package.
    """
    versions: Mapping[str, str] = facts.get("versions", {})
    return {
        "device": f"{facts.get('platform')} x {facts.get('devices')}",
        "device kind": str(facts.get("device")),
        **{f"{name} of MaxText": version for name, version in versions.items()},
        **_toolkit(),
    }


def _toolkit() -> dict[str, str]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts = {
        "cores": str(cores),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "muon-toolkit": VERSION,
        **installed(DISTRIBUTIONS),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
    flags = os.environ.get("XLA_FLAGS")
    return facts | ({"XLA_FLAGS": flags} if flags else {})


def _setting(name: str) -> object:
    """Of ``jax.config``, whose attributes have no types."""
    import jax

    value: object = getattr(jax.config, name)
    return value


def installed(names: tuple[str, ...]) -> dict[str, str]:
    """Versions of those distributions that are installed; nothing is imported."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
