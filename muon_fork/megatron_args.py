"""MuonSpec from the arguments a Megatron run saved in its checkpoint.

Megatron's command line and its configuration classes disagree about defaults (momentum 0.9 or
0.95, Nesterov off or on), and names changed over the releases. So nothing is defaulted here: each
field is read, or known from the arithmetic of the implementation that the arguments belong to, or
it is an error that names the flag. Standard library only.

Two dialects are read: Megatron-Core 0.16.1 and later (``--muon-scale-mode``), and the Moonshot
lineage (``--muon-matched-adamw-rms``; Megatron-LM pull request 1428 and RFC-0023).
"""

from __future__ import annotations

import argparse
import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .megatron_refusals import refuse_unmatched
from .spec import MuonSpec, SpecError

logger = logging.getLogger(__name__)

Args = argparse.Namespace | Mapping[str, Any]

_MISSING = object()
_KINDS: dict[str, tuple[type, ...]] = {"bool": (bool,), "int": (int,), "float": (int, float)}
_OPTIONS = ("allow_blockwise_tp",)


@dataclass(frozen=True)
class Argument:
    """Where one spec field stands in the arguments.

    ``names`` are tried in order (newest release first); ``flag`` is what the error tells the user.
    """

    field: str
    names: tuple[str, ...]
    flag: str


COMMON: tuple[Argument, ...] = (
    # momentum_beta: as Megatron-Core 0.16 names it in its parameter groups.
    Argument("beta", ("muon_momentum", "momentum_beta"), "--muon-momentum"),
    Argument("nesterov", ("muon_nesterov", "muon_use_nesterov"), "--muon-nesterov"),
    Argument("num_ns_steps", ("muon_num_ns_steps", "muon_ns_steps"), "--muon-num-ns-steps"),
    Argument("weight_decay", ("weight_decay",), "--weight-decay"),
    Argument("adam_weight_decay", ("weight_decay",), "--weight-decay"),
    Argument("adam_b1", ("adam_beta1",), "--adam-beta1"),
    Argument("adam_b2", ("adam_beta2",), "--adam-beta2"),
    Argument("adam_eps", ("adam_eps",), "--adam-eps"),
    Argument("clip_grad", ("clip_grad",), "--clip-grad"),
)

CORE: tuple[Argument, ...] = (
    *COMMON,
    Argument("coefficient_type", ("muon_coefficient_type",), "--muon-coefficient-type"),
    Argument("scale_mode", ("muon_scale_mode",), "--muon-scale-mode"),
    Argument("extra_scale_factor", ("muon_extra_scale_factor",), "--muon-extra-scale-factor"),
    Argument("split_qkv", ("muon_split_qkv",), "--muon-no-split-qkv"),
    Argument("ns_dtype", ("muon_fp32_matmul_prec",), "--muon-fp32-matmul-prec"),
)

MOONSHOT: tuple[Argument, ...] = (
    *COMMON,
    Argument("extra_scale_factor", ("muon_matched_adamw_rms",), "--muon-matched-adamw-rms"),
)

# Flags that say "no" where a release does not have them yet.
OPTIONAL: tuple[Argument, ...] = (
    Argument("apply_wd_to_qk_layernorm", ("apply_wd_to_qk_layernorm",), ""),
    Argument(
        "weight_decay_norm_params",
        ("muon_weight_decay_norm_params", "weight_decay_norm_params"),
        "",
    ),
    Argument("split_head", ("muon_split_head",), ""),
    Argument("split_linear_fc1", ("muon_split_linear_fc1",), ""),
)

# Fields of the AdamW branch alone: what a run without Muon has to say.
ADAM: tuple[Argument, ...] = tuple(
    row for row in COMMON if row.field not in ("beta", "nesterov", "num_ns_steps")
)

# What the arguments do not say because the implementation has no choice there.
_EVERY_MEGATRON: dict[str, Any] = {
    "bias_correction": False,
    "ns_eps": 1e-7,
    "adam_nesterov": False,
    "adam_eps_root": 0.0,
    "decay_all_adam_params": False,
    "include_routers": True,
    "all_matrices": True,
    "split_attention_gate": True,
    "unfold_scaled_weights": True,
    "split_mla_up_proj": False,
    "adam_decay_style": "subtract",
}
_CORE_FIXED: dict[str, Any] = {
    **_EVERY_MEGATRON,
    "nesterov_style": "ema",
    "ns_eps_mode": "floor",
    "decay_style": "subtract",
}
_MOONSHOT_FIXED: dict[str, Any] = {
    **_EVERY_MEGATRON,
    "nesterov_style": "sgd",
    "ns_eps_mode": "add",
    "coefficient_type": "simple",
    "ns_dtype": "bfloat16",
    "cast_before_norm": True,
    "ns_rounding": "elementwise",
    "scale_mode": "consistent_rms",
    "decay_style": "factor",
    "adam_decay_style": "factor",
}
_ADAM_DECAY = (
    "adam_decay_style is not in the arguments: subtract, as in FusedAdam; pass "
    "adam_decay_style=factor for a run without Apex and Transformer Engine, whose AdamW is torch's"
)

