"""What a Megatron run may have done that no MuonSpec computes: refused with the reason.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .spec import SpecError


class Refusal(NamedTuple):
    """An argument, the values under which a run can be matched, and why the others cannot."""

    name: str
    matched: tuple[Any, ...]
    why: str


REFUSALS: tuple[Refusal, ...] = (
    Refusal("use_mup", (False,), "MuP scales learning rates and initialisation per parameter"),
    Refusal("muon_scalar_optimizer", ("adam",), "the other branch of muon() is AdamW"),
    Refusal("decoupled_weight_decay", (True,), "decay is no part of the gradient here"),
    Refusal("decoupled_lr", (), "embedding and output layer would need their own learning rate"),
    Refusal("lr_mult", (1, 1.0), "parameter groups would need their own learning rate"),
    Refusal("head_lr_mult", (1, 1.0), "parameter groups would need their own learning rate"),
    Refusal("weight_decay_incr_style", ("constant",), "weight decay is a constant here"),
    Refusal("no_weight_decay_cond_type", (), "the decay mask knows only Megatron's standard rule"),
    Refusal("qk_clip", (False,), "QK-clip changes query and key weights after the step"),
    Refusal("apply_muon_qk_clip", (False,), "QK-clip changes query and key weights after the step"),
    Refusal(
        "moe_use_legacy_grouped_gemm",
        (False,),
        "all local experts were orthogonalised as one matrix",
    ),
    Refusal(
        "mla_down_proj_fusion",
        (False,),
        "query and key-value down-projections were orthogonalised as one matrix",
    ),
)

# Refusals that do not concern a run without Muon.
_OF_MUON = (
    "muon_scalar_optimizer",
    "moe_use_legacy_grouped_gemm",
    "mla_down_proj_fusion",
)

_ALIASES = {
    "dist_muon": "optimizer=dist_muon: the layer-wise spelling of muon, same arithmetic",
}
_WHOLE_MATRIX_MODES = ("duplicated", "distributed")


def refuse_unmatched(values: Mapping[str, Any], allow_blockwise: bool, notes: list[str]) -> None:
    """Raise SpecError if the run cannot be matched; add to ``notes`` what was let through.

    An argument that is absent or None was not used.
    """
    _check_optimizer(values, notes)
    adam = values["optimizer"] == "adam"
    for refusal in REFUSALS:
        if adam and refusal.name in _OF_MUON:
            continue
        value = values.get(refusal.name)
        if value is not None and value not in refusal.matched:
            raise SpecError(f"{refusal.name}={value!r} cannot be matched: {refusal.why}")
    start, end = values.get("start_weight_decay"), values.get("end_weight_decay")
    if start != end:
        raise SpecError(
            f"start_weight_decay={start!r}, end_weight_decay={end!r} cannot be matched: weight "
            "decay is a constant here"
        )
    if not adam:
        _check_tensor_parallel(values, allow_blockwise, notes)


def _check_optimizer(values: Mapping[str, Any], notes: list[str]) -> None:
    optimizer = values.get("optimizer")
    if optimizer is None:
        raise SpecError("the arguments do not say optimizer: pass --optimizer muon if it was Muon")
    if optimizer in _ALIASES:
        notes.append(_ALIASES[optimizer])
    elif optimizer not in ("muon", "adam"):
        reason = (
            "it rescales the orthogonalised update by a second moment"
            if optimizer == "adaptive_muon"
            else "the run trained neither with Muon nor with Adam"
        )
        raise SpecError(f"optimizer={optimizer!r} cannot be matched: {reason}")


def _check_tensor_parallel(values: Mapping[str, Any], allow: bool, notes: list[str]) -> None:
    names = ("tensor_model_parallel_size", "expert_tensor_parallel_size")
    sizes = {name: values[name] for name in names if values.get(name) not in (None, 1)}
    if not sizes:
        return
    seen = ", ".join(f"{name}={size}" for name, size in sizes.items())
    mode = values.get("muon_tp_mode")
    if mode is None:
        raise SpecError(f"{seen} without muon_tp_mode: pass --muon-tp-mode as the run had it")
    if mode in _WHOLE_MATRIX_MODES:
        return
    if not allow:
        raise SpecError(
            f"muon_tp_mode={mode!r} with {seen} cannot be matched: each rank orthogonalised its "
            "own shard. Continue with whole matrices by allow_blockwise_tp=True, which is another "
            "optimizer than the run had"
        )
    notes.append(f"muon_tp_mode={mode} with {seen}: shards then, whole matrices from now on")
