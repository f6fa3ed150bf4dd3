"""Megatron's learning-rate schedule as MaxText's keys.

Both count steps from 0, warm up linearly from 0 and then decay. MaxText's decay over n steps
reaches its end at step n - 1, so its schedule is one step longer than Megatron's
``lr_decay_iters``; past it, MaxText's rate is 0 where Megatron stays at ``min_lr``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_COSINE: dict[str, Any] = {"lr_schedule_type": "cosine"}
# A cosine from the peak to the peak is computed, in float32, and may round to a neighbour.
_STABLE: dict[str, Any] = {"lr_schedule_type": "wsd", "wsd_decay_steps_fraction": 0.0}


def schedule_config(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Keys, and what of the schedule they do not reproduce."""
    rate, least = arguments.get("lr"), arguments.get("min_lr") or 0.0
    if rate is None:
        return {}, ("the arguments have no lr: set learning_rate and its schedule yourself",)
    notes: list[str] = []
    style = str(arguments.get("lr_decay_style", "linear"))
    train = arguments.get("train_iters")
    decay = arguments.get("lr_decay_iters") or train
    if not train or not decay:
        notes.append("no train_iters (a run by samples): steps and the decay are left to you")
        return {"learning_rate": float(rate)}, tuple(notes)
    if arguments.get("lr_warmup_init"):
        notes.append(f"lr_warmup_init={arguments['lr_warmup_init']}: MaxText warms up from 0")
    warmup = _warmup(arguments, int(decay))
    config: dict[str, Any] = {"learning_rate": float(rate), "steps": int(train)}
    if style == "constant":
        # At the peak after warm-up; past its schedule MaxText would train at rate 0.
        length = max(int(train), int(decay), warmup + 1)
        final, shape = 1.0, _STABLE
    else:
        length, final = int(decay) + 1, float(least) / float(rate)
        shape = _shape(style, arguments, length, warmup, notes)
        if int(train) > length:
            notes.append(
                f"train_iters={train} exceeds lr_decay_iters={decay}: MaxText's rate is 0 from "
                f"step {length} on, Megatron's stays {least}"
            )
    config |= {
        **shape,
        "learning_rate_schedule_steps": length,
        "warmup_steps_fraction": fraction(warmup, length),
        "learning_rate_final_fraction": final,
    }
    return config, tuple(notes)


def _warmup(arguments: Mapping[str, Any], decay: int) -> int:
    share = arguments.get("lr_warmup_fraction")
    if share:
        return int(share * decay)
    return int(arguments.get("lr_warmup_iters") or 0)


def _shape(
    style: str, arguments: Mapping[str, Any], length: int, warmup: int, notes: list[str]
) -> dict[str, Any]:
    if style == "cosine":
        return dict(_COSINE)
    if style == "linear":
        return _decay("linear", length - warmup, length)
    kind = arguments.get("lr_wsd_decay_style")
    steps = arguments.get("lr_wsd_decay_iters")
    if style == "WSD" and kind in ("linear", "cosine") and steps:
        return _decay(str(kind), int(steps) + 1, length)
    which = f"lr_decay_style={style}" + (f" with {kind}" if style == "WSD" else "")
    notes.append(f"{which}: MaxText has no such decay, the keys give cosine instead")
    return dict(_COSINE)


def _decay(kind: str, steps: int, length: int) -> dict[str, Any]:
    return {
        "lr_schedule_type": "wsd",
        "wsd_decay_style": kind,
        "wsd_decay_steps_fraction": fraction(steps, length),
    }


def fraction(part: int, whole: int) -> float:
    """f with ``int(whole * f) == part``, by which MaxText takes its share of steps."""
    exact = part / whole
    return exact if int(whole * exact) == part else (part + 0.5) / whole
