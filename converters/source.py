"""A Megatron run as one table: every parameter once, by one name, whichever ranks wrote it.

All readers end here and all families start here. A parameter has the name that a GPTModel gives it
in a single process, with the layer's global number and without fusions that only exist on disk:

    embedding.word_embeddings.weight          [padded vocabulary, hidden]
    embedding.position_embeddings.weight      [positions, hidden]
    decoder.final_layernorm.weight            [hidden]
    output_layer.weight                       [padded vocabulary, hidden], absent when tied
    decoder.layers.<n>.<suffix>               n counts from 0 over the whole model
    mtp.layers.<k>.{enorm,hnorm,final_layernorm}.weight, mtp.layers.<k>.eh_proj.weight
    mtp.layers.<k>.transformer_layer.<suffix>

Suffixes, each parameter under exactly one of them:

    input_layernorm.weight                    however the norm was fused into the next linear layer
    pre_mlp_layernorm.weight
    post_self_attn_layernorm.weight, post_mlp_layernorm.weight          (gemma)
    self_attention.linear_qkv.{weight,bias}   rows per query group: queries, [gate,] key, value
    self_attention.linear_proj.{weight,bias}
    self_attention.{q,k}_layernorm.weight     per head; of MLA: q_layernorm, kv_layernorm
    self_attention.core_attention.softmax_offset
    self_attention.{linear_q_proj,linear_q_down_proj,linear_q_up_proj}.weight
    self_attention.{linear_kv_down_proj,linear_kv_up_proj}.weight
    mlp.linear_fc1.{weight,bias}              [2 ffn, hidden], all gate rows before all up rows
    mlp.linear_fc2.{weight,bias}
    mlp.router.{weight,bias,expert_bias}
    mlp.experts.linear_fc1.{weight,bias}      [experts, 2 ffn, hidden], every expert of the layer
    mlp.experts.linear_fc2.{weight,bias}      [experts, hidden, ffn]
    mlp.shared_experts.linear_fc{1,2}.weight, mlp.shared_experts.gate_weight

Suffixes that no reader knows pass through unchanged; a family either has a row for them or refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from converters.megatron.run import Run

Array = NDArray[Any]
MomentumConvention = Literal["ema", "sum"]


class State(Enum):
    """What is kept about a parameter; values are Megatron's names on disk."""

    WEIGHT = "weight"
    MASTER = "fp32_param"
    MOMENTUM = "momentum_buffer"
    EXP_AVG = "exp_avg"
    EXP_AVG_SQ = "exp_avg_sq"


class Key(NamedTuple):
    """One tensor of a run."""

    parameter: str
    state: State

    def __str__(self) -> str:
        return f"{self.parameter} ({self.state.value})"


@dataclass(frozen=True)
class SourceTensor:
    """A tensor that can be read, and where it lies.

    Attributes:
      shape: of the whole tensor, all ranks together.
      dtype: NumPy's; bfloat16 is ``ml_dtypes.bfloat16``.
      origin: keys and files it is read from, for messages and the report.
      load: reads it. The array may be a read-only view of mapped files: copy before writing, and
        slice before copying. Raises CheckpointError if the bytes are missing or damaged.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    origin: tuple[str, ...]
    load: Callable[[], Array]


class SetAside(NamedTuple):
    """Something in the checkpoint that is no parameter, and why it is not converted."""

    name: str
    reason: str


@dataclass(frozen=True)
class Source:
    """An open Megatron checkpoint: names, shapes and arguments; no tensor has been read.

    Attributes:
      folder: ``iter_XXXXXXX``.
      format: ``torch_dist``, ``torch``, ``torch_dcp`` or ``fsdp_dtensor``, with the variant of the
        optimizer state where that has one (``torch_dist+dp_reshardable``).
      run: arguments, iteration, optimizer groups, schedule.
      tensors: by parameter and state, layers in order.
      momentum: convention of MOMENTUM where the format itself tells (``muon_buffer`` is a sum);
        None leaves it to the run's arguments.
      set_aside: what was seen and left.
    """

    folder: Path
    format: str
    run: Run
    tensors: Mapping[Key, SourceTensor]
    momentum: MomentumConvention | None
    set_aside: tuple[SetAside, ...]
