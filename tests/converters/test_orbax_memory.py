"""Memory does not grow with the number of leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEAVES, LEAF_MIB = 48, 16
# Of 512 MiB of leaves after the first third. Measured 0 to 16, by how the allocator was disturbed.
GROWTH_MIB = 32
# Interpreter, JAX, Orbax, chunks on their way.
FIXED_MIB = 600
CHILD = f"""
import sys, tempfile
from pathlib import Path
import numpy as np
from converters.orbax import runtime
from converters.orbax.writer import write_state
from converters.target import TargetState, TargetTensor
runtime.start()
shape = ({LEAF_MIB} << 18,)
pattern = np.arange(1 << 12, dtype=np.float32)
def build():
    return np.resize(pattern, shape)
tree = {{
    f"w{{i}}": TargetTensor((f"w{{i}}",), shape, np.dtype(np.float32), (), "", build)
    for i in range({LEAVES})
}}
count = 0
def done(target, digest):
    global count
    count += 1
    if count in ({LEAVES} // 3, {LEAVES}):
        lines = Path("/proc/self/status").read_text().splitlines()
        print(next(int(l.split()[1]) >> 10 for l in lines if l.startswith("VmHWM:")))
with tempfile.TemporaryDirectory() as folder:
    write_state(TargetState(tree, 1, True), Path(folder), done=done)
"""


def test_the_peak_is_reached_early_and_is_small() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD], cwd=ROOT, capture_output=True, text=True, check=True
    )
    early, late = (int(line) for line in done.stdout.split())
    assert late - early <= GROWTH_MIB
    assert late <= FIXED_MIB + 2 * LEAF_MIB