# emerging-optimizers runs Newton-Schulz in bfloat16 at "medium" only. torch has no "low": it warns
# and keeps the precision it had, float32 unless somebody changed it.
_NS_DTYPES = {"medium": "bfloat16", "high": "float32", "highest": "float32", "low": "float32"}


def from_megatron_args(args: Args, **overrides: Any) -> MuonSpec:
    """The MuonSpec of a Megatron run.

    Args:
      args: the ``args`` entry of a checkpoint, as a Namespace or a mapping.
      **overrides: spec fields that take precedence over the arguments (``ns_eps=1e-15`` for
        emerging-optimizers 0.4 and later), and ``allow_blockwise_tp``.

    Raises:
      SpecError: a field is not settled, a value is of the wrong type, or the run does something
        that this optimizer does not compute; the message names the flag, the value and the remedy.
    """
    spec, notes = settle(args, overrides)
    for note in notes:
        logger.info(note)
    return spec


def settle(args: Args, overrides: Mapping[str, Any]) -> tuple[MuonSpec, tuple[str, ...]]:
    """As ``from_megatron_args``, with the list of everything that was assumed and why."""
    values = dict(vars(args)) if isinstance(args, argparse.Namespace) else dict(args)
    chosen = checked_overrides(overrides)
    notes: list[str] = []
    refuse_unmatched(values, bool(overrides.get("allow_blockwise_tp", False)), notes)
    adam = values["optimizer"] == "adam"
    if chosen.get("adam_only", adam) != adam:
        raise SpecError(
            f"adam_only={not adam}, but optimizer={values['optimizer']!r} in the arguments: the "
            "optimizer's state decides which of the two goes on"
        )
    if adam:
        return _settle_adam(values, chosen, notes)
    moonshot = _is_moonshot(values)
    settled: dict[str, Any] = dict(_MOONSHOT_FIXED if moonshot else _CORE_FIXED)
    if not moonshot:
        _settle_release(values, settled, notes)
    for argument in MOONSHOT if moonshot else CORE:
        if argument.field not in chosen and argument.field not in settled:
            settled[argument.field] = _read(values, argument)
    _settle_optional(values, settled)
    _note_assumptions(values, moonshot, settled, chosen, notes)
    if not moonshot and "ns_dtype" not in chosen:
        settled["ns_dtype"] = _ns_dtype(settled["ns_dtype"], notes)
    return MuonSpec(**{**settled, **chosen}), tuple(notes)


def _settle_adam(
    values: Mapping[str, Any], chosen: Mapping[str, Any], notes: list[str]
) -> tuple[MuonSpec, tuple[str, ...]]:
    """A run with ``--optimizer adam``; fields of Muon keep MuonSpec's defaults and do nothing."""
    settled: dict[str, Any] = {
        argument.field: _read(values, argument) for argument in ADAM if argument.field not in chosen
    }
    # Megatron's norms, unless told otherwise, and biases do not decay.
    fixed = ("adam_nesterov", "adam_eps_root", "decay_all_adam_params", "unfold_scaled_weights")
    settled |= {name: _EVERY_MEGATRON[name] for name in fixed} | {"adam_only": True}
    for argument in OPTIONAL:
        if "decay" in argument.field or "wd" in argument.field:
            present = any(values.get(name) is not None for name in argument.names)
            settled[argument.field] = _read(values, argument) if present else False
    notes.append("optimizer=adam: opt_type=muon with every parameter in its AdamW branch")
    notes += [] if "adam_decay_style" in chosen else [_ADAM_DECAY]
    return MuonSpec(**{**settled, **chosen}), tuple(notes)


def read_args_file(path: str | Path) -> dict[str, Any]:
    """Arguments from a JSON file: one object, argument name to plain value.

    Raises:
      SpecError: the file cannot be read, is not JSON, or is not an object; file and line are named.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not a text file (byte {error.start}); expected JSON") from error
    except json.JSONDecodeError as error:
        raise SpecError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    if not isinstance(content, dict):
        raise SpecError(f"{path}: expected a JSON object of Megatron arguments")
    nested = content.get("args")
    return dict(nested) if isinstance(nested, dict) else content


def checked_overrides(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The MuonSpec fields among ``overrides``, each of its type and by itself admissible.

    Raises:
      SpecError: an unknown name, or a value of another type or outside its choices.
    """
    known = {field.name for field in fields(MuonSpec)}
    unknown = sorted(set(overrides) - known - set(_OPTIONS))
    if unknown:
        raise SpecError(
            f"unknown override {', '.join(unknown)}: expected a MuonSpec field or "
            f"{', '.join(_OPTIONS)}"
        )
    chosen = {name: value for name, value in overrides.items() if name in known}
    typed = {name: _override(name, value) for name, value in chosen.items()}
    for name, value in typed.items():
        _require_admissible(name, value)
    return typed


