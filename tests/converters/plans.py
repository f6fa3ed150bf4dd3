"""Plans of the random models, and runs that differ from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from converters.maxtext.plan import Options, Plan, plan_target
from converters.source import Key, Source, State
from tests.converters.megatron_models import MODELS, source

EMBEDDING = Key("embedding.word_embeddings.weight", State.WEIGHT)
FC1 = "decoder.layers.{}.mlp.linear_fc1.weight"


def planned(model: str | Source, **options: Any) -> Plan:
    origin = source(MODELS[model]) if isinstance(model, str) else model
    return plan_target(origin, Options(**options))


def built(plan: Plan) -> dict[str, np.ndarray]:
    return {"/".join(record.path): record.build() for record in plan.records}


def changed(origin: Source, tensors: Mapping[Key, Any] = {}, **arguments: Any) -> Source:
    run = dataclasses.replace(origin.run, arguments={**origin.run.arguments, **arguments})
    return dataclasses.replace(origin, run=run, tensors={**origin.tensors, **tensors})
