"""``python -m checks.mesh REQUEST ANSWER``: the sharded step on simulated devices."""

from __future__ import annotations

import sys
from pathlib import Path

import jax

from checks.cases import sharding
from checks.mesh import layouts, transfer


def main(request: str, answer: str) -> None:
    setting = transfer.read_request(Path(request))
    side, step = sharding.problem(setting)
    found = layouts.run(side, step, jax.devices(setting.device))
    transfer.write_answer(Path(answer), {layout.name: spread for layout, spread in found})


if __name__ == "__main__":
    main(*sys.argv[1:])
