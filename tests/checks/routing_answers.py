"""What a migrated MaxText says about its routing, without MaxText: from the fork's own rules."""

from __future__ import annotations

from typing import Any

from checks.routing.maxtext import Answer, answer_of
from checks.routing.table import _dimensions
from converters.maxtext.plan import Plan
from converters.source import Source
from muon_fork.decay_mask import decays
from muon_fork.dimension_numbers import MuonDimensionNumbers
from muon_fork.rules import dimension_numbers_for
from muon_fork.spec import MuonSpec


def answer(source: Source, plan: Plan, spec: MuonSpec | None = None) -> Answer:
    """The answer of a MaxText whose model is that of ``plan``, configured for ``spec``."""
    assert plan.spec is not None
    spec = spec or plan.spec
    dimensions = _dimensions(source, plan)
    leaves = {"/".join(leaf.path): leaf for leaf in plan.leaves if not leaf.is_variable}
    numbers: dict[str, Any] = {}
    for name, leaf in leaves.items():
        found = dimension_numbers_for(leaf.path, dimensions, spec, leaf.shape)
        is_known = isinstance(found, MuonDimensionNumbers)
        numbers[name] = found._asdict() if is_known else None
    arguments = {
        "scale_mode": spec.scale_mode,
        "extra_scale_factor": spec.extra_scale_factor,
        "weight_decay": spec.weight_decay,
        "adam_weight_decay": spec.adam_weight_decay,
    }
    return answer_of(
        {
            "config": {},
            "params": {name: leaf.shape for name, leaf in leaves.items()},
            "muon": {"module": "fork", "arguments": arguments},
            "numbers": numbers,
            "decays": {n: decays(leaf.path, leaf.shape, spec) for n, leaf in leaves.items()},
        }
    )
