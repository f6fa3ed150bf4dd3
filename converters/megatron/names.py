"""What a key on disk means: which parameter, which state of it, which part.

A parameter's name on disk depends on the layer specification (Transformer Engine fuses norms into
the next linear layer), on the back end (wrappers, gate and up apart) and on the save options (one
expert per key). Every table here is over whole segments of a name.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from converters.source import State

# Stands for the layer's number in the name of a parameter whose tensor holds every layer.
EVERY_LAYER = "*"

STATES: dict[str, State] = {
    "fp32_param": State.MASTER,
    "param": State.MASTER,  # the distributed optimizer's word for it
    "momentum_buffer": State.MOMENTUM,
    "exp_avg": State.EXP_AVG,
    "exp_avg_sq": State.EXP_AVG_SQ,
    # Moonshot's optimizer, which is Muon and Adam in one.
    "muon_buffer": State.MOMENTUM,
    "adamw_exp_avg": State.EXP_AVG,
    "adamw_exp_avg_sq": State.EXP_AVG_SQ,
}
# States whose buffer accumulates gradients instead of averaging them.
SUM_BUFFERS = ("muon_buffer",)
# Parameters of the model that no optimizer owns.
BUFFERS = ("mlp.router.expert_bias",)

_STATE = re.compile(r"(?:chained_\d+\.)*optimizer\.state\.([a-z0-9_]+)\.(.+)")
# Wrappers around the model: distributed data parallel, Float16Module, a state dict's own key.
_WRAPPERS = ("model", "module")
_LEAF = re.compile(r"(weight|bias)(\d*)(?:_([wv]))?")

# Norms that a fused linear layer owns, under the name they have alone.
_FUSED_NORMS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("self_attention", "linear_qkv"): ("input_layernorm",),
    ("self_attention", "linear_qkv_down_proj"): ("input_layernorm",),
    ("self_attention", "linear_q_up_proj"): ("self_attention", "q_layernorm"),
    ("self_attention", "linear_kv_up_proj"): ("self_attention", "kv_layernorm"),
    ("mlp", "linear_fc1"): ("pre_mlp_layernorm",),
}
_POST_NORMS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("self_attention", "linear_proj", "post_layernorm"): ("post_self_attn_layernorm",),
    ("mlp", "linear_fc2", "post_layernorm"): ("post_mlp_layernorm",),
}


class Name(NamedTuple):
    """The meaning of a model key.

    Attributes:
      parameter: canonical name (``converters.source``), ``decoder.layers.*.<suffix>`` if the tensor
        has every layer on its first axis.
      expert: number of the only expert in the tensor; None if it holds all, or is no expert.
      half: 0 for the gate's rows of ``linear_fc1`` alone, 1 for the up rows; None for both.
    """

    parameter: str
    expert: int | None = None
    half: int | None = None

    @property
    def is_stacked(self) -> bool:
        return f".{EVERY_LAYER}." in self.parameter

    def of_layer(self, number: int) -> str:
        """The parameter's name in one layer."""
        return self.parameter.replace(f".{EVERY_LAYER}.", f".{number}.", 1)


def split_state(key: str) -> tuple[str, str] | None:
    """``(state, model key)`` of an optimizer's tensor, None for any other key.

    ``chained_0.optimizer.state.exp_avg.output_layer.weight`` gives
    ``("exp_avg", "output_layer.weight")``.
    """
    match = _STATE.fullmatch(key)
    return (match[1], match[2]) if match else None


def parse(model_key: str) -> Name:
    """The meaning of a key of the model, in any spelling; unknown suffixes are kept as they are."""
    segments = tuple(model_key.split("."))
    while len(segments) > 1 and segments[0] in _WRAPPERS:
        segments = segments[1:]
    home, suffix = _home(segments)
    if not suffix:
        return Name(model_key)
    suffix, expert, half = _inside(_norm(suffix))
    return Name(".".join((*home, *suffix)), expert, half)


def _home(segments: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The layer that a parameter is in, with its number, and the rest."""
    if segments[:2] == ("decoder", "layers") and len(segments) > 2:
        if segments[2].isdecimal():
            return segments[:3], segments[3:]
        return (*segments[:2], EVERY_LAYER), segments[2:]
    if segments[:2] == ("mtp", "layers") and len(segments) > 3:
        if segments[3] in ("transformer_layer", "mtp_model_layer"):
            return (*segments[:3], "transformer_layer"), segments[4:]
        return segments[:3], segments[3:]
    return (), segments


def _norm(suffix: tuple[str, ...]) -> tuple[str, ...]:
    owner, leaf = suffix[:-1], suffix[-1]
    if leaf in ("layer_norm_weight", "layer_norm_bias") and owner in _FUSED_NORMS:
        return (*_FUSED_NORMS[owner], leaf.removeprefix("layer_norm_"))
    return (*_POST_NORMS[owner], leaf) if owner in _POST_NORMS else suffix


def _inside(suffix: tuple[str, ...]) -> tuple[tuple[str, ...], int | None, int | None]:
    """Suffix without the number of an expert and without the mark of a half."""
    match = _LEAF.fullmatch(suffix[-1])
    if match is None:
        return suffix, None, None
    kind, number, letter = match.groups()
    owner, expert = suffix[:-1], None
    if owner[:2] == ("mlp", "experts"):
        owner, expert = _expert(owner)
        if number and expert is None:
            # Grouped matrices are numbered where the others are not.
            expert, number = int(number), ""
    if number or (letter and owner[-1:] != ("linear_fc1",)):
        return suffix, None, None
    return (*owner, kind), expert, "wv".index(letter) if letter else None


def _expert(owner: tuple[str, ...]) -> tuple[tuple[str, ...], int | None]:
    """``mlp.experts.[experts|local_experts.][<number>.]rest``, without what is in brackets."""
    inner = owner[2:]
    if inner[:1] in (("experts",), ("local_experts",)):
        inner = inner[1:]
    if inner[:1] and inner[0].isdecimal():
        return (*owner[:2], *inner[1:]), int(inner[0])
    return (*owner[:2], *inner), None
