"""What a report says of the machine, and what not."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys

import jax
import pytest

from checks.report.environment import DeviceError, describe, find_device


def test_versions_device_and_precision() -> None:
    with jax.default_matmul_precision("highest"):
        facts = describe("cpu")
    for name in ("jax", "jaxlib", "optax", "torch", "megatron-core", "emerging-optimizers"):
        assert facts[name] == importlib.metadata.version(name)
    assert facts["device kind"] == "cpu"
    assert facts["matmul precision"] == "highest"
    assert facts["cores"].isdigit()
    assert all(isinstance(value, str) for value in facts.values())


def test_no_name_of_the_machine() -> None:
    assert platform.node() not in " ".join(describe("cpu").values()).split()


@pytest.mark.parametrize("device", ["gpu", "tpu"])
def test_a_device_that_is_not_there(device: str) -> None:
    with pytest.raises(DeviceError, match=f"no {device} here: JAX .* finds cpu"):
        find_device(device)


def test_torch_is_not_loaded_for_its_version() -> None:
    code = (
        "import sys\nfrom checks.report.environment import describe\n"
        "assert describe('cpu')['torch']\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
