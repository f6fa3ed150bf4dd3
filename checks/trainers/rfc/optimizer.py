"""The algorithm as an optimizer that Megatron's training loop and checkpoints take."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from checks.references.matrices import Blocks, Qkv, component_rows
from checks.trainers.megatron.building import inner
from checks.trainers.megatron.training import Training

from .algorithm import Options, Parameter, fresh_state, step

_PREFIX = "optimizer.state"


def parameters_of(options: Options, model: Any, config: Any) -> list[Parameter]:
    """Of a GPT: matrices but embedding and output layer are Muon's; biases never decay."""
    found = []
    for name, tensor in inner(model).named_parameters():
        outer = getattr(tensor, "is_embedding_or_output_parameter", False)
        is_muon = tensor.dim() == 2 and not outer
        decays = tensor.dim() > 1
        if tensor.dim() == 1 and not name.endswith(".bias"):
            decays = options.weight_decay_norm_params
        blocks = blocks_of(options, name, config) if is_muon else None
        found.append(Parameter(name, tensor, is_muon, decays, blocks))
    return found


def blocks_of(options: Options, name: str, config: Any) -> Blocks | None:
    if name.endswith("linear_qkv.weight") and options.split_head:
        queries = config.num_attention_heads // config.num_query_groups
        qkv = Qkv(config.num_query_groups, queries, config.kv_channels)
        return [
            head
            for rows in component_rows(qkv.groups, qkv.split_shapes())
            for head in rows.reshape(-1, qkv.head_dim)
        ]
    if name.endswith("linear_fc1.weight") and options.split_linear_fc1:
        is_expert = ".experts." in name
        ffn = config.moe_ffn_hidden_size if is_expert else config.ffn_hidden_size
        return component_rows(1, (ffn, ffn))
    if options.split_head and config.multi_latent_attention:
        heads, plain = config.num_attention_heads, config.qk_head_dim
        if name.endswith(("linear_q_up_proj.weight", "linear_q_proj.weight")):
            return component_rows(heads, (plain, config.qk_pos_emb_head_dim))
        if name.endswith("linear_kv_up_proj.weight"):
            return component_rows(heads, (plain, config.v_head_dim))
    return None


class RfcOptimizer:
    """What Megatron's training loop and checkpoints ask of an optimizer, for one process."""

    def __init__(self, options: Options, parameters: Sequence[Parameter], lr: float) -> None:
        self.options = options
        self.parameters = list(parameters)
        self.count = 0
        group = {"lr": lr, "max_lr": lr, "min_lr": lr, "wd_mult": 1.0, "lr_mult": 1.0}
        self.param_groups: list[dict[str, Any]] = [group | {"params": []}]

    def zero_grad(self) -> None:
        """Gradients are the model's buffers, which the loop clears."""

    def step(self) -> tuple[bool, float, None]:
        gradients: list[torch.Tensor] = [p.tensor.main_grad for p in self.parameters]  # type: ignore[attr-defined]
        learning_rate = float(self.param_groups[0]["lr"])
        norm = step(self.options, self.parameters, gradients, learning_rate, self.count)
        self.count += 1
        return bool(norm.isfinite()), float(norm), None

    def sharded_state_dict(
        self, model: Mapping[str, Any], is_loading: bool = False, metadata: Any = None
    ) -> dict[str, Any]:
        """Buffers under the names that this lineage has on disk; to load into, all of them."""
        from megatron.core.dist_checkpointing.optimizer import (
            get_param_id_to_sharded_param_map,
            make_sharded_optimizer_tensor,
        )

        if is_loading:
            for parameter in self.parameters:
                parameter.state = fresh_state(parameter)
        tensors = [parameter.tensor for parameter in self.parameters]
        places = get_param_id_to_sharded_param_map(model, iter(tensors))
        state = {
            number: {
                name: make_sharded_optimizer_tensor(places[number], buffer, f"{_PREFIX}.{name}")
                for name, buffer in parameter.state.items()
            }
            for number, parameter in enumerate(self.parameters)
        }
        groups = [{**group, "step": self.count} for group in self.param_groups]
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, loaded: Mapping[str, Any]) -> None:
        """Go on from what was loaded for ``sharded_state_dict``."""
        for number, parameter in enumerate(self.parameters):
            parameter.state = dict(loaded["state"][number])
        (group,) = loaded["param_groups"]
        self.count = int(group["step"])
        self.param_groups = [{name: group[name] for name in self.param_groups[0]}]


def options_of(training: Training) -> Options:
    """The run's arguments as options; the RFC's own have ``muon_`` in front."""
    known = {field.name for field in dataclasses.fields(Options)}
    told = {**training.optimizer.settings, **training.optimizer.rfc}
    short = {name.removeprefix("muon_"): value for name, value in told.items()}
    return Options(**{name: value for name, value in short.items() if name in known})


def rfc_optimizer(training: Training, model: Any, config: Any) -> RfcOptimizer:
    """For the run's model.

    Raises:
      ValueError: the run is shared between processes, which this reference does not do.
    """
    if training.layout.processes > 1:
        raise ValueError("the reference of RFC-0023 trains in one process")
    options = options_of(training)
    parameters = parameters_of(options, model, config)
    return RfcOptimizer(options, parameters, training.settings["lr"])