def _require_admissible(name: str, value: Any) -> None:
    # Heads are split within projections: alone the one field would not stand.
    needed = {"split_qkv": True} if name == "split_head" else {}
    MuonSpec().replace(**{**needed, name: value})


def _override(name: str, value: Any) -> Any:
    # As the spec has it, which is not what Megatron's flag says.
    return value if name == "ns_dtype" else _typed(name, value, name)


def _is_moonshot(values: Mapping[str, Any]) -> bool:
    if values.get("muon_matched_adamw_rms") is None:
        return False
    core = [name for name in ("muon_scale_mode", "muon_coefficient_type") if name in values]
    if core:
        raise SpecError(
            f"muon_matched_adamw_rms={values['muon_matched_adamw_rms']!r} next to "
            f"{', '.join(core)}: two Muons are described; remove the arguments that the run's "
            "optimizer did not read"
        )
    return True


def _settle_release(values: Mapping[str, Any], settled: dict[str, Any], notes: list[str]) -> None:
    """What Megatron-Core 0.16.1 did not let its user choose."""
    if "muon_coefficient_type" in values or "muon_use_nesterov" not in values:
        return
    steps = values.get("muon_num_ns_steps")
    if isinstance(steps, int) and steps % 5:
        raise SpecError(
            f"muon_num_ns_steps={steps} without muon_coefficient_type: Megatron-Core 0.16 knows "
            "only the quintic set and takes multiples of 5; pass --muon-coefficient-type"
        )
    settled["coefficient_type"] = "quintic"
    notes.append("no muon_coefficient_type: Megatron-Core 0.16, which always uses quintic")


def _settle_optional(values: Mapping[str, Any], settled: dict[str, Any]) -> None:
    for argument in OPTIONAL:
        present = any(values.get(name) is not None for name in argument.names)
        settled[argument.field] = _read(values, argument) if present else False
    if "split_qkv" not in settled:
        # Without the flag for heads, the Moonshot lineage orthogonalises the fused projection.
        settled["split_qkv"] = settled["split_head"]
    for name in ("batch_update", "batch_update_size"):
        if values.get(f"muon_{name}") is not None:
            settled[name] = _read(values, Argument(name, (f"muon_{name}",), ""))


def _note_assumptions(
    values: Mapping[str, Any],
    moonshot: bool,
    settled: dict[str, Any],
    chosen: Mapping[str, Any],
    notes: list[str],
) -> None:
    if "ns_eps" not in chosen and not moonshot:
        notes.append(
            "ns_eps is not recorded: 1e-7, that of emerging-optimizers up to 0.3.1; pass "
            "ns_eps=1e-15 for 0.4 and later"
        )
    if "adam_decay_style" not in chosen and not moonshot:
        notes.append(_ADAM_DECAY)
    if moonshot:
        notes.append(
            "muon_matched_adamw_rms: Moonshot lineage, so momentum is a sum, coefficients are "
            "simple and Newton-Schulz runs in bfloat16"
        )
        if values.get("multi_latent_attention") and settled["split_head"]:
            settled["split_mla_up_proj"] = True
            if "split_mla_up_proj" not in chosen:
                notes.append("MLA with muon_split_head: up-projections split into components")
    if values.get("attention_output_gate") and settled.get("split_qkv") is True:
        notes.append(
            "gated attention with muon_split_qkv: query and gate apart, as from Megatron-Core "
            "0.19; earlier releases split wrong rows and cannot be matched"
        )


def _ns_dtype(precision: Any, notes: list[str]) -> str:
    if precision not in _NS_DTYPES:
        raise SpecError(
            f"muon_fp32_matmul_prec={precision!r}: expected one of {', '.join(_NS_DTYPES)}"
        )
    if precision == "low":
        notes.append("muon_fp32_matmul_prec=low: torch ignores it, Newton-Schulz ran in float32")
    return _NS_DTYPES[precision]


def _read(values: Mapping[str, Any], argument: Argument) -> Any:
    for name in argument.names:
        value = values.get(name, _MISSING)
        if value is not _MISSING and value is not None:
            return _typed(name, value, argument.field)
    raise SpecError(
        f"the arguments do not say {argument.names[0]}: pass {argument.flag} as the run had it "
        f"(override {argument.field}=...)"
    )


def _typed(name: str, value: Any, field: str) -> Any:
    if field == "ns_dtype":
        return value
    kind = next(str(f.type) for f in fields(MuonSpec) if f.name == field)
    expected = _KINDS.get(kind, (str,))
    finite = not isinstance(value, float) or math.isfinite(value)
    if (
        not isinstance(value, expected)
        or (isinstance(value, bool) and kind != "bool")
        or not finite
    ):
        raise SpecError(f"{name}={value!r}: expected a {kind if kind in _KINDS else 'word'}")
    return float(value) if isinstance(value, int) and kind == "float" else value
