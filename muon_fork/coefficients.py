"""Newton-Schulz coefficient sets and the rule that stretches each of them over a number of steps.

One step maps X to ``a X + (b A + c A A) X`` with ``A = X X^T``; a row is ``(a, b, c)``.
Standard library only: the command-line tools read this table without JAX.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

Triple = tuple[float, float, float]
Schedule = Literal["cycle", "repeat_last", "fixed"]

SIMPLE: Triple = (3.4445, -4.7750, 2.0315)


@dataclass(frozen=True)
class CoefficientSet:
    """Rows of one published set, and how a run with another number of steps reads them.

    ``cycle`` starts again at the first row, ``repeat_last`` stays on the last one (the sets whose
    last row is the fixed point of their iteration), ``fixed`` admits exactly as many steps as rows.
    """

    rows: tuple[Triple, ...]
    schedule: Schedule
    source: str

    def expand(self, steps: int) -> tuple[Triple, ...]:
        """The triples of ``steps`` consecutive iterations.

        Raises:
          ValueError: ``steps`` is below one, or differs from the length of a ``fixed`` set.
        """
        if steps < 1:
            raise ValueError(f"Newton-Schulz needs at least one step, got {steps}")
        if self.schedule == "fixed" and steps != len(self.rows):
            raise ValueError(
                f"this coefficient set has exactly {len(self.rows)} steps, got {steps}"
            )
        tail = itertools.repeat(self.rows[-1]) if self.schedule == "repeat_last" else None
        rows = itertools.chain(self.rows, tail) if tail else itertools.cycle(self.rows)
        return tuple(itertools.islice(rows, steps))


COEFFICIENT_SETS: dict[str, CoefficientSet] = {
    "simple": CoefficientSet((SIMPLE,), "cycle", "Keller Jordan, modded-nanogpt"),
    "quintic": CoefficientSet(
        (
            (4.0848, -6.8946, 2.9270),
            (3.9505, -6.3029, 2.6377),
            (3.7418, -5.5913, 2.3037),
            (2.8769, -3.1427, 1.2046),
            (2.8366, -3.0525, 1.2012),
        ),
        "cycle",
        "modded-nanogpt train_gpt_medium; Megatron's --muon-coefficient-type default",
    ),
    "polar_express": CoefficientSet(
        (
            (8.2051, -22.9019, 16.4607),
            (4.0664, -2.8612, 0.5184),
            (3.9096, -2.8234, 0.5250),
            (3.2856, -2.4153, 0.4853),
            (2.2779, -1.6198, 0.3985),
            (1.8726, -1.2307, 0.3585),
            (1.8564, -1.2132, 0.3568),
            (1.8750, -1.2500, 0.3750),
        ),
        "repeat_last",
        "arXiv:2505.16932, already divided by 1.01^degree as in its algorithm 1",
    ),
    "cans": CoefficientSet(
        (
            (8.4703, -25.1081, 18.6293),
            (4.1828, -3.1087, 0.5806),
            (3.9619, -2.9541, 0.5630),
            (3.2866, -2.4647, 0.5074),
            (2.2737, -1.6447, 0.4162),
        ),
        "repeat_last",
        "arXiv:2506.10935",
    ),
    "aol": CoefficientSet(
        (
            (4.0098, -7.0585, 2.4635),
            (3.4585, -5.5479, 2.5959),
            (2.7573, -3.2939, 1.4254),
            (2.7215, -3.0494, 1.3169),
        ),
        "cycle",
        "arXiv:2512.04632 (Turbo-Muon)",
    ),
    "deepseekv4": CoefficientSet(
        (SIMPLE,) * 8 + ((2.0, -1.5, 0.5),) * 2,
        "repeat_last",
        "DeepSeek-V4 report, algorithm 1",
    ),
}


def expand_coefficients(name: str, steps: int) -> tuple[Triple, ...]:
    """The rows of the named set for ``steps`` iterations.

    Raises:
      ValueError: unknown name, or a step count that the set does not admit.
    """
    if name not in COEFFICIENT_SETS:
        known = ", ".join(COEFFICIENT_SETS)
        raise ValueError(f"unknown Newton-Schulz coefficient type {name!r}; known: {known}")
    return COEFFICIENT_SETS[name].expand(steps)
