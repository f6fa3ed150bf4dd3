"""One process of a run.

    python -m checks.trainers.megatron PLAN.json RANK

The plan holds ``training``, ``folder`` and ``tokens`` (an .npy); a file ``meeting`` beside it is
where the processes find each other.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np


def main(plan_file: Path, rank: int) -> None:
    from checks.references.megatron_cpu.float64 import float64_for_float32

    from .groups import process_group
    from .process import train
    from .training import from_json

    plan = json.loads(plan_file.read_text())
    training = from_json(plan["training"])
    meeting = plan_file.parent / "meeting" if training.layout.processes > 1 else None
    precision = float64_for_float32() if training.dtype == "float64" else nullcontext()
    with precision, process_group(training.layout, rank, meeting, training.seed):
        train(training, Path(plan["folder"]), np.load(plan["tokens"]), _report)


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
