"""The reference trainer of RFC-0023 computes what float64 NumPy says its spec means."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from checks.references import numpy_muon
from checks.references.matrices import Blocks, Trajectory
from checks.references.numpy_muon import AdamState
from checks.tolerances import limit
from checks.trainers.megatron.models import model
from checks.trainers.megatron.options import RFC, Optimizer
from checks.trainers.megatron.training import Training
from checks.trainers.rfc.algorithm import Options, Parameter, step
from checks.trainers.rfc.optimizer import blocks_of, options_of
from muon_fork.megatron_args import from_megatron_args
from muon_fork.spec import MuonSpec

STEPS, RATE = 20, 0.02
# Heads 4 of 8 in 2 groups, hidden 24, ffn 40; as the trainer's model configuration says it.
CONFIG = SimpleNamespace(
    num_attention_heads=4,
    num_query_groups=2,
    kv_channels=8,
    ffn_hidden_size=40,
    moe_ffn_hidden_size=12,
    multi_latent_attention=True,
    qk_head_dim=6,
    qk_pos_emb_head_dim=4,
    v_head_dim=5,
)
SHAPES = {
    "self_attention.linear_qkv.weight": (64, 24),
    "self_attention.linear_proj.weight": (24, 32),
    "self_attention.linear_q_up_proj.weight": (40, 12),
    "self_attention.linear_kv_up_proj.weight": (44, 16),
    "mlp.linear_fc1.weight": (80, 24),
    "mlp.experts.local_experts.0.linear_fc1.weight": (24, 24),
    "mlp.router.weight": (4, 24),
    "embedding.word_embeddings.weight": (32, 24),
    "input_layernorm.weight": (24,),
    "self_attention.linear_qkv.bias": (64,),
}
# Rows of each matrix, written down by hand.
PARTS = {
    "self_attention.linear_qkv.weight": [range(8 * n, 8 * n + 8) for n in range(8)],
    "mlp.linear_fc1.weight": [range(40), range(40, 80)],
    "mlp.experts.local_experts.0.linear_fc1.weight": [range(12), range(12, 24)],
    "self_attention.linear_q_up_proj.weight": [
        [10 * h + r for h in range(4) for r in range(6)],
        [10 * h + r for h in range(4) for r in range(6, 10)],
    ],
    "self_attention.linear_kv_up_proj.weight": [
        [11 * h + r for h in range(4) for r in range(6)],
        [11 * h + r for h in range(4) for r in range(6, 11)],
    ],
}
TRAINING = Training(model("qwen3"), Optimizer(rfc=RFC), reference="rfc")


def spec_of(training: Training, **changes: object) -> MuonSpec:
    """What the converter reads from the arguments that the trainer saves."""
    core = ("scale_mode", "coefficient_type", "extra_scale_factor", "fp32_matmul_prec")
    left = [f"muon_{name}" for name in (*core, "split_qkv")]
    settings = {k: v for k, v in training.optimizer.settings.items() if k not in left}
    decay = settings["weight_decay"]
    further = {"start_weight_decay": decay, "end_weight_decay": decay}
    read = from_megatron_args({**settings, **training.optimizer.rfc, **further})
    return read.replace(**changes)


def values(name: str, seed: int) -> np.ndarray:
    """float64; an embedding's gradient is large, so that the norm is clipped now and then."""
    generator = np.random.default_rng([seed, len(name), SHAPES[name][0]])
    return 0.1 * generator.standard_normal(SHAPES[name]) * (1 + seed % 3)


def trained(options: Options) -> list[Parameter]:
    parameters = [
        Parameter(
            name,
            torch.tensor(values(name, 0)),
            is_muon=len(shape) == 2 and "embedding" not in name,
            decays=not name.endswith(".bias"),
            blocks=blocks_of(options, name, CONFIG),
        )
        for name, shape in SHAPES.items()
    ]
    for count in range(STEPS):
        gradients = [torch.tensor(values(p.name, count + 1)) for p in parameters]
        step(options, parameters, gradients, RATE, count)
    return parameters


def expected(spec: MuonSpec, name: str, gradients: list[np.ndarray]) -> dict[str, np.ndarray]:
    if len(SHAPES[name]) == 2 and "embedding" not in name:
        blocks: Blocks | None = [np.array(rows) for rows in PARTS.get(name, [])] or None
        end: Trajectory = numpy_muon.trajectory(spec, values(name, 0), gradients, RATE, blocks)
        return {"weight": end.weight, "muon_buffer": end.buffer}
    shape = SHAPES[name]
    state = AdamState(values(name, 0), np.zeros(shape), np.zeros(shape))
    for count, gradient in enumerate(gradients):
        decays = not name.endswith(".bias")
        state = numpy_muon.adam_step(spec, state, gradient, RATE, count, decays)
    return {
        "weight": state.weight,
        "adamw_exp_avg": state.first,
        "adamw_exp_avg_sq": state.second,
    }


@pytest.mark.parametrize("nesterov", [True, False])
def test_twenty_steps_in_float64(nesterov: bool) -> None:
    options = options_of(TRAINING.replace(optimizer=Optimizer({"muon_nesterov": nesterov}, RFC)))
    spec = spec_of(TRAINING, nesterov=nesterov)
    assert spec.nesterov_style == "sgd"
    clipped = [
        numpy_muon.clip(spec, [values(name, count + 1) for name in SHAPES])
        for count in range(STEPS)
    ]
    worst = 0.0
    for place, parameter in enumerate(trained(options)):
        wanted = expected(spec, parameter.name, [step[place] for step in clipped])
        found = {"weight": parameter.tensor, **parameter.state}
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            worst = max(worst, float(np.abs(found[name].numpy() - value).max()))
    print(f"largest difference {worst:.1e}")
    assert worst <= limit("rfc_float64")


@pytest.mark.parametrize("change", ["split_head", "split_linear_fc1", "nesterov"])
def test_each_option_matters(change: str) -> None:
    """Otherwise the comparison above would not see it."""
    options = options_of(TRAINING)
    other = options_of(TRAINING.replace(optimizer=Optimizer(rfc=RFC | {f"muon_{change}": False})))
    pairs = zip(trained(options), trained(other), strict=True)
    assert max(float((a.tensor - b.tensor).abs().max()) for a, b in pairs) > 1e-3


def test_a_limit_of_one_is_no_batch_at_all() -> None:
    """Stacks only save time."""
    single = options_of(
        TRAINING.replace(optimizer=Optimizer(rfc=RFC | {"muon_batch_update": False}))
    )
    pairs = zip(trained(options_of(TRAINING)), trained(single), strict=True)
    for a, b in pairs:
        assert float((a.tensor - b.tensor).abs().max()) <= limit("rfc_float64")
