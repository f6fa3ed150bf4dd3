"""Eight simulated devices compute what one does, without communication inside Newton-Schulz."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from muon_fork import MuonDimensionNumbers as D, muon

rng = np.random.default_rng(0)
params = {f"w{i}": jnp.asarray(rng.standard_normal((64, 96)), jnp.float32) for i in range(3)}
one = muon(1e-2)
expected, _ = one.update(params, one.init(params), params)
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(kind,))
    layout, everywhere = NamedSharding(mesh, P("fsdp")), NamedSharding(mesh, P())
    place = lambda x: jax.device_put(x, layout if x.shape == (64, 96) else everywhere)
    sharded = {k: place(v) for k, v in params.items()}
    everything = {"mesh": mesh, "use_all_to_all": True}
    cases = (None, {}), (None, {"mesh": mesh}), (layout, {}), (layout, everything)
    for known, options in cases:
        dims = {k: D(sharding=known) for k in params}
        transform = muon(1e-2, muon_weight_dimension_numbers=dims, **options)
        state = jax.tree.map(place, transform.init(params))
        out = ({k: layout for k in params}, None)  # as a trainer pins it
        step = jax.jit(transform.update, out_shardings=out).lower(sharded, state, sharded).compile()
        updates, _ = step(sharded, state, sharded)
        for k, v in expected.items():
            error = jnp.linalg.norm(jnp.asarray(np.asarray(updates[k])) - v) / jnp.linalg.norm(v)
            assert error <= 2e-6, (kind, options, k, error)
        if known is not None or options:
            assert "all-reduce(" not in step.as_text(), (kind, options)
print("equal")
"""


def test_eight_devices_equal_one():
    flags = "--xla_force_host_platform_device_count=8"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "equal", done.stderr[-3000:]
